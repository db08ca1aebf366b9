"""The private door: the only code that touches Spark's internals through py4j.

`open_door` answers None where a name it needs is missing; the caller then keeps to public PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

_KNOWN = ("4.3.",)
SUBPARTITION = "headgate_subpartition"
TIME_ZONE = "UTC"
_ORDERED = "DETERMINATE"
_REPEATABLE = (_ORDERED, "UNORDERED")
_RDD_ID = re.compile(r"\[(\d+)\] at ")  # as RDD.toDebugString has it
_CLASSES = {
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "types": "org.apache.spark.sql.types.DataTypes",
    "loader": "org.apache.spark.sql.api.r.SQLUtils",
    "alias": "org.apache.spark.sql.catalyst.expressions.Alias",
    "named": "org.apache.spark.sql.catalyst.expressions.NamedExpression",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "scan": "org.apache.spark.sql.execution.LogicalRDD",
}


@dataclass(frozen=True, slots=True)
class Lineage:
    """How far a map stage can be trusted to give the same rows when it runs again: `repeatable`, in
    whatever order, and `ordered`, in the same one too. `scans` are the RDDs that it reads."""

    ordered: bool = False
    repeatable: bool = False
    scans: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """What Spark itself would do with `df.repartition(n, keys)`, taken apart."""

    rows: DataFrame
    attributes: Any
    partitioning: Any


class CatalystDoor:
    def __init__(self, spark: SparkSession, classes: dict[str, Any]) -> None:
        self._spark = spark
        self._session = spark._jsparkSession
        self._classes = classes

    def exchange_plan(self, repartitioned: DataFrame, maps: bool) -> ExchangePlan:
        """The rows under a repartition, as c0, c1, …, and behind them Spark's own partition id."""
        query = repartitioned._jdf.queryExecution()
        node = query.analyzed()
        partitioning, child, session = node.partitioning(), node.child(), self._session
        if maps:
            partitioning, session = self._with_maps(query, partitioning)
        attributes = child.output()
        number = self._number(partitioning)
        carried = [self._alias(attributes.apply(at), f"c{at}") for at in range(attributes.size())]
        carried.append(self._alias(number, SUBPARTITION))
        project = self._classes["project"](self._seq(carried), child)
        rows = self._frame(self._classes["dataset"].ofRows(session, project))
        return ExchangePlan(rows, attributes, partitioning)

    def _with_maps(self, query: Any, partitioning: Any) -> tuple[Any, Any]:
        """Spark's optimizer sorts the maps in partition expressions, and only then hashes them;
        a session of our own lets the analyzer pass what the optimizer has made."""
        session = self._session.cloneSession()
        session.conf().set("spark.sql.legacy.allowHashOnMapType", "true")
        planned = query.optimizedPlan()
        kept = planned.getClass().getSimpleName() == "RepartitionByExpression"
        return (planned.partitioning() if kept else partitioning), session

    def _number(self, partitioning: Any) -> Any:
        """The expression of a row's partition; what needs none goes to the only one."""
        if partitioning.numPartitions() == 1:
            return self._classes["literal"](0, self._classes["types"].IntegerType)
        return partitioning.partitionIdExpression()

    def arrow_batches(self, rows: DataFrame, batch_rows: int) -> Any:
        """The rows as a JavaRDD of Arrow batches, each as bytes."""
        return rows._jdf.toArrowBatchRdd(batch_rows, TIME_ZONE, True, False).toJavaRDD()

    def lineage(self, rows: DataFrame, batches: Any) -> Lineage:
        """What Spark knows of a map stage; where it does not say, the stage is not trusted. The
        level of an RDD leaves out what its expressions do, which the plan tells."""
        try:
            level = batches.rdd().outputDeterministicLevel().toString()
            plan = rows._jdf.queryExecution().analyzed()
            repeatable = level in _REPEATABLE and plan.deterministic()
            return Lineage(repeatable and level == _ORDERED, repeatable, self._scans(plan))
        except Py4JError:
            return Lineage()

    def _scans(self, plan: Any) -> frozenset[int]:
        """The RDDs behind a plan's leaves, those of its subqueries too."""
        plans = [plan, *self._items(plan.subqueriesAll())]
        leaves = [leaf for one in plans for leaf in self._items(one.collectLeaves())]
        told = [leaf.rdd().toDebugString() for leaf in leaves if _is_scan(leaf)]
        return frozenset(int(number) for text in told for number in _RDD_ID.findall(text))

    def scan_of(self, frame: DataFrame) -> int:
        """The RDD that a frame of this door reads, as lineages tell it."""
        number: int = frame._jdf.queryExecution().analyzed().rdd().id()
        return number

    def _items(self, seq: Any) -> list[Any]:
        return [seq.apply(at) for at in range(seq.size())]

    def scan(self, batches: RDD[Any], schema: StructType, plan: ExchangePlan) -> DataFrame:
        """A DataFrame over Arrow batches whose attributes and partitioning Spark knows."""
        assert batches.getNumPartitions() == plan.partitioning.numPartitions(), "else rows go wrong"
        rows = self._load(batches, schema).queryExecution().analyzed().rdd()
        nothing, empty = self._nothing(), self._seq([])
        logical = self._classes["scan"](
            plan.attributes,
            rows,
            plan.partitioning,
            empty,
            False,
            nothing,
            self._session,
            nothing,
            nothing,
            False,
        )
        return self._frame(self._classes["dataset"].ofRows(self._session, logical))

    def load(self, batches: RDD[Any], schema: StructType) -> DataFrame:
        """A DataFrame over Arrow batches of whose partitioning Spark knows nothing."""
        return self._frame(self._load(batches, schema))

    def _load(self, batches: RDD[Any], schema: StructType) -> Any:
        java_schema = self._spark._jsparkSession.parseDataType(schema.json())
        return self._classes["loader"].toDataFrame(batches._jrdd, java_schema, self._session)

    def _alias(self, expression: Any, name: str) -> Any:
        number = self._classes["named"].newExprId()
        empty = self._seq([])
        return self._classes["alias"](expression, name, number, empty, self._nothing(), empty)

    def _nothing(self) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.scala.Option.empty()

    def _seq(self, items: list[Any]) -> Any:
        jvm: Any = self._spark._jvm
        java = jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()

    def _frame(self, jdf: Any) -> DataFrame:
        return DataFrame(jdf, self._spark)


def _is_scan(leaf: Any) -> bool:
    return bool(leaf.getClass().getSimpleName() == "LogicalRDD")


def open_door(spark: SparkSession) -> CatalystDoor | None:
    """The door into this session's JVM, None when it is not the one that we know."""
    if not spark.version.startswith(_KNOWN):
        return None
    jvm: Any = spark._jvm
    classes = {}
    for name, path in _CLASSES.items():
        found = jvm
        for part in path.split("."):
            found = getattr(found, part)
        if type(found).__name__ != "JavaClass":
            return None
        classes[name] = found
    return CatalystDoor(spark, classes)


def kill_task(context: SparkContext, task: int, reason: str) -> None:
    """End one task attempt without counting it as a failure; one that has ended is no error."""
    context._jsc.sc().killTaskAttempt(task, False, reason)


def put_first(context: SparkContext, stages: Collection[int]) -> None:
    """Let these stages have the next slots under Spark's FIFO scheduling, which otherwise serves
    older jobs first; under FAIR their pool has its share without it."""
    waiting = context._jsc.sc().taskScheduler().rootPool().schedulableQueue().toArray()
    for one in waiting:
        if one.getClass().getSimpleName() == "TaskSetManager" and one.stageId() in stages:
            getattr(one, "priority_$eq")(-1)
