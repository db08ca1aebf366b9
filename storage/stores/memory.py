"""An object store in this process's memory, for tests, examples and the simulator.

Bodies are stored as immutable bytes, and reads are views of them: a caller that changes its own
buffer does not change an object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import ceil
from typing import TypeAlias

from ...control.clock import Deadline
from ...control.errors import Closed, Lost
from .conditional_put import PutAnswer, Stored, put
from .port import BlobStat, ByteRange, Bytes, PendingUpload, checked_name, exact
from .request_meter import RequestCounts, RequestMeter
from .retries import Retrier, RetrySettings

PAGE_NAMES_MAX = 1000

Objects: TypeAlias = dict[str, tuple[bytes, str]]  # name: body and write id


class MemoryBlobStore:
    def __init__(self, objects: Objects | None = None) -> None:
        """`objects` is the bucket: all stores that share it see the same objects."""
        self._objects: Objects = {} if objects is None else objects
        self._meter = RequestMeter()
        self._retrier = Retrier(RetrySettings())
        self._closed = False

    @property
    def requests(self) -> RequestCounts:
        return self._meter.read()

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._open()

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        put(self, self._retrier, name, body, write_id)

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        self._open()
        self._meter.add(puts=1, bytes_written=len(body))
        owner = body.obj if isinstance(body.obj, bytes) else None
        content = owner if owner is not None and len(owner) == len(body) else bytes(body)
        entry = (content, write_id)
        # one atomic step of the dict: no lock, and one winner among racing threads
        won = self._objects.setdefault(name, entry) is entry
        return PutAnswer.CREATED if won else PutAnswer.EXISTS

    def look(self, name: str) -> Stored | None:
        self._open()
        self._meter.add(heads=1)
        entry = self._objects.get(name)
        return None if entry is None else Stored(entry[1], len(entry[0]))

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        self._open()
        entry = self._objects.get(checked_name(name))
        if span is not None and span.length == 0:
            return memoryview(b"")
        if entry is None:
            self._meter.add(gets=1)
            raise Lost(f"there is no object {name} in memory")
        view = memoryview(entry[0])
        content = view if span is None else view[span.start : span.end]
        self._meter.add(gets=1, bytes_read=len(content))
        return content if span is None else exact(content, name, span)

    def size_bytes(self, name: str) -> int | None:
        stored = self.look(checked_name(name))
        return None if stored is None else stored.size_bytes

    def delete(self, names: Collection[str]) -> None:
        self._open()
        self._meter.add(deletes=ceil(len(names) / PAGE_NAMES_MAX))
        for name in names:
            self._objects.pop(checked_name(name), None)

    def list(self, prefix: str) -> Iterator[BlobStat]:
        self._open()
        stats = [
            BlobStat(name, len(body))
            for name, (body, _) in self._objects.copy().items()
            if name.startswith(prefix)
        ]
        self._meter.add(lists=max(1, ceil(len(stats) / PAGE_NAMES_MAX)))
        return iter(sorted(stats, key=lambda stat: stat.name))

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        self._open()
        return iter(())

    def abort(self, upload: PendingUpload) -> None:
        self._open()

    def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise Closed("the object store in memory was closed")
