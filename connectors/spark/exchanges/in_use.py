"""The results that running queries of a session write or read: nobody else may release them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ....control.ids import ResultId, combined_name


class InUse:
    """Names results by consecutive numbers. A result that is named while a query runs is in use
    until that query has ended."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._last = 0
        self._lock = threading.Lock()
        self._queries: list[tuple[int, Collection[ResultId]]] = []

    def name(self) -> ResultId:
        with self._lock:
            self._last += 1
            return self._named(self._last)

    @contextmanager
    def query(self, read: Collection[ResultId] = ()) -> Iterator[None]:
        """Run a query inside, which reads the results `read` and may name others."""
        with self._lock:
            begun = self._last, read
            self._queries.append(begun)
        try:
            yield
        finally:
            with self._lock:
                self._queries.remove(begun)

    @property
    def results(self) -> frozenset[ResultId]:
        with self._lock:
            first = min((last for last, _ in self._queries), default=self._last)
            named = {self._named(number) for number in range(first + 1, self._last + 1)}
            named |= set(map(combined_name, named))
            return frozenset(named.union(*(read for _, read in self._queries)))

    def _named(self, number: int) -> ResultId:
        return ResultId(f"{self._epoch}-{number:04d}")
