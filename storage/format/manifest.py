"""The manifest: the segments that readers must read. The driver makes it from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...control.contract import ShuffleDescriptor
from ...control.errors import Corrupt, Invalid
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId, JobId, ResultId
from ...control.model.state import ResultState
from ..stores.port import BlobStore, ByteRange
from .layout import Layout
from .segment import MAGICS, Longs, SegmentIndex, Sums, fetch_index

AnnouncedSegment: TypeAlias = tuple[AttemptId, SegmentSummary]

FETCHES_AT_ONCE = 16  # of indexes that were too large for an event
_LARGEST_NUMBERS = 1 << 21  # 16 MiB: all of 10,000 partitions and 200 subpartitions


@dataclass(frozen=True, slots=True)
class Source:
    """One object, and the place of each subpartition in it, from `Manifest.first` on."""

    attempt: AttemptId
    name: str
    starts: Longs
    rows: Longs
    sizes: Longs
    checksums: Sums

    def cut(self, reach: slice) -> Source:
        """Return the place of some of the subpartitions."""
        return Source(
            self.attempt,
            self.name,
            self.starts[reach],
            self.rows[reach],
            self.sizes[reach],
            self.checksums[reach],
        )

    def range_of(self, first: int, count: int) -> ByteRange:
        """Return the range of neighbouring subpartitions, which follow each other without a gap."""
        start, last = int(self.starts[first]), first + count - 1
        return ByteRange(start, int(self.starts[last]) + int(self.sizes[last]) - start)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The objects to read for `count` subpartitions from `first` on."""

    job: JobId
    result: ResultId
    epoch: int
    first: int
    count: int
    sources: tuple[Source, ...]

    @property
    def rows(self) -> Longs:
        """Return the rows of each subpartition."""
        return sum((source.rows for source in self.sources), np.zeros(self.count, np.int64))

    @property
    def sizes(self) -> Longs:
        """Return the stored bytes of each subpartition."""
        return sum((source.sizes for source in self.sources), np.zeros(self.count, np.int64))

    def part(self, first: int, count: int) -> Manifest:
        """Return the manifest of some neighbouring subpartitions."""
        at = first - self.first
        sources = tuple(source.cut(slice(at, at + count)) for source in self.sources)
        return replace(self, first=first, count=count, sources=sources)

    def of(self, partitions: range) -> Manifest:
        """Return the manifest of some partitions, for the same subpartitions."""
        sources = tuple(s for s in self.sources if s.attempt.partition.index in partitions)
        return replace(self, sources=sources)


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """One object of a result, and the place of the subpartitions from the first to the last one
    that it has rows of."""

    first: int
    source: Source
    """Its arrays begin at `first`."""

    def part(self, first: int, count: int) -> Source:
        """Return the place of some subpartitions. The object has rows near them."""
        source, last = self.source, first + count
        end = self.first + len(source.sizes)
        kept = slice(max(0, first - self.first), last - self.first)
        room = max(0, self.first - first), max(0, last - end)
        part = source.cut(kept)
        if not any(room):
            return part
        starts = np.pad(part.starts, room, "edge")
        starts[count - room[1] :] += source.sizes[-1]
        return replace(
            part,
            starts=starts,
            rows=np.pad(part.rows, room),
            sizes=np.pad(part.sizes, room),
            checksums=np.pad(part.checksums, room),
        )


