"""The limits on memory and requests of a job's tasks."""

from __future__ import annotations

from dataclasses import dataclass

_SHARED_CACHES = 4  # the files that processes share have as many times the bytes of a cache


@dataclass(frozen=True, slots=True)
class Limits:
    segment_bytes: int = 64 << 20
    """The rows that a writer holds before it ends a segment, or moves them into a file. At its peak
    it holds about three times as much. No slice is stored that is much larger."""
    fetch_bytes: int = 64 << 20
    """The bytes that a gate holds: requested, waiting, or being decoded. One slice is always let
    through."""
    fetch_parallel: int = 8
    """The requests that a job's gates in one process send at the same time."""
    join_bytes: int = 8 << 20
    """The bytes of neighbouring slices that one request reads together."""
    cache_bytes: int = 64 << 20
    """The bytes of neighbours that a process read along and holds for its next readers."""
    files: bool = False
    """True if tasks may write files into a folder of their executor."""
    maps: bool = True
    """False if the address space of tasks is limited, so that they map no large files."""
    group_bytes: int = 512 << 20
    """The bytes that a task which groups rows by key holds; about twice as much while it sorts."""

    @property
    def merges(self) -> bool:
        """Return True if the rows of a task may wait in files, and become one segment."""
        return self.files and self.maps

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of neighbours in files, which the processes of an executor share."""
        return _SHARED_CACHES * self.cache_bytes if self.files else 0

    @property
    def window_bytes(self) -> int:
        """Return the bytes of neighbours that one request reads. As many requests as a process
        sends at the same time fit into `fetch_bytes`; of wider ones a gate sends fewer."""
        return min(self.join_bytes, self.fetch_bytes // self.fetch_parallel)

    def task_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes that a task may hold if it reads `inputs` gates at once and writes
        `outputs` partitions. For each of these it holds a segment that fills, a segment that is
        sorted and a segment that is being put."""
        cache_bytes = self.cache_bytes if inputs else 0
        return 3 * outputs * self.segment_bytes + inputs * self.fetch_bytes + cache_bytes
