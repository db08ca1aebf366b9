"""Combine the rows of many small objects into few, so that readers send fewer requests.

The combined rows are a result of their own, with map tasks that read the first result. So they are
written, decided, lost and made again as any other result. The first result is released as soon as
the combined one may be read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark import RDD

from ....control.contract import ShuffleDescriptor
from ....control.ids import ResultId
from ....control.model.state import ResultState
from ....storage.format.manifest import announced_segments
from ....storage.limits import Limits
from ....storage.reading.ways import ExchangeSize, choose
from ..tasks.exchange_tasks import Part
from .transport import PublicMapStage


def combined_name(result: ResultId) -> ResultId:
    """Return the name of the result that holds the combined rows of another one."""
    return ResultId(f"{result}-combined")


def exchange_size(descriptor: ShuffleDescriptor, state: ResultState, tasks: int) -> ExchangeSize:
    """Return the size of a result that so many tasks read."""
    segments = [segment for _, segment in announced_segments(state, range(descriptor.partitions))]
    return ExchangeSize(
        descriptor.partitions,
        len(segments),
        descriptor.subpartitions,
        sum(segment.rows for segment in segments),
        sum(segment.size_bytes for segment in segments),
        tasks,
    )


def combined_parts(size: ExchangeSize, limits: Limits) -> tuple[Part, ...]:
    """Return the part of an exchange that each task combines; none if its tasks should read it as
    it is."""
    way = choose(size, limits)
    return tuple(
        Part(neighbours, partitions)
        for partitions in cut_evenly(size.partitions, way.bundles)
        for neighbours in cut_evenly(size.subpartitions, way.ranges)
    )


def cut_evenly(count: int, pieces: int) -> list[range]:
    """Cut the numbers below `count` into ranges of about the same length."""
    return [range(count * at // pieces, count * (at + 1) // pieces) for at in range(pieces)]


@dataclass(frozen=True, slots=True)
class CombineStage(PublicMapStage):
    """A map stage that combines the rows of a result."""

    again: Callable[[], AbstractContextManager[RDD[int]]]
    """Makes the result again that is combined, and drops it at the end."""

    def run_again(self, partitions: list[int]) -> None:
        with self.again() as rows:
            PublicMapStage(rows).run_again(partitions)
