"""The requests of a reader: slices, and the wider windows that they are read in.

A request takes a store about as long as a megabyte. So a small slice is read together with those of
neighbouring subpartitions, if the same executor is likely to read these next. With many executors
side by side, others read most of the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from ...control.ids import PartitionId
from ..contract import InputGateDeployment
from ..format.manifest import Manifest, Source
from ..format.segment import Longs
from ..limits import Limits
from ..stores.port import ByteRange
from .range_cache import ENTRY_BYTES

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
    shared: bool = False
    """True if other readers of the executor want the same window."""

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
    groups = _Groups(deployment, limits)
    for at in groups.wanted:
        yield from _slices(deployment.manifest, at, *groups.around(at), limits)


def read_on(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """Yield the slices of the next group, if this reader is in the later half of its own group,
    and shares it with other readers of the process."""
    groups = _Groups(deployment, limits)
    last = groups.wanted[-1]
    group, shared = groups.around(last)
    if shared and 2 * group.index(last) >= len(group) > 1:
        following, shared = groups.around(group.stop)
        slices = _slices(deployment.manifest, group.stop, following, shared, limits)
        # a slice without neighbours is left to its own reader
        yield from (piece for piece in slices if piece.shared)


class _Groups:
    """The neighbouring subpartitions that a reader reads together. Readers that share groups cut
    the manifest in the same way. A reader of whole groups, or of large slices, reads neighbours
    that it wants itself."""

    def __init__(self, deployment: InputGateDeployment, limits: Limits) -> None:
        manifest, self._slice_bytes = deployment.manifest, shared_slice_bytes(deployment.executors)
        first = deployment.first - manifest.first
        self.wanted = range(first, first + deployment.count)
        self._ends = np.cumsum(manifest.sizes)
        self._objects = ceil(sum(map(_reach, manifest.sources)) / manifest.count)
        bytes_max = group_bytes(self._objects, limits)
        wanted_bytes = self._bytes(self.wanted)
        self._alone = wanted_bytes >= min(bytes_max, int(self._ends[-1]))
        self._alone |= not self._gains(self.wanted)
        self._ranges = bounded_ranges(
            self._ends, self.wanted if self._alone else range(manifest.count), bytes_max
        )
        self._group = range(0)

    def around(self, at: int) -> tuple[range, bool]:
        """Return the group of a subpartition, and whether readers of the executor share it. It is
        empty after the last group. The subpartitions of later calls are not smaller."""
        while at not in self._group:
            if (group := next(self._ranges, None)) is None:
                return range(0), False
            self._group = group
        if not self._alone and self._gains(self._group):
            return self._group, True
        first, stop = self._group.start, self._group.stop
        return range(max(first, self.wanted.start), min(stop, self.wanted.stop)), False

    def _gains(self, group: range) -> bool:
        return self._bytes(group) <= self._objects * len(group) * self._slice_bytes

    def _bytes(self, group: range) -> int:
        before = int(self._ends[group.start - 1]) if group.start else 0
        return int(self._ends[group.stop - 1]) - before


def _reach(source: Source) -> int:
    """Return the subpartitions from the first to the last one that the object has rows of."""
    filled = np.flatnonzero(source.sizes)
    return int(filled[-1] - filled[0]) + 1 if len(filled) else 0


def group_bytes(objects: int, limits: Limits) -> int:
    """Return the bytes of neighbouring subpartitions to read together, if so many objects have rows
    of each of them: about `window_bytes` of each object, and at most half the cache."""
    room_bytes = limits.cache_bytes // 2 - objects * ENTRY_BYTES
    return max(0, min(limits.window_bytes * objects, room_bytes))


def shared_slice_bytes(executors: int) -> float:
    """Return the bytes of a slice up to which readers read neighbours together. Of larger ones, the
    neighbours that other executors want would cost more than the requests that are saved."""
    return _REQUEST_BYTES / max(executors - 1, 1e-9)


def bounded_ranges(ends: Longs, wanted: range, bytes_max: int) -> Iterator[range]:
    """Cut neighbouring subpartitions into as few groups as have at most `bytes_max`, except for
    groups of a single one. `ends` are the sums of the bytes of the subpartitions."""
    first = wanted.start
    while first < wanted.stop:
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + bytes_max, "right"))
        group = range(first, min(max(first + 1, last), wanted.stop))
        yield group
        first = group.stop


def alone(source: Source, first: int, count: int) -> Iterator[Slice]:
    """Yield the slices of one object without neighbours. Its arrays start at subpartition 0."""
    for at in range(first, first + count):
        if source.sizes[at]:
            span = source.range_of(at, 1)
            yield Slice(source, at, at, span, span)


def _slices(
    manifest: Manifest, at: int, group: range, shared: bool, limits: Limits
) -> Iterator[Slice]:
    if at not in group:
        return
    for source in manifest.sources:
        if source.sizes[at]:
            span, window = source.range_of(at, 1), source.range_of(group.start, len(group))
            if window.length > 2 * limits.window_bytes:  # most rows are in this object
                window = _narrowed(source, at, group, limits.window_bytes)
            together = shared and window != span
            yield Slice(source, at, manifest.first + at, span, window, together)


def _narrowed(source: Source, at: int, group: range, bytes_max: int) -> ByteRange:
    """Return the window of a slice for readers that cut a group of neighbours into smaller ones in
    this object."""
    ends = np.cumsum(source.sizes[: group.stop])
    piece = next(piece for piece in bounded_ranges(ends, group, bytes_max) if at in piece)
    return source.range_of(piece.start, len(piece))
