"""The range cache: a process reads a range of small neighbouring slices once for several readers.

Ranges that a task has fetched stay for the next tasks, up to a budget. Readers that want the same
range share one request. A range that could not be read is requested anew.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor, Future
from functools import partial
from threading import Lock
from typing import TypeAlias

from ...control.errors import Closed
from ..runtime import Runtime
from ..stores.port import BlobStore, ByteRange
from .range_requests import RangeRequests
from .shared_ranges import SharedRanges

_Key: TypeAlias = tuple[str, int, int]
ENTRY_BYTES = 512  # of a range, besides its bytes
_COPIED_BYTES_MAX = 64 << 10
_RUNTIME = Runtime()


class RangeCache:
    def __init__(
        self,
        store: BlobStore,
        bytes_max: int,
        fetchers: Executor,
        shared: SharedRanges | None = None,
        runtime: Runtime = _RUNTIME,
    ) -> None:
        self._store = store
        self._shared = shared
        self._bytes_max = bytes_max
        self._pending = RangeRequests(fetchers, runtime.clock, runtime.future)
        self._lock = Lock()
        self._held: OrderedDict[_Key, Future[memoryview] | bytes | memoryview] = OrderedDict()
        self._held_bytes = 0
        self._requests = 0

    def fetch(self, name: str, span: ByteRange, shared: bool = False) -> Future[memoryview]:
        """Return a future of a range's bytes. Send a request unless the range is cached, in this
        process or, if it is `shared`, by another one of the executor."""
        key = name, span.start, span.length
        with self._lock:
            cached = self._held.get(key)
            if isinstance(cached, Future) and not _failed(cached):
                return cached
            if isinstance(cached, bytes | memoryview):
                done: Future[memoryview] = Future()
                done.set_result(memoryview(cached))
                return done
            self._drop(key)
            try:
                asked = self._pending.add(partial(self._get, name, span, shared))
            except RuntimeError as exc:
                raise Closed("the environment of this process was closed") from exc
            self._held[key] = asked
            self._held_bytes += _cost(key)
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                self._held_bytes -= _cost(self._held.popitem(last=False)[0])
        asked.add_done_callback(partial(self._settle, key))
        return asked

    def forget(self, name: str, span: ByteRange, shared: bool = False) -> None:
        """Drop a range whose bytes are wrong, or that no other reader wants."""
        with self._lock:
            self._drop((name, span.start, span.length))
        if shared and self._shared is not None:
            self._shared.forget(name, span)

    def _get(self, name: str, span: ByteRange, shared: bool, is_patient: bool) -> memoryview | None:
        if shared and self._shared is not None:
            body, requested = self._shared.get(name, span, is_patient)
        else:
            body, requested = self._store.get(name, span), True
        with self._lock:
            self._requests += requested
        return body

    def add_requests(self, count: int) -> None:
        """Count requests that this process sent for its readers in another way."""
        with self._lock:
            self._requests += count

    def take_requests(self) -> int:
        """Return the number of requests since the last call."""
        with self._lock:
            taken, self._requests = self._requests, 0
        return taken

    def close(self) -> None:
        """Cancel the requests that wait."""
        self._pending.close()

    def _settle(self, key: _Key, answer: Future[memoryview]) -> None:
        """Hold the bytes in place of the future, or nothing if there are none. Small ones are
        copied: Python's garbage collector, which Spark runs after each task, does not visit
        bytes."""
        with self._lock:
            if self._held.get(key) is not answer:
                return
            if _failed(answer):
                self._drop(key)
            else:
                body = answer.result()
                self._held[key] = bytes(body) if len(body) <= _COPIED_BYTES_MAX else body

    def _drop(self, key: _Key) -> None:
        if self._held.pop(key, None) is not None:
            self._held_bytes -= _cost(key)


def _failed(answer: Future[memoryview]) -> bool:
    return answer.cancelled() or (answer.done() and answer.exception() is not None)


def _cost(key: _Key) -> int:
    return key[2] + ENTRY_BYTES
