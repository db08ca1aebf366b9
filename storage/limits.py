"""The limits on memory and requests of a job's tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    segment_bytes: int = 64 << 20
    """The size at which a writer ends a segment. At its peak it holds about three times as much."""
    fetch_bytes: int = 64 << 20
    """The bytes that a gate holds: requested, waiting, or being decoded. One slice is always let
    through; a slice is never larger than a segment."""
    fetch_parallel: int = 8
    """The requests that a job's gates in one process send at the same time."""
    join_bytes: int = 4 << 20
    """The bytes of neighbouring slices that one request reads together."""
    cache_bytes: int = 64 << 20
    """The bytes of neighbours that a process read along and holds for its next readers."""
    shared_bytes: int = 0
    """The bytes of neighbours in files, which the processes of an executor share; 0: no files."""
    group_bytes: int = 512 << 20
    """The bytes that a task which groups rows by key holds; about twice as much while it sorts."""
    readers: int = 1
    """The number of tasks that read side by side."""
    executors: int = 1
    """The number of executors that these tasks run on, or of tasks if these share nothing."""

    @property
    def window_bytes(self) -> int:
        """Return the bytes of neighbours that one request reads. Even if each request reads twice
        as many, all requests of a gate together fit into `fetch_bytes`."""
        return min(self.join_bytes, self.fetch_bytes // (2 * self.fetch_parallel))

    def task_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes that a task may hold which reads `inputs` gates at once and writes
        `outputs` partitions. For each of these it holds a segment that fills, a segment that is
        sorted and a segment that is being put."""
        cache_bytes = self.cache_bytes if inputs else 0
        return 3 * outputs * self.segment_bytes + inputs * self.fetch_bytes + cache_bytes
