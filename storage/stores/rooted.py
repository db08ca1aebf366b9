"""Proof that a process reaches the root that the driver of its job uses.

A folder that is not mounted, and an endpoint that is another store, look like a root without
objects. So each driver puts a marker into every bucket of its root, below the prefix of its job,
which also names the log of the job. Guarantees: nothing is put, nothing is deleted, and no object
is said to be gone, before the process has seen the marker there, or another object of the job in a
bucket that has lost it. A process looks at a folder each time, because it may be unmounted at any
time, and at a bucket once, and again before an object is said to be gone. A process that works for
many drivers looks for each job.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, islice

from ...control.addresses import urls_of
from ...control.clock import Deadline
from ...control.errors import Invalid, Lost, Unavailable
from ...control.ids import JobId
from ..format.layout import Layout
from .port import BlobStat, BlobStore, ByteRange, Bytes, PendingUpload
from .request_meter import RequestCounts
from .spread import bucket_of

LISTED_MAX = 1_000  # objects: of so many, each bucket has some
_PROVEN_MAX = 100_000
_BY_HAND = "_root/"
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
    log: Callable[[], str] = str
    """Asks for the identity of the log whose jobs are in the root; '' if it is unknown."""

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

    @staticmethod
    def content_of(driver: str, log: str) -> str:
        """Return the content of a driver's markers."""
        return f"{driver} {log}".strip()

    def job_of(self, name: str) -> str:
        """Return the prefix of the job that an object belongs to, or that of the root."""
        if self.markers:
            return self.prefix
        job, slash, _ = name.removeprefix(self.prefix).partition("/")
        return f"{self.prefix}{job}/" if slash else self.prefix

    def is_of(self, content: str) -> bool:
        """Return True if a marker is this driver's, or, without a driver, if it is of a driver of
        the same log, as far as both are known."""
        if self.markers:
            return content == self.content
        log = content.split(" ", 2)[2:]
        return not log or self.log() in ("", *log)


class UnknownRoot(Invalid):
    """Nothing is in the root, so nothing proves that it is the right one."""


