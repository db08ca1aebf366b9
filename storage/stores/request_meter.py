"""Counters of a store's requests and bytes, in the units that stores bill.

Every try counts, because every try is billed. All threads of a process may share a meter. Throttled
answers, by which a store asks for fewer requests, are counted by the kind of their request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from ...control.errors import Throttled


@dataclass(frozen=True, slots=True)
class RequestCounts:
    puts: int = 0
    gets: int = 0
    heads: int = 0
    deletes: int = 0
    lists: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    throttled_puts: int = 0
    throttled_gets: int = 0
    throttled_heads: int = 0
    throttled_deletes: int = 0
    throttled_lists: int = 0

    def __add__(self, other: RequestCounts) -> RequestCounts:
        more = asdict(other)
        return RequestCounts(**{name: n + more[name] for name, n in asdict(self).items()})

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

    @contextmanager
    def sending(self, kind: str, size_bytes: int = 0) -> Iterator[None]:
        """Count a request of a kind, the bytes that it writes, and its answer if it is `Throttled`.
        The block sends the request."""
        self.add(**{kind: 1, "bytes_written": size_bytes})
        with self.answering(kind):
            yield

    @contextmanager
    def answering(self, kind: str) -> Iterator[None]:
        """Count the answer to a request of a kind if it is `Throttled`. The block raises it."""
        try:
            yield
        except Throttled:
            self.add(**{f"throttled_{kind}": 1})
            raise

    def read(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(**self._counts)


class ThrottledMeter:
    """Counts the throttled answers that no task of a process has announced yet."""

    def __init__(self, requests: Callable[[], RequestCounts]) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, *kinds: str) -> int:
        """Return the number of throttled answers to requests of these kinds since the last call."""
        with self._lock:
            now = asdict(self._requests())
            throttled = Counter({kind: int(now[f"throttled_{kind}"]) for kind in kinds})
            new = (throttled - self._taken).total()
            self._taken |= throttled
            return new
