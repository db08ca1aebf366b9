"""The ranges that the processes of an executor share: requested once, never wrong, never in the
way."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.clock import SYSTEM_CLOCK, Clock
from headgate.control.errors import Lost
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.contract import InputGateDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.limits import Limits
from headgate.storage.reading.range_cache import RangeCache
from headgate.storage.reading.range_requests import RangeRequests
from headgate.storage.reading.shared_ranges import SharedRanges
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import ByteRange
from tests.doubles.segments import JOB, Part, Written, exchange

NAME = "object"
QUIET_S = 0.1


class Store(MemoryBlobStore):
    """A store that counts requests and waits until it may answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.was_asked, self.may_answer = Event(), Event()
        self.may_answer.set()
        self.put(NAME, bytes(range(200)), "w")

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        self.was_asked.set()
        assert self.may_answer.wait(5.0)
        self.asked += 1
        return super().get(name, span)


@pytest.fixture
def store() -> Store:
    return Store()


def get(
    shared: SharedRanges, span: ByteRange, clock: Clock = SYSTEM_CLOCK, name: str = NAME
) -> tuple[memoryview, bool]:
    """Return a range's bytes as soon as they are there, and whether they were requested."""
    asked = []

    def look(is_patient: bool) -> memoryview | None:
        body, requested = shared.get(name, span, is_patient)
        asked.append(requested)
        return body

    with ThreadPoolExecutor(1) as pool:
        return RangeRequests(pool, clock).add(look).result(30.0), asked[-1]


def test_processes_share_a_request(store: Store, tmp_path: Path) -> None:
    """Only one of many that want a range at the same time requests it."""
    store.may_answer.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(get, SharedRanges(store, [tmp_path], 1_000), ByteRange(3, 4))
            for _ in range(8)
        ]
        store.may_answer.set()
        answers = [future.result(5.0) for future in asked]
    assert store.asked == 1 == sum(requested for _, requested in answers)
    assert {bytes(body) for body, _ in answers} == {bytes([3, 4, 5, 6])}


