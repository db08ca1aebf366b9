"""The private door to Spark's internals. Together with `queries`, this folder has nearly all code
that calls them.

`features.py` opens it where this Spark has the names that it needs. Else the caller uses public
PySpark only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import _to_java_column
from pyspark.sql.types import DecimalType, StructType

from ....control.errors import Invalid
from ..settings import is_true
from ..tasks.exchange_tasks import SUBPARTITION
from ..tasks.frames import layout_of
from ..types import carried_schema, has_maps, is_small, places, stored_schema
from ..versions import Version
from .bridge import Jvm, error_of_thread, name_of
from .compiled_classes import CompiledClasses
from .names import CLASSES
from .task_rdds import TaskRdds
from .task_settings import require_carried

_SCANS = ("LogicalRDD", "RDDScanExec")
_ORDERED = "DETERMINATE"
_REPEATABLE = (_ORDERED, "UNORDERED")
_RDD_ID = re.compile(r"\[(\d+)\] at ")  # as RDD.toDebugString writes the id
_BATCH_ROWS = 32 * 1024
_BATCH_BYTES = 16 << 20  # by Spark's estimate; off the heap they take about twice as much


@dataclass(frozen=True, slots=True)
class Lineage:
    """The guarantees of a map stage that runs again."""

    ordered: bool = False
    """It gives the same rows in the same order."""
    repeatable: bool = False
    """It gives the same rows, in any order."""
    scans: frozenset[int] = frozenset()
    """The ids of the RDDs that it reads."""


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """The two sides of an exchange: the rows that go in, and the form in which they come out."""

    executed: Any
    """The physical plan of the rows that go in, each with the number of its partition."""
    shown: Any
    """The same plan as Spark's SQL page shows it."""
    rows: StructType
    """The schema in which the rows are stored."""
    origin: Any
    """The plan that `lineage` examines for its scans and for what is not deterministic."""
    attributes: Any
    """The columns of the rows that come out."""
    given: StructType
    """The schema of these columns."""
    partitioning: Any
    """The partitioning of the rows that come out."""
    is_adaptive: bool = False
    """True if Spark changes the physical plan while it runs."""