class RootedStore:
    """A store that proves its root. Threads may share it."""

    def __init__(self, store: BlobStore, root: Root) -> None:
        self._store = store
        self._root = root
        self._proven: set[tuple[int, str]] = set()
        self._marked: set[tuple[int, str]] = set()
        self._may_vanish = urls_of(root.address)[0].lower().startswith("file:")

    @property
    def requests(self) -> RequestCounts:
        return self._store.requests

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._store.check(deadline, prefix)

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        if self._root.markers:
            self._prove(*self._place(name))
        self._store.put(name, body, write_id)
        if self._root.markers and self._may_vanish:  # it may have vanished before the put
            self._look(*self._place(name))
            if self._store.size_bytes(name) is None:
                raise Unavailable(f"object {name} was put, and {self._here} does not have it")

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        try:
            return self._store.get(name, span)
        except Lost:
            with self._looking([self._place(name)]):
                return self._store.get(name, span)

    def size_bytes(self, name: str) -> int | None:
        if (size_bytes := self._store.size_bytes(name)) is not None:
            return size_bytes
        with self._looking([self._place(name)]):
            return self._store.size_bytes(name)

    def delete(self, names: Collection[str]) -> None:
        """Delete objects. Without names nothing of a prefix was found: prove every bucket then,
        because a listing of a root that is not there is empty, too."""
        places = sorted(self._concerned(names)) or self._places(self._root.prefix)
        for place in places:
            self._prove(*place)
        self._store.delete(names)
        if self._may_vanish:  # it may have vanished before the deletion
            self._check_gone(names, places)

    def list(self, prefix: str) -> Iterator[BlobStat]:
        """List objects. Look at a folder before and after: nothing is found in one that is not
        mounted, and it may be mounted again before anything is deleted."""
        if not self._may_vanish:
            return self._store.list(prefix)
        with self._looking(self._places(self._root.prefix)):
            return iter(list(self._store.list(prefix)))

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return self._store.uploads(prefix)

    def abort(self, upload: PendingUpload) -> None:
        """Abort an upload. One that is there proves the root, as an object does."""
        place = self._place(upload.name)
        if self._marker(*place) is None and upload not in self._store.uploads(upload.name):
            self._prove(*place)
        self._store.abort(upload)

    def close(self) -> None:
        self._store.close()

    def _bucket(self, name: str) -> int:
        return bucket_of(name, self._root.buckets)

    def _concerned(self, names: Collection[str]) -> set[tuple[int, str]]:
        """Return the places of objects that are to be deleted. Names may come from a listing, which
        leaves out a missing bucket. For many drivers, add each bucket of a job that has a marker. A
        driver may have marked a part of them before it wrote, and a sweep have deleted a part of
        the markers: with markers only, it is enough that each bucket is of the root."""
        places = set(map(self._place, names))
        if self._root.markers or self._root.buckets == 1:
            return places
        for job in {job for _, job in places} - {self._root.prefix}:
            drivers = self._layout(job).drivers
            rest = any(n.startswith(job) and not n.startswith(drivers) for n in names)
            all_places = self._places(job if rest else self._root.prefix)
            if self._may_vanish or not self._proven.issuperset(all_places):
                is_marked = next(self._store.list(drivers), None) is not None
                places.update(all_places if is_marked else ())
        return places

    def _check_gone(self, names: Collection[str], places: Iterable[tuple[int, str]]) -> None:
        """Check that a folder was there while objects were deleted. A job without markers, or after
        the deletion of its markers, proves nothing.

        Raises:
            Unavailable, Invalid: it was not.
        """
        for bucket, job in places:
            drivers = self._layout(job).drivers if job != self._root.prefix else ""
            is_marked = bool(drivers) and not any(name.startswith(drivers) for name in names)
            if is_marked and (bucket, job) in self._marked:
                self._look(bucket, job)
        for name in names:
            if self._store.size_bytes(name) is not None:
                raise Unavailable(f"object {name} was deleted, and {self._here} has it")

    def _place(self, name: str) -> tuple[int, str]:
        """Return the bucket of an object, and the prefix of its job."""
        return self._bucket(name), self._root.job_of(name)

    def _places(self, job: str) -> tuple[tuple[int, str], ...]:
        return tuple((bucket, job) for bucket in range(self._root.buckets))

    def _prove(self, bucket: int, job: str) -> None:
        """Look for a job in a bucket, unless that was done before. Look at a folder each time."""
        if self._may_vanish or (bucket, job) not in self._proven:
            self._look(bucket, job)

    @contextmanager
    def _looking(self, places: Collection[tuple[int, str]]) -> Iterator[None]:
        """Look at the root before and after a read: a folder may be mounted between a read that
        finds nothing and a look."""
        for place in places:
            self._look(*place)
        try:
            yield
        finally:
            for place in places:
                self._look(*place)

    def _look(self, bucket: int, job: str) -> None:
        """Look for a job's marker in a bucket, and for other objects without one.

        Raises:
            Unavailable, UnknownRoot: no object is there, for one driver or for many.
            Invalid: the marker is another driver's.
        """
        marked = self._marker(bucket, job)
        if marked is None and not self._has_objects(bucket, job):
            error = Unavailable if self._root.markers else UnknownRoot
            raise error(f"{self._here} has no object below {job or '/'}: {self._remedy(job)}")
        for known in (self._proven, self._marked):
            if len(known) >= _PROVEN_MAX:
                known.clear()
        self._proven |= {(bucket, job), (bucket, self._root.prefix)}
        if marked is not None:
            self._marked.add((bucket, job))

    def _marker(self, bucket: int, job: str) -> str | None:
        """Return the content of this driver's marker, or that of a marker of the job.

        Raises:
            Invalid: it is another driver's.
        """
        names = self._root.markers[bucket : bucket + 1]
        if not names and job != self._root.prefix:
            listed = islice(self._store.list(self._layout(job).drivers), LISTED_MAX)
            names = tuple(stat.name for stat in listed if self._bucket(stat.name) == bucket)
        for name in names:
            with suppress(Lost):
                content = str(self._store.get(name), "utf-8", "replace")
                if not self._root.is_of(content):
                    raise Invalid(f"{self._here} has the marker of another driver: {_REMEDY}")
                return content
        return None

    def _has_objects(self, bucket: int, job: str) -> bool:
        """Return True if other objects prove the root. A worker needs the marker in a folder: what
        else is there may have come before it was mounted."""
        if self._root.markers and self._may_vanish:
            return False
        listed = islice(self._store.list(job), LISTED_MAX)
        return any(self._bucket(stat.name) == bucket for stat in listed)

    def _remedy(self, job: str) -> str:
        """Return the advice for a root without any object of a job, or of any job. The objects may
        have been deleted by hand, or by a rule of the bucket, and their markers with them."""
        if self._root.markers:
            return _REMEDY
        of_root = job == self._root.prefix
        begin = f"{job}{_BY_HAND}" if of_root else self._layout(job).markers(0)
        return (
            f"{_REMEDY}. If somebody has deleted them there, put an empty object at "
            f"{' and '.join(Root.marker_names(begin, self._root.buckets))}"
        )

    def _layout(self, job: str) -> Layout:
        root = self._root.prefix
        return Layout(root.removesuffix("/"), JobId(job.removeprefix(root).removesuffix("/")))

    @property
    def _here(self) -> str:
        return f"{self._root.address}, as host {socket.gethostname()} sees it,"
