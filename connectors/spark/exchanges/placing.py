"""Place a complete result: the driver finds out where each subpartition is in the objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ....control.contract import ShuffleDescriptor, ShuffleMaster
from ....control.errors import Corrupt, Lost, Unavailable
from ....control.events.types import Lost as LostFact
from ....control.ids import ResultId
from ....control.model.state import JobState
from ....storage.format.layout import Layout
from ....storage.format.manifest import PlacedResult, announced_segments, place
from ....storage.reading.lost_objects import LostObjects, sound_segments
from ....storage.stores.port import BlobStore
from .rerun import Reruns

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MasterNews:
    """The news of a result that the driver gets from its master."""

    master: ShuffleMaster
    descriptor: ShuffleDescriptor
    reruns: Reruns

    def state(self) -> JobState:
        return self.master.state()

    def report(self, lost: LostFact) -> tuple[int, ...]:
        self.master.report_lost(lost)
        return ()

    def wait(self, result: ResultId, answer_of: Callable[[JobState], T | None]) -> T | None:
        """Wait for as long as this driver makes partitions of the result again."""
        while True:
            goes_on = self.reruns.goes_on(result)
            with suppress(Unavailable):
                self.master.await_complete(self.descriptor)
                goes_on = True
            if (answer := answer_of(self.state())) is not None or not goes_on:
                return answer


def placed_now(
    master: ShuffleMaster,
    store: BlobStore,
    layout: Layout,
    reruns: Reruns,
    descriptor: ShuffleDescriptor,
) -> tuple[PlacedResult, int]:
    """Return the places of a complete result, and how often it became complete. If an index is lost
    that no event has, wait until its partition is made again.

    Raises:
        Lost, Corrupt: it was not made again, or the result is released.
    """
    everything = range(descriptor.partitions)
    state = master.await_complete(descriptor)
    segments = announced_segments(state, everything)
    try:
        placed = place(descriptor, segments, layout, store)
    except (Lost, Corrupt):
        lost = LostObjects(descriptor.result, MasterNews(master, descriptor, reruns))
        sound_segments(descriptor, segments, layout, store, lost)
        state = master.await_complete(descriptor)
        placed = place(descriptor, announced_segments(state, everything), layout, store)
    return placed, state.totals.completions
