"""What a reader asks the store for: slices, and the wider windows that they are read in.

A request costs a store about as much as a megabyte. So small slices are read with those of the
subpartitions beside them, when the same process is likely to read these next: with many processes
side by side most neighbours are somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...control.ids import PartitionId
from ..contract import InputGateDeployment
from ..format.manifest import Manifest, Source
from ..limits import Limits
from ..stores.port import ByteRange

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
    first, group = deployment.first - manifest.first, range(0)
    for at in range(first, first + deployment.count):
        if at not in group:
            group = _group(manifest, at, limits)
        yield from _slices(manifest, at, group, limits)


def read_on(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """The slices of the group after this reader's, when it is in the later half of its own."""
    manifest = deployment.manifest
    last = deployment.first - manifest.first + deployment.count - 1
    group = _group(manifest, last, limits)
    following = group.stop
    if len(group) > 1 and 2 * group.index(last) >= len(group) and following < manifest.count:
        found = _slices(manifest, following, _group(manifest, following, limits), limits)
        yield from (one for one in found if one.window != one.span)  # what is alone waits its turn


def group_of(manifest: Manifest, limits: Limits) -> int:
    """Return how many neighbours to read with each subpartition: as many as fill about
    `window_bytes` of an object and, in all objects together, no more than half the cache."""
    row_bytes = max(1, _stored_bytes(manifest, range(manifest.count)) // manifest.count)
    slice_bytes = max(1, row_bytes // max(1, len(manifest.sources)))
    if slice_bytes * (limits.readers - 1) > _REQUEST_BYTES:
        return 1
    fits = min(limits.window_bytes // slice_bytes, limits.cache_bytes // 2 // row_bytes)
    return max(1, min(manifest.count, fits))


def _group(manifest: Manifest, at: int, limits: Limits) -> range:
    """The neighbours that a subpartition is read with: as many as `group_of` says, and where these
    would not fit the cache the half, the quarter, ... that it is in. Every reader of the process
    cuts the result the same way."""
    most = group_of(manifest, limits)
    first = at // most * most
    group = range(first, min(first + most, manifest.count))
    while len(group) > 1 and _stored_bytes(manifest, group) > limits.cache_bytes // 2:
        half = len(group) // 2
        group = group[:half] if at in group[:half] else group[half:]
    return group


def _stored_bytes(manifest: Manifest, group: range) -> int:
    return sum(source.range_of(group.start, len(group)).length for source in manifest.sources)


def alone(source: Source, first: int, count: int) -> Iterator[Slice]:
    """The slices of one object whose indexes start at subpartition 0, without any neighbours."""
    for at in range(first, first + count):
        if source.sizes[at]:
            span = source.range_of(at, 1)
            yield Slice(source, at, at, span, span)


def _slices(manifest: Manifest, at: int, group: range, limits: Limits) -> Iterator[Slice]:
    for source in manifest.sources:
        if source.sizes[at]:
            window = _window(source, at, group, limits.window_bytes)
            yield Slice(source, at, manifest.first + at, source.range_of(at, 1), window)


def _window(source: Source, at: int, group: range, join_bytes: int) -> ByteRange:
    """The slice and its group, if that is not far more than a request should read."""
    wide = source.range_of(group.start, len(group))
    return wide if wide.length <= 2 * join_bytes else source.range_of(at, 1)