def test_only_shared_ranges_are_in_the_folder(store: Store, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        caches = [RangeCache(store, 100, pool, SharedRanges(store, [tmp_path], 99)) for _ in (1, 2)]
        for cache in caches:
            assert bytes(cache.fetch(NAME, ByteRange(0, 2)).result(5.0)) == bytes([0, 1])
            assert bytes(cache.fetch(NAME, ByteRange(5, 2), shared=True).result(5.0)) == b"\5\6"
    assert [cache.take_requests() for cache in caches] == [2, 1]
    assert store.asked == 3


def test_wrong_bytes_are_requested_again(store: Store, tmp_path: Path) -> None:
    """A file whose bytes have changed is dropped by the reader that finds it; a file that was cut
    off is never read."""
    shared, span = SharedRanges(store, [tmp_path], 1_000), ByteRange(3, 4)
    get(shared, span)
    (path,) = (entry for entry in tmp_path.iterdir() if not entry.name.startswith("lock-"))
    path.write_bytes(b"cut")
    assert bytes(get(shared, span)[0]) == bytes([3, 4, 5, 6])
    path.write_bytes(b"evil")
    with ThreadPoolExecutor(1) as pool:
        cache = RangeCache(store, 100, pool, shared)
        assert bytes(cache.fetch(NAME, span, shared=True).result(5.0)) == b"evil"
        cache.forget(NAME, span, shared=True)
        assert bytes(cache.fetch(NAME, span, shared=True).result(5.0)) == bytes([3, 4, 5, 6])


def test_the_oldest_ranges_go(store: Store, tmp_path: Path) -> None:
    shared = SharedRanges(store, [tmp_path], 20)
    for at in range(10):
        get(shared, ByteRange(at, 8))
    kept = [entry for entry in tmp_path.iterdir() if not entry.name.startswith("lock-")]
    assert sum(entry.stat().st_size for entry in kept) <= 20
    assert not get(shared, ByteRange(9, 8))[1]


def test_an_object_that_is_gone_is_lost(store: Store, tmp_path: Path) -> None:
    shared = SharedRanges(store, [tmp_path], 20)
    for _ in range(2):
        with pytest.raises(Lost):
            get(shared, ByteRange(0, 1), name="nothing")


@pytest.mark.parametrize("blocked", ["a file", "no right"])
def test_a_folder_that_cannot_be_used_costs_requests_only(
    store: Store, tmp_path: Path, blocked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    if blocked == "a file":
        folder.touch()
    else:
        monkeypatch.setattr(Path, "write_bytes", _refused)
    shared = SharedRanges(store, [folder], 20)
    assert [bytes(get(shared, ByteRange(1, 1))[0]) for _ in range(2)] == [b"\1", b"\1"]
    assert store.asked == 2
    assert not folder.is_dir() or all(e.name.startswith("lock-") for e in folder.iterdir())


def test_ranges_go_into_another_folder_when_one_is_full(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes look into all folders, and go on to request each range once."""
    folders, write = [tmp_path / "a", tmp_path / "b"], Path.write_bytes

    def limited(path: Path, body: memoryview) -> int:
        if path.parent == folders[0] and store.asked > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, body)

    monkeypatch.setattr(Path, "write_bytes", limited)
    for _ in range(2):
        shared = SharedRanges(store, folders, 8)
        assert [bytes([at]) for at in range(4)] == [
            bytes(get(shared, ByteRange(at, 1))[0]) for at in range(4)
        ]
    assert store.asked == 4
    for at in range(10, 30):
        get(shared, ByteRange(at, 1))
    kept = [path for path in tmp_path.glob("*/*") if not path.name.startswith("lock-")]
    assert 8 <= len(kept) <= 9
    shared.forget(NAME, ByteRange(29, 1))
    assert get(shared, ByteRange(29, 1))[1]


def _refused(*_: object) -> int:
    raise PermissionError("no space, no right")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that holds all locks."""
    program = f"""
import fcntl, os, pathlib, sys
for lock in range(256):
    file = os.open(pathlib.Path({str(tmp_path)!r}) / f"lock-{{lock}}", os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_the_lock_of_a_process_that_died_is_free(
    store: Store, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(get, SharedRanges(store, [tmp_path], 20), ByteRange(1, 1))
        assert not asked.done()
        holder.kill()
        assert bytes(asked.result(5.0)[0]) == b"\1"


@pytest.mark.usefixtures("holder")
def test_a_thread_requests_other_ranges_while_a_process_is_waited_for(
    store: Store, tmp_path: Path
) -> None:
    """A close ends the wait, too."""
    with ThreadPoolExecutor(1) as pool:
        cache = RangeCache(store, 100, pool, SharedRanges(store, [tmp_path], 99))
        waits = cache.fetch(NAME, ByteRange(0, 2), shared=True)
        assert bytes(cache.fetch(NAME, ByteRange(5, 2)).result(5.0)) == b"\5\6"
        assert not waits.done()
        cache.close()
        with pytest.raises(CancelledError):
            waits.result(5.0)
    assert store.asked == 1


@pytest.mark.usefixtures("holder")
def test_nobody_waits_for_a_process_that_is_stopped(store: Store, tmp_path: Path) -> None:
    clock = PatientClock()
    shared = SharedRanges(store, [tmp_path], 20)
    assert bytes(get(shared, ByteRange(1, 1), clock)[0]) == b"\1"
    assert 0 < clock.monotonic_s() < 60


def test_a_holder_that_was_only_slow_is_waited_for_again(
    store: Store, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """A store that asks for fewer requests may keep the holder of a lock for long. Afterwards the
    processes lock what they request again."""
    shared, span = SharedRanges(store, [tmp_path], 1_000), ByteRange(1, 1)
    for _ in range(2):
        get(shared, span, PatientClock())
        shared.forget(NAME, span)
    holder.kill()
    holder.wait(5.0)
    store.was_asked.clear()
    store.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(get, shared, span)
        assert store.was_asked.wait(5.0)
        locked = [path for path in tmp_path.glob("lock-*") if is_locked(path)]
        store.may_answer.set()
        assert asked.result(5.0)[1]
    assert (1, 3) == (len(locked), store.asked)


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_file_system_without_locks_costs_requests_only(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refused)
    clock = PatientClock()
    shared = SharedRanges(store, [tmp_path], 100)
    for at in range(100):
        assert bytes(get(shared, ByteRange(at, 1), clock)[0]) == bytes([at])
    assert clock.monotonic_s() < 1


def test_a_folder_that_was_deleted_stays_deleted(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "executor" / "ranges"
    shared = SharedRanges(store, [folder], 100)
    assert bytes(get(shared, ByteRange(1, 1))[0]) == b"\1"
    assert not folder.parent.exists()


class StoreInRounds(MemoryBlobStore):
    """A store that answers all requests together when no more of them come, and counts how often it
    did: as often as readers wait for a slow store."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(objects)
        self.asked = self.answered = self.rounds = 0
        self._changed = Condition()

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            number = self.asked
            assert self._changed.wait_for(lambda: number <= self.answered, 60.0)
        return super().get(name, span)

    def _asks_more(self, asked: int) -> bool:
        return self.asked > asked

    def answer(self, readers: Thread) -> None:
        """Answer in rounds until the readers are done."""
        while readers.is_alive():
            with self._changed:
                asked = self.asked
                if self._changed.wait_for(partial(self._asks_more, asked), QUIET_S):
                    continue
                if self.answered < asked:
                    self.rounds += 1
                    self.answered = asked
                    self._changed.notify_all()


def read_by(workers: int, written: Written, folder: Path) -> tuple[StoreInRounds, list[list[int]]]:
    """Let workers of an executor read a subpartition each. Return their store, and their rows."""
    store = StoreInRounds(written.objects)
    limits, manifest = Limits(fetch_parallel=2, files=True), written.manifest()
    rows: list[list[int]] = [[] for _ in range(workers)]

    def read(at: int) -> None:
        runtime = Runtime(folders=(folder,))
        shuffle = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", limits, runtime)
        gate = shuffle.create_input_gate(InputGateDeployment(manifest, written.schema, at, 1, at))
        for batch in gate:
            rows[at] += batch.column(0).to_pylist()
        shuffle.close()

    def read_all() -> None:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(read, range(workers)))

    readers = Thread(target=read_all)
    readers.start()
    store.answer(readers)
    return store, rows


@pytest.mark.slow
def test_workers_do_not_wait_for_the_same_requests_one_after_the_other(tmp_path: Path) -> None:
    """Workers that want the same ranges request different ones at the same time: eight of them wait
    for the store a third as often as one, at most. They send the same requests together, and each
    hands out its rows in the order of the partitions."""
    partitions, workers = 48, 8
    schema, targets = pa.schema([("n", pa.int64())]), np.repeat(np.arange(workers), 3)
    numbers = np.arange(partitions * len(targets)).reshape(partitions, -1)
    parts = [Part(pa.record_batch([some], schema), targets, ()) for some in numbers]
    with exchange(schema, parts, workers, "none", Limits()) as written:
        single, rows = read_by(1, written, tmp_path / "one")
        many, rows_of_all = read_by(workers, written, tmp_path / "eight")
    expected = [numbers[:, targets == at].ravel().tolist() for at in range(workers)]
    assert (expected[:1], expected) == (rows, rows_of_all)
    assert partitions == single.asked == many.asked
    assert 3 * many.rounds <= partitions // 2 <= single.rounds


class PatientClock:
    """A clock whose time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_ms(self) -> int:
        return int(self._now_s * 1_000)

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        self._now_s += seconds


def test_a_new_range_does_not_wait_for_those_of_others() -> None:
    """A range that nobody requests is requested soon, also while looks for those that others
    request take all the time."""
    looks, clock = list[float](), PatientClock()

    def locked(is_patient: bool) -> memoryview | None:
        looks.append(clock.monotonic_s())
        clock.sleep_s(0.01)
        return None if is_patient else memoryview(b"late")

    def free(_: bool) -> memoryview:
        return memoryview(bytes([min(len(looks), 255)]))

    with ThreadPoolExecutor(1) as pool:
        begin = Event()
        pool.submit(begin.wait, 5.0)
        requests = RangeRequests(pool, clock)
        late = [requests.add(locked) for _ in range(20)]
        soon = requests.add(free)
        begin.set()
        assert soon.result(5.0)[0] <= 2 * len(late)
        assert all(bytes(future.result(5.0)) == b"late" for future in late)
