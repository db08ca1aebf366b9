"""Counters of a store's requests and bytes, in the units that stores bill.

Every try counts, because every try is billed. All threads of a process may share a meter.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


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
        return RequestCounts(
            self.puts - earlier.puts,
            self.gets - earlier.gets,
            self.heads - earlier.heads,
            self.deletes - earlier.deletes,
            self.lists - earlier.lists,
            self.bytes_written - earlier.bytes_written,
            self.bytes_read - earlier.bytes_read,
        )


class RequestMeter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._puts = self._gets = self._heads = self._deletes = self._lists = 0
        self._bytes_written = self._bytes_read = 0

    def put(self, size_bytes: int) -> None:
        with self._lock:
            self._puts += 1
            self._bytes_written += size_bytes

    def get(self, size_bytes: int) -> None:
        with self._lock:
            self._gets += 1
            self._bytes_read += size_bytes

    def head(self) -> None:
        with self._lock:
            self._heads += 1

    def delete(self) -> None:
        with self._lock:
            self._deletes += 1

    def list(self) -> None:
        with self._lock:
            self._lists += 1

    def read(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(
                self._puts,
                self._gets,
                self._heads,
                self._deletes,
                self._lists,
                self._bytes_written,
                self._bytes_read,
            )
