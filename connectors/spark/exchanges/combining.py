"""Combine the rows of many small objects into few, so that readers send fewer requests.

The combined rows are a result of their own, with map tasks that read the first result. So they are
written, decided, lost and made again as any other result. The first result is released as soon as
the combined one may be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil

import numpy as np

from ....control.contract import ShuffleDescriptor
from ....control.errors import Corrupt
from ....control.model.state import ResultState
from ....storage.format.manifest import announced_segments
from ....storage.limits import Limits
from ....storage.reading.ways import ExchangeSize, Way
from ..tasks.exchange_tasks import Part
from .rerun import MapStage


def exchange_size(
    descriptor: ShuffleDescriptor, state: ResultState, together_bytes: int
) -> ExchangeSize:
    """Return the size of a result whose tasks read neighbours together up to so many bytes; 0 if
    each reads one subpartition."""
    segments = [segment for _, segment in announced_segments(state, range(descriptor.partitions))]
    stored_bytes = sum(segment.size_bytes for segment in segments)
    return ExchangeSize(
        descriptor.partitions,
        len(segments),
        descriptor.subpartitions,
        sum(segment.rows for segment in segments),
        stored_bytes,
        _tasks(descriptor.subpartitions, stored_bytes, together_bytes),
    )


def estimated_size(
    partitions: int, subpartitions: int, stored_bytes: float, together_bytes: int, limits: Limits
) -> ExchangeSize:
    """Return the size of a result that is not written yet, by an estimate of its bytes."""
    size_bytes = int(stored_bytes)
    objects = partitions
    if not limits.merges:
        objects = max(objects, ceil(size_bytes / limits.segment_bytes))
    tasks = _tasks(subpartitions, size_bytes, together_bytes)
    return ExchangeSize(partitions, objects, subpartitions, size_bytes, size_bytes, tasks)


def _tasks(subpartitions: int, stored_bytes: int, together_bytes: int) -> int:
    tasks = stored_bytes // together_bytes if together_bytes else subpartitions
    return min(subpartitions, max(1, tasks))


def combined_parts(
    partition_bytes: Sequence[int], subpartitions: int, way: Way
) -> tuple[Part, ...]:
    """Return the part of an exchange that each task combines. Sets of partitions have about the
    same bytes: there are fewer of them if a single partition has more."""
    return tuple(
        Part(neighbours, partitions)
        for partitions in _cut_by_bytes(partition_bytes, way.bundles)
        for neighbours in cut_evenly(subpartitions, way.ranges)
    )


def partition_bytes(state: ResultState) -> list[int]:
    """Return the stored bytes of each partition of a complete result."""
    produced = map(state.produced, range(state.registered.partitions))
    return [sum(segment.size_bytes for segment in each.segments) for each in produced]


def check_combined(state: ResultState, copies: ResultState) -> None:
    """Compare the rows of a result and of the one that holds its combined rows.

    Raises:
        Corrupt: one has more rows than the other.
    """
    if _rows(state) != _rows(copies):
        first, combined = state.registered.result, copies.registered.result
        raise Corrupt(f"{combined} has {_rows(copies)} rows, and {first} has {_rows(state)}")


def _rows(state: ResultState) -> int:
    return sum(state.produced(number).rows for number in range(state.registered.partitions))


def cut_evenly(count: int, pieces: int) -> list[range]:
    """Cut the numbers below `count` into ranges of about the same length."""
    return [range(count * at // pieces, count * (at + 1) // pieces) for at in range(pieces)]


def _cut_by_bytes(sizes: Sequence[int], pieces: int) -> Iterator[range]:
    """Cut neighbours into at most so many ranges, none of them empty, of about the same bytes."""
    middles = np.cumsum(sizes, dtype=float) - np.array(sizes) / 2
    of_each = np.minimum(middles * pieces // max(1, sum(sizes)), pieces - 1)
    cuts = [0, *(np.flatnonzero(np.diff(of_each)) + 1).tolist(), len(sizes)]
    yield from map(range, cuts, cuts[1:])


@dataclass(frozen=True, slots=True)
class CombineStage:
    """A map stage that combines the rows of a result."""

    stage: MapStage
    again: Callable[[], AbstractContextManager[MapStage]]
    """Makes the result again that is combined, and drops it at the end."""

    @property
    def count(self) -> int:
        return self.stage.count

    def run(self) -> list[int]:
        return self.stage.run()

    def run_again(self, partitions: list[int]) -> None:
        with self.again() as stage:
            stage.run_again(partitions)
