"""Ranges read once per process: small slices come with those of the subpartitions beside them.

What a task has fetched stays for the next one, up to a budget; a range on its way is shared by all
who ask for it. A range that could not be read is asked for anew.
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
        """The bytes of a range, at once when they are here."""
        key = name, span
        with self._lock:
            known = self._held.get(key)
            if known is not None and not _failed(known):
                return known
            if known is None:
                self._held_bytes += span.length
            future = self._fetchers.submit(self._store.get, name, span)
            self.requests += 1
            self._held[key] = future
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                (_, oldest), _ = self._held.popitem(last=False)
                self._held_bytes -= oldest.length
        return future

    def forget(self, name: str, span: ByteRange) -> None:
        """Ask anew next time: what came is not what was announced, or nobody else wants it."""
        with self._lock:
            if self._held.pop((name, span), None) is not None:
                self._held_bytes -= span.length

    def close(self) -> None:
        self._fetchers.shutdown(wait=False, cancel_futures=True)


def _failed(future: Future[memoryview]) -> bool:
    return future.cancelled() or (future.done() and future.exception() is not None)
