"""Ranges read once per process: small slices come with those of the subpartitions beside them.

What a task has fetched stays for the next one, up to a budget; a range on its way is shared by all
who ask for it. A range that could not be read is asked for anew.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from .blobs import BlobStore, ByteRange


class Neighbours:
    def __init__(self, store: BlobStore, bytes_max: int, parallel: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._fetchers = ThreadPoolExecutor(parallel, thread_name_prefix="headgate-get")
        self._lock = Lock()
        self._held: OrderedDict[tuple[str, ByteRange], Future[memoryview]] = OrderedDict()
        self._held_bytes = 0
        self.requests = 0

    def fetch(self, name: str, span: ByteRange) -> Future[memoryview]:
        """The bytes of a range, at once when they are here."""
        key = name, span
        with self._lock:
            known = self._held.get(key)
            if known is not None and not known.cancelled():
                return known
            future = self._fetchers.submit(self._store.get, name, span)
            self.requests += 1
            self._held[key] = future
            self._held_bytes += span.length
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                (_, oldest), _ = self._held.popitem(last=False)
                self._held_bytes -= oldest.length
        return future

    def forget(self, name: str, span: ByteRange) -> None:
        """Ask anew next time: no answer came, or not what was announced."""
        with self._lock:
            if self._held.pop((name, span), None) is not None:
                self._held_bytes -= span.length

    def close(self) -> None:
        self._fetchers.shutdown(wait=False, cancel_futures=True)