class CatalystDoor:
    def __init__(
        self, spark: SparkSession, jvm: Jvm, version: Version, compiled: CompiledClasses | None
    ) -> None:
        """Without compiled classes, Spark's own converters make batches of rows, and rows again."""
        self.jvm = jvm
        self.version = version
        self.tasks = TaskRdds(spark, jvm, compiled)
        self._compiled = compiled
        self._spark = spark
        self._session = spark._jsparkSession
        self._thread = threading.local()
        """Its `session` is the one that `active` has made active."""

    @cached_property
    def _context(self) -> Any:
        return self._spark.sparkContext._jsc.sc()

    def exchange_plan(self, df: DataFrame, n: int, columns: Sequence[str | Column]) -> ExchangePlan:
        """Return the rows under `df.repartition(n, *columns)`, each with Spark's own id of its
        partition.

        Raises:
            Invalid: Spark adds a column for a key.
        """
        try:
            return self._exchange_plan(df, n, columns)
        except Py4JError as exc:
            if name_of(df.repartition(n, *columns)._jdf.queryExecution().analyzed()) == "Project":
                raise Invalid(
                    "a key must be made of the DataFrame's own columns, and not change whenever it "
                    "is computed: add it as a column first"
                ) from exc
            raise

    def _exchange_plan(
        self, df: DataFrame, n: int, columns: Sequence[str | Column]
    ) -> ExchangePlan:
        schema, session = df.schema, self._session
        named = places(schema, columns)
        if named is None:
            query, partitioning, child = self._analyzed(df._jdf, n, columns)
            if has_maps(schema):
                partitioning, session = self._with_maps(query, partitioning)
        else:
            child = df._jdf.queryExecution().commandExecuted()
            output = child.output()
            keys = self.jvm.seq([output.apply(place) for place in named])
            partitioning = self.jvm["repartition"](
                keys, child, self.jvm["option"].apply(n), self.jvm.nothing()
            ).partitioning()
        output = child.output()
        carried = self.carried(output, schema, self.number(partitioning, n))
        rows = self._dataset(self.jvm["project"](carried, child), session, is_analyzed=True)
        planned = rows.queryExecution()
        plan = planned.executedPlan()
        return ExchangePlan(
            plan,
            self.shown(plan),
            stored_schema(schema),
            planned.withCachedData(),
            output,
            schema,
            partitioning,
            name_of(plan) == "AdaptiveSparkPlanExec",
        )

    def _analyzed(self, df: Any, n: int, columns: Sequence[str | Column]) -> tuple[Any, Any, Any]:
        """Return `df.repartition(n, *columns)` as Spark understands it: the query, its partitioning
        and the plan below."""
        keys = [
            self.jvm["columns"].col(each) if isinstance(each, str) else _to_java_column(each)
            for each in columns
        ]
        query = df.repartition(n, self.jvm.seq(keys)).queryExecution()
        node = query.analyzed()
        return query, node.partitioning(), node.child()

    def shown(self, executed: Any) -> Any:
        """Return a plan as Spark's SQL page shows it. This makes the plan's metrics, which tasks
        cannot make."""
        return self.jvm.only("shown").fromSparkPlan(executed)

    def carried(self, output: Any, schema: StructType, number: Any) -> Any:
        """Return columns in the form in which they are stored, then the number of a row's
        partition. Nobody reads their names."""
        for at in _small_decimals(schema):
            column = self.jvm["unscaled"](output.apply(at))
            output = output.updated(at, self.alias(column, f"c{at}"))
        return output.appended(self.alias(number, SUBPARTITION))

    def _with_maps(self, query: Any, partitioning: Any) -> tuple[Any, Any]:
        """Return the optimized partitioning, and a session that may hash maps. Spark's optimizer
        sorts the maps in partition expressions before they are hashed, but in an ordinary session
        the hash of the sorted maps has no type."""
        session = self._session.cloneSession()
        session.conf().set("spark.sql.legacy.allowHashOnMapType", "true")
        planned = query.optimizedPlan()
        kept = name_of(planned) == "RepartitionByExpression"
        return (planned.partitioning() if kept else partitioning), session

    def number(self, partitioning: Any, count: int) -> Any:
        """Return the expression for the number of a row's partition: 0 where there is only one."""
        if count == 1:
            return self.jvm["literal"](0, self._integer)
        return partitioning.partitionIdExpression()

    def arrow_batches(self, plan: Any, row_bytes: int) -> Any:
        """Return a physical plan's rows as an RDD of Arrow streams in bytes, a batch each.
        Unlike the batches of `Dataset.toArrowBatchRdd`, these are limited in bytes too. A row
        counts as at least `row_bytes`: Spark counts next to nothing for a null struct."""
        rows_max = max(1, _BATCH_BYTES // max(1, row_bytes))
        convert = self._convert(plan.schema(), min(_BATCH_ROWS, rows_max))
        pairs = self.execute(plan).mapPartitions(convert, False, self.jvm.any)
        return self.jvm["pairs"](pairs, self.jvm.any, self.jvm.any).keys().rdd()

    def sorted_runs(self, plan: Any, layout: str) -> Any:
        """Return a physical plan's rows, whose last column is the number of the subpartition, as
        an RDD of runs in bytes."""
        assert self._compiled is not None
        with self.executing():
            return self._compiled.runs(plan, layout)

    def execute(self, plan: Any) -> Any:
        """Execute a physical plan, and return its rows as an RDD. Its broadcasts, its
        subqueries, and the stages of an adaptive plan run now."""
        with self.executing():
            return plan.execute()

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Make the session of the query that this thread runs the active one inside. Plans may
        start jobs there, whose errors are raised as in the user's session."""
        require_carried()
        with self.active(getattr(self._thread, "session", None) or self._session):
            try:
                yield
            except Py4JJavaError as exc:
                if not is_true(self._spark.conf.get("spark.sql.adaptive.enabled")):
                    raise
                raise error_of_thread(exc) from None

    def try_converter(self) -> None:
        """Make a converter for no columns.

        Raises:
            Py4JError: the JVM refuses access, or this Spark has another converter.
        """
        self._convert(self._parsed(StructType()), 1)

    def _convert(self, schema: Any, batch_rows: int) -> Any:
        return self._converter.rowToArrowConverter(
            schema, batch_rows, _BATCH_BYTES, "UTC", False, False
        )

    @contextmanager
    def active(self, session: Any) -> Iterator[None]:
        """Make a session the active one of this thread inside. Spark's rules, nodes and expressions
        use the active session, and a Python thread has none."""
        before = getattr(self._thread, "session", None)
        if before is session and self._is_pinned:
            yield
            return
        sessions, is_active = self.jvm["sessions"], False
        outside: Any = None
        if before is None:
            outside = sessions.getActiveSession()
            is_active = outside.contains(session)
        if is_active and self._is_pinned:
            yield
            return
        sessions.setActiveSession(session)
        self._thread.session = session
        try:
            yield
        finally:
            self._thread.session = before
            if before is None and outside.isEmpty():
                sessions.clearActiveSession()
            else:
                sessions.setActiveSession(before or outside.get())

    def keep_active(self, session: Any) -> None:
        """Make a session the active one of this thread until the thread ends."""
        if self._is_pinned:
            self.jvm["sessions"].setActiveSession(session)
            self._thread.session = session

    @cached_property
    def _integer(self) -> Any:
        return self.jvm["types"].IntegerType

    @property
    def _is_pinned(self) -> bool:
        """Return True if each thread has a thread of the JVM to itself, as it has by default."""
        return isinstance(self._spark.sparkContext._gateway, ClientServer)

    @cached_property
    def _converter(self) -> Any:
        """Return the object that makes batches for Spark Connect. No constructor is called, for it
        needs a query of Connect; making batches does not."""
        unsafe = self.jvm["class"].forName(CLASSES["unsafe"]).getDeclaredField("theUnsafe")
        unsafe.setAccessible(True)
        return unsafe.get(None).allocateInstance(self.jvm["class"].forName(CLASSES["converter"]))

    def no_rows(self) -> Any:
        """Return a new RDD without rows."""
        return self._context.emptyRDD(self.jvm.any)

    def relation(self, attributes: Any) -> Any:
        """Return a logical leaf without rows."""
        return self.jvm["relation"](attributes, self.jvm.seq(), False, self.jvm.nothing())

    def stage(self, physical: Any) -> Any:
        """Return a logical leaf that Spark plans as this physical plan."""
        return self.jvm["stage"](self.relation(physical.output()), physical)

    def estimate_bytes(self, df: DataFrame) -> float:
        """Return Spark's estimate of the size of a DataFrame, at most that of all it reads."""
        plan = df._jdf.queryExecution().optimizedPlan()
        return min(float(plan.stats().sizeInBytes()), self.leaves_bytes(plan))

    def leaves_bytes(self, logical: Any) -> float:
        """Return Spark's estimate of the size of all that a plan reads. Spark takes a join for the
        product of its sides."""
        leaves = self.jvm.named_leaves(logical)
        return sum(float(leaf.stats().sizeInBytes()) for _, leaf in leaves)

    def lineage(self, plan: Any, batches: Any) -> Lineage:
        """Return the scans and guarantees of a map stage, no guarantee where Spark cannot tell. The
        level of an RDD says nothing of the expressions in its plan: both must be deterministic."""
        try:
            level = batches.outputDeterministicLevel().toString()
            repeatable = level in _REPEATABLE and plan.deterministic()
            return Lineage(repeatable and level == _ORDERED, repeatable, self._scans(plan))
        except Py4JError:
            return Lineage()

    def _scans(self, plan: Any) -> frozenset[int]:
        """Return the ids of the RDDs under a plan's leaves, its subqueries and its caches."""
        rdds: set[int] = set()
        for name, leaf in self.jvm.named_leaves(plan):
            if name in _SCANS:
                rdds.update(map(int, _RDD_ID.findall(leaf.rdd().toDebugString())))
            elif name == "InMemoryRelation":
                rdds |= self._scans(leaf.cachedPlan())
            elif name == "InMemoryTableScanExec":
                rdds |= self._scans(leaf.relation().cachedPlan())
            elif name == "AdaptiveSparkPlanExec":
                rdds |= self._scans(leaf.inputPlan())
        return frozenset(rdds)

    def rows_behind(self, frame: DataFrame) -> Any:
        """Return the RDD that a frame of this door reads."""
        return frame._jdf.queryExecution().analyzed().collectLeaves().apply(0).rdd()

    def weakly(self, thing: Any) -> Any:
        """Return a weak reference to an object of the JVM."""
        return self.jvm["weak"](thing)

    def scan(
        self,
        batches: Any,
        stored: StructType,
        attributes: Any,
        given: StructType,
        partitioning: Any,
    ) -> tuple[DataFrame, int]:
        """Return a DataFrame over an RDD of Arrow batches, as `tasks` gives them, and the id of the
        RDD of its rows. Spark knows the DataFrame's attributes, which have the schema `given`, and
        its partitioning."""
        read, back = self.as_stored(attributes, given)
        count = batches.getNumPartitions()
        assert count == partitioning.numPartitions(), "else rows go wrong"
        rows = self.rows_of(batches, count, stored)
        scan = self.logical(read, rows, partitioning)
        plan = self.jvm["project"](back, scan) if back else scan
        return self.frame(plan, is_analyzed=True), int(rows.id())

    def load(self, batches: Any, stored: StructType, schema: StructType) -> tuple[DataFrame, int]:
        """Return the same as `scan`, for rows whose partitioning Spark does not know."""
        attributes = self.jvm["attributes"].toAttributes(self._parsed(schema))
        unknown = self.jvm["unknown"](batches.getNumPartitions())
        return self.scan(batches, stored, attributes, schema, unknown)

    def layout_of(self, schema: pa.Schema) -> str | None:
        """Return the layout of these columns for compiled classes, None if none takes them."""
        return None if self._compiled is None else layout_of(schema)

    def rows_of(self, batches: Any, count: int, stored: StructType) -> Any:
        """Return an RDD of Arrow batches of `count` partitions as an RDD of Spark's rows.
        `coalesce` to the same number makes reading lazy. A join whose other side is empty then
        starts no Python worker. Spark would end it, and a new worker takes a second to start."""
        if self._compiled and (layout := layout_of(carried_schema(stored))):
            rows = self._compiled.rows(batches, layout)
        else:
            messages = self._compiled.bytes_of(batches) if self._compiled else batches
            loader, kinds = self.jvm["loader"], self._parsed(stored)
            loaded = loader.toDataFrame(messages.toJavaRDD(), kinds, self._session)
            rows = loaded.queryExecution().analyzed().rdd()
        return rows.coalesce(count, False, self.jvm.nothing(), None)

    def as_stored(self, attributes: Any, schema: StructType) -> tuple[Any, Any]:
        """Return the attributes as they are stored, and the expressions that make the attributes
        of them. The expressions are None where both are the same."""
        small = _small_decimals(schema)
        if not small:
            return attributes, None
        read, back = [], []
        for at, attribute in enumerate(self.jvm.items(attributes)):
            if at not in small:
                read.append(attribute)
                back.append(attribute)
                continue
            kind = small[at]
            long, metadata = self.jvm["types"].LongType, self.jvm["metadata"].empty()
            number = self.jvm["named"].newExprId()
            stored = self.jvm["column"](
                attribute.name(), long, attribute.nullable(), metadata, number, self.jvm.seq()
            )
            decimal = self.jvm["decimal"](stored, kind.precision, kind.scale, False)
            read.append(stored)
            back.append(self.jvm.alias(decimal, attribute, attribute.metadata()))
        return self.jvm.seq(read), self.jvm.seq(back)

    def logical(
        self,
        attributes: Any,
        rows: Any,
        partitioning: Any,
        ordering: Any = None,
        statistics: Any = None,
    ) -> Any:
        """Return a logical leaf over rows with a partitioning, an ordering and, if given,
        statistics."""
        nothing = self.jvm.nothing()
        return self.jvm["scan"](
            attributes,
            rows,
            partitioning,
            ordering or self.jvm.seq(),
            False,
            nothing,
            self._session,
            statistics or nothing,
            nothing,
            *self.version.logical_rdd,
        )

    def frame(self, logical: Any, session: Any = None, is_analyzed: bool = False) -> DataFrame:
        """Return the DataFrame of a plan. Spark analyzes it, unless `is_analyzed` says that there
        is nothing to find out."""
        return DataFrame(self._dataset(logical, session, is_analyzed), self._spark)

    def _dataset(self, logical: Any, session: Any, is_analyzed: bool) -> Any:
        if is_analyzed:
            logical.setAnalyzed()
        return self.jvm["dataset"].ofRows(session or self._session, logical)

    def alias(self, expression: Any, name: str) -> Any:
        number, empty = self.jvm["named"].newExprId(), self.jvm.seq()
        return self.jvm["alias"](expression, name, number, empty, self.jvm.nothing(), empty)

    def _parsed(self, schema: StructType) -> Any:
        return self._session.parseDataType(schema.json())


def _small_decimals(schema: StructType) -> dict[int, DecimalType]:
    """Return the places and types of the decimals that are stored as whole numbers."""
    kinds = enumerate(field.dataType for field in schema)
    return {at: kind for at, kind in kinds if isinstance(kind, DecimalType) and is_small(kind)}
