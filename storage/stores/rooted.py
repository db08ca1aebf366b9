"""Proof that a process reaches the root that the driver of its job uses.

A folder that is not mounted, and an endpoint that is another store, look like a root without
objects. So each driver puts a marker into every bucket of its root, below the prefix of its job.
Guarantees: nothing is put, nothing is deleted, and no object is said to be gone, before the process
has seen the marker there, or another object of the job in a bucket that has lost it. A process
looks at a folder each time, because it may be unmounted at any time, and at a bucket once, and
again before an object is said to be gone.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice

from ...control.addresses import urls_of
from ...control.clock import Deadline
from ...control.errors import Invalid, Lost, Unavailable
from .port import BlobStat, BlobStore, ByteRange, Bytes, PendingUpload
from .request_meter import RequestCounts
from .spread import bucket_of

LISTED_MAX = 1_000  # objects: of so many, each bucket has some
_REMEDY = "mount the same folder on every host, or give every process the same endpoint"


@dataclass(frozen=True, slots=True)
class Root:
    """A root as its processes know it."""

    address: str
    """The store's address."""
    prefix: str
    """The beginning of the names of objects of which one at least is there."""
    markers: tuple[str, ...] = ()
    """The driver's marker in each bucket; none for a process that works for many drivers."""
    content: str = ""
    """The content of the markers, which no other driver's have."""

    @property
    def buckets(self) -> int:
        return len(urls_of(self.address))

    @staticmethod
    def marker_names(prefix: str, buckets: int) -> tuple[str, ...]:
        """Return the names of the markers that begin with `prefix`, one in each bucket."""
        names: dict[int, str] = {}
        for number in count():
            if len(names) == buckets:
                return tuple(names[bucket] for bucket in range(buckets))
            name = f"{prefix}{number}"
            names.setdefault(bucket_of(name, buckets), name)
        raise AssertionError("numbers do not end")


class RootedStore:
    """A store that proves its root. Threads may share it."""

    def __init__(self, store: BlobStore, root: Root) -> None:
        self._store = store
        self._root = root
        self._proven: set[int] = set()
        self._may_vanish = urls_of(root.address)[0].lower().startswith("file:")

    @property
    def requests(self) -> RequestCounts:
        return self._store.requests

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._store.check(deadline, prefix)

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        bucket = self._bucket(name)
        if self._root.markers:
            self._prove(bucket)
        self._store.put(name, body, write_id)
        if self._root.markers and self._may_vanish:  # it may have vanished before the put
            self._look(bucket)
            if self._store.size_bytes(name) is None:
                raise Unavailable(f"object {name} was put, and {self._here} does not have it")

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        try:
            return self._store.get(name, span)
        except Lost:
            with self._looking(name):
                return self._store.get(name, span)

    def size_bytes(self, name: str) -> int | None:
        if (size_bytes := self._store.size_bytes(name)) is not None:
            return size_bytes
        with self._looking(name):
            return self._store.size_bytes(name)

    def delete(self, names: Collection[str]) -> None:
        """Delete objects. Without names nothing of a prefix was found: prove every bucket then,
        because a listing of a root that is not there is empty, too."""
        for bucket in set(map(self._bucket, names)) or range(self._root.buckets):
            self._prove(bucket)
        self._store.delete(names)

    def list(self, prefix: str) -> Iterator[BlobStat]:
        return self._store.list(prefix)

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return self._store.uploads(prefix)

    def abort(self, upload: PendingUpload) -> None:
        self._store.abort(upload)

    def close(self) -> None:
        self._store.close()

    def _bucket(self, name: str) -> int:
        return bucket_of(name, self._root.buckets)

    def _prove(self, bucket: int) -> None:
        """Look at the root in a bucket, unless that was done before. Look at a folder each time."""
        if self._may_vanish or bucket not in self._proven:
            self._look(bucket)

    @contextmanager
    def _looking(self, name: str) -> Iterator[None]:
        """Look at the root before and after another read of an object that seems to be gone: a
        folder may be mounted between the first read and the look."""
        bucket = self._bucket(name)
        self._look(bucket)
        try:
            yield
        finally:
            self._look(bucket)

    def _look(self, bucket: int) -> None:
        """Look for the marker in a bucket, and for other objects without one.

        Raises:
            Unavailable: no object is there.
            Invalid: the marker is another driver's.
        """
        root = self._root
        try:
            marked = str(self._store.get(root.markers[bucket]), "utf-8") if root.markers else None
        except Lost:
            marked = None
        if marked not in (None, root.content):
            raise Invalid(f"{self._here} has the marker of another driver: {_REMEDY}")
        if marked is None and not self._has_objects(bucket):
            raise Unavailable(f"{self._here} has no object of this root: {_REMEDY}")
        self._proven.add(bucket)

    def _has_objects(self, bucket: int) -> bool:
        """Return True if other objects prove the root. A worker needs the marker in a folder: what
        else is there may have come before it was mounted."""
        if self._root.markers and self._may_vanish:
            return False
        listed = islice(self._store.list(self._root.prefix), LISTED_MAX)
        return any(self._bucket(stat.name) == bucket for stat in listed)

    @property
    def _here(self) -> str:
        return f"{self._root.address}, as host {socket.gethostname()} sees it,"
