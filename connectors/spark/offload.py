"""A whole query whose exchanges run here, each as soon as those are done whose rows it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ...control.contract import ShuffleDescriptor
from ...control.errors import HeadgateError, Invalid
from ...control.ids import ResultId
from .adaptive import parts_of
from .exchange import Exchanger, Written
from .physical import DEALT, KINDS, Group, Plan, PlanDoor, Shuffle
from .roads import PrivateRoad, read_frames
from .types import check

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A query whose exchanges are done: what they have stored, how many exchanges needed nothing of
    their own because another had the same rows, and why some were left to Spark."""

    frame: DataFrame
    results: tuple[ShuffleDescriptor, ...]
    reused: int
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Done:
    road: PrivateRoad
    written: Written


class Offload:
    """Runs one query."""

    def __init__(self, exchanger: Exchanger, plans: PlanDoor, name: Callable[[], ResultId]) -> None:
        self._exchanger = exchanger
        self._plans = plans
        self._name = name
        self._refused: dict[Shuffle, str] = {}
        self._runs: dict[Shuffle, Future[_Done]] = {}

    def run(self, df: DataFrame) -> Offloaded:
        plan = self._plans.plan(df)
        self._refused = {
            one: reason
            for one in plan.shuffles
            if (reason := _refusal(one, self._plans.named(one)))
        }
        context, tag = self._exchanger.spark.sparkContext, f"headgate-{os.urandom(8).hex()}"
        context.addJobTag(tag)
        try:
            with ThreadPoolExecutor(_AT_ONCE, "headgate-offload") as pool:
                try:
                    return self._run_all(plan, pool)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    context.cancelJobsWithTag(tag)
                    raise
        except BaseException:
            self._release_all()
            raise
        finally:
            context.removeJobTag(tag)

    def _run_all(self, plan: Plan, pool: ThreadPoolExecutor) -> Offloaded:
        run = inheritable_thread_target(self._exchanger.spark)(self._exchange)
        taken = [one for one in plan.shuffles if one not in self._refused]
        for shuffle in taken:  # one only waits for those before it, which have begun
            self._runs[shuffle] = pool.submit(run, shuffle)
        for future in self._runs.values():
            future.result()
        frame = self._plans.finish(plan, self._scans(plan.inputs))
        done = {future.result().written.descriptor: None for future in self._runs.values()}
        return Offloaded(frame, tuple(done), len(taken) - len(done), tuple(self._refused.values()))

    def _exchange(self, shuffle: Shuffle) -> _Done:
        scans = self._scans(shuffle.inputs)
        first = self._plans.first_alike(shuffle, scans)
        if first is not shuffle:
            return self._runs[first].result()
        means = self._exchanger.means
        road = self._road(shuffle, scans)
        if shuffle.kind == DEALT and not means.known.inputs(road.lineage())[1]:
            road = self._road(shuffle, scans, in_order=True)
        named = self._plans.named(shuffle)
        written = self._exchanger.write(road, named, shuffle.count, shuffle.label, self._name())
        return _Done(road, written)

    def _road(
        self, shuffle: Shuffle, scans: dict[Shuffle, Any], in_order: bool = False
    ) -> PrivateRoad:
        exchanger = self._exchanger
        assert exchanger.door is not None
        plan = self._plans.rows(shuffle, scans, in_order)
        return PrivateRoad(
            exchanger.spark, exchanger.door, plan, exchanger.means.settings.batch_rows
        )

    def _scans(self, inputs: Iterable[Shuffle]) -> dict[Shuffle, Any]:
        """How a stage reads its exchanges; waits until they are done."""
        taken = list(self._taken(inputs))
        done = {one: self._runs[one].result() for one in taken}
        parts = {one.group: self._parts(one.group, done) for one in taken}
        return {one: self._scan(one, found, parts[one.group]) for one, found in done.items()}

    def _taken(self, inputs: Iterable[Shuffle]) -> Iterable[Shuffle]:
        """Those that run here; through one that Spark runs its own inputs are read."""
        for one in inputs:
            if one in self._refused:
                yield from self._taken(one.inputs)
            else:
                yield one

    def _parts(self, group: Group, done: dict[Shuffle, _Done]) -> tuple[range, ...]:
        counts = {one.count for one in group.shuffles}
        free = not group.others and not any(
            one.wanted or one in self._refused for one in group.shuffles
        )
        if not free or len(counts) > 1:
            return ()
        sizes = [done[one].written.sizes for one in group.shuffles]
        return parts_of(sizes, self._plans.adapting)

    def _scan(self, shuffle: Shuffle, done: _Done, parts: tuple[range, ...]) -> Any:
        task = replace(done.written.read, parts=parts)
        batches = read_frames(self._exchanger.spark, task)
        scan = self._plans.scan(shuffle, batches, done.road.rows, parts)
        self._exchanger.means.known.add(scan.rdd().id(), done.written)
        return scan

    def _release_all(self) -> None:
        means = self._exchanger.means
        for run in self._runs.values():
            if run.cancelled() or run.exception() is not None:
                continue
            descriptor = run.result().written.descriptor
            means.repairs.forget(descriptor.result)
            with suppress(HeadgateError):  # what failed first is what the caller hears of
                means.master.release_partition_externally(descriptor)


def _refusal(shuffle: Shuffle, schema: StructType) -> str:
    """Why an exchange is left to Spark; empty when it is not."""
    if shuffle.kind not in KINDS:
        return f"{shuffle.kind} is not known"
    try:
        check(schema)
    except Invalid as exc:
        return str(exc)
    return ""
