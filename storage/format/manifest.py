"""The manifest: what a reader must read, by partition. A cache of the log, made by the driver."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ...control.contract import ShuffleDescriptor
from ...control.errors import Corrupt
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId, JobId, ResultId
from ...control.model.state import ResultState
from ..stores.port import BlobStore, ByteRange
from .layout import Layout
from .segment import Longs, SegmentIndex, Sums, fetch_index

_FETCHES_AT_ONCE = 16  # of indexes that are too large for an event


@dataclass(frozen=True, slots=True)
class Source:
    """One object and where in it each subpartition stands; the arrays start at `Manifest.first`."""

    attempt: AttemptId
    name: str
    starts: Longs
    rows: Longs
    sizes: Longs
    checksums: Sums

    def range_of(self, first: int, count: int) -> ByteRange:
        """The bytes of neighbouring subpartitions: one range, for they follow without a gap."""
        start, last = int(self.starts[first]), first + count - 1
        return ByteRange(start, int(self.starts[last]) + int(self.sizes[last]) - start)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is to be read for the subpartitions from `first` on."""

    job: JobId
    result: ResultId
    epoch: int
    first: int
    count: int
    sources: tuple[Source, ...]

    @property
    def rows(self) -> Longs:
        """Rows of each subpartition."""
        zero = np.zeros(self.count, np.int64)
        return sum((source.rows for source in self.sources), zero)

    @property
    def sizes(self) -> Longs:
        """Stored bytes of each subpartition."""
        zero = np.zeros(self.count, np.int64)
        return sum((source.sizes for source in self.sources), zero)

    def part(self, first: int, count: int) -> Manifest:
        """The manifest of neighbouring subpartitions only."""
        at = first - self.first
        part = slice(at, at + count)
        sources = tuple(
            Source(
                s.attempt, s.name, s.starts[part], s.rows[part], s.sizes[part], s.checksums[part]
            )
            for s in self.sources
        )
        return Manifest(self.job, self.result, self.epoch, first, count, sources)

    def of(self, partitions: range) -> Manifest:
        """The manifest of what some partitions hold of the same subpartitions."""
        held = tuple(s for s in self.sources if s.attempt.partition.index in partitions)
        return replace(self, sources=held)


def build(
    descriptor: ShuffleDescriptor, state: ResultState, layout: Layout, store: BlobStore
) -> Manifest:
    """The whole manifest of a complete result; an index too large for its event is fetched."""
    assert state.complete, "only a complete result has a manifest"
    return gather(descriptor, state, range(descriptor.partitions), layout, store)


def gather(
    descriptor: ShuffleDescriptor,
    state: ResultState,
    partitions: Iterable[int],
    layout: Layout,
    store: BlobStore,
) -> Manifest:
    """The manifest of some partitions, all of which are whole."""
    segments = [
        (produced.attempt, segment)
        for produced in map(state.produced, partitions)
        for segment in produced.segments
    ]

    def located(one: tuple[AttemptId, SegmentSummary]) -> Source:
        return locate(*one, layout, descriptor.subpartitions, store)

    if all(segment.index for _, segment in segments):
        sources = tuple(map(located, segments))
    else:
        with ThreadPoolExecutor(_FETCHES_AT_ONCE, "headgate-index") as pool:
            sources = tuple(pool.map(located, segments))
    return Manifest(
        descriptor.job, descriptor.result, descriptor.epoch, 0, descriptor.subpartitions, sources
    )


def locate(
    attempt: AttemptId,
    segment: SegmentSummary,
    layout: Layout,
    subpartitions: int,
    store: BlobStore,
) -> Source:
    """Where in a segment each subpartition stands.

    Raises:
        Corrupt: its index is not what the segment was announced with.
    """
    name = layout.segment(attempt, segment.number)
    index = _index(attempt, segment, name, subpartitions, store)
    if int(index.rows.sum()) != segment.rows:
        raise Corrupt(f"the index of {name} does not add up to {segment.rows} rows")
    return Source(attempt, name, index.starts, index.rows, index.sizes, index.checksums)


def _index(
    attempt: AttemptId, segment: SegmentSummary, name: str, subpartitions: int, store: BlobStore
) -> SegmentIndex:
    if segment.index:
        return SegmentIndex.unpacked(segment.index, subpartitions)
    return fetch_index(store, name, segment.size_bytes, attempt, subpartitions)