@dataclass(frozen=True, slots=True)
class PlacedResult:
    """All objects of a result. In memory, an object takes as much as the subpartitions that it has
    rows of."""

    head: Manifest
    """The manifest without its sources."""
    segments: tuple[PlacedSegment, ...]
    reaches: Longs
    """For each segment, the first subpartition that it has rows of, and the one after the last."""

    @classmethod
    def of(cls, head: Manifest, segments: tuple[PlacedSegment, ...]) -> PlacedResult:
        reaches = [(each.first, each.first + len(each.source.sizes)) for each in segments]
        return cls(head, segments, np.array(reaches, np.int64).reshape(-1, 2))

    @property
    def objects(self) -> int:
        return len(self.segments)

    def totals(self) -> tuple[Longs, Longs]:
        """Return the rows and the stored bytes of each subpartition."""
        rows, sizes = np.zeros((2, self.head.count), np.int64)
        for placed in self.segments:
            reach = slice(placed.first, placed.first + len(placed.source.sizes))
            rows[reach] += placed.source.rows
            sizes[reach] += placed.source.sizes
        return rows, sizes

    def largest(self, partitions: int) -> Mapping[int, Longs]:
        """Return the stored bytes of the largest subpartitions by partition: of all subpartitions,
        or of as many as `_LARGEST_NUMBERS` allow."""
        count = max(1, _LARGEST_NUMBERS // max(1, partitions))
        wanted = np.sort(np.argsort(self.totals()[1])[-count:])
        sizes = np.zeros((partitions, len(wanted)), np.int64)
        for placed in self.segments:
            first, source = placed.first, placed.source
            near = slice(*np.searchsorted(wanted, (first, first + len(source.sizes))))
            sizes[source.attempt.partition.index, near] += source.sizes[wanted[near] - first]
        return dict(zip(wanted.tolist(), sizes.T, strict=True))

    def part(self, first: int, count: int) -> Manifest:
        """Return the manifest of some neighbouring subpartitions."""
        begin, end = self.reaches.T
        near = np.flatnonzero((begin < first + count) & (end > first)).tolist()
        sources = tuple(self.segments[at].part(first, count) for at in near)
        return replace(self.head, first=first, count=count, sources=sources)


def build(
    descriptor: ShuffleDescriptor,
    state: ResultState,
    layout: Layout,
    store: BlobStore,
    partitions: Iterable[int] | None = None,
) -> Manifest:
    """Return the manifest of a complete result, or of some partitions that are whole."""
    assert state.complete or partitions is not None, "only a complete result has a manifest"
    wanted = range(descriptor.partitions) if partitions is None else partitions
    placed = place(descriptor, announced_segments(state, wanted), layout, store)
    return placed.part(0, descriptor.subpartitions)


def announced_segments(
    state: ResultState, partitions: Iterable[int]
) -> tuple[AnnouncedSegment, ...]:
    """Return the segments of some partitions that are whole."""
    return tuple(
        (produced.attempt, segment)
        for produced in map(state.produced, partitions)
        for segment in produced.segments
    )


def place(
    descriptor: ShuffleDescriptor,
    segments: tuple[AnnouncedSegment, ...],
    layout: Layout,
    store: BlobStore,
) -> PlacedResult:
    """Return the places of some segments of a result. Fetch an index that was too large for its
    event."""

    def placed(announced: AnnouncedSegment) -> PlacedSegment:
        return _trimmed(locate(layout, store, *announced, descriptor.subpartitions))

    if all(segment.index for _, segment in segments):
        placed_segments = tuple(map(placed, segments))
    else:
        with ThreadPoolExecutor(FETCHES_AT_ONCE, "headgate-index") as pool:
            placed_segments = tuple(pool.map(placed, segments))
    subpartitions = descriptor.subpartitions
    head = Manifest(descriptor.job, descriptor.result, descriptor.epoch, 0, subpartitions, ())
    return PlacedResult.of(head, placed_segments)


def _trimmed(source: Source) -> PlacedSegment:
    """Return the object without the subpartitions before its first and after its last row."""
    filled = np.flatnonzero(source.rows)
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 1)
    if last - first == len(source.rows):
        return PlacedSegment(0, source)
    kept = source.cut(slice(first, last))
    return PlacedSegment(
        first,
        replace(  # copies, because parts of arrays keep the whole ones
            kept,
            starts=kept.starts.copy(),
            rows=kept.rows.copy(),
            sizes=kept.sizes.copy(),
            checksums=kept.checksums.copy(),
        ),
    )


def locate(
    layout: Layout,
    store: BlobStore,
    attempt: AttemptId,
    segment: SegmentSummary,
    subpartitions: int,
) -> Source:
    """Return the object of a segment, with the place of each subpartition in it.

    Raises:
        Corrupt: the segment's index is not sound, or does not add up to the announced rows.
        Invalid: the object has a format of a newer version.
        Lost: the index was not in the event, and the object is gone.
    """
    name = layout.segment(attempt, segment.number)
    if segment.format not in MAGICS:
        raise Invalid(
            f"{name} was written by a newer Headgate, in format {segment.format}, and this one "
            f"knows {max(MAGICS)}: upgrade this one"
        )
    if segment.index:
        index = SegmentIndex.unpacked(segment.index, subpartitions)
    else:
        index = fetch_index(store, name, segment.size_bytes, attempt, subpartitions)
    if int(index.rows.sum()) != segment.rows:
        raise Corrupt(f"the index of {name} does not add up to {segment.rows} rows")
    return Source(attempt, name, index.starts, index.rows, index.sizes, index.checksums)
