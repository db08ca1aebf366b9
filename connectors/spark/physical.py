"""Physical plans, behind the private door: the exchanges in one, the rows under each, and the scan
that takes its place.

A plan is made in a session of our own, which has the user's settings but no adaptive execution:
that would hide the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from .adaptive import Adapting
from .catalyst import CatalystDoor, ExchangePlan, Jvm

HASH, RANGE, DEALT, SINGLE = (
    "HashPartitioning",
    "RangePartitioning",
    "RoundRobinPartitioning",
    "SinglePartition$",
)
KINDS = (HASH, RANGE, DEALT, SINGLE)
_CLASSES = {
    "bytes": "org.apache.spark.network.util.JavaUtils",
    "alike": "java.util.HashMap",
    "sessions": "org.apache.spark.sql.classic.SparkSession",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "stage": "org.apache.spark.sql.execution.adaptive.LogicalQueryStage",
    "relation": "org.apache.spark.sql.catalyst.plans.logical.LocalRelation",
    "limit": "org.apache.spark.sql.catalyst.plans.logical.GlobalLimit",
    "local limit": "org.apache.spark.sql.catalyst.plans.logical.LocalLimit",
    "offset": "org.apache.spark.sql.catalyst.plans.logical.Offset",
    "sort": "org.apache.spark.sql.catalyst.plans.logical.Sort",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "leaf": "org.apache.spark.sql.execution.RDDScanExec",
    "exchange": "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
    "some": "org.apache.spark.sql.execution.LocalLimitExec",
    "sorted": "org.apache.spark.sql.execution.SortExec",
    "hash": "org.apache.spark.sql.catalyst.expressions.Murmur3Hash",
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "order": "org.apache.spark.sql.catalyst.expressions.SortOrder",
    "bound": "org.apache.spark.sql.catalyst.expressions.BoundReference",
    "struct": "org.apache.spark.sql.catalyst.expressions.CreateStruct",
    "call": "org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke",
    "xor": "org.apache.spark.sql.catalyst.expressions.BitwiseXor",
    "shift": "org.apache.spark.sql.catalyst.expressions.ShiftRight",
    "ordering": "org.apache.spark.sql.catalyst.expressions.codegen.LazilyGeneratedOrdering",
    "object": "org.apache.spark.sql.types.ObjectType",
    "types": "org.apache.spark.sql.types.DataTypes",
    "coalesced": "org.apache.spark.sql.catalyst.plans.physical.CoalescedHashPartitioning",
    "ranges": "org.apache.spark.sql.catalyst.plans.physical.RangePartitioning",
    "part": "org.apache.spark.sql.catalyst.plans.physical.CoalescedBoundary",
    "array": "scala.collection.immutable.ArraySeq",
    "class": "java.lang.Class",
}
_QUERY = "org.apache.spark.sql.execution.QueryExecution"
_SINGLE = "org.apache.spark.sql.catalyst.plans.physical.SinglePartition"
_ASCENDING = "org.apache.spark.sql.catalyst.expressions.Ascending"
_NULLS_FIRST = "org.apache.spark.sql.catalyst.expressions.NullsFirst"
_ENSURED = "org.apache.spark.sql.execution.exchange.ENSURE_REQUIREMENTS"
_NUMBERS = "scala.collection.immutable.Range"
_TAGS = "scala.reflect.ClassTag"
_FUSED = "spark.sql.codegen.wholeStage"
_REUSE = "ReuseExchangeAndSubquery"
_SHUFFLE, _BROADCAST = "ShuffleExchangeExec", "BroadcastExchangeExec"
_TOP, _TOP_TEXT = "TakeOrderedAndProjectExec", "TakeOrderedAndProject"
_COLLECTED = (_TOP, "CollectLimitExec")  # as roots they bring rows to the driver, not together
_WANTED = ("REPARTITION_BY_NUM$", "STATEFUL_OPERATOR$", "SHUFFLE_HASH$")
_SAMPLED = "spark.sql.execution.rangeExchange.sampleSizePerPartition"
_SAMPLED_MAX = 1_000_000
_SEED = 42
_COALESCE = "spark.sql.adaptive.coalescePartitions."
_ADAPTIVE = ("", "coalescePartitions.")
_DEAL = (
    "cast(pmod(monotonically_increasing_id() + shiftright(monotonically_increasing_id(), 33), {}L)"
    " as int)"
)


@dataclass(eq=False, slots=True)
class Group:
    """Exchanges that one stage reads side by side: whatever a task reads of one, it reads of the
    others too. `others`: beside them it reads something else."""

    shuffles: list[Shuffle] = field(default_factory=list)
    others: bool = False


@dataclass(eq=False, slots=True)
class Shuffle:
    """One exchange of a plan, as Spark has it. `wanted`: the user asked for so many partitions."""

    node: Any
    partitioning: Any
    kind: str
    count: int
    wanted: bool
    group: Group
    inputs: list[Shuffle]

    @property
    def label(self) -> str:
        return str(self.partitioning.toString())


@dataclass(frozen=True, slots=True)
class Plan:
    """`shuffles` are all exchanges of a plan, each behind those that it reads; `inputs` those that
    the last stage reads. `top` is a limit that only the driver's reading obeys."""

    top: Any
    root: Any
    shuffles: tuple[Shuffle, ...]
    inputs: tuple[Shuffle, ...]


