"""The range cache: a process reads a range of small neighbouring slices once for several readers.

Ranges that a task has fetched stay for the next tasks, up to a budget. Readers that want the same
range share one request. A range that could not be read is requested anew.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor, Future
from threading import Lock

from ..stores.port import BlobStore, ByteRange


class RangeCache:
    def __init__(self, store: BlobStore, bytes_max: int, fetchers: Executor) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._fetchers = fetchers
        self._lock = Lock()
        self._held: OrderedDict[tuple[str, ByteRange], Future[memoryview]] = OrderedDict()
        self._held_bytes = 0
        self.requests = 0

    def fetch(self, name: str, span: ByteRange) -> Future[memoryview]:
        """Return a future of a range's bytes. Send a request unless the range is cached."""
        key = name, span
        with self._lock:
            cached = self._held.get(key)
            if cached is not None and not _failed(cached):
                return cached
            if cached is None:
                self._held_bytes += span.length
            future = self._fetchers.submit(self._store.get, name, span)
            self.requests += 1
            self._held[key] = future
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                (_, oldest), _ = self._held.popitem(last=False)
                self._held_bytes -= oldest.length
        return future

    def forget(self, name: str, span: ByteRange) -> None:
        """Drop a range whose bytes are wrong, or that no other reader wants."""
        with self._lock:
            if self._held.pop((name, span), None) is not None:
                self._held_bytes -= span.length

    def close(self) -> None:
        self._fetchers.shutdown(wait=False, cancel_futures=True)


def _failed(future: Future[memoryview]) -> bool:
    return future.cancelled() or (future.done() and future.exception() is not None)
