"""The private door: with `physical.py`, `stated.py`, `places.py`, `walk.py`, `numbering.py`,
`operators.py`, `caches.py`, `task_settings.py` and `jvm.py` behind it, the only code that touches
Spark's internals through py4j.

`open_door` answers None where a name it needs is missing or batches cannot be made; the caller then
keeps to public PySpark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DecimalType, StructType

from ..tasks.worker import SUBPARTITION
from ..types import is_small
from ..versions import Version, version_of
from .bridge import Jvm, name_of

_SCANS = ("LogicalRDD", "RDDScanExec")
_ORDERED = "DETERMINATE"
_REPEATABLE = (_ORDERED, "UNORDERED")
_RDD_ID = re.compile(r"\[(\d+)\] at ")  # as RDD.toDebugString has it
_CONVERTER = "org.apache.spark.sql.connect.execution.SparkConnectPlanExecution"
_BATCH_BYTES = 16 << 20  # as Spark estimates them: what is off the heap is about twice as much
_CLASSES = {
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "types": "org.apache.spark.sql.types.DataTypes",
    "loader": "org.apache.spark.sql.api.r.SQLUtils",
    "alias": "org.apache.spark.sql.catalyst.expressions.Alias",
    "named": "org.apache.spark.sql.catalyst.expressions.NamedExpression",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "relation": "org.apache.spark.sql.catalyst.plans.logical.LocalRelation",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "scan": "org.apache.spark.sql.execution.LogicalRDD",
    "column": "org.apache.spark.sql.catalyst.expressions.AttributeReference",
    "unscaled": "org.apache.spark.sql.catalyst.expressions.UnscaledValue",
    "decimal": "org.apache.spark.sql.catalyst.expressions.MakeDecimal",
    "attributes": "org.apache.spark.sql.catalyst.types.DataTypeUtils",
    "metadata": "org.apache.spark.sql.types.Metadata",
    "option": "scala.Option",
    "sessions": "org.apache.spark.sql.classic.SparkSession",
    "unknown": "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning",
    "weak": "java.lang.ref.WeakReference",
    "class": "java.lang.Class",
    "pairs": "org.apache.spark.api.java.JavaPairRDD",
    "converter": _CONVERTER,
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
    """An exchange taken apart: the physical plan of the numbered rows that Spark makes of `origin`,
    their schema, and what Spark knows of them behind the exchange."""

    executed: Any
    schema: StructType
    origin: Any
    attributes: Any
    partitioning: Any


class CatalystDoor:
    def __init__(self, spark: SparkSession, jvm: Jvm, version: Version) -> None:
        self.version = version
        self._spark = spark
        self._session = spark._jsparkSession
        self._jvm = jvm

    def exchange_plan(self, repartitioned: DataFrame, maps: bool) -> ExchangePlan:
        """The rows under a repartition, as c0, c1, …, and behind them Spark's own partition id."""
        query = repartitioned._jdf.queryExecution()
        node = query.analyzed()
        partitioning, child, session = node.partitioning(), node.child(), self._session
        if maps:
            partitioning, session = self._with_maps(query, partitioning)
        carried = self.carried(child.output(), self.number(partitioning))
        rows = self.frame(self._jvm["project"](carried, child), session)
        executed = rows._jdf.queryExecution().executedPlan()
        origin = rows._jdf.queryExecution().withCachedData()
        return ExchangePlan(executed, rows.schema, origin, child.output(), partitioning)

    def carried(self, output: Any, number: Any) -> Any:
        """Return some columns as c0, c1, …, in the form in which they are stored, and behind them
        the number of a row's partition."""
        small = self._small_decimals(output)
        carried = [
            self.alias(self._jvm["unscaled"](one) if at in small else one, f"c{at}")
            for at, one in enumerate(self._jvm.items(output))
        ]
        carried.append(self.alias(number, SUBPARTITION))
        return self._jvm.seq(carried)

    def _with_maps(self, query: Any, partitioning: Any) -> tuple[Any, Any]:
        """Spark's optimizer sorts the maps in partition expressions, and only then hashes them;
        a session of our own lets the analyzer pass what the optimizer has made."""
        session = self._session.cloneSession()
        session.conf().set("spark.sql.legacy.allowHashOnMapType", "true")
        planned = query.optimizedPlan()
        kept = name_of(planned) == "RepartitionByExpression"
        return (planned.partitioning() if kept else partitioning), session

    def number(self, partitioning: Any) -> Any:
        """The expression of a row's partition; what needs none goes to the only one."""
        if partitioning.numPartitions() == 1:
            return self._jvm["literal"](0, self._jvm["types"].IntegerType)
        return partitioning.partitionIdExpression()

    def arrow_batches(self, plan: Any, batch_rows: int, row_bytes: int) -> Any:
        """The rows of a physical plan as a JavaRDD of Arrow streams, each of one batch, as bytes. A
        batch ends also when its rows are large, which `Dataset.toArrowBatchRdd` does not. A row
        counts as `row_bytes` at the least: Spark counts next to nothing for a null struct."""
        rows_max = max(1, _BATCH_BYTES // max(1, row_bytes))
        convert = self._convert(plan.schema(), min(batch_rows, rows_max))
        with self.active(self._session):
            pairs = plan.execute().mapPartitions(convert, False, self._any)
        return self._jvm["pairs"](pairs, self._any, self._any).keys()

    def try_converter(self) -> None:
        """Make a converter for no columns.

        Raises:
            Py4JError: this JVM does not let us, or this Spark has another one.
        """
        self._convert(self._parsed(StructType()), 1)

    def _convert(self, schema: Any, batch_rows: int) -> Any:
        return self._converter.rowToArrowConverter(
            schema, batch_rows, _BATCH_BYTES, "UTC", False, False
        )

    @contextmanager
    def active(self, session: Any) -> Iterator[None]:
        """Spark's rules, nodes and expressions take the session that is active in their thread for
        theirs; a thread of ours has none."""
        sessions = self._jvm["sessions"]
        before = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    @cached_property
    def _converter(self) -> Any:
        """Make the object that makes batches for Spark Connect. Its class wants a query of
        Connect's, which the making of batches does not: so no constructor is called."""
        found = self._jvm["class"].forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        found.setAccessible(True)
        return found.get(None).allocateInstance(self._jvm["class"].forName(_CONVERTER))

    @cached_property
    def _any(self) -> Any:
        return self._jvm.only("scala.reflect.ClassTag").Any()

    def relation(self, attributes: Any) -> Any:
        """A leaf of no rows."""
        return self._jvm["relation"](attributes, self._jvm.seq(), False, self._jvm.nothing())

    def lineage(self, plan: Any, batches: Any) -> Lineage:
        """What Spark knows of a map stage; where it does not say, the stage is not trusted. The
        level of an RDD leaves out what its expressions do, which the plan tells."""
        try:
            level = batches.rdd().outputDeterministicLevel().toString()
            repeatable = level in _REPEATABLE and plan.deterministic()
            return Lineage(repeatable and level == _ORDERED, repeatable, self._scans(plan))
        except Py4JError:
            return Lineage()

    def _scans(self, plan: Any) -> frozenset[int]:
        """The RDDs behind a plan's leaves, those of its subqueries and of its caches too."""
        found: set[int] = set()
        plans = [plan, *self._jvm.items(plan.subqueriesAll())]
        for leaf in (leaf for one in plans for leaf in self._jvm.items(one.collectLeaves())):
            name = name_of(leaf)
            if name in _SCANS:
                found.update(map(int, _RDD_ID.findall(leaf.rdd().toDebugString())))
            elif name == "InMemoryRelation":
                found |= self._scans(leaf.cachedPlan())
            elif name == "InMemoryTableScanExec":
                found |= self._scans(leaf.relation().cachedPlan())
            elif name == "AdaptiveSparkPlanExec":
                found |= self._scans(leaf.inputPlan())
        return frozenset(found)

    def scan_of(self, frame: DataFrame) -> int:
        """The RDD that a frame of this door reads, as lineages tell it."""
        number: int = self.rows_behind(frame).id()
        return number

    def rows_behind(self, frame: DataFrame) -> Any:
        """The RDD itself."""
        return frame._jdf.queryExecution().analyzed().collectLeaves().apply(0).rdd()

    def weakly(self, thing: Any) -> Any:
        """A reference that lets a thing of the JVM go when nobody else has it."""
        return self._jvm["weak"](thing)

    def scan(
        self, batches: RDD[Any], stored: StructType, attributes: Any, partitioning: Any
    ) -> DataFrame:
        """A DataFrame over Arrow batches whose attributes and partitioning Spark knows."""
        assert batches.getNumPartitions() == partitioning.numPartitions(), "else rows go wrong"
        read, back = self.as_stored(attributes)
        scan = self.logical(read, self.rows_of(batches, stored), partitioning)
        return self.frame(self._jvm["project"](back, scan) if back else scan)

    def load(self, batches: RDD[Any], stored: StructType, schema: StructType) -> DataFrame:
        """A DataFrame over Arrow batches of whose partitioning Spark knows nothing."""
        attributes = self._jvm["attributes"].toAttributes(self._parsed(schema))
        unknown = self._jvm["unknown"](batches.getNumPartitions())
        return self.scan(batches, stored, attributes, unknown)

    def rows_of(self, batches: RDD[Any], stored: StructType) -> Any:
        """Spark's own rows out of Arrow batches. To coalesce them, to as many partitions as there
        are, puts off reading until somebody asks for a row: a join with none on its other side
        does not, and Spark ends a Python worker whose rows nobody takes, a second for the next."""
        loader = self._jvm["loader"]
        loaded = loader.toDataFrame(batches._jrdd, self._parsed(stored), self._session)
        rows = loaded.queryExecution().analyzed().rdd().toJavaRDD()
        return rows.coalesce(batches.getNumPartitions()).rdd()

    def as_stored(self, attributes: Any) -> tuple[Any, Any]:
        """What is read for some attributes, and what makes them of it, None where it is them."""
        small = self._small_decimals(attributes)
        if not small:
            return attributes, None
        read, back = [], []
        for at, one in enumerate(self._jvm.items(attributes)):
            if at not in small:
                read.append(one)
                back.append(one)
                continue
            kind, empty = small[at], self._jvm.seq()
            long, metadata = self._jvm["types"].LongType, self._jvm["metadata"].empty()
            number = self._jvm["named"].newExprId()
            whole = self._jvm["column"](one.name(), long, one.nullable(), metadata, number, empty)
            made = self._jvm["decimal"](whole, kind.precision, kind.scale, False)
            given = self._jvm["alias"](
                made,
                one.name(),
                one.exprId(),
                one.qualifier(),
                self._jvm["option"].apply(one.metadata()),
                empty,
            )
            read.append(whole)
            back.append(given)
        return self._jvm.seq(read), self._jvm.seq(back)

    def _small_decimals(self, attributes: Any) -> dict[int, DecimalType]:
        """The decimals among attributes that are stored as whole numbers."""
        schema = self._jvm["attributes"].fromAttributes(attributes).json()
        kinds = enumerate(field.dataType for field in StructType.fromJson(json.loads(schema)))
        return {at: kind for at, kind in kinds if isinstance(kind, DecimalType) and is_small(kind)}

    def logical(
        self,
        attributes: Any,
        rows: Any,
        partitioning: Any,
        ordering: Any = None,
        statistics: Any = None,
    ) -> Any:
        """A leaf over rows of which Spark knows how they are partitioned and ordered, and of whose
        size it may be told."""
        nothing = self._jvm.nothing()
        return self._jvm["scan"](
            attributes,
            rows,
            partitioning,
            ordering or self._jvm.seq(),
            False,
            nothing,
            self._session,
            statistics or nothing,
            nothing,
            *self.version.logical_rdd,
        )

    def frame(self, logical: Any, session: Any = None) -> DataFrame:
        return DataFrame(
            self._jvm["dataset"].ofRows(session or self._session, logical), self._spark
        )

    def alias(self, expression: Any, name: str) -> Any:
        number, empty = self._jvm["named"].newExprId(), self._jvm.seq()
        return self._jvm["alias"](expression, name, number, empty, self._jvm.nothing(), empty)

    def _parsed(self, schema: StructType) -> Any:
        return self._session.parseDataType(schema.json())


def open_door(spark: SparkSession) -> CatalystDoor | None:
    """The door into this session's JVM, None when it is not one that we know."""
    if (version := version_of(spark.version)) is None:
        return None
    try:
        door = CatalystDoor(spark, Jvm(spark, _CLASSES), version)
        door.try_converter()
    except (LookupError, Py4JError):
        return None
    return door
