"""Combine the rows of many small objects into few, so that readers send fewer requests.

The combined rows are a result of their own, with map tasks that read the first result. So they are
written, decided, lost and made again as any other result. The first result is released as soon as
the combined one may be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkContext

from ....control.contract import ShuffleDescriptor
from ....control.errors import Corrupt
from ....control.events.types import SegmentSummary
from ....control.model.state import ResultState
from ....storage.format.manifest import announced_segments
from ....storage.format.segment import Longs, SegmentIndex
from ....storage.limits import Limits
from ....storage.reading.slices import Slices
from ....storage.reading.ways import ExchangeSize, Readers, Way, shares_of
from ..jvm.catalyst import CatalystDoor, Lineage
from ..jvm.task_rdds import PublicMapStage
from ..tasks.combine_task import CombineTask, share
from ..tasks.exchange_tasks import MapTask, Part
from ..tasks.shipping import ship
from .rerun import MapStage
from .spec import Rows

Source = tuple[ShuffleDescriptor, ResultState]
"""A complete result."""


def exchange_size(state: ResultState, readers_of: Callable[[Longs], Readers]) -> ExchangeSize:
    """Return the size of a complete result. Objects whose index is not in an event count as the
    others. `readers_of` gives the tasks that will read subpartitions of such bytes."""
    partitions, subpartitions = state.registered.partitions, state.registered.subpartitions
    segments = [segment for _, segment in announced_segments(state, range(partitions))]
    indexes = (_index_of(segment, subpartitions) for segment in segments)
    known = ((index.rows, index.sizes) for index in indexes if index is not None)
    slices = Slices.of(known, subpartitions)
    stored_bytes = sum(segment.size_bytes for segment in segments)
    if unindexed := sum(not segment.index for segment in segments):
        if not slices.begun.any():
            rows = sum(segment.rows for segment in segments)
            slices = Slices.even(len(segments), subpartitions, rows, stored_bytes)
        slices = slices.extended(len(segments), stored_bytes)
    readers = readers_of(slices.sizes)
    return ExchangeSize(partitions, len(segments), unindexed, stored_bytes, slices, readers)


def combined_parts(
    state: ResultState, size: ExchangeSize, way: Way, limits: Limits
) -> tuple[Part, ...]:
    """Return the part of an exchange that each task combines. Parts of the same subpartitions have
    about the same bytes: there are fewer of them if a single partition has more."""
    first, tasks = shares_of(size.slices.sizes, size.partitions, way, limits)
    return parts_over(first, tasks, _bytes_by_partition(state, size, first), size.subpartitions)


def parts_over(
    first: Longs, tasks: Longs, by_partition: Longs, subpartitions: int
) -> tuple[Part, ...]:
    """Return the parts of ranges of subpartitions. `by_partition` has the bytes of each range."""
    ends = [*first[1:].tolist(), subpartitions]
    return tuple(
        Part(range(begin, end), partitions)
        for begin, end, count, sizes in zip(first.tolist(), ends, tasks, by_partition, strict=True)
        for partitions in _cut_by_bytes(sizes, int(count))
    )


def _bytes_by_partition(state: ResultState, size: ExchangeSize, first: Longs) -> Longs:
    """Return the stored bytes of ranges of subpartitions by partition. Ranges begin with those of
    `first`. In an object whose index is not in an event, each has its part of all bytes."""
    range_bytes = np.add.reduceat(size.slices.sizes, first)
    usual = range_bytes / max(1, int(range_bytes.sum()))
    sizes = np.zeros((len(first), size.partitions), np.int64)
    for attempt, segment in announced_segments(state, range(size.partitions)):
        index = _index_of(segment, size.subpartitions)
        sizes[:, attempt.partition.index] += (
            (usual * segment.size_bytes).astype(np.int64)
            if index is None
            else np.add.reduceat(index.sizes, first)
        )
    return sizes


def _index_of(segment: SegmentSummary, subpartitions: int) -> SegmentIndex | None:
    """Return the index in an event, None if there is no sound one. The driver then reports the
    object as lost when it places the result."""
    with suppress(Corrupt):
        return SegmentIndex.unpacked(segment.index, subpartitions) if segment.index else None
    return None


def check_combined(state: ResultState, copies: ResultState) -> None:
    """Compare the rows of a result and of the one that holds its combined rows.

    Raises:
        Corrupt: one has more rows than the other.
    """
    rows, copied = (
        sum(each.produced(number).rows for number in range(each.registered.partitions))
        for each in (state, copies)
    )
    if rows != copied:
        first, combined = state.registered.result, copies.registered.result
        raise Corrupt(f"{combined} has {copied} rows, and {first} has {rows}")


def _cut_by_bytes(sizes: Longs, pieces: int) -> Iterator[range]:
    """Cut neighbours into at most so many ranges, none of them empty, of about the same bytes."""
    middles = np.cumsum(sizes, dtype=float) - sizes / 2
    of_each = np.minimum(middles * pieces // max(1, int(sizes.sum())), pieces - 1)
    cuts = [0, *(np.flatnonzero(np.diff(of_each)) + 1).tolist(), len(sizes)]
    yield from map(range, cuts, cuts[1:])


@dataclass(frozen=True, slots=True)
class CombinedRows:
    """The rows of a complete result, which tasks copy into few objects."""

    context: SparkContext
    door: CatalystDoor | None
    rows: Rows
    """The rows from which the result was made."""
    source: Source
    parts: Sequence[Part]
    again: Callable[[], AbstractContextManager[Source]]
    """Makes the result again, and drops it at the end."""

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def lineage(self) -> Lineage:
        return replace(self.rows.lineage(), ordered=False)

    def writes(self, task: MapTask) -> MapStage:
        copies = partial(_copies, self.context, self.door, self.parts, task)
        return CombineStage(copies(self.source), copies, self.again)


def _copies(
    context: SparkContext,
    door: CatalystDoor | None,
    parts: Sequence[Part],
    task: MapTask,
    source: Source,
) -> MapStage:
    descriptor, state = source
    copy = ship(CombineTask(descriptor, task).write)
    shares: Any = context.parallelize([share(part, state) for part in parts], len(parts))
    if door is None:
        return PublicMapStage(shares.mapPartitionsWithIndex(copy))
    return door.tasks.over(shares._jrdd.rdd(), copy, shares._jrdd_deserializer)


@dataclass(frozen=True, slots=True)
class CombineStage:
    """A map stage that combines the rows of a result. It lives as long as the combined rows, so it
    does not hold the state of the result, which has the indexes of all its objects."""

    stage: MapStage
    copies: Callable[[Source], MapStage]
    """Makes the stage for the same rows in another result."""
    again: Callable[[], AbstractContextManager[Source]]
    """Makes the result again, and drops it at the end."""

    @property
    def count(self) -> int:
        return self.stage.count

    def run(self) -> list[int]:
        return self.stage.run()

    def run_again(self, partitions: list[int]) -> None:
        with self.again() as source:
            self.copies(source).run_again(partitions)