class PlanDoor:
    """One plan's way through Spark; each plan has its own."""

    def __init__(self, spark: SparkSession, door: CatalystDoor, jvm: Jvm) -> None:
        self._spark = spark
        self._door = door
        self._jvm = jvm
        self._session = spark._jsparkSession.cloneSession()
        self._session.conf().set("spark.sql.adaptive.enabled", "false")
        self._alike = jvm["alike"]()
        self._asked: list[Shuffle] = []
        self._lock = Lock()

    def plan(self, df: DataFrame) -> Plan:
        """The plan of a query, with nothing of it run."""
        with self._active(), self._setting(_FUSED, "false"):  # each stage is fused by itself
            root = self._prepare(self._query(df._jdf.queryExecution().analyzed()).sparkPlan())
            top = None
            if _name(root) in _COLLECTED:
                top, root = root, root.child()
            root = self._gather_tops(root)
            shuffles: list[Shuffle] = []
            inputs = self._walk(root, Group(), shuffles)
            return Plan(top, root, tuple(shuffles), tuple(inputs))

    def rows(
        self, shuffle: Shuffle, scans: Mapping[Shuffle, Any], in_order: bool = False
    ) -> ExchangePlan:
        """The rows that go into an exchange, and behind them the number of their partition; with
        `in_order` sorted by a hash, so that they are dealt alike each time they are made."""
        with self._active():
            origin = child = self._fill(shuffle.node.child(), scans)
            if in_order:
                hashed = self._jvm["hash"](child.output(), _SEED)
                by = self._jvm.seq([self._ascending(hashed)])
                child = self._jvm["sorted"](by, False, child, 0)
            stage = self._stage(child)
            rows = self._door.numbered(stage, self._number(shuffle, stage), self._session)
            return ExchangePlan(rows, origin, shuffle.node.output(), shuffle.partitioning)

    def first_alike(self, shuffle: Shuffle, scans: Mapping[Shuffle, Any]) -> Shuffle:
        """The first that was asked about of all exchanges with these rows in these partitions."""
        with self._active():
            child = self._fill(shuffle.node.child(), scans)
            same = shuffle.node.withNewChildren(self._jvm.seq([child])).canonicalized()
        with self._lock:
            self._asked.append(shuffle)
            first = self._alike.putIfAbsent(same, len(self._asked) - 1)
            return shuffle if first is None else self._asked[first]

    def named(self, shuffle: Shuffle) -> StructType:
        """The rows of an exchange under their own names."""
        found: StructType = StructType.fromJson(json.loads(shuffle.node.schema().json()))
        return found

    @cached_property
    def adapting(self) -> Adapting:
        """What the user's session says of adaptive reading."""
        conf = self._spark.conf
        on = all(conf.get(f"spark.sql.adaptive.{key}enabled") == "true" for key in _ADAPTIVE)
        slots = self._spark.sparkContext.defaultParallelism
        spread = conf.get(f"{_COALESCE}parallelismFirst") == "true"
        least = conf.get(f"{_COALESCE}minPartitionNum", None) or (slots if spread else 1)
        target = conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
        smallest = conf.get(f"{_COALESCE}minPartitionSize")
        return Adapting(on, self._bytes(target), self._bytes(smallest), int(least))

    def scan(
        self, shuffle: Shuffle, batches: RDD[Any], schema: StructType, parts: Sequence[range]
    ) -> Any:
        """What takes an exchange's place: it reads these parts of it."""
        assert batches.getNumPartitions() == (len(parts) or shuffle.count), "else rows go wrong"
        rows = self._door.rows_of(batches, schema)
        partitioning = self._partitioning(shuffle, parts)
        nothing, unordered = self._jvm.nothing(), self._jvm.seq()
        output = shuffle.node.output()
        with self._active():
            return self._jvm["leaf"](output, rows, "Headgate", partitioning, unordered, nothing)

    def finish(self, plan: Plan, scans: Mapping[Shuffle, Any]) -> DataFrame:
        """The DataFrame of a plan whose exchanges are done."""
        with self._active():
            root = self._fill(plan.root, scans)
            rows = self._query(self._stage(root)).toRdd()
        logical = self._door.logical(
            root.output(), rows, root.outputPartitioning(), root.outputOrdering()
        )
        return self._door.frame(self._limit(plan.top, logical))

    def _bytes(self, text: str | None) -> int:
        return int(self._jvm["bytes"].byteStringAsBytes(text))

    def _query(self, logical: Any) -> Any:
        return self._jvm["dataset"].ofRows(self._session, logical).queryExecution()

    def _prepare(self, plan: Any) -> Any:
        rules = self._jvm.only(_QUERY).preparations(self._session, self._jvm.nothing(), False)
        for rule in self._jvm.items(rules):
            if not rule.ruleName().endswith(_REUSE):
                plan = rule.apply(plan)
        return plan

    def _gather_tops(self, root: Any) -> Any:
        """Top rows in the middle of a plan, which Spark brings together without an exchange that
        one could see: with one."""
        if _TOP_TEXT not in root.toString():
            return root
        gathered = []
        for top in _nodes(self._jvm, root):
            if _name(top) != _TOP or _partitions(top.child()) == 1:
                continue
            child = self._jvm["sorted"](top.sortOrder(), False, top.child(), 0)
            child = self._jvm["some"](top.limit(), child)
            ensured, nothing = self._jvm.only(_ENSURED), self._jvm.nothing()
            single = self._jvm.only(_SINGLE)
            exchange = self._jvm["exchange"](single, child, ensured, nothing, False)
            gathered.append((top, top.withNewChildren(self._jvm.seq([exchange]))))
        return self._replace(root, gathered)

    def _walk(self, node: Any, group: Group, found: list[Shuffle]) -> list[Shuffle]:
        """The exchanges that the stage of this node reads; all below them go to `found`."""
        inputs: list[Shuffle] = []
        for subquery in self._jvm.items(node.subqueries()):
            inputs += self._walk(subquery, Group(), found)
        name = _name(node)
        if name == _SHUFFLE:
            below = self._walk(node.child(), Group(), found)
            partitioning = node.outputPartitioning()
            kind, count = _name(partitioning), _partitions(node)
            wanted = _name(node.shuffleOrigin()) in _WANTED
            shuffle = Shuffle(node, partitioning, kind, count, wanted, group, below)
            group.shuffles.append(shuffle)
            found.append(shuffle)
            return [*inputs, shuffle]
        children = self._jvm.items(node.children())
        if not children:
            group.others = True
        for child in children:
            inputs += self._walk(
                child, Group() if name.startswith(_BROADCAST + "E") else group, found
            )
        return inputs

    def _number(self, shuffle: Shuffle, stage: Any) -> Any:
        if shuffle.count == 1 or shuffle.kind == HASH:
            return self._door.number(shuffle.partitioning)
        if shuffle.kind == DEALT:
            parser = self._session.sessionState().sqlParser()
            return parser.parseExpression(_DEAL.format(shuffle.count))
        return self._range_number(shuffle, stage)

    def _range_number(self, shuffle: Shuffle, stage: Any) -> Any:
        """Where a row's keys stand among bounds, by the very ordering of Spark's range exchange."""
        by = self._jvm.items(shuffle.partitioning.ordering())
        keys = [order.child() for order in by]
        ordering = self._jvm["ordering"](
            self._jvm.seq(
                self._jvm["order"](
                    self._jvm["bound"](at, order.dataType(), order.nullable()),
                    order.direction(),
                    order.nullOrdering(),
                    self._jvm.seq(),
                )
                for at, order in enumerate(by)
            )
        )
        bounds = self._bounds(stage, keys, ordering, shuffle.count)
        objects = self._jvm["class"].forName("[Ljava.lang.Object;")
        comparator = self._jvm["class"].forName("java.util.Comparator")
        arguments = [
            self._constant(bounds, objects),
            self._jvm["struct"].apply(self._jvm.seq(keys)),
            self._constant(ordering, comparator),
        ]
        integer = self._jvm["types"].IntegerType
        place = self._jvm["call"](
            self._jvm["class"].forName("java.util.Arrays"),
            integer,
            "binarySearch",
            self._jvm.seq(arguments),
            self._jvm.seq(),
            False,
            False,
            True,
            self._jvm.nothing(),
        )
        # a key that is no bound has the place -1 - number
        sign = self._jvm["shift"](place, self._jvm["literal"](31, integer))
        return self._jvm["xor"](place, sign)

    def _constant(self, value: Any, kind: Any) -> Any:
        return self._jvm["literal"](value, self._jvm["object"](kind))

    def _bounds(self, stage: Any, keys: list[Any], ordering: Any, count: int) -> Any:
        """The upper bounds of all parts but the last, from a sample of the rows."""
        wanted = int(self._session.conf().get(_SAMPLED, "100")) * count
        named = self._jvm.seq(self._door.alias(key, f"k{at}") for at, key in enumerate(keys))
        frame = self._door.frame(self._jvm["project"](named, stage), self._session)
        drawn = (
            frame.withColumn("drawn", F.rand()).orderBy("drawn").limit(min(wanted, _SAMPLED_MAX))
        )
        plan = drawn.drop("drawn")._jdf.queryExecution().executedPlan()
        rows = self._jvm["array"].unsafeWrapArray(plan.executeCollect()).sorted(ordering)
        step = max(1, rows.size() // count)
        end = min(step * (count - 1), rows.size())
        places = self._jvm.only(_NUMBERS).apply(step - 1, end, step)
        bounds = places.map(rows)
        objects = self._jvm["class"].forName("java.lang.Object")
        return bounds.toArray(self._jvm.only(_TAGS).apply(objects))

    def _partitioning(self, shuffle: Shuffle, parts: Sequence[range]) -> Any:
        if not parts:
            return shuffle.partitioning
        if shuffle.kind == RANGE:
            return self._jvm["ranges"](shuffle.partitioning.ordering(), len(parts))
        bounds = self._jvm.seq(self._jvm["part"](part.start, part.stop) for part in parts)
        return self._jvm["coalesced"](shuffle.partitioning, bounds)

    def _stage(self, physical: Any) -> Any:
        """A logical leaf that is planned as this very plan."""
        nothing, no_rows = self._jvm.nothing(), self._jvm.seq()
        relation = self._jvm["relation"](physical.output(), no_rows, False, nothing)
        return self._jvm["stage"](relation, physical)

    def _fill(self, plan: Any, scans: Mapping[Shuffle, Any]) -> Any:
        return self._replace(plan, [(shuffle.node, scan) for shuffle, scan in scans.items()])

    def _replace(self, plan: Any, places: list[tuple[Any, Any]]) -> Any:
        return plan.transformDownWithSubqueries(self._jvm.mapping(places)) if places else plan

    def _limit(self, top: Any, rows: Any) -> Any:
        """The logical plan of the limit that was taken off a root."""
        if top is None:
            return rows
        nothing, integer = self._jvm.nothing(), self._jvm["types"].IntegerType
        if _name(top) == _TOP:
            rows = self._jvm["sort"](top.sortOrder(), True, rows, nothing)
        if top.limit() >= 0:
            limit = self._jvm["literal"](top.limit(), integer)
            rows = self._jvm["limit"](limit, self._jvm["local limit"](limit, rows))
        if top.offset() > 0:
            rows = self._jvm["offset"](self._jvm["literal"](top.offset(), integer), rows)
        if _name(top) == _TOP:
            rows = self._jvm["project"](top.projectList(), rows)
        return rows

    def _ascending(self, expression: Any) -> Any:
        directions = self._jvm.only(_ASCENDING), self._jvm.only(_NULLS_FIRST)
        return self._jvm["order"](expression, *directions, self._jvm.seq())

    @contextmanager
    def _setting(self, key: str, value: str) -> Iterator[None]:
        conf = self._session.conf()
        before = conf.get(key)
        conf.set(key, value)
        try:
            yield
        finally:
            conf.set(key, before)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Spark's rules and nodes take the session that is active in their thread for theirs."""
        before = self._jvm["sessions"].getActiveSession()
        self._jvm["sessions"].setActiveSession(self._session)
        try:
            yield
        finally:
            if before.isDefined():
                self._jvm["sessions"].setActiveSession(before.get())
            else:
                self._jvm["sessions"].clearActiveSession()


def _nodes(jvm: Jvm, root: Any) -> Iterator[Any]:
    yield root
    for child in (*jvm.items(root.children()), *jvm.items(root.subqueries())):
        yield from _nodes(jvm, child)


def _partitions(node: Any) -> int:
    return int(node.outputPartitioning().numPartitions())


def _name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def open_plans(spark: SparkSession, door: CatalystDoor) -> PlanDoor:
    return PlanDoor(spark, door, Jvm(spark, _CLASSES))
