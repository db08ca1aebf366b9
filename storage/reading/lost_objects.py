"""Lost objects: publish the loss, and wait for the attempt that replaces the one that had the
object.

Guarantees: nothing is published about an attempt that readers no longer read, of a result that is
released, or of a job that has failed or is closed, except for results that outlive it. Callers read
an object twice before they report it as lost, because it is deleted then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeVar

from ...control.contract import ShuffleDescriptor
from ...control.errors import Corrupt, Lost
from ...control.events.types import Lost as LostFact
from ...control.events.types import Produced, SegmentSummary
from ...control.ids import AttemptId, ResultId
from ...control.inquiry.job_view import JobView
from ...control.master.announcer import Announcer
from ...control.model.state import JobState, ResultState
from ..format.layout import Layout
from ..format.manifest import (
    FETCHES_AT_ONCE,
    AnnouncedSegment,
    Manifest,
    PlacedResult,
    announced_segments,
    locate,
    place,
)
from ..format.manifest_shards import compact
from ..runtime import JobClients
from ..stores.port import BlobStore

_PLACED_AT_ONCE = 128  # segments: all of a wide result take too much memory
_LOSSES_MAX = 4  # of a partition that is made again and again

T = TypeVar("T")


class JobNews(Protocol):
    """The state of a job, as a task or its driver gets to know it."""

    def state(self) -> JobState:
        """Return the state that is committed by now."""

    def report(self, lost: LostFact) -> tuple[int, ...]:
        """Publish a loss. Return the offset of the fact if it is known."""

    def wait(self, result: ResultId, answer_of: Callable[[JobState], T | None]) -> T | None:
        """Wait for the first answer that is not None. Return None if there was none in time."""


class ViewNews:
    """The news that a task reads in the log itself."""

    def __init__(self, clients: JobClients, view: JobView, announcer: Announcer) -> None:
        self._log = clients.log
        self._fresh = clients.runtime.deadline
        self._view = view
        self._announcer = announcer

    def state(self) -> JobState:
        return self._view.state(self._fresh())

    def report(self, lost: LostFact) -> tuple[int, ...]:
        return (self._log.append(self._announcer.fact(lost)).offset(self._fresh()),)

    def wait(self, result: ResultId, answer_of: Callable[[JobState], T | None]) -> T | None:
        return self._view.wait(result, answer_of, self._fresh)


class LostObjects:
    """Publishes the lost objects of a result, and waits until others replace them."""

    def __init__(self, result: ResultId, news: JobNews, task: int = 0) -> None:
        """`task` is the reader task that waits, 0 if it is no task."""
        self._result = result
        self._news = news
        self._task = task
        self._offsets: dict[AttemptId, tuple[int, ...]] = {}

    def report(self, attempt: AttemptId, name: str, failure: Lost | Corrupt) -> ResultState:
        """Publish that an object of an attempt is lost, unless readers already read another
        attempt. Return the result.

        Raises:
            Lost, Corrupt: the failure, because the result is over, or is pipelined: all its readers
                begin again together.
        """
        result = self._readable(self._news.state(), failure)
        if result.production.winners.get(attempt.partition.index, attempt) == attempt:
            fact = LostFact(attempt, name, str(failure), self._task)
            self._offsets[attempt] = self._news.report(fact)
        if result.registered.pipelined:
            raise failure
        return result

    def made_again(self, attempt: AttemptId, failure: Lost | Corrupt) -> Produced:
        """Wait for the attempt that replaces a lost one.

        Raises:
            Lost, Corrupt: the failure, because the result is over, or none did in time.
        """
        return self._await(
            lambda result: _replacement(result, attempt), failure, self._offsets.get(attempt, ())
        )

    def complete(self, failure: Lost | Corrupt) -> ResultState:
        """Wait until all partitions of the result may be read.

        Raises:
            Lost, Corrupt: the failure, because the result is over, or was not complete in time.
        """
        return self._await(lambda result: result if result.complete else None, failure)

    def _await(
        self,
        answer_of: Callable[[ResultState], T | None],
        failure: Lost | Corrupt,
        offsets: tuple[int, ...] = (),
    ) -> T:
        answer = self._news.wait(
            self._result, lambda state: answer_of(self._readable(state, failure))
        )
        if answer is None:
            raise Lost(f"{failure}; it was not made again in time", offsets) from failure
        return answer

    def _readable(self, state: JobState, failure: Lost | Corrupt) -> ResultState:
        result = state.results.get(self._result)
        if result is None:
            raise failure
        ends = {
            "the result was released": result.fate.released,
            "the job was closed": state.closed,
            "the job has failed": state.failed,
        }
        over = next((f"{end}, {why}" for end, why in ends.items() if why is not None), None)
        if over is not None and not (result.kept and state.failed is None):
            raise Lost(f"{failure}; it is not made again: {over}") from failure
        return result


def _replacement(result: ResultState, attempt: AttemptId) -> Produced | None:
    winner = result.production.winners.get(attempt.partition.index, attempt)
    return None if winner == attempt else result.production.attempts[winner]


def sound_segments(
    descriptor: ShuffleDescriptor,
    segments: tuple[AnnouncedSegment, ...],
    layout: Layout,
    store: BlobStore,
    lost: LostObjects,
) -> tuple[AnnouncedSegment, ...]:
    """Return the segments whose indexes can be read, and those that replace the others. Publish all
    losses before waiting, so that the partitions are made again together.

    Raises:
        Lost, Corrupt: as for `LostObjects`.
    """

    def failure_of(announced: AnnouncedSegment) -> Lost | Corrupt | None:
        try:
            locate(layout, store, *announced, descriptor.subpartitions)
        except (Lost, Corrupt) as failure:
            return failure
        return None

    with ThreadPoolExecutor(FETCHES_AT_ONCE, "headgate-index") as pool:
        failed = zip(segments, pool.map(failure_of, segments), strict=True)
        failures = {attempt: (segment, why) for (attempt, segment), why in failed if why}
    for attempt, (segment, failure) in failures.items():
        lost.report(attempt, layout.segment(attempt, segment.number), failure)
    return tuple(_replaced(segments, failures, lost))


def _replaced(
    segments: tuple[AnnouncedSegment, ...],
    failures: Mapping[AttemptId, tuple[SegmentSummary, Lost | Corrupt]],
    lost: LostObjects,
) -> Iterator[AnnouncedSegment]:
    for attempt, announced in groupby(segments, lambda each: each[0]):
        if attempt not in failures:
            yield from announced
            continue
        came = lost.made_again(attempt, failures[attempt][1])
        yield from ((came.attempt, segment) for segment in came.segments)


def place_sound(
    descriptor: ShuffleDescriptor,
    segments: tuple[AnnouncedSegment, ...],
    layout: Layout,
    store: BlobStore,
    lost: LostObjects,
) -> PlacedResult:
    """Return the places of some segments of a result. If an index is in no event and its object is
    lost, wait until the partition is made again, and once more if the new object is lost, too.

    Raises:
        Lost, Corrupt: as for `LostObjects`.
    """
    for _ in range(_LOSSES_MAX):
        with suppress(Lost, Corrupt):
            return place(descriptor, segments, layout, store)
        segments = sound_segments(descriptor, segments, layout, store, lost)
    return place(descriptor, segments, layout, store)


def part_from_log(
    head: Manifest,
    reach: range,
    layout: Layout,
    store: BlobStore,
    lost: LostObjects,
    failure: Lost | Corrupt,
) -> Manifest:
    """Return the manifest of some subpartitions of a result, made from the log because its object
    is gone or damaged.

    Raises:
        Lost, Corrupt: as for `LostObjects`.
    """
    state = lost.complete(failure)
    partitions = state.registered.partitions
    descriptor = ShuffleDescriptor(head.job, head.result, partitions, head.count, head.epoch)
    segments = announced_segments(state, range(partitions))
    part = replace(head, first=reach.start, count=len(reach))
    for at in range(0, len(segments), _PLACED_AT_ONCE):
        some = segments[at : at + _PLACED_AT_ONCE]
        placed = place_sound(descriptor, some, layout, store, lost)
        sources = compact(placed.part(reach.start, len(reach))).sources
        part = replace(part, sources=(*part.sources, *sources))
    return part
