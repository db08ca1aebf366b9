"""Counters of a store's requests and bytes, in the units that stores bill.

Every try counts, because every try is billed. All threads of a process may share a meter.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class RequestCounts:
    puts: int = 0
    gets: int = 0
    heads: int = 0
    deletes: int = 0
    lists: int = 0
    bytes_written: int = 0
    bytes_read: int = 0

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        """Return the requests and bytes since `earlier`."""
        before = asdict(earlier)
        return RequestCounts(**{name: n - before[name] for name, n in asdict(self).items()})


class RequestMeter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Count requests and bytes, named as the fields of `RequestCounts`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def read(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(**self._counts)
