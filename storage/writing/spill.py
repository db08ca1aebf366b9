"""The segments of one partition, in a local file until all of its rows are there."""

from __future__ import annotations

import logging
import mmap
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ...control.ids import AttemptId
from ..format.segment import Longs
from ..runtime import JobClients
from .encoding import Segment
from .merging import merge

_LOG = logging.getLogger(__name__)
BATCHES_MAX = 1_000_000  # of an object: each takes 24 bytes of its footer


class Spill:
    """Holds segments in files without names, which go with the process."""

    def __init__(self, folder: Path, slice_bytes: int) -> None:
        self._folder = folder
        self._slice_bytes = slice_bytes
        self._segments: list[Segment] = []

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
        return not self._segments

    def hold(self, segment: Segment) -> bool:
        """Move a segment from memory into a file, and return False if there is no room."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(segment.body)
                file.flush()
                self._segments.append(Segment(_mapped(file), segment.index))
        except OSError as exc:
            _LOG.warning("a segment cannot wait in %s, and is stored: %s", self._folder, exc)
            return False
        return True

    def take(self, schema: pa.Schema, attempt: AttemptId) -> Iterator[Segment]:
        """Yield the segments, merged as far as possible, and hold them no longer. Their order stays
        the same."""
        segments, self._segments = self._segments, []
        while segments:
            count = _fit(segments, self._slice_bytes)
            together, segments = segments[:count], segments[count:]
            try:
                yield self._merged(together, schema, attempt)
            except OSError as exc:
                _LOG.warning("segments in %s are not merged: %s", self._folder, exc)
                yield from together

    def _merged(self, segments: list[Segment], schema: pa.Schema, attempt: AttemptId) -> Segment:
        if len(segments) == 1:
            return segments[0]
        with tempfile.TemporaryFile(dir=self._folder) as file:
            index = merge(file, segments, schema, attempt)
            return Segment(_mapped(file), index)


def _fit(segments: list[Segment], slice_bytes: int) -> int:
    """Return how many of the first segments may be merged: no slice becomes larger than
    `slice_bytes`, nor the footer large."""
    sizes: Longs = np.zeros_like(segments[0].index.sizes)
    batches = 0
    for count, segment in enumerate(segments):
        sizes = sizes + segment.index.sizes
        batches += int(np.count_nonzero(segment.index.sizes))
        if count and (sizes.max() > slice_bytes or batches > BATCHES_MAX):
            return count
    return len(segments)


def _mapped(file: BinaryIO) -> memoryview:
    return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
