"""The segments of one object, in memory and then in a local file, until the object is full or all
rows are there."""

from __future__ import annotations

import logging
import mmap
import os
import resource
import tempfile
from contextlib import ExitStack, suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ...control.ids import AttemptId
from ..format.segment import COUNT_MAX, Longs, SegmentIndex
from ..runtime import JobClients
from .encoding import Segment
from .merging import SegmentPart, SpillSegment, merge

_LOG = logging.getLogger(__name__)
SLICES_MAX = 1_000_000  # of an object, empty ones too: the footer has 24 bytes for each batch


class Spill:
    """Holds the segments that become one object: few in memory, more in a file without a name,
    which goes with the process."""

    def __init__(self, folder: Path, slice_bytes: int) -> None:
        self._folder = folder
        self._slice_bytes = slice_bytes
        self._opened = ExitStack()
        self._file: BinaryIO | None = None
        self._in_memory: list[bytes] = []
        self._ends = [0]
        self._indexes: list[SegmentIndex] = []
        self._sizes: Longs = np.zeros(1, np.int64)
        self._rows: Longs = np.zeros(1, np.int64)

    @classmethod
    def of(cls, clients: JobClients) -> Spill | None:
        """Return a spill in the folder of this process. Return None if the process should write no
        files, or may not map them because its address space is limited."""
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        folder, limits = clients.runtime.folder, clients.limits
        if folder is None or limited or not limits.files:
            return None
        return cls(folder, limits.segment_bytes)

    @property
    def is_empty(self) -> bool:
        return not self._indexes

    def fits(self, index: SegmentIndex) -> bool:
        """Return whether a segment may be in one object with those that are held: no slice becomes
        larger than `slice_bytes`, nor the footer large."""
        count = len(self._indexes) + 1
        return count == 1 or (
            count * len(index.sizes) <= SLICES_MAX
            and int((self._sizes + index.sizes).max()) <= self._slice_bytes
            and int((self._rows + index.rows).max()) <= COUNT_MAX
        )

    def hold(self, segment: Segment) -> bool:
        """Hold a segment. Return False if there is no room for it."""
        end = self._ends[-1] + len(segment.body)
        if self._file is None and end <= self._slice_bytes:
            self._in_memory.append(bytes(segment.body))  # the room of its body is larger
        elif not self._hold_in_file(segment):
            return False
        self._ends.append(end)
        self._indexes.append(segment.index)
        self._sizes = self._sizes + segment.index.sizes
        self._rows = self._rows + segment.index.rows
        return True

    def _hold_in_file(self, segment: Segment) -> bool:
        try:
            if self._file is None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                file = self._opened.enter_context(self._unnamed())
                file.writelines(self._in_memory)
                file.flush()
                self._file, self._in_memory = file, []
            self._file.write(segment.body)
            self._file.flush()
        except OSError as exc:
            _LOG.warning("a segment cannot wait in %s, and is stored: %s", self._folder, exc)
            return False
        return True

    def take(self, schema: pa.Schema, attempt: AttemptId, rows_wait: bool) -> list[Segment]:
        """Return the segments as one, and end. They are merged in memory if they take
        `segment_bytes` at most, or twice as much when no rows wait there; else in another file.
        Return them as they are if there is no room for it."""
        in_memory_bytes = self._slice_bytes * (1 if rows_wait else 2)
        try:
            return self._merged(schema, attempt, in_memory_bytes)
        except OSError as exc:
            _LOG.warning("segments in %s are not merged: %s", self._folder, exc)
            return self._apart()
        finally:
            self.close()

    def close(self) -> None:
        """Drop the file."""
        with suppress(OSError):  # it may have bytes for which there was no room
            self._opened.close()

    def _unnamed(self) -> BinaryIO:
        return tempfile.TemporaryFile(dir=self._folder)

    def _merged(self, schema: pa.Schema, attempt: AttemptId, in_memory_bytes: int) -> list[Segment]:
        if len(self._indexes) < 2:
            return self._apart()
        segments = self._waiting()
        if self._ends[-1] <= in_memory_bytes:
            room = BytesIO()
            index = merge(room, segments, schema, attempt)
            return [Segment(room.getbuffer(), index)]
        with self._unnamed() as file:
            index = merge(file, segments, schema, attempt)
            return [Segment(_mapped(file), index)]

    def _waiting(self) -> list[SpillSegment]:
        bodies: list[SegmentPart] = [memoryview(body) for body in self._in_memory]
        if self._file is not None:
            bodies = [_FilePart(self._file, start, end) for start, end in pairwise(self._ends)]
        return list(map(SpillSegment, bodies, self._indexes))

    def _apart(self) -> list[Segment]:
        """Return the segments as they are."""
        bodies = [memoryview(body) for body in self._in_memory]
        if self._file is not None:
            whole = _mapped(self._file)
            bodies = [whole[start:end] for start, end in pairwise(self._ends)]
        return list(map(Segment, bodies, self._indexes))


class _FilePart:
    """Bytes of a file, which are read when a slice is taken. The pages of a mapped file would count
    as memory, all of them for a small slice of each segment."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file = file.fileno()
        self._place = range(start, end)

    def __getitem__(self, place: slice) -> memoryview:
        wanted = self._place[place]
        return memoryview(os.pread(self._file, len(wanted), wanted.start))


def _mapped(file: BinaryIO) -> memoryview:
    return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
