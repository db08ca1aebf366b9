"""The private names of Spark that each feature needs, under short names.

A version of Spark that lacks a name loses the features that need it, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_CATALYST = "org.apache.spark.sql.catalyst."
_EXECUTION = "org.apache.spark.sql.execution."
_LOGICAL = f"{_CATALYST}plans.logical."
_PHYSICAL = f"{_CATALYST}plans.physical."
_EXPRESSIONS = f"{_CATALYST}expressions."


class Feature(StrEnum):
    ROWS = "rows"
    COMPILED = "compiled rows"
    QUERIES = "queries"
    ORDER = "order"
    COMMANDS = "commands"
    PAGES = "pages"
    SETTINGS = "settings"
    SCHEDULING = "scheduling"
    REPORT = "report"


Features = frozenset[Feature]


@dataclass(frozen=True, slots=True)
class Needs:
    """The names that a feature needs."""

    lost: str
    """The loss without the feature, as a user sees it."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """Full names of classes by their short names."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Full names of Scala's objects by their short names."""
    features: tuple[Feature, ...] = ()
    """Other features without which this one is off."""


NEEDS: Mapping[Feature, Needs] = {
    Feature.ROWS: Needs(
        "rows of exchanges go through mapInArrow, Spark does not know their partitioning, and runs "
        "the session's queries itself",
        {
            "class": "java.lang.Class",
            "list": "java.util.ArrayList",
            "alike": "java.util.HashMap",
            "unsafe": "sun.misc.Unsafe",
            "pairs": "org.apache.spark.api.java.JavaPairRDD",
            "python": "org.apache.spark.api.python.PythonRDD",
            "function": "org.apache.spark.api.python.SimplePythonFunction",
            "loader": "org.apache.spark.sql.api.r.SQLUtils",
            "alias": f"{_EXPRESSIONS}Alias",
            "column": f"{_EXPRESSIONS}AttributeReference",
            "literal": f"{_EXPRESSIONS}Literal",
            "decimal": f"{_EXPRESSIONS}MakeDecimal",
            "named": f"{_EXPRESSIONS}NamedExpression",
            "unscaled": f"{_EXPRESSIONS}UnscaledValue",
            "project": f"{_LOGICAL}Project",
            "repartition": f"{_LOGICAL}RepartitionByExpression",
            "unknown": f"{_PHYSICAL}UnknownPartitioning",
            "attributes": f"{_CATALYST}types.DataTypeUtils",
            "dataset": "org.apache.spark.sql.classic.Dataset",
            "sessions": "org.apache.spark.sql.classic.SparkSession",
            "columns": "org.apache.spark.sql.functions",
            "converter": "org.apache.spark.sql.connect.execution.SparkConnectPlanExecution",
            "scan": f"{_EXECUTION}LogicalRDD",
            "types": "org.apache.spark.sql.types.DataTypes",
            "metadata": "org.apache.spark.sql.types.Metadata",
            "option": "scala.Option",
            "failure": "scala.util.Failure",
        },
        {
            "core errors": "org.apache.spark.errors.SparkCoreErrors",
            "patterns": f"{_CATALYST}trees.TreePattern",
            "shown": f"{_EXECUTION}SparkPlanInfo",
            "nothing": "scala.None",
            "nil": "scala.collection.immutable.Nil",
            "tags": "scala.reflect.ClassTag",
        },
    ),
    Feature.COMPILED: Needs(
        "rows go to Python and back value by value, and Spark's pages show no volumes of tasks",
        {
            "bound": f"{_EXPRESSIONS}BoundReference",
            "evaluate": f"{_CATALYST}encoders.ExpressionEncoder$Deserializer",
            "text": f"{_EXPRESSIONS}codegen.CodeAndComment",
            "generated": f"{_EXPRESSIONS}codegen.GeneratedClass",
            "compiled": f"{_EXECUTION}WholeStageCodegenEvaluatorFactory",
            "input": "java.io.ByteArrayInputStream",
            "job": "org.apache.spark.rdd.AsyncRDDActions",
            "right": "scala.util.Right",
        },
        {
            "compiler": f"{_EXPRESSIONS}codegen.CodeGenerator",
            "metrics": f"{_EXECUTION}metric.SQLMetrics",
            "immutable map": "scala.collection.immutable.Map",
            "await": "scala.concurrent.Await",
            "duration": "scala.concurrent.duration.Duration",
        },
        (Feature.ROWS,),
    ),
    Feature.QUERIES: Needs(
        "Spark runs the session's queries itself",
        {
            "byte buffer": "java.nio.ByteBuffer",
            "same": "java.util.IdentityHashMap",
            "system": "java.lang.System",
            "weak": "java.lang.ref.WeakReference",
            "map sizes": "org.apache.spark.MapOutputStatistics",
            "bytes": "org.apache.spark.network.util.JavaUtils",
            "hash": f"{_EXPRESSIONS}Murmur3Hash",
            "order": f"{_EXPRESSIONS}SortOrder",
            "limit": f"{_LOGICAL}GlobalLimit",
            "local limit": f"{_LOGICAL}LocalLimit",
            "relation": f"{_LOGICAL}LocalRelation",
            "offset": f"{_LOGICAL}Offset",
            "answer": f"{_LOGICAL}ReturnAnswer",
            "sort": f"{_LOGICAL}Sort",
            "bounds": f"{_PHYSICAL}CoalescedBoundary",
            "coalesced": f"{_PHYSICAL}CoalescedHashPartitioning",
            "some": f"{_EXECUTION}LocalLimitExec",
            "made": f"{_EXECUTION}ProjectExec",
            "leaf": f"{_EXECUTION}RDDScanExec",
            "with settings": f"{_EXECUTION}SQLExecutionRDD",
            "sorted": f"{_EXECUTION}SortExec",
            "union": f"{_EXECUTION}UnionExec",
            "optimizer": f"{_EXECUTION}adaptive.AQEOptimizer",
            "broadcast stage": f"{_EXECUTION}adaptive.BroadcastQueryStageExec",
            "stage": f"{_EXECUTION}adaptive.LogicalQueryStage",
            "shuffle stage": f"{_EXECUTION}adaptive.ShuffleQueryStageExec",
            "exchange": f"{_EXECUTION}exchange.ShuffleExchangeExec",
            "map of one": "scala.collection.immutable.Map$Map1",
            "scala": "scala.jdk.javaapi.CollectionConverters",
        },
        {
            "ascending": f"{_EXPRESSIONS}Ascending",
            "nulls first": f"{_EXPRESSIONS}NullsFirst",
            "single": f"{_PHYSICAL}SinglePartition",
            "query errors": "org.apache.spark.sql.errors.QueryExecutionErrors",
            "observed": f"{_EXECUTION}CollectMetricsExec",
            "preparation": f"{_EXECUTION}QueryExecution",
            "valid": f"{_EXECUTION}adaptive.ValidateSparkPlan",
            "ensured": f"{_EXECUTION}exchange.ENSURE_REQUIREMENTS",
            "requirements": f"{_EXECUTION}exchange.ValidateRequirements",
            "only nulls": f"{_EXECUTION}joins.HashedRelationWithAllNullKeys",
        },
        (Feature.ROWS,),
    ),
    Feature.ORDER: Needs(
        "exchanges for an order stay in Spark",
        {
            "xor": f"{_EXPRESSIONS}BitwiseXor",
            "bound": f"{_EXPRESSIONS}BoundReference",
            "struct": f"{_EXPRESSIONS}CreateStruct",
            "shift": f"{_EXPRESSIONS}ShiftRight",
            "ordering": f"{_EXPRESSIONS}codegen.LazilyGeneratedOrdering",
            "call": f"{_EXPRESSIONS}objects.StaticInvoke",
            "ranges": f"{_PHYSICAL}RangePartitioning",
            "object": "org.apache.spark.sql.types.ObjectType",
            "array": "scala.collection.immutable.ArraySeq",
        },
        {"numbers": "scala.collection.immutable.Range"},
        (Feature.QUERIES,),
    ),
    Feature.COMMANDS: Needs(
        "Spark runs SQL commands that write or cache rows itself",
        {"version 2": f"{_LOGICAL}V2WriteCommand"},
        {"command modes": f"{_EXECUTION}CommandExecutionMode"},
        (Feature.QUERIES,),
    ),
    Feature.PAGES: Needs(
        "Spark's SQL page does not show the exchanges of queries",
        {"methods": "org.apache.commons.lang3.reflect.MethodUtils"},
        {
            "executions": f"{_EXECUTION}SQLExecution",
            "json": "org.apache.spark.util.JsonProtocol",
        },
    ),
    Feature.SETTINGS: Needs(
        "jobs of exchanges begin later, and the tags of a session do not end them",
    ),
    Feature.SCHEDULING: Needs(
        "lost partitions are made again only when a task slot is free",
        {
            "text": f"{_EXPRESSIONS}codegen.CodeAndComment",
            "generated": f"{_EXPRESSIONS}codegen.GeneratedClass",
        },
        {
            "compiler": f"{_EXPRESSIONS}codegen.CodeGenerator",
            "immutable map": "scala.collection.immutable.Map",
        },
    ),
    Feature.REPORT: Needs(
        "reports neither count Spark's own shuffles nor say what keeps executors",
        {"environment": "org.apache.spark.SparkEnv"},
        {"configuration": "org.apache.spark.internal.config.package"},
    ),
}
CLASSES = {short: path for needs in NEEDS.values() for short, path in needs.classes.items()}
OBJECTS = {short: path for needs in NEEDS.values() for short, path in needs.objects.items()}
