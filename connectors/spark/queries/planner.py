"""Make physical plans, behind the private door: find the exchanges of a plan, plan the rows under
each, and put a scan in its place.

Plans are made in a session of their own. It has the user's settings but no adaptive execution,
which would hide the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....control.errors import Corrupt
from ..jvm.bridge import is_invalid_plan, link, name_of, schema_of
from ..jvm.caches import Cache, caches, is_outdated
from ..jvm.catalyst import CatalystDoor, ExchangePlan
from ..jvm.names import Features
from ..jvm.task_settings import TaskSettings
from ..settings import is_true
from ..tasks.partial_aggregates import Merging
from ..types import stored_schema
from .adaptive import AdaptiveSettings, adaptive_settings, initial_partitions
from .commands import OptimizedQuery
from .exchange_finder import (
    JOINS,
    TOP,
    ExchangeFinder,
    made_of,
    over,
    without_spreads,
)
from .exchange_nodes import (
    HASH,
    RANGE,
    Broadcast,
    BroadcastMark,
    ExchangeNode,
    Group,
    Plan,
    Shuffle,
    all_sent,
    through,
)
from .output_columns import OutputColumns
from .partition_ids import PartitionIds
from .pushdown import merging_of, plan_calls
from .query_stages import QueryStages, StageMarks
from .scan_places import Scan, ScanPlaces

_ASCENDING = ("ascending", "nulls first")
_FUSED = "spark.sql.codegen.wholeStage"
_HASHED_MAPS = "spark.sql.legacy.allowHashOnMapType"
_SHUFFLE, _KEPT = "ShuffleExchangeExec", 0.2  # the share of rows that a filter is assumed to keep
_COLLECTED = (TOP, "CollectLimitExec")  # as a root these only send rows to the driver
_SINGLE_PASS = "spark.sql.analyzer.singlePassResolver.enabled"
_SEED = 42
_AS_PLANNED = AdaptiveSettings(False, 0, 0, 1, inf, 0.0, -1)

Query = DataFrame | Cache


class Planner:
    """Plans one query; each query needs a planner of its own."""

    def __init__(self, spark: SparkSession, features: Features, door: CatalystDoor) -> None:
        self._spark = spark
        self._door = door
        self._jvm = jvm = door.jvm
        self.settings = TaskSettings(spark, features)
        self._session = spark._jsparkSession.cloneSession()
        self._session.conf().set("spark.sql.adaptive.enabled", "false")
        self._session.conf().set(_HASHED_MAPS, "true")  # the optimizer sorts maps first
        if (partitions := initial_partitions(spark)) is not None:
            self._session.conf().set("spark.sql.shuffle.partitions", partitions)
        self._numbering = PartitionIds(door, self._session)
        self._places = ScanPlaces(jvm)
        self.stages = QueryStages(self._session, door)
        self.begun = StageMarks(jvm, self._places)
        self._asked: Any = None
        self._logical: Any = None
        self._cache: Cache | None = None
        self.is_limited = self.keeps_rows = False

    def caches(self, asked: Query) -> list[Cache]:
        """Return the caches that a query reads."""
        with self.active():
            return list(caches(self._jvm, self._optimized(asked)))

    def fills_cache(self) -> bool:
        """Return True if a job of the query may be filling a cache: other stages and queries that
        read the cache wait for that job."""
        with self.active():
            return any(not cache.is_built for cache in caches(self._jvm, self._logical))

    def plan(self, asked: Query, collected: bool = True) -> Plan:
        """Return the plan of a query, without running anything. A limit at its root needs no
        exchange where the driver collects the rows: the driver then applies the limit."""
        with self.active():
            logical = self._optimized(asked)
            plan = self._plan(logical)
            self.is_limited = plan.top is not None
            if plan.top is None or collected:
                return plan
            return self._plan(self._jvm["project"](logical.output(), logical))

    def _optimized(self, asked: Query) -> Any:
        """Return the optimized plan of a query, made at the first call."""
        if self._logical is not None:
            return self._logical
        if isinstance(asked, Cache):
            self._cache = asked
            self._logical = self._asked = asked.logical
            if asked.is_fixed:
                self.adapting = _AS_PLANNED
        elif isinstance(asked, OptimizedQuery):
            self._asked, self._logical = asked.logical, asked.logical.clone()
        else:
            execution = asked._jdf.queryExecution()
            self._asked = execution.analyzed()
            if is_outdated(self._jvm, execution, self._query):
                execution = self._query(self._asked)
            self._logical = execution.optimizedPlan().clone()
        return self._logical

    def plan_again(self, plan: Plan) -> Plan:
        """Plan the rest of a query again, by Spark's own rules, with the sizes of the exchanges and
        broadcasts that are done. Return the same plan where Spark would keep it, too."""
        with self.active():
            # of equal nodes the first counts: the uppermost exchange, which has the fewest rows
            begun = [
                self._place(shuffle.node.logical, shuffle, physical)
                for shuffle in reversed(plan.shuffles)
                if shuffle.mark is not None
                and name_of(shuffle.node.physical) == _SHUFFLE
                and (physical := made_of(shuffle.node)) is not None
            ]
            begun += [
                self._place_sent(each) for each in plan.broadcasts if self._is_told(plan, each)
            ]
            logical = self._places.replace(plan.logical, self._jvm.first_of_each(begun))
            try:
                again = self._plan(self._optimized_again(logical))
            except Exception as exc:
                if not is_invalid_plan(exc):
                    raise
                return plan
        for shuffle in again.shuffles:
            if shuffle.mark is None and all(read.mark for read in shuffle.inputs):
                shuffle.mark = self.begun.earlier(shuffle)
        for each in again.broadcasts:
            if each.sent is None and all(read.mark for read in through(each.inputs)):
                each.sent = self.begun.earlier(each)
        return again if again.waiting <= plan.waiting else plan

    def _optimized_again(self, logical: Any) -> Any:
        """Return a logical plan after the rules of Spark's adaptive execution, which executes
        subqueries apart."""
        rules = self._session.sessionState().adaptiveRulesHolder().runtimeOptimizerRules()
        optimizer = self._jvm["optimizer"](self._session.sessionState().conf(), rules)
        if logical.containsPattern(self._jvm.subquery):
            inside = self._jvm.items(logical.subqueriesAll())
            places = [(plan, optimizer.execute(plan)) for plan in reversed(inside)]
            logical = self._places.replace(logical, self._jvm.first_of_each(places))
        logical.invalidateStatsCache()
        return optimizer.execute(logical)

    def send(
        self, broadcast: Broadcast, scans: Mapping[Shuffle, Scan], show: Callable[[Any], None]
    ) -> None:
        """Begin a broadcast, if no equal one has begun."""

        def begin(form: int, same: Any) -> BroadcastMark:
            rows = self._fill(broadcast.node, scans, broadcast.stage, broadcast.inputs)
            return self.stages.send(form, rows, same, show)

        self.begun.send(broadcast, begin)

    @cached_property
    def broadcast_s(self) -> float:
        """Return how long a broadcast may take: with adaptive execution Spark waits for ever."""
        conf = self._session.sessionState().conf()
        return inf if self.adapting.plans_again else float(conf.broadcastTimeout())

    def forget(self, sent: BroadcastMark) -> bool:
        """Let no later stage use a broadcast that is to be ended. Return False if it must go on:
        something else needs its rows or its jobs."""
        if self.fills_cache() or not self.stages.forget(sent):
            return False
        self.begun.forget(sent)
        return True

    def changes(self, plan: Plan, sent: BroadcastMark) -> bool:
        """Return True if a broadcast that has ended lets Spark plan the rest otherwise: it has few
        rows, no row is joined with it, or a side of a join now fits into a broadcast."""
        if sent.rows <= plan.few or sent.joins_nothing:
            return True
        with self.active():
            ended = [each for each in plan.broadcasts if each.sent is sent]
            places = [self._place_sent(each) for each in ended if self._is_told(plan, each)]
            sides = [each for each in plan.shuffles if each.mark is None and each.opposite]
            return bool(places) and any(self._fits_now(side, places) for side in sides)

    def _fits_now(self, side: Shuffle, places: Sequence[tuple[Any, Any]]) -> bool:
        known = self._places.replace(side.node.logical, places)
        sizes = [float(each.stats().sizeInBytes()) for each in (side.node.logical, known)]
        return sizes[0] > self.adapting.broadcast_bytes >= sizes[1]

    def rows(
        self, shuffle: Shuffle, scans: Mapping[Shuffle, Scan], in_order: bool = False
    ) -> ExchangePlan:
        """Return the plan of the rows that go into an exchange, with a row's partition as the last
        column. With `in_order` the rows are sorted by a hash first: round robin then sends them to
        the same partitions each time they are made."""
        with self.active():
            exchange = shuffle.node
            output, child = exchange.physical.output(), exchange.physical.child()
            origin = child = self._fill(child, scans, shuffle.stage, shuffle.inputs)
            if in_order:
                hashed, empty = self._jvm["hash"](child.output(), _SEED), self._jvm.seq()
                order = self._jvm["order"](hashed, *map(self._jvm.only, _ASCENDING), empty)
                by = self._jvm.seq([order])
                child = self._jvm["sorted"](by, False, child, 0)
            if (distinct := self._once(exchange, output)) is not output:
                child = self._jvm["made"](distinct, child)
            number = self._number(shuffle, child)
            carried = self._door.carried(child.output(), exchange.rows, number)
            executed, shown = self.stages.add(self._jvm["made"](carried, child))
            stored, partitioning = stored_schema(exchange.rows), exchange.partitioning
            return ExchangePlan(
                executed, shown, stored, origin, output, exchange.given, partitioning
            )

    @cached_property
    def adapting(self) -> AdaptiveSettings:
        """Return the settings for adaptive reading in the user's session."""
        return adaptive_settings(self._spark, self._bytes)

    def estimate_bytes(self, shuffle: Shuffle) -> float:
        """Estimate the size of an exchange. Spark's own estimate ignores filters, so each filter
        lowers it; the inputs' size is the upper limit where all of them are done."""
        first = shuffle if shuffle.mark is None else shuffle.mark.first
        if first.guess_bytes < 0:
            stated = float(first.node.logical.stats().sizeInBytes())
            first.guess_bytes = stated * _KEPT**first.filters
        guess = first.guess_bytes
        marks = [source.mark for source in through(first.inputs)]
        if first.stage.others or not marks:
            return guess
        sizes = [mark.size_bytes for mark in marks if mark is not None and mark.rows >= 0]
        return min(guess, sum(sizes)) if len(sizes) == len(marks) else guess

    def likely_bytes(self, shuffle: Shuffle) -> float:
        """Estimate the size of an exchange, at most that of all it reads."""
        read_bytes = self._door.leaves_bytes(shuffle.node.logical)
        return min(self.estimate_bytes(shuffle), read_bytes)

    def sized(self, rows: int, shuffle: Shuffle) -> int:
        """Return the size of so many rows of an exchange, by the default sizes of their types."""
        return rows * (8 + int(shuffle.node.physical.schema().defaultSize()))

    def merging(self, places: Iterable[Shuffle]) -> Merging | None:
        """Return the way to merge the rows of the exchange that is at these places, None where they
        cannot be merged in the same way at all of them."""
        with self.active():
            ways = {merging_of(self._jvm, shuffle) for shuffle in places}
        return ways.pop() if len(ways) == 1 else None

    def scan(
        self, shuffle: Shuffle, batches: Any, stored: StructType, results: str
    ) -> tuple[Scan, int]:
        """Return the scan that takes the place of an exchange and reads its parts, and the id of
        the scan's RDD, by which a `Lineage` names the scan. Plans show the names of its results.

        Raises:
            Corrupt: the RDD has another number of partitions, or the scan has other columns.
        """
        exchange, reading = shuffle.node, shuffle.reading
        read, declared = int(batches.getNumPartitions()), len(reading.parts) or exchange.count
        if read != declared:
            raise Corrupt(f"{exchange.label} is read in {read} partitions, not in {declared}")
        node = shuffle.place
        with self.active():
            output = node.output()
            if reading.caller is None:
                columns, back = self._door.as_stored(self._once(exchange, output), exchange.rows)
                partitioning = self._partitioning(shuffle)
            else:
                columns, back = output, None
                stored = schema_of(node)
                partitioning = self._jvm["unknown"](read)
            rows = self._door.rows_of(batches, read, stored)
            leaf = self._leaf(columns, rows, partitioning, f"Headgate {results}")
            leaf = self._jvm["made"](back, leaf) if back else leaf
            if columns is output:
                return Scan(leaf, node), int(rows.id())
            if len(exchange.firsts) < len(exchange.columns):
                leaf = self._jvm["made"](output, leaf)
            return self._places.scan(node, output, leaf), int(rows.id())

    def _once(self, exchange: ExchangeNode, output: Any) -> Any:
        """Return the columns of an exchange that are stored: a repeated column once."""
        if len(exchange.firsts) == len(exchange.columns):
            return output
        return self._jvm.seq([output.apply(at) for at in exchange.firsts])

    def finish(self, plan: Plan, scans: Mapping[Shuffle, Scan]) -> tuple[DataFrame, str, Any]:
        """Return the DataFrame of a plan whose exchanges are done, and the rest of the plan as text
        and as Spark's SQL page shows it."""
        with self.active():
            root = self._fill(plan.root, scans, plan.last, plan.inputs)
            executed, shown = self.stages.add(root)
            rows, partitioning = self._door.execute(executed), root.outputPartitioning()
            rows = self._jvm["with settings"](rows, self._session.sessionState().conf())
        stated = OutputColumns(self._jvm, self._asked, plan.top)
        columns = stated.columns(root)
        logical = self._door.logical(columns, rows, partitioning, root.outputOrdering())
        frame = self._door.frame(stated.limited(logical), is_analyzed=True)
        return frame, str(root.toString()), shown

    def _bytes(self, text: str | None) -> int:
        if text is None or text.startswith("-"):
            return -1
        return int(self._jvm["bytes"].byteStringAsBytes(text))

    def _query(self, logical: Any) -> Any:
        return self._jvm["dataset"].ofRows(self._session, logical).queryExecution()

    def _plan(self, logical: Any) -> Plan:
        with self._setting(_FUSED, "false"):  # else Spark fuses subqueries at once
            planner = self._session.sessionState().planner()
            planned = planner.plan(self._jvm["answer"](logical)).next()
            root = self.stages.prepare(planned)
        if self.begun.sent:
            root = self._jvm.only("valid").apply(root)
        top, is_shortened = None, False
        if name_of(root) in _COLLECTED:
            top, whole = root, root.child()
            is_whole = self.keeps_rows or name_of(top) == TOP
            root = whole if is_whole else without_spreads(self._jvm, whole)
            is_shortened = root is not whole
        walk = ExchangeFinder(self._jvm, self.begun.marks, self.begun.sent, root)
        if walk.tops:
            root = self._places.replace(
                root, [(top_rows, self._gathered(top_rows)) for top_rows in walk.tops]
            )
            walk = ExchangeFinder(self._jvm, self.begun.marks, self.begun.sent, root)
        if self._door.version.grouped:
            plan_calls(self._jvm, walk.shuffles, self._session.conf())
        shuffles, inputs, refusal = tuple(walk.shuffles), tuple(walk.inputs), ""
        if self._jvm.only("observed").collect(root).nonEmpty():
            refusal = "the query observes metrics, which need Spark to run the query as a whole"
        elif is_true(self._session.conf().get(_SINGLE_PASS, None)):
            refusal = f"{_SINGLE_PASS}=true takes no rows of an RDD"
        elif self._cache and not self._cache.may_be(root):
            refusal = "Spark relies on how the cache was partitioned when it was asked for"
        return Plan(
            logical, top, root, shuffles, inputs, walk.last, refusal, walk.few, is_shortened
        )

    def _place(self, logical: Any, shuffle: Shuffle, physical: Any) -> tuple[Any, Any]:
        """Return the logical node of an exchange that has begun, and the node to plan instead: the
        physical nodes that were made of it over Spark's own node for a stage."""
        return logical, self._jvm["stage"](logical, self.begun.marked(physical, [shuffle]))

    def _place_sent(self, broadcast: Broadcast) -> tuple[Any, Any]:
        return broadcast.logical, self._jvm["stage"](
            broadcast.logical, self.begun.leaf_of(broadcast)
        )

    def _is_told(self, plan: Plan, broadcast: Broadcast) -> bool:
        """Return True if Spark is to plan with a broadcast that has begun. A plan that prunes scans
        by broadcast rows would not find them again, so there it must be worth that."""
        if broadcast.sent is None or broadcast.logical is None:
            return False
        if broadcast.sent.rows and plan.logical.containsPattern(self._jvm.pruning):
            return broadcast.sent.joins_nothing
        return bool(broadcast.node.outputSet().equals(broadcast.logical.outputSet()))

    def _gathered(self, top: Any) -> Any:
        """Return a top-rows node from the middle of a plan with an exchange below it. Spark brings
        its rows together too, but shows no exchange."""
        child = self._jvm["sorted"](top.sortOrder(), False, top.child(), 0)
        child = self._jvm["some"](top.limit(), child)
        ensured, nothing = self._jvm.only("ensured"), self._jvm.nothing()
        single, more = self._jvm.only("single"), self._door.version.shuffle_exchange
        exchange = self._jvm["exchange"](single, child, ensured, nothing, *more)
        exchange.setLogicalLink(link(top))
        return top.withNewChildren(self._jvm.seq([exchange]))

    def _number(self, shuffle: Shuffle, rows: Any) -> Any:
        if shuffle.node.kind == RANGE and self._is_small(shuffle):
            return self._numbering.first()
        return self._numbering.number(shuffle.node, lambda: self._executing(shuffle, rows))

    def _executing(self, shuffle: Shuffle, rows: Any) -> Any:
        """Return a leaf that executes a plan. Spark, which plans what reads the leaf, does not plan
        the rows again: it could add exchanges."""
        executed = self._door.execute(self.stages.add(rows)[0])
        if shuffle.mark is not None:  # only this exchange needs the jobs that sample its rows
            self._spark.sparkContext.addJobTag(shuffle.mark.tag)
        return self._leaf(
            rows.output(), executed, self._jvm["unknown"](executed.getNumPartitions())
        )

    def _is_small(self, shuffle: Shuffle) -> bool:
        """Return True if all rows would be read as one part, so that no bounds are needed."""
        marks = [source.mark for source in shuffle.inputs if source.mark is not None]
        if shuffle.node.wanted or not marks or shuffle.stage.others or not self.adapting.coalesce:
            return False
        return sum(mark.size_bytes for mark in marks) <= self.adapting.least_bytes

    def _partitioning(self, shuffle: Shuffle) -> Any:
        """Return the partitioning of the rows as they are read. Spark has types for neighbouring
        partitions that are read together, and none for pieces of a partition."""
        exchange = shuffle.node
        if not (parts := shuffle.reading.parts):
            return exchange.partitioning
        if exchange.kind == RANGE:
            return self._jvm["ranges"](exchange.partitioning.ordering(), len(parts))
        if exchange.kind == HASH and not shuffle.reading.is_cut:
            spans = (part.subpartitions for part in parts)
            bounds = self._jvm.seq(self._jvm["bounds"](span.start, span.stop) for span in spans)
            return self._jvm["coalesced"](exchange.partitioning, bounds)
        return self._jvm["unknown"](len(parts))

    def _leaf(self, output: Any, rows: Any, partitioning: Any, name: str = "Headgate") -> Any:
        nothing, unordered = self._jvm.nothing(), self._jvm.seq()
        return self._jvm["leaf"](output, rows, name, partitioning, unordered, nothing)

    def _fill(
        self,
        plan: Any,
        scans: Mapping[Shuffle, Scan],
        stage: Group,
        inputs: Iterable[Shuffle] = (),
    ) -> Any:
        """Return the plan of a stage with scans of the exchanges that it reads, and the broadcasts
        to it and to the exchanges that are left to Spark."""
        places = [(shuffle.place, scan) for shuffle, scan in scans.items()]
        cut = [over(shuffle, JOINS)[-1:] for shuffle in scans if shuffle.reading.is_cut]
        for broadcast in all_sent(stage, inputs):
            if broadcast.logical is not None:
                node = broadcast.node
                places.append((node, Scan(self.begun.leaf_of(broadcast), node)))
        return self._places.fill(plan, places, list(dict.fromkeys(chain(*cut))))

    def alike(self, shuffles: Collection[Shuffle]) -> list[list[Shuffle]]:
        """Return the exchanges of a stage, grouped by equal places in its plan. Equal places cannot
        be told apart: Spark's optimizer has copied them."""
        by_place: dict[int, list[Shuffle]] = {}
        if len(shuffles) < 2:
            return [[shuffle] for shuffle in shuffles]
        with self.active():
            places = self._jvm["alike"]()
            for at, shuffle in enumerate(shuffles):
                first = places.putIfAbsent(shuffle.place, at)
                by_place.setdefault(at if first is None else first, []).append(shuffle)
        return list(by_place.values())

    @contextmanager
    def _setting(self, key: str, value: str) -> Iterator[None]:
        conf = self._session.conf()
        before = conf.get(key)
        conf.set(key, value)
        try:
            yield
        finally:
            conf.set(key, before)

    def keep_active(self) -> None:
        """Make the session of this planner the active one of this thread until it ends."""
        self._door.keep_active(self._session)

    @contextmanager
    def active(self, description: str = "") -> Iterator[None]:
        """Make the session of this planner the active one of this thread inside. Jobs carry the
        settings of the user's, and the description, if there is one."""
        with self.settings.carried(description), self._door.active(self._session):
            yield
