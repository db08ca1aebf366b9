"""The task that combines the rows of many objects into few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from ....control.contract import ShuffleDescriptor
from ....control.events.types import SegmentSummary
from ....control.model.state import ResultState
from ....storage.contract import InputGateDeployment
from ....storage.format.manifest import AnnouncedSegment, announced_segments
from ....storage.format.segment import SegmentIndex
from ....storage.reading.ways import combined_bytes
from .exchange_tasks import MapTask, Part, environment_of
from .frames import Volume

if TYPE_CHECKING:
    from ....storage.environment import ObjectStoreEnvironment
    from ....storage.reading.stretches import StretchReader
    from ....storage.writing.writer import SegmentWriter


@dataclass(frozen=True, slots=True)
class Share:
    """The rows that one task combines."""

    subpartitions: range
    segments: tuple[AnnouncedSegment, ...]
    """The segments that have these subpartitions, among others."""
    sizes: tuple[int, ...]
    """The bytes of these subpartitions in each segment, as far as the driver knows them."""


def share(part: Part, state: ResultState) -> Share:
    """Return the rows of a part, as the log says where they are. An index in the log is cut to the
    part, because every task gets its own."""
    partitions = range(state.registered.partitions) if part.partitions is None else part.partitions
    cuts = (
        (attempt, *_part_of(segment, part.subpartitions, state.registered.subpartitions))
        for attempt, segment in announced_segments(state, partitions)
    )
    filled = [each for each in cuts if each[1].rows]
    segments = tuple((attempt, segment) for attempt, segment, _ in filled)
    return Share(part.subpartitions, segments, tuple(size_bytes for *_, size_bytes in filled))


def _part_of(
    segment: SegmentSummary, wanted: range, subpartitions: int
) -> tuple[SegmentSummary, int]:
    if not segment.index:
        return segment, segment.size_bytes * len(wanted) // subpartitions
    index = SegmentIndex.unpacked(segment.index, subpartitions)
    outside = np.ones(subpartitions, np.bool_)
    outside[wanted.start : wanted.stop] = False
    start = int(index.starts[wanted.start])
    for each in (index.rows, index.sizes, index.checksums):
        each[outside] = 0
    cut = SegmentIndex(start, index.rows, index.sizes, index.checksums)
    packed = replace(segment, rows=int(index.rows.sum()), index=cut.packed())
    return packed, int(index.sizes.sum())


def share_reader(
    shuffle: ObjectStoreEnvironment,
    source: ShuffleDescriptor,
    share: Share,
    schema: pa.Schema,
    task: int,
    bytes_max: int | None,
) -> StretchReader:
    """Return the reader of a share's rows, for a task. With a limit of bytes it reads groups of
    partitions one after the other, each of about so many bytes of the share."""
    first, count = share.subpartitions.start, len(share.subpartitions)
    return shuffle.create_stretch_reader(
        InputGateDeployment(
            shuffle.manifest_of_segments(source, segments, task), schema, first, count, task
        )
        for segments in _by_partitions(share, bytes_max)
    )


def _by_partitions(share: Share, bytes_max: int | None) -> Iterator[tuple[AnnouncedSegment, ...]]:
    """Cut segments where another partition begins, into parts of at most so many bytes."""
    part: list[AnnouncedSegment] = []
    part_bytes = 0
    sized = zip(share.segments, share.sizes, strict=True)
    for _, group in groupby(sized, lambda each: each[0][0].partition):
        segments, sizes = zip(*group, strict=True)
        if part and bytes_max is not None and part_bytes + sum(sizes) > bytes_max:
            yield tuple(part)
            part, part_bytes = [], 0
        part += segments
        part_bytes += sum(sizes)
    yield tuple(part)


def copy_rows(reader: StretchReader, writer: SegmentWriter, group_bytes: int) -> None:
    """Write all rows of a reader. End a segment with each group of subpartitions, so that readers
    find few segments with the same subpartition."""
    for group in reader.groups(group_bytes):
        for rows, subpartitions in group:
            writer.write(rows, subpartitions)
        writer.end_segment()


@dataclass(frozen=True, slots=True)
class CombineTask:
    """Reads shares of one result, and writes each as a partition of another result."""

    read: ShuffleDescriptor
    written: MapTask

    def write(self, index: int, shares: Iterable[Share]) -> Iterator[Volume]:
        """Write one share, and yield its volume."""
        task = TaskContext.get()
        assert task is not None, "runs inside a task"
        (share,) = shares
        shuffle = environment_of(self.written.settings)
        with self.written.writing() as writer:
            limits, schema = self.written.settings.limits, self.written.schema
            bytes_max = limits.fetch_bytes if writer.merges else None
            reader = share_reader(
                shuffle, self.read, share, schema, task.taskAttemptId(), bytes_max
            )
            copy_rows(reader, writer, combined_bytes(limits))
            produced = writer.finish()
        yield Volume(produced.rows, produced.size_bytes)
