"""The segments of a partition, in memory and then in local files, until all rows are there or the
object would have too many slices. They become one object, and more for hot subpartitions: readers
hold a slice as a whole, so none is much larger than a segment."""

from __future__ import annotations

import logging
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ...control.ids import AttemptId
from ..format.segment import ARROW, COUNT_MAX, Longs, SegmentIndex
from ..local_file import LocalFile
from ..runtime import JobClients
from ..stores.port import Bytes
from .encoding import Segment
from .merging import Bools, SegmentPart, SpillSegment, merge

_LOG = logging.getLogger(__name__)
SLICES_MAX = 1_000_000  # of an object, empty ones too: the footer has 24 bytes for each batch


class Spill:
    """Holds the segments that become one object: few in memory, more in files without a name, which
    go with the process."""

    def __init__(self, folders: Sequence[Path], slice_bytes: int) -> None:
        self._folders = folders
        self._slice_bytes = slice_bytes
        self._file = LocalFile(folders)
        self._in_memory: list[bytes] = []
        self._in_files: list[_FilePart] = []
        self._indexes: list[SegmentIndex] = []
        self._form = ARROW

    @classmethod
    def of(cls, clients: JobClients) -> Spill | None:
        """Return a spill in the folders of this process. Return None if the process should write no
        files, or may not map them because its address space is limited."""
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        folders, limits = clients.runtime.folders, clients.limits
        if not folders or limited or not limits.files:
            return None
        return cls(folders, limits.segment_bytes)

    @property
    def is_empty(self) -> bool:
        return not self._indexes

    def fits(self, segment: Segment) -> bool:
        """Return whether a segment may be in one object with those that are held: it has the same
        format, and the object's footer does not become large."""
        count = len(self._indexes) + 1
        few = count * len(segment.index.sizes) <= SLICES_MAX
        return count == 1 or (few and segment.form == self._form)

    def hold(self, segment: Segment) -> bool:
        """Hold a segment. Return False if there is no room for it."""
        in_memory_bytes = sum(map(len, self._in_memory)) + len(segment.body)
        if not self._in_files and in_memory_bytes <= self._slice_bytes:
            self._in_memory.append(bytes(segment.body))  # the room of its body is larger
        elif not self._hold_in_file(segment):
            return False
        self._indexes.append(segment.index)
        self._form = segment.form
        return True

    def _hold_in_file(self, segment: Segment) -> bool:
        try:
            if self._in_memory:
                self._in_files = [self._written(body) for body in self._in_memory]
                self._in_memory = []
            self._in_files.append(self._written(segment.body))
        except OSError as exc:
            _LOG.warning("a segment cannot wait in a file, and is stored: %s", exc)
            return False
        return True

    def _written(self, body: Bytes) -> _FilePart:
        file, end = self._file.write(len(body), partial(_append, body))
        return _FilePart(file, end - len(body), end)

    def take(self, schema: pa.Schema, attempt: AttemptId, rows_wait: bool) -> Iterator[Segment]:
        """Yield the segments as one, then its hot subpartitions as others, and end. The first is
        merged in memory if it takes `segment_bytes` at most, or twice as much when no rows wait
        there; else in another file. The others take about so much, and no file: there may be no
        room for it any more. Yield the segments as they are if there is no room for the first
        one."""
        in_memory_bytes = self._slice_bytes * (1 if rows_wait else 2)
        try:
            if len(self._indexes) < 2:
                yield from self._apart()
                return
            numbers = objects_of(self._indexes, self._slice_bytes)
            try:
                first = self._merged(schema, attempt, numbers == 0, in_memory_bytes)
            except OSError as exc:
                _LOG.warning("segments are not merged, and are stored: %s", exc)
                yield from self._apart()
                return
            yield first
            del first
            for number in range(1, int(numbers.max()) + 1):
                yield self._merged(schema, attempt, numbers == number, inf)
        finally:
            self.close()

    def close(self) -> None:
        """Drop the files."""
        self._file.close()

    def _merged(
        self, schema: pa.Schema, attempt: AttemptId, wanted: Bools, in_memory_bytes: float
    ) -> Segment:
        """Return the wanted slices of each segment as one segment."""
        parts = list(map(SpillSegment, self._waiting(), self._indexes, wanted))
        segments = [segment for segment in parts if segment.size_bytes] or parts[:1]
        if sum(segment.size_bytes for segment in segments) <= in_memory_bytes:
            room = BytesIO()
            index = merge(room, segments, schema, attempt, self._form)
            return Segment(room.getbuffer(), index, self._form)
        with LocalFile(self._folders) as files:
            file, index = files.write(
                sum(segment.size_bytes for segment in segments),
                lambda file: merge(file, segments, schema, attempt, self._form),
            )
            return Segment(_mapped(file), index, self._form)

    def _waiting(self) -> list[SegmentPart]:
        return [*self._in_files, *(memoryview(body) for body in self._in_memory)]

    def _apart(self) -> list[Segment]:
        """Return the segments as they are."""
        mapped = {part.file: _mapped(part.file) for part in self._in_files}
        bodies = [mapped[part.file][part.place.start : part.place.stop] for part in self._in_files]
        bodies += [memoryview(body) for body in self._in_memory]
        return [Segment(*each, self._form) for each in zip(bodies, self._indexes, strict=True)]


def objects_of(indexes: Sequence[SegmentIndex], slice_bytes: int) -> Longs:
    """Return the number of the object for each segment's slice of each subpartition. Object 0 has
    all subpartitions. A subpartition with more than `slice_bytes` goes on in later objects, each of
    which has about so many bytes of one or several of them, in the order of the segments."""
    sizes = np.stack([index.sizes for index in indexes])
    rows = np.stack([index.rows for index in indexes])
    numbers: Longs = np.zeros_like(sizes)
    is_hot = (sizes.sum(axis=0) > slice_bytes) | (rows.sum(axis=0) > COUNT_MAX)
    room_bytes, last = 0, 0  # of the last object
    for at in np.flatnonzero(is_hot).tolist():
        for begin, end in pairwise(_borders(sizes[:, at], rows[:, at], slice_bytes)):
            if begin == 0:
                begun = 0
                continue
            size_bytes = int(sizes[begin:end, at].sum())
            if begun == last or size_bytes > room_bytes:
                last, room_bytes = last + 1, slice_bytes
            room_bytes -= size_bytes
            numbers[begin:end, at] = begun = last
    return numbers


def _borders(sizes: Longs, rows: Longs, slice_bytes: int) -> list[int]:
    """Return the first segment of each slice that a hot subpartition becomes, and their end."""
    borders, size_bytes, count = [0], 0, 0
    for at, (more_bytes, more) in enumerate(zip(sizes.tolist(), rows.tolist(), strict=True)):
        if size_bytes and (size_bytes + more_bytes > slice_bytes or count + more > COUNT_MAX):
            borders.append(at)
            size_bytes = count = 0
        size_bytes, count = size_bytes + more_bytes, count + more
    return [*borders, len(sizes)]


class _FilePart:
    """Bytes of a file, which are read when a slice is taken. The pages of a mapped file would count
    as memory, all of them for a small slice of each segment."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self.file = file
        self.place = range(start, end)

    def __getitem__(self, place: slice) -> memoryview:
        wanted = self.place[place]
        return memoryview(os.pread(self.file.fileno(), len(wanted), wanted.start))


def _append(body: Bytes, file: BinaryIO) -> int:
    """Write bytes, and return where they end."""
    file.write(body)
    return file.tell()


def _mapped(file: BinaryIO) -> memoryview:
    return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
