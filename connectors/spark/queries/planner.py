"""Physical plans, behind the private door: the exchanges in one, the rows under each, and the scan
that takes its place.

A plan is made in a session of our own, which has the user's settings but no adaptive execution:
that would hide the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....control.errors import Corrupt, Invalid
from ..jvm.bridge import Jvm, name_of
from ..jvm.caches import Cache, caches, is_outdated
from ..jvm.catalyst import CatalystDoor, ExchangePlan
from ..settings import is_true
from .adaptive import AdaptiveSettings
from .exchange_finder import TOP, ExchangeFinder, is_grouped, joined, link
from .exchange_nodes import HASH, RANGE, Group, Mark, Plan, Shuffle, through
from .output_columns import OutputColumns
from .partition_ids import PartitionIds
from .pushdown import callers, merging
from .scan_places import Scan, ScanPlaces

_CLASSES = {
    "bytes": "org.apache.spark.network.util.JavaUtils",
    "alike": "java.util.HashMap",
    "same": "java.util.IdentityHashMap",
    "option": "scala.Option",
    "unknown": "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "stage": "org.apache.spark.sql.execution.adaptive.LogicalQueryStage",
    "limit": "org.apache.spark.sql.catalyst.plans.logical.GlobalLimit",
    "local limit": "org.apache.spark.sql.catalyst.plans.logical.LocalLimit",
    "offset": "org.apache.spark.sql.catalyst.plans.logical.Offset",
    "sort": "org.apache.spark.sql.catalyst.plans.logical.Sort",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "answer": "org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer",
    "leaf": "org.apache.spark.sql.execution.RDDScanExec",
    "made": "org.apache.spark.sql.execution.ProjectExec",
    "exchange": "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
    "some": "org.apache.spark.sql.execution.LocalLimitExec",
    "sorted": "org.apache.spark.sql.execution.SortExec",
    "hash": "org.apache.spark.sql.catalyst.expressions.Murmur3Hash",
    "order": "org.apache.spark.sql.catalyst.expressions.SortOrder",
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "column": "org.apache.spark.sql.catalyst.expressions.AttributeReference",
    "alias": "org.apache.spark.sql.catalyst.expressions.Alias",
    "types": "org.apache.spark.sql.types.DataTypes",
    "coalesced": "org.apache.spark.sql.catalyst.plans.physical.CoalescedHashPartitioning",
    "bounds": "org.apache.spark.sql.catalyst.plans.physical.CoalescedBoundary",
    "with settings": "org.apache.spark.sql.execution.SQLExecutionRDD",
    "ranges": "org.apache.spark.sql.catalyst.plans.physical.RangePartitioning",
}
_QUERY = "org.apache.spark.sql.execution.QueryExecution"
_SINGLE = "org.apache.spark.sql.catalyst.plans.physical.SinglePartition"
_ASCENDING = "org.apache.spark.sql.catalyst.expressions.Ascending"
_NULLS_FIRST = "org.apache.spark.sql.catalyst.expressions.NullsFirst"
_ENSURED = "org.apache.spark.sql.execution.exchange.ENSURE_REQUIREMENTS"
_FUSED = "spark.sql.codegen.wholeStage"
_HASHED_MAPS = "spark.sql.legacy.allowHashOnMapType"
_LAST_RULES = ["CollapseCodegenStages", "ReuseExchangeAndSubquery"]
_SHUFFLE, _KEPT = "ShuffleExchangeExec", 0.2
_CUT = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
_COLLECTED = (TOP, "CollectLimitExec")  # as roots they bring rows to the driver, not together
_ANYWHERE = {"UnspecifiedDistribution$", "BroadcastDistribution"}
_LEFT_CUT = ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti")
_RIGHT_CUT = ("Inner", "Cross", "RightOuter")
_OBSERVED = "org.apache.spark.sql.execution.CollectMetricsExec"
_SEED = 42
_COALESCE = "spark.sql.adaptive.coalescePartitions."
_SKEW = "spark.sql.adaptive.skewJoin."
_AS_PLANNED = AdaptiveSettings(False, 0, 0, 1, math.inf, 0.0, -1)

Query = DataFrame | Cache


class Planner:
    """One query's way through Spark; each has its own."""

    def __init__(self, spark: SparkSession, door: CatalystDoor, jvm: Jvm) -> None:
        self._spark = spark
        self._door = door
        self._jvm = jvm
        self._session = spark._jsparkSession.cloneSession()
        self._session.conf().set("spark.sql.adaptive.enabled", "false")
        self._session.conf().set(_HASHED_MAPS, "true")  # Spark's optimizer has sorted them
        self._numbering = PartitionIds(spark, door, self._session)
        self._places = ScanPlaces(jvm)
        self._alike = jvm["alike"]()
        self._marks: dict[int, Mark] = {}
        self._asked: Any = None
        self._logical: Any = None
        self._cache: Cache | None = None
        self.is_limited = False

    def caches(self, asked: Query) -> list[Cache]:
        """The caches that a query reads."""
        with self._active():
            return list(caches(self._jvm, self._optimized(asked)))

    def plan(self, asked: Query, collected: bool = True) -> Plan:
        """The plan of a query, with nothing of it run. Where the driver collects the rows, it is
        the driver that brings those of a limit together, and no exchange is needed for it."""
        with self._active():
            logical = self._optimized(asked)
            plan = self._plan(logical)
            self.is_limited = plan.top is not None
            if plan.top is None or collected:
                return plan
            return self._plan(self._jvm["project"](logical.output(), logical))

    def _optimized(self, asked: Query) -> Any:
        """What Spark's optimizer has made of a query, once."""
        if self._logical is not None:
            return self._logical
        if isinstance(asked, Cache):
            self._cache = asked
            self._logical = self._asked = asked.logical
            if asked.is_fixed:
                self.adapting = _AS_PLANNED
        else:
            execution = asked._jdf.queryExecution()
            self._asked = execution.analyzed()
            if is_outdated(self._jvm, execution, self._query):
                execution = self._query(self._asked)
            self._logical = execution.optimizedPlan().clone()
        return self._logical

    def plan_again(self, plan: Plan) -> Plan:
        """The plan of what is left, where the sizes of what is done are known."""
        with self._active():
            begun = [
                (shuffle, self._made_of(shuffle))
                for shuffle in plan.shuffles
                if shuffle.mark is not None and name_of(shuffle.node) == _SHUFFLE
            ]
            places = [self._place(one, made) for one, made in begun if made is not None]
            places = self._jvm.first_of_each(places)  # any of them has the rows
            logical = self._places.replace(plan.logical, places)
            if any(mark.rows == 0 for mark in self._marks.values()):
                logical = self._jvm.only(_CUT).apply(logical)
            return self._plan(logical)

    def begin(self, shuffle: Shuffle) -> bool:
        """Mark an exchange as begun, or as the same as one that has; whether it is the first of
        all with these rows in these partitions."""
        with self._active():
            child = self._marked(shuffle.node.child(), shuffle.inputs)
            same = shuffle.node.withNewChildren(self._jvm.seq([child])).canonicalized()
            mark = Mark(self._no_rows(), shuffle)
            number = mark.rdd.id()
            known = self._alike.putIfAbsent(same, number)
        shuffle.mark = self._marks.setdefault(known or number, mark)
        return known is None

    def rows(
        self, shuffle: Shuffle, scans: Mapping[Shuffle, Scan], in_order: bool = False
    ) -> ExchangePlan:
        """The rows that go into an exchange, and behind them the number of their partition; with
        `in_order` sorted by a hash, so that they are dealt alike each time they are made."""
        with self._active():
            output = shuffle.node.output()
            origin = child = self._fill(shuffle.node.child(), scans)
            if in_order:
                hashed = self._jvm["hash"](child.output(), _SEED)
                by = self._jvm.seq([self._ascending(hashed)])
                child = self._jvm["sorted"](by, False, child, 0)
            if len(shuffle.firsts) < len(shuffle.columns):
                child = self._jvm["made"](self._once(shuffle, output), child)
            carried = self._door.carried(child.output(), self._number(shuffle, self._stage(child)))
            executed = self._executed(self._jvm["made"](carried, child))
            schema = StructType.fromJson(json.loads(executed.schema().json()))
            return ExchangePlan(executed, schema, origin, output, shuffle.partitioning)

    @cached_property
    def adapting(self) -> AdaptiveSettings:
        """What the user's session says of adaptive reading."""
        conf = self._spark.conf
        on = is_true(conf.get("spark.sql.adaptive.enabled"))
        slots = self._spark.sparkContext.defaultParallelism
        spread = is_true(conf.get(f"{_COALESCE}parallelismFirst"))
        least = conf.get(f"{_COALESCE}minPartitionNum", None) or (slots if spread else 1)
        target = conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
        smallest = conf.get(f"{_COALESCE}minPartitionSize")
        cuts = on and is_true(conf.get(f"{_SKEW}enabled"))
        skewed = self._bytes(conf.get(f"{_SKEW}skewedPartitionThresholdInBytes"))
        times = (conf.get(f"{_SKEW}skewedPartitionFactor") or "0").strip().rstrip("dDfF")  # Java's
        own = conf.get("spark.sql.adaptive.autoBroadcastJoinThreshold", None)
        sent = self._bytes(own or conf.get("spark.sql.autoBroadcastJoinThreshold"))
        return AdaptiveSettings(
            on and is_true(conf.get(f"{_COALESCE}enabled")),
            self._bytes(target),
            self._bytes(smallest),
            int(least),
            skewed if cuts else math.inf,
            float(times),
            sent if on else -1,
        )

    def estimate_bytes(self, shuffle: Shuffle) -> float:
        """How large an exchange may be. Spark's own estimate leaves out what filters do."""
        first = shuffle if shuffle.mark is None else shuffle.mark.first
        guess = float(first.origin.stats().sizeInBytes()) * _KEPT**first.filters
        marks = [one.mark for one in through(first.inputs)]
        if first.stage.others or not marks:
            return guess
        known = [mark.size_bytes for mark in marks if mark is not None and mark.rows >= 0]
        return min(guess, sum(known)) if len(known) == len(marks) else guess

    def row_bytes(self, shuffle: Shuffle) -> int:
        """What Spark takes a row of an exchange to need."""
        return 8 + int(shuffle.node.schema().defaultSize())

    def may_cut(self, group: Group) -> list[bool]:
        """Which exchanges of a stage may be cut where they are skewed: those whose rows meet those
        of the only other one in a join, with nothing above it that relies on where rows are."""
        joins = [joined(one.above) for one in group.shuffles]
        if len(joins) != 2 or not all(joins) or joins[0][-1] is not joins[1][-1]:
            return [False] * len(joins)
        left, right = group.shuffles
        if left.node == right.node:  # one exchange at both places cannot be read in two ways
            return [False, False]
        *above, join = joins[0]
        wanted = [
            each for node in above for each in self._jvm.items(node.requiredChildDistribution())
        ]
        if not {name_of(each) for each in wanted} <= _ANYWHERE:
            return [False, False]
        kind = join.joinType().toString()
        return [kind in _LEFT_CUT, kind in _RIGHT_CUT]

    def scan(self, shuffle: Shuffle, batches: RDD[Any], stored: StructType) -> tuple[Scan, int]:
        """What takes an exchange's place: it reads its parts. Besides the RDD that it reads, as
        lineages tell it."""
        read, declared = batches.getNumPartitions(), len(shuffle.parts) or shuffle.count
        if read != declared:
            raise Corrupt(f"{shuffle.label} is read in {read} partitions, not in {declared}")
        node = shuffle.place
        with self._active():
            output = node.output()
            if shuffle.caller is None:
                columns, back = self._door.as_stored(self._once(shuffle, output))
                partitioning = self._partitioning(shuffle)
            else:
                columns, back = output, None
                stored = StructType.fromJson(json.loads(node.schema().json()))
                partitioning = self._jvm["unknown"](read)
            rows = self._door.rows_of(batches, stored)
            leaf = self._leaf(columns, rows, partitioning)
            if columns is output:
                return Scan(leaf, node), rows.id()
            leaf = self._jvm["made"](back, leaf) if back else leaf
            if len(shuffle.firsts) < len(shuffle.columns):
                leaf = self._jvm["made"](output, leaf)
            return self._places.scan(node, output, leaf), rows.id()

    def _once(self, shuffle: Shuffle, output: Any) -> Any:
        """The columns of an exchange that are stored."""
        if len(shuffle.firsts) == len(shuffle.columns):
            return output
        return self._jvm.seq([output.apply(at) for at in shuffle.firsts])

    def finish(self, plan: Plan, scans: Mapping[Shuffle, Scan]) -> tuple[DataFrame, str]:
        """The DataFrame of a plan whose exchanges are done, and what is left of the plan."""
        with self._active():
            root = self._fill(plan.root, scans)
            rows, partitioning = self._executed(root).execute(), root.outputPartitioning()
            rows = self._jvm["with settings"](rows, self._session.sessionState().conf())
        stated = OutputColumns(self._jvm, self._asked, plan.top)
        columns = stated.columns(root)
        logical = self._door.logical(columns, rows, partitioning, root.outputOrdering())
        return self._door.frame(stated.limited(logical)), str(root.toString())

    def _bytes(self, text: str | None) -> int:
        if text is None or text.startswith("-"):
            return -1
        return int(self._jvm["bytes"].byteStringAsBytes(text))

    def _query(self, logical: Any) -> Any:
        return self._jvm["dataset"].ofRows(self._session, logical).queryExecution()

    def _executed(self, plan: Any) -> Any:
        """Return a stage as Spark executes it. Nothing else is prepared again: a rule that adds
        exchanges has no part in it."""
        return self._prepared(plan, self._rules[-2:])

    def _prepared(self, plan: Any, rules: Iterable[Any]) -> Any:
        for rule in rules:
            plan = rule.apply(plan)
        return plan

    @cached_property
    def _rules(self) -> list[Any]:
        """The rules by which Spark prepares a physical plan. The last two fuse operators and let
        equal exchanges be one, which would hide them."""
        rules = self._jvm.items(
            self._jvm.only(_QUERY).preparations(self._session, self._jvm.nothing(), False)
        )
        names = [one.ruleName().rpartition(".")[2] for one in rules[-2:]]
        if names != _LAST_RULES:
            raise Invalid(f"this Spark prepares plans by other rules: {', '.join(names)} come last")
        return rules

    def _plan(self, logical: Any) -> Plan:
        with self._setting(_FUSED, "false"):  # Spark prepares subqueries whole; none is fused yet
            planner = self._session.sessionState().planner()
            planned = planner.plan(self._jvm["answer"](logical)).next()
            root = self._prepared(planned, self._rules[:-2])
        top = None
        if name_of(root) in _COLLECTED:
            top, root = root, root.child()
        walk = ExchangeFinder(self._jvm, self._marks, root)
        if walk.tops:
            root = self._places.replace(root, [(one, self._gathered(one)) for one in walk.tops])
            walk = ExchangeFinder(self._jvm, self._marks, root)
        for shuffle in walk.shuffles:
            shuffle.merging = merging(self._jvm, shuffle)
        if self._door.version.grouped:
            for caller in callers(self._jvm, walk.shuffles, self._session.conf()):
                for shuffle in caller.shuffles:
                    shuffle.caller = caller
        shuffles, inputs, refusal = tuple(walk.shuffles), tuple(walk.inputs), ""
        if self._jvm.only(_OBSERVED).collect(root).nonEmpty():
            refusal = "the query observes metrics, which Spark gives of what it runs as a whole"
        elif self._cache and not self._cache.may_be(root):
            refusal = "Spark relies on how the cache was partitioned when it was asked for"
        return Plan(logical, top, root, shuffles, inputs, refusal)

    def _made_of(self, shuffle: Shuffle) -> Any:
        """The physical nodes over an exchange that were made of the same logical one, with what
        Spark has put between; None when they do not give the rows that it does, so that the
        exchange has to be found once more."""
        physical = shuffle.node
        for node in reversed(shuffle.above):
            made_of = link(node)
            if made_of == shuffle.origin:
                physical = node
            elif made_of is not None:
                break
        same = physical.outputSet().equals(shuffle.origin.outputSet())
        return physical if same else None

    def _place(self, shuffle: Shuffle, physical: Any) -> tuple[Any, Any]:
        """A logical node whose exchange has begun, and what is planned in its stead: the physical
        nodes that were made of it, over a mark."""
        logical, mark = shuffle.origin, shuffle.mark
        assert mark is not None
        if mark.rows == 0 and (physical is shuffle.node or is_grouped(logical)):
            return logical, self._door.relation(logical.output())
        known = mark.rows >= 0
        stated = self._stated(logical.output(), mark.size_bytes) if known else logical
        return logical, self._jvm["stage"](stated, self._marked(physical, [shuffle]))

    def _stated(self, output: Any, size_bytes: int) -> Any:
        """A logical leaf of a known size. Python cannot hand the JVM the numbers of statistics, so
        that they are those of a range that is as large."""
        numbers = self._session.range(max(1, size_bytes // 8))
        stats = self._jvm["option"].apply(numbers.queryExecution().optimizedPlan().stats())
        unknown = self._jvm["unknown"](0)
        return self._door.logical(output, self._no_rows(), unknown, statistics=stats)

    def _no_rows(self) -> Any:
        return self._spark.sparkContext._jsc.emptyRDD().rdd()

    def _marked(self, plan: Any, shuffles: Iterable[Shuffle]) -> Any:
        places = []
        for shuffle in through(shuffles):
            assert shuffle.mark is not None
            output = shuffle.node.output()
            places.append(
                (shuffle.node, self._leaf(output, shuffle.mark.rdd, shuffle.partitioning))
            )
        return self._places.replace(plan, places)

    def _gathered(self, top: Any) -> Any:
        """Return top rows in the middle of a plan, which Spark brings together without an exchange
        that one could see, with one."""
        child = self._jvm["sorted"](top.sortOrder(), False, top.child(), 0)
        child = self._jvm["some"](top.limit(), child)
        ensured, nothing = self._jvm.only(_ENSURED), self._jvm.nothing()
        single, more = self._jvm.only(_SINGLE), self._door.version.shuffle_exchange
        exchange = self._jvm["exchange"](single, child, ensured, nothing, *more)
        exchange.setLogicalLink(link(top))
        return top.withNewChildren(self._jvm.seq([exchange]))

    def _number(self, shuffle: Shuffle, stage: Any) -> Any:
        if shuffle.kind == RANGE and self._is_small(shuffle):
            return self._numbering.first()
        return self._numbering.number(shuffle, stage)

    def _is_small(self, shuffle: Shuffle) -> bool:
        """Whether rows would be read as one part in any case, so that no bounds are needed."""
        marks = [one.mark for one in shuffle.inputs if one.mark is not None]
        if shuffle.wanted or not marks or shuffle.stage.others or not self.adapting.coalesce:
            return False
        return sum(mark.size_bytes for mark in marks) <= self.adapting.least_bytes

    def _partitioning(self, shuffle: Shuffle) -> Any:
        """Return how rows are partitioned as they are read: for neighbours together Spark has words
        of its own, and of pieces it knows nothing."""
        if not (parts := shuffle.parts):
            return shuffle.partitioning
        if shuffle.kind == RANGE:
            return self._jvm["ranges"](shuffle.partitioning.ordering(), len(parts))
        if shuffle.kind == HASH and not shuffle.is_cut:
            held = (part.subpartitions for part in parts)
            bounds = self._jvm.seq(self._jvm["bounds"](one.start, one.stop) for one in held)
            return self._jvm["coalesced"](shuffle.partitioning, bounds)
        return self._jvm["unknown"](len(parts))

    def _stage(self, physical: Any) -> Any:
        """A logical leaf that is planned as this very plan."""
        return self._jvm["stage"](self._door.relation(physical.output()), physical)

    def _leaf(self, output: Any, rows: Any, partitioning: Any) -> Any:
        nothing, unordered = self._jvm.nothing(), self._jvm.seq()
        return self._jvm["leaf"](output, rows, "Headgate", partitioning, unordered, nothing)

    def _fill(self, plan: Any, scans: Mapping[Shuffle, Scan]) -> Any:
        places = [(one.place, scan) for one, scan in scans.items()]
        cut = {joined(one.above)[-1]: None for one in scans if one.is_cut}
        return self._places.fill(plan, places, list(cut))

    def alike(self, shuffles: Iterable[Shuffle]) -> list[list[Shuffle]]:
        """Return the exchanges of a stage by the places that they stand at: nothing tells equal
        places apart, for Spark's optimizer has copied them."""
        found: dict[int, list[Shuffle]] = {}
        with self._active():
            places = self._jvm["alike"]()
            for at, one in enumerate(shuffles):
                first = places.putIfAbsent(one.place, at)
                found.setdefault(at if first is None else first, []).append(one)
        return list(found.values())

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

    def _active(self) -> AbstractContextManager[None]:
        return self._door.active(self._session)


def open_plans(spark: SparkSession, door: CatalystDoor) -> Planner:
    return Planner(spark, door, Jvm(spark, _CLASSES))
