"""The store as a process meets it: the product's store in memory, where each step is a turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from headgate.control.clock import Clock, Deadline
from headgate.control.errors import Unavailable
from headgate.storage.stores.conditional_put import PutAnswer, Stored
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStat, ByteRange, Bytes, PendingUpload
from headgate.storage.stores.request_meter import RequestCounts
from headgate.storage.stores.retries import RetrySettings
from headgate.testing.faulty_store import FaultyBlobStore

from .faults import Chaos, StorePlan
from .oracle import PREFIX, Oracle, is_marker
from .scheduler import Process, Scheduler

ELSEWHERE: Objects = {
    f"{PREFIX}_driver/1-0": (b"driver 1 theirs", "theirs"),
    f"{PREFIX}_driver/2-0": (b"driver 2 theirs", "theirs"),
    f"{PREFIX}00/s/0/1-1/0": (b"rows", "theirs"),
}
ELSEWHERE_SHARE = 0.5  # of the processes without their mount
RETRIES = RetrySettings(tries_max=5, limit_s=30.0)


def lost(body: bytes) -> None:
    """Return nothing in place of an object."""


def flipped(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


class Bucket:
    """The objects that all processes share."""

    def __init__(self, scheduler: Scheduler, chaos: Chaos, oracle: Oracle) -> None:
        self.scheduler = scheduler
        self.chaos = chaos
        self.oracle = oracle
        self.objects: Objects = {}
        self.elsewhere: Objects = dict(ELSEWHERE)  # a store of another log, with a job of that name

    def check_elsewhere(self) -> None:
        """Check that the other store has its objects; a put may have been on its way there."""
        if not ELSEWHERE.items() <= self.elsewhere.items():
            self.oracle.violated("the job of another log was touched")

    def harm(self, part: str, change: Callable[[bytes], bytes | None]) -> None:
        """Delete or overwrite an object of the job whose name has this part, behind everyone's
        back."""
        names = sorted(
            name
            for name in self.objects
            if name.startswith(PREFIX) and part in name and not is_marker(name)
        )
        if names:
            name = self.scheduler.random.choice(names)
            self.oracle.damaged.add(name)
            self.scheduler.note(f"harm {name}")
            body, write_id = self.objects.pop(name)
            if (changed := change(body)) is not None:
                self.objects[name] = changed, write_id

    def client(self, clock: Clock, process: Process | None = None) -> FaultyBlobStore:
        """Return the store of one process, which may be without its mount."""
        return FaultyBlobStore(_Door(self, process), StorePlan(self.chaos), RETRIES, clock)


class _Door:
    """The steps of a store. Other processes may take turns before and after each step."""

    def __init__(self, bucket: Bucket, process: Process | None) -> None:
        self._bucket = bucket
        self._process = process
        self._mounted = MemoryBlobStore(bucket.objects)
        self._other = MemoryBlobStore()
        if process is not None and bucket.scheduler.dice(process.name).random() < ELSEWHERE_SHARE:
            self._other = MemoryBlobStore(bucket.elsewhere)

    @property
    def _inner(self) -> MemoryBlobStore:
        """The store that the process sees now: without the mount its own empty folder, or the store
        of another log."""
        return self._mounted if self._is_mounted else self._other

    @property
    def _is_mounted(self) -> bool:
        it, now_ms = self._process, self._bucket.scheduler.now_ms
        return it is None or it.mounted_ms <= now_ms or self._bucket.chaos.quiet

    @property
    def requests(self) -> RequestCounts:
        return self._mounted.requests

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._turn("check")

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        raise AssertionError("puts are made of steps")

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        self._turn(f"put {name}")
        kept = memoryview(bytes(body))
        if self._bucket.chaos.strikes("put arrives late"):
            delay_ms = 20_000.0 * self._bucket.scheduler.random.random()
            self._bucket.scheduler.later(delay_ms, partial(self._arrive, name, kept, write_id))
            return PutAnswer.SILENT
        answer = self._create(name, kept, write_id)
        self._turn(f"{answer.value} {name}")
        return answer

    def _create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        """Create the object when the request arrives at the store."""
        answer = self._inner.create(name, body, write_id)
        self._bucket.scheduler.note(f"{answer.value} {name}")
        return answer

    def _arrive(self, name: str, body: memoryview, write_id: str) -> None:
        self._create(name, body, write_id)

    def look(self, name: str) -> Stored | None:
        self._turn(f"look {name}")
        return self._inner.look(name)

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        self._turn(f"get {name}")
        return self._inner.get(name, span)

    def size_bytes(self, name: str) -> int | None:
        self._turn(f"size {name}")
        return self._inner.size_bytes(name)

    def delete(self, names: Collection[str]) -> None:
        ordered = list(names)
        self._turn(f"delete {len(ordered)}")
        half = self._bucket.chaos.strikes("half deleted")
        gone = ordered[: len(ordered) // 2] if half else ordered
        for name in gone:
            self._bucket.oracle.deletes(name, self._is_mounted)
            self._bucket.scheduler.note(f"gone {name}")
        self._inner.delete(gone)
        self._turn("deleted")
        if half:
            raise Unavailable("connection reset")

    def list(self, prefix: str) -> Iterator[BlobStat]:
        self._turn(f"list {prefix}")
        is_of_job = prefix.startswith(PREFIX)
        for name in self._bucket.objects if is_of_job and not self._is_mounted else ():
            if name.startswith(prefix):
                self._bucket.oracle.deletes(name, is_mounted=False)
        return self._inner.list(prefix)

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        self._turn("uploads")
        return self._inner.uploads(prefix)

    def abort(self, upload: PendingUpload) -> None:
        self._turn("abort")

    def close(self) -> None:
        """Do nothing: all processes share the bucket."""

    def _turn(self, what: str) -> None:
        self._bucket.scheduler.pause(what)
