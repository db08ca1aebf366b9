"""How much memory and how many requests the tasks of a job may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets in bytes. A writer holds about three times `segment_bytes` at its peak. A gate holds
    `fetch_bytes` on their way, in wait and being decoded (but one slice is always let through, and
    one is never larger than a segment), and `cache_bytes` of neighbours that it read along. Who
    brings the rows of a key together holds `group_bytes` of them, about twice while they are
    sorted. `readers` is how many processes read side by side."""

    segment_bytes: int = 64 << 20
    fetch_bytes: int = 64 << 20
    fetch_parallel: int = 8
    join_bytes: int = 2 << 20
    cache_bytes: int = 64 << 20
    group_bytes: int = 512 << 20
    readers: int = 1

    @property
    def window_bytes(self) -> int:
        """Return how many bytes of neighbours one request reads, so that all requests fit."""
        return min(self.join_bytes, self.fetch_bytes // (2 * self.fetch_parallel))

    def task_bytes(self, inputs: int, outputs: int) -> int:
        """What a task may hold that reads so many gates at once and writes so many partitions: a
        partition holds one segment that fills, one that is sorted and one on its way."""
        cache_bytes = self.cache_bytes if inputs else 0
        return 3 * outputs * self.segment_bytes + inputs * self.fetch_bytes + cache_bytes
