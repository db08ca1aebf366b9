"""What a reader asks the store for: slices, and the wider windows that they are read in.

A request costs a store about as much as a megabyte. So small slices are read with those of the
subpartitions beside them, when the same process is likely to read these next: with many processes
side by side most neighbours are somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..control.ids import PartitionId
from .blobs import ByteRange
from .contract import InputGateDeployment, Limits
from .manifest import Manifest, Source

_REQUEST_BYTES = 1 << 20  # what a store could have sent in the time that a request takes it


@dataclass(frozen=True, slots=True)
class Slice:
    """One subpartition in one object, and the wider range that it is read with; `at` is its place
    in what the source tells."""

    source: Source
    at: int
    subpartition: int
    span: ByteRange
    window: ByteRange

    @property
    def part(self) -> tuple[PartitionId, int]:
        """What it is a piece of: the rows of one subpartition in one partition."""
        return self.source.attempt.partition, self.subpartition

    @property
    def rows(self) -> int:
        return int(self.source.rows[self.at])

    @property
    def checksum(self) -> int:
        return int(self.source.checksums[self.at])

    def __str__(self) -> str:
        return f"{self.source.name} bytes {self.span.start}-{self.span.end - 1}"


def plan(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """The slices to read, in the order of partitions, each with its window of neighbours."""
    manifest = deployment.manifest
    group = group_of(manifest, limits)
    first = deployment.first - manifest.first
    for at in range(first, first + deployment.count):
        yield from _slices(manifest, at, group, limits)


def read_on(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """The slices of the group after this reader's, when it is in the later half of its own."""
    manifest = deployment.manifest
    group = group_of(manifest, limits)
    last = deployment.first - manifest.first + deployment.count - 1
    following = (last // group + 1) * group
    if group > 1 and 2 * (last % group) >= group and following < manifest.count:
        found = _slices(manifest, following, group, limits)
        yield from (one for one in found if one.window != one.span)  # what is alone waits its turn


def group_of(manifest: Manifest, limits: Limits) -> int:
    """Return how many neighbours to read with each subpartition: as many as fill about
    `window_bytes` of an object and, in all objects together, no more than half the cache."""
    stored_bytes = sum(source.range_of(0, manifest.count).length for source in manifest.sources)
    row_bytes = max(1, stored_bytes // manifest.count)
    slice_bytes = max(1, row_bytes // max(1, len(manifest.sources)))
    if slice_bytes * (limits.readers - 1) > _REQUEST_BYTES:
        return 1
    fits = min(limits.window_bytes // slice_bytes, limits.cache_bytes // 2 // row_bytes)
    return max(1, min(manifest.count, fits))


def alone(source: Source, first: int, count: int) -> Iterator[Slice]:
    """The slices of one object whose indexes start at subpartition 0, without any neighbours."""
    for at in range(first, first + count):
        if source.sizes[at]:
            span = source.range_of(at, 1)
            yield Slice(source, at, at, span, span)


def _slices(manifest: Manifest, at: int, group: int, limits: Limits) -> Iterator[Slice]:
    for source in manifest.sources:
        if source.sizes[at]:
            window = _window(source, at, group, limits.window_bytes)
            yield Slice(source, at, manifest.first + at, source.range_of(at, 1), window)


def _window(source: Source, at: int, group: int, join_bytes: int) -> ByteRange:
    """The slice and its group; every reader of the process cuts the object the same way."""
    first = at // group * group
    wide = source.range_of(first, min(group, len(source.sizes) - first))
    return wide if wide.length <= 2 * join_bytes else source.range_of(at, 1)
