"""The requests of a reader: slices, and the wider windows that they are read in.

A request takes a store about as long as a megabyte. So a small slice is read together with those of
neighbouring subpartitions, if the same process is likely to read these next. With many processes
side by side, other processes read most of the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...control.ids import PartitionId
from ..contract import InputGateDeployment
from ..format.manifest import Manifest, Source
from ..limits import Limits
from ..stores.port import ByteRange

_REQUEST_BYTES = 1 << 20  # a store could send so many bytes in the time that a request takes


@dataclass(frozen=True, slots=True)
class Slice:
    """One subpartition in one object."""

    source: Source
    at: int
    """The subpartition's place in the arrays of `source`."""
    subpartition: int
    span: ByteRange
    """The slice's own bytes."""
    window: ByteRange
    """The bytes to request: those of the slice, perhaps with neighbours."""

    @property
    def part(self) -> tuple[PartitionId, int]:
        """Return the partition and subpartition whose rows the slice has some or all of."""
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
    """Yield the slices to read, by subpartition and then by partition, each with its window."""
    manifest, limits = deployment.manifest, _limits(deployment, limits)
    first, group = deployment.first - manifest.first, range(0)
    for at in range(first, first + deployment.count):
        if at not in group:
            group = _group(manifest, at, limits)
        yield from _slices(manifest, at, group, limits)


def read_on(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """Yield the slices of the next group, if this reader is in the later half of its own group."""
    manifest, limits = deployment.manifest, _limits(deployment, limits)
    last = deployment.first - manifest.first + deployment.count - 1
    group = _group(manifest, last, limits)
    following = group.stop
    if len(group) > 1 and 2 * group.index(last) >= len(group) and following < manifest.count:
        slices = _slices(manifest, following, _group(manifest, following, limits), limits)
        # a slice without neighbours is left to its own reader
        yield from (piece for piece in slices if piece.window != piece.span)


def _limits(deployment: InputGateDeployment, limits: Limits) -> Limits:
    """Return the limits of a reader that wants whole groups: no other process wants these."""
    alone = replace(limits, readers=1)
    wants_groups = deployment.count >= group_of(deployment.manifest, alone)
    return alone if wants_groups else limits


def group_of(manifest: Manifest, limits: Limits) -> int:
    """Return the number of neighbouring subpartitions to read together. They fill about
    `window_bytes` of an object and, over all objects, at most half the cache. The number is 1 if
    the neighbours that other processes want would cost more than the requests that they save."""
    row_bytes = _stored_bytes(manifest, range(manifest.count)) // manifest.count
    return neighbours(len(manifest.sources), manifest.count, row_bytes, limits)


def neighbours(objects: int, subpartitions: int, row_bytes: int, limits: Limits) -> int:
    """Return the same for `row_bytes` of each subpartition, spread evenly over the objects."""
    row_bytes = max(1, row_bytes)
    slice_bytes = max(1, row_bytes // max(1, objects))
    if slice_bytes * (limits.readers - 1) > _REQUEST_BYTES:
        return 1
    fits = min(limits.window_bytes // slice_bytes, limits.cache_bytes // 2 // row_bytes)
    return max(1, min(subpartitions, fits))


def _group(manifest: Manifest, at: int, limits: Limits) -> range:
    """Return the subpartitions that a subpartition is read with: as many as `group_of` says, or
    the half, the quarter, ... around it that fits into half the cache. Every reader of the process
    cuts the result in the same way."""
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
    """Yield the slices of one object without neighbours. Its arrays start at subpartition 0."""
    for at in range(first, first + count):
        if source.sizes[at]:
            span = source.range_of(at, 1)
            yield Slice(source, at, at, span, span)


def _slices(manifest: Manifest, at: int, group: range, limits: Limits) -> Iterator[Slice]:
    for source in manifest.sources:
        if source.sizes[at]:
            span, window = source.range_of(at, 1), source.range_of(group.start, len(group))
            if window.length > 2 * limits.window_bytes:  # far too wide
                window = span
            yield Slice(source, at, manifest.first + at, span, window)
