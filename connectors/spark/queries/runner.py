"""Run a query exchange by exchange: each begins as soon as its inputs are done."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from ....control.clock import SYSTEM_CLOCK
from ....control.contract import ShuffleDescriptor
from ....control.errors import Invalid
from ....control.ids import exchange_name
from ..exchanges.rows import JvmRows
from ..exchanges.run import Exchanger, ExchangeRun
from ..exchanges.spec import ExchangeSpec, label_of, schema_text
from ..exchanges.stored import StoredResult
from ..jvm.caches import Cache
from ..jvm.names import Feature, Features
from ..jvm.pages.query_page import QueryPage
from ..jvm.scheduler import StoppedJobs, end_jobs
from ..jvm.spark_shuffles import accounted
from ..settings import PREFIX
from ..tasks.exchange_tasks import ReaderTask, ReadTask
from ..tasks.grouped.group_task import GroupTask
from ..tasks.partial_aggregates import MergeTask, may_gain
from ..types import check
from .adaptive import check_parts, even_cuts, parts_of, skew_cuts, task_firsts
from .commands import OptimizedQuery
from .exchange_finder import is_exchange, made_of_one, may_cut
from .exchange_nodes import (
    KINDS,
    RANGE,
    ROUND_ROBIN,
    BroadcastMark,
    Group,
    Mark,
    Plan,
    Shuffle,
    are_there,
    refused,
    through,
)
from .planner import Planner, Query
from .scan_places import Scan

_AT_ONCE = 4
_LOOK_S, _LOOK_S_MAX = 0.002, 0.05


@dataclass(frozen=True, slots=True)
class FinishedExchange:
    """An exchange that has run."""

    rows: JvmRows
    stored: StoredResult
    label: str
    """The label that the log has."""
    took_s: float
    """The time that its map stage took."""


@dataclass(frozen=True, slots=True)
class FinishedQuery:
    """A query whose exchanges are done."""

    exchanges: tuple[FinishedExchange, ...]
    reused: int
    """The number of exchanges that were not run, because another had the same rows."""
    refused: tuple[tuple[str, str], ...]
    """The labels of the exchanges that were left to Spark, each with the reason."""
    plan: str
    """The rest of the plan, as Spark shows it."""
    is_limited: bool
    """True when the query ends in a limit. It was then planned either for a driver that collects
    the rows or for other readers, and serves no others."""

    @property
    def results(self) -> tuple[ShuffleDescriptor, ...]:
        return tuple(done.stored.descriptor for done in self.exchanges)


class QueryRunner:
    """Runs the exchanges of one query; each query needs a runner of its own."""

    def __init__(
        self,
        exchanger: Exchanger,
        plans: Planner,
        page: QueryPage,
    ) -> None:
        self.page = page
        self._exchanger = exchanger
        self._plans = plans
        self._runs: dict[Mark, Future[FinishedExchange]] = {}
        self._left: list[tuple[str, str]] = []
        self._tag = f"headgate-{os.urandom(8).hex()}"
        self._needless = StoppedJobs(exchanger.spark.sparkContext)
        self._plan: Plan | None = None
        self._reused = 0

    def active(self) -> AbstractContextManager[None]:
        """Let this thread plan the query, and start its jobs, inside."""
        return self._plans.active()

    def empty_caches(self, asked: Query) -> list[Cache]:
        """Return the empty caches that a query reads, as far as Spark tells their plans."""
        caches = self._plans.caches(asked)
        return [cache for cache in caches if cache.is_empty and cache.logical is not None]

    def reads_cache(self, asked: Query) -> bool:
        return bool(self._plans.caches(asked))

    def refusals(self, asked: Query, collected: bool) -> list[str]:
        """Return for each exchange of a query the reason why it is left to Spark, empty when it is
        not, or when a limit needs none."""
        self._plan = self.plan(asked, collected)
        refusals = [self.refusal(shuffle) for shuffle in self._plan.shuffles]
        return [*refusals, ""] if self._plan.is_shortened and not self._plan.refusal else refusals

    def plan(self, asked: Query, collected: bool = True) -> Plan:
        """Return the plan of a query, without running anything; see `Planner.plan`."""
        return self._refused_in(self._plans.plan(asked, collected))

    def refusal(self, shuffle: Shuffle) -> str:
        """Return the reason known so far why an exchange is left to Spark, empty when it is not."""
        if shuffle.refusal:
            return shuffle.refusal
        least = self._exchanger.current.exchanges.sql_from_bytes
        is_small = least < 0 or (least and self._plans.estimate_bytes(shuffle) < least)
        return f"{PREFIX}sql.from.bytes = {least}" if is_small else ""

    def run(self, asked: Query) -> tuple[DataFrame, FinishedQuery]:
        """Run all exchanges of a query, and return its rows and a report. Keep the rows of all of
        them, unless `refusals` was asked for an action."""
        self._plans.keeps_rows = self._plan is None
        first = self._plan or self.plan(asked)
        if first.shuffles or first.is_shortened:
            self.page.begin(self._plans.settings.hide)
        context, tag = self._exchanger.spark.sparkContext, self._tag
        context.addJobTag(tag)
        try:
            begin = inheritable_thread_target(self._exchanger.spark)(self._plans.keep_active)
            pool = ThreadPoolExecutor(_AT_ONCE, "headgate-offload", begin)
            with self._plans.active("headgate: prepare the last stage"):
                try:
                    plan = self._run_all(first, pool)
                    is_changed = self._runs or plan.is_shortened or plan is not first
                    if is_changed or isinstance(asked, Cache | OptimizedQuery):
                        frame, left, last = self._plans.finish(plan, self._scans(plan.inputs))
                        if not isinstance(asked, Cache):
                            self.page.last(last)
                    else:
                        frame, left = asked.select("*"), str(plan.root.toString())
                except BaseException:
                    self._end_all()
                    raise
                finally:
                    pool.shutdown(wait=False)
                    self._needless.leave(tag, self._plans.fills_cache)
        finally:
            context.removeJobTag(tag)
        done = tuple(run.result() for run in self._runs.values())
        stages = [plan.inputs, *(mark.first.inputs for mark in self._runs)]
        native = tuple(
            (shuffle.node.public_label, shuffle.refusal)
            for stage in stages
            for shuffle in refused(stage)
        )
        limited = self._plans.is_limited
        native = (*native, *self._left)
        return frame, FinishedQuery(done, self._reused, native, left, limited)

    def _end_all(self) -> None:
        """End the map stages and broadcasts that run, and drop what all have stored. Wait for the
        map stages."""
        runs = list(self._runs.values())
        for mark in list(self._runs):
            self._end(mark)
        for sent in self._plans.begun.sent.values():
            self._needless.add(sent.tag, sent.is_over)
        while not all(run.done() for run in runs):
            end_jobs(self._exchanger.spark.sparkContext, self._tag)
            SYSTEM_CLOCK.sleep_s(_LOOK_S_MAX)

    def _end(self, mark: Mark) -> None:
        """End a map stage, and drop its rows, now or when they are stored. Its subqueries go on:
        another stage may need them."""
        mark.is_needless, run = True, self._runs.pop(mark)
        if not run.cancel():
            self._needless.add(mark.tag, run.done)
            run.add_done_callback(self._release)

    def _run_all(self, plan: Plan, pool: ThreadPoolExecutor) -> Plan:
        if not plan.shuffles:
            return plan
        pause_s = _LOOK_S
        while True:
            self._send(plan)
            while due := self._due(plan):
                for shuffle in due:
                    if self._plans.begun.begin(shuffle):
                        assert shuffle.mark is not None
                        self._runs[shuffle.mark] = pool.submit(self._exchange, shuffle)
                    else:
                        self._reused += 1
            running = [self._runs[mark] for mark in plan.running]
            is_looking = bool(plan.sending)
            if not running and not is_looking:
                return plan
            is_looking = self._needless.end() or is_looking
            if running:
                wait(running, pause_s if is_looking else None, FIRST_COMPLETED)
            else:
                SYSTEM_CLOCK.sleep_s(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S_MAX)
            ended = self._ended(plan)
            if ended[0] or ended[1]:
                pause_s = _LOOK_S
            if self._plans.adapting.plans_again and self._changes(plan, *ended):
                plan = self._refused_in(self._plans.plan_again(plan))
                self._end_needless(plan)

    def _send(self, plan: Plan) -> None:
        """Begin the broadcasts whose rows can be made, before the exchanges, as Spark does."""
        for broadcast in plan.broadcasts:
            if broadcast.sent is None and are_there(broadcast.inputs, broadcast.stage):
                left = [
                    (each.node.public_label, each.refusal) for each in refused(broadcast.inputs)
                ]
                context = self._exchanger.spark.sparkContext
                with (
                    self._plans.active("headgate: broadcast to later stages"),
                    accounted(context) if left else nullcontext(),
                ):
                    scans = self._scans(broadcast.inputs)
                    self._plans.send(broadcast, scans, self.page.early)
                self._left += left

    def _end_needless(self, plan: Plan) -> None:
        """End the map stages and broadcasts that a plan does not read."""
        running, sending = plan.running, plan.sending
        for mark in [mark for mark in self._runs if mark.rows < 0 and mark not in running]:
            self._plans.begun.forget(mark)
            self._end(mark)
        for sent in [sent for sent in self._plans.begun.sent.values() if sent.rows < 0]:
            if sent not in sending and self._plans.forget(sent):
                self._needless.add(sent.tag, sent.is_over)
        self._needless.end()

    def _refused_in(self, plan: Plan) -> Plan:
        for shuffle in plan.shuffles:
            if shuffle.mark is None:
                shuffle.refusal = _refusal(plan, shuffle, self._exchanger.features)
        return plan

    def _due(self, plan: Plan) -> list[Shuffle]:
        """Return the exchanges that can begin. An exchange waits for a smaller one on the other
        side of a join: if that is small enough for a broadcast, the larger is not needed. An
        exchange whose rows are needed more than once does not wait: without it they would be made
        more than once. If nothing else can run, all begin."""
        ready = []
        for shuffle in plan.shuffles:
            if shuffle.mark is None and are_there(shuffle.inputs, shuffle.stage):
                shuffle.refusal = self.refusal(shuffle)
                ready += [] if shuffle.refusal else [shuffle]
        waits = [shuffle for shuffle in ready if self._waits(shuffle)]
        again = self._plans.begun.wanted_again(waits)
        free = [shuffle for shuffle in ready if shuffle not in waits or shuffle in again]
        return free or ([] if plan.running or plan.sending else ready)

    def _waits(self, shuffle: Shuffle) -> bool:
        if self._plans.adapting.broadcast_bytes <= 0:
            return False
        mine = self._plans.estimate_bytes(shuffle)
        return any(
            not opposite.is_done and self._plans.estimate_bytes(opposite) < mine
            for opposite in through(shuffle.opposite)
        )

    def _ended(self, plan: Plan) -> tuple[list[Mark], list[BroadcastMark]]:
        """Return the exchanges and broadcasts of a plan that have ended, with their sizes noted. An
        error in a stage that the plan no longer reads counts for nobody."""
        ended = [mark for mark in plan.running if self._runs[mark].done()]
        for mark in ended:
            stored = self._runs[mark].result().stored
            self._plans.begun.end(mark, int(stored.rows.sum()), stored.plain_bytes, stored.sizes)
        return ended, self._plans.stages.ended(plan.sending, self._plans.broadcast_s)

    def _changes(self, plan: Plan, marks: Sequence[Mark], sent: Iterable[BroadcastMark]) -> bool:
        """Return True if the rest should be planned again because of a result that has ended."""
        limit = self._plans.adapting.broadcast_bytes
        new = [shuffle for shuffle in plan.shuffles if shuffle.mark in marks]
        return (
            any(mark.rows <= plan.few for mark in marks)
            or any(self._changes_plan(shuffle, limit) for shuffle in new)
            or any(self._becomes_small(shuffle, new, limit) for shuffle in plan.shuffles)
            or any(self._plans.changes(plan, each) for each in sent)
        )

    def _changes_plan(self, shuffle: Shuffle, limit: int) -> bool:
        """Return True if an exchange is empty, or if a broadcast of it may be better than a join of
        two exchanges: it is small, and the other side is large or not there yet."""
        assert shuffle.mark is not None
        mark, adapting = shuffle.mark, self._plans.adapting
        fits = [self._fits(each, limit) for each in (shuffle, *shuffle.opposite)]
        is_sent = fits[0] and (adapting.sends_of_two or not all(fits))
        return not mark.rows or is_sent

    def _becomes_small(self, shuffle: Shuffle, new: Container[Shuffle], limit: int) -> bool:
        """Return True if it may be better to broadcast an exchange's rows than to begin it: it is
        for a join, and all its rows come from one of the `new` exchanges, which has few."""
        read = made_of_one(shuffle) if shuffle.mark is None and shuffle.opposite else None
        if read is None or read not in new or read.mark is None:
            return False
        size_bytes = self._plans.sized(read.mark.rows, shuffle)
        return max(size_bytes, read.mark.plain_bytes) <= limit

    def _fits(self, shuffle: Shuffle, limit: int) -> bool:
        mark = shuffle.mark if shuffle.is_done else None
        return mark is not None and mark.size_bytes <= limit

    def _exchange(self, shuffle: Shuffle) -> FinishedExchange:
        begun_s, node, mark = SYSTEM_CLOCK.monotonic_s(), shuffle.node, shuffle.mark
        assert mark is not None
        if mark.is_needless:
            raise CancelledError
        result = self._exchanger.results.name()
        label = label_of(node.public_label, self._plans.settings, self.page)
        context, has_refused = self._exchanger.spark.sparkContext, any(refused(shuffle.inputs))
        with (
            self._plans.active(f"headgate: prepare {exchange_name(result, label)}"),
            accounted(context) if has_refused else nullcontext(),
        ):
            scans = self._scans(shuffle.inputs)
            rows = self._rows(shuffle, scans)
            is_dealt = node.kind == ROUND_ROBIN
            if is_dealt and not self._exchanger.results.inputs(rows.lineage())[1]:
                rows = self._rows(shuffle, scans, in_order=True)
            self.page.stage(result, label, rows.plan.shown)
            rows.begin()
            if self._plans.adapting.plans_again:  # without, Spark waits for slots
                rows.require_slots()
            context.addJobTag(mark.tag)
            if mark.is_needless:
                raise CancelledError
            alone = node.wanted or not self._plans.adapting.coalesce
            firsts_of = None if alone else partial(task_firsts, self._plans.adapting)
            spec = ExchangeSpec(
                result,
                label,
                rows,
                schema_text(node.rows, self._plans.settings),
                node.count,
                self._plans.settings,
                partial(self._exchanger.readers, firsts_of=firsts_of),
            )
            likely = partial(self._plans.likely_bytes, shuffle)
            with self._exchanger.results.pending() as pending:
                stored = ExchangeRun(self._exchanger, spec).run(pending, likely)
                pending.remove(stored.descriptor)
        took_s = SYSTEM_CLOCK.monotonic_s() - begun_s
        return FinishedExchange(rows, stored, label, took_s)

    def _rows(
        self, shuffle: Shuffle, scans: dict[Shuffle, Scan], in_order: bool = False
    ) -> JvmRows:
        assert self._exchanger.door is not None
        return JvmRows(self._exchanger.door, self._plans.rows(shuffle, scans, in_order))

    def _scans(self, inputs: Iterable[Shuffle]) -> dict[Shuffle, Scan]:
        """Return the scans for the exchanges of a stage, all of which are done."""
        done = {shuffle: self._done(shuffle) for shuffle in through(inputs)}
        read = {
            shuffle: siblings
            for shuffle in done
            if (siblings := _read_by(shuffle, done))[0] is shuffle
        }
        places = self._plans.alike(read)
        for group in _cut_as_one(
            [[sibling for shuffle in same for sibling in read[shuffle]] for same in places]
        ):
            self._cut(group)
        return {same[0]: self._scan(same, read[same[0]], done) for same in places}

    def _done(self, shuffle: Shuffle) -> FinishedExchange:
        assert shuffle.mark is not None
        return self._runs[shuffle.mark].result()

    def _cut(self, group: Group) -> None:
        """Decide which parts each task reads of the exchanges of a stage."""
        counts = {member.node.count for member in group.shuffles}
        fixed = any(member.node.wanted or member.refusal for member in group.shuffles)
        if group.others or fixed or len(counts) > 1:
            return
        adapting, door = self._plans.adapting, self._exchanger.door
        assert door is not None
        stored = [self._done(member).stored for member in group.shuffles]
        cuts_of = even_cuts if group.shuffles[0].node.spreads_evenly else skew_cuts
        cuts = [
            cuts_of(exchange.largest, exchange.sizes, adapting) if is_cut else {}
            for exchange, is_cut in zip(stored, may_cut(door.jvm, group), strict=True)
        ]
        parts = parts_of([exchange.sizes for exchange in stored], adapting, cuts)
        partitions = [exchange.descriptor.partitions for exchange in stored]
        check_parts(parts, group.shuffles[0].node.count, partitions)
        for shuffle, shuffle_parts in zip(group.shuffles, parts, strict=True):
            shuffle.reading = replace(shuffle.reading, parts=shuffle_parts)

    def _scan(
        self,
        places: Sequence[Shuffle],
        shuffles: Sequence[Shuffle],
        done: Mapping[Shuffle, FinishedExchange],
    ) -> Scan:
        """Return the scan of the exchange at these places, and of those that are read with it."""
        first = shuffles[0]
        reads = [replace(done[each].stored.read, parts=each.reading.parts) for each in shuffles]
        task = self._task(places, reads, done[first].stored)
        batches = self._exchanger.frames_of(task)
        results = " ".join(done[each].stored.descriptor.result for each in shuffles)
        scan, number = self._plans.scan(first, batches, done[first].rows.plan.rows, results)
        self._exchanger.results.read_by(number, [done[shuffle].stored for shuffle in shuffles])
        return scan

    def _task(
        self, places: Sequence[Shuffle], reads: Sequence[ReadTask], stored: StoredResult
    ) -> ReaderTask:
        if caller := places[0].reading.caller:
            return GroupTask(tuple(reads), caller.call)
        read, rows = reads[0], int(stored.rows.sum())
        gains = may_gain(rows, read.count, stored.descriptor.partitions)
        merging = self._plans.merging(places) if gains else None
        return MergeTask(read, merging) if merging else read

    def _release(self, run: Future[FinishedExchange]) -> None:
        if not run.cancelled() and run.exception() is None:
            self._exchanger.results.drop(run.result().stored.results)


def _cut_as_one(places: Iterable[Sequence[Shuffle]]) -> list[Group]:
    """Return the groups of the exchanges at these places. If an exchange is at several places, its
    groups become one: it is read in the same way at all of them."""
    for same in places:
        groups = dict.fromkeys(shuffle.group for shuffle in same)
        if len(groups) > 1:
            shuffles = [shuffle for group in groups for shuffle in group.shuffles]
            merged = Group(shuffles, any(group.others for group in groups))
            for shuffle in shuffles:
                shuffle.group = merged
    return list(dict.fromkeys(shuffle.group for same in places for shuffle in same))


def _read_by(shuffle: Shuffle, done: Container[Shuffle]) -> Sequence[Shuffle]:
    """Return the exchanges that are read by the same tasks as this one. A function is left to Spark
    if one of its inputs is."""
    caller = shuffle.reading.caller
    if caller is not None and all(sibling in done for sibling in caller.shuffles):
        return caller.shuffles
    shuffle.reading = replace(shuffle.reading, caller=None)
    return (shuffle,)


def _refusal(plan: Plan, shuffle: Shuffle, features: Features) -> str:
    if plan.refusal:
        return plan.refusal
    if is_exchange(shuffle.node.kind):
        return f"{shuffle.node.kind} is another engine's exchange"
    if shuffle.node.kind not in KINDS:
        return f"{shuffle.node.kind} is not known"
    if shuffle.node.kind == RANGE and Feature.ORDER not in features:
        return f"{RANGE} is not known in this Spark"
    try:
        check(shuffle.node.rows)
    except Invalid as exc:
        return str(exc)
    return ""
