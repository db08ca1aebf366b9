"""Puts and reads through planned faults, on the store in memory and a still clock; full disks."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.addresses import is_same_place, urls_of
from headgate.control.clock import Deadline
from headgate.control.errors import (
    Conflict,
    Corrupt,
    HeadgateError,
    Invalid,
    Lost,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.limits import Limits
from headgate.storage.stores import files
from headgate.storage.stores.conditional_put import PutAnswer, Stored, put
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.open_store import open_store
from headgate.storage.stores.port import ByteRange
from headgate.storage.stores.retries import Retrier, RetrySettings, backoff_s
from headgate.storage.stores.s3 import store as s3_store
from headgate.testing.faulty_store import (
    Effect,
    FaultPlan,
    FaultyBlobStore,
    Operation,
    PlannedFault,
)

from ..doubles.s3 import StillClock
from ..doubles.segments import JOB, Part, exchange

MINE, OTHER = Stored("mine", 5), Stored("other", 5)
DOWN, SLOW = Unavailable("down"), Throttled("slow", retry_after_s=2.0)
REFUSED_ROOTS = ("a b", "a//b", ".x", "\u00fc", "a+b", "x?y=1", "x#y")


class FullDisk(io.FileIO):
    """A file on a disk that has room for three more bytes."""

    def write(self, body: Any) -> int:
        super().write(body[:3])
        raise OSError(errno.ENOSPC, "No space left on device")


def faulty(*faults: PlannedFault, tries_max: int = 6) -> tuple[FaultyBlobStore, StillClock]:
    clock = StillClock()
    settings = RetrySettings(tries_max=tries_max)
    return FaultyBlobStore(MemoryBlobStore(), FaultPlan(faults), settings, clock), clock


class Steps:
    """A store that gives these answers to creates, and always shows the same object."""

    def __init__(self, answers: list[PutAnswer], stored: Stored | None) -> None:
        self.answers = answers
        self.stored = stored

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        return self.answers.pop(0)

    def look(self, name: str) -> Stored | None:
        return self.stored


@pytest.mark.parametrize(
    ("answer", "stored", "creates"),
    [
        (PutAnswer.CREATED, None, 1),
        (PutAnswer.BUSY, None, 2),
        (PutAnswer.BUSY, OTHER, 2),
        (PutAnswer.EXISTS, MINE, 1),
        (PutAnswer.EXISTS, OTHER, None),
        (PutAnswer.EXISTS, Stored("mine", 4), None),
        (PutAnswer.EXISTS, None, 2),
        (PutAnswer.SILENT, MINE, 1),
        (PutAnswer.SILENT, OTHER, None),
        (PutAnswer.SILENT, None, 2),
    ],
)
def test_each_answer_has_one_verdict(
    answer: PutAnswer, stored: Stored | None, creates: int | None
) -> None:
    """Each combination of a create's answer and a later look ends the put, lets it create again, or
    is a conflict."""
    answers = [answer, PutAnswer.CREATED, PutAnswer.CREATED]
    retrier = Retrier(RetrySettings(), StillClock())
    with nullcontext() if creates else pytest.raises(Conflict):
        put(Steps(answers, stored), retrier, "a", b"12345", "mine")
    assert (creates or 1) == 3 - len(answers)


@pytest.mark.parametrize("effect", [Effect.LOSE_REQUEST, Effect.LOSE_ANSWER])
@pytest.mark.parametrize("losses", range(1, 6))
def test_a_put_survives_lost_messages(effect: Effect, losses: int) -> None:
    """A put whose requests or answers are lost succeeds within its retries, and creates the object
    once."""
    store, _ = faulty(*(PlannedFault(Operation.CREATE, n + 1, effect) for n in range(losses)))
    store.put("a", b"12345", "mine")
    assert bytes(store.get("a")) == b"12345"
    expected = 1 if effect is Effect.LOSE_ANSWER else losses + 1
    assert expected == store.calls(Operation.CREATE)


def test_every_put_loses_its_first_answer() -> None:
    """A put that loses its answer succeeds by looking for the object, and is not sent twice."""
    plan = FaultPlan(lose_first_answer_of_every_put=True)
    store = FaultyBlobStore(MemoryBlobStore(), plan, clock=StillClock())
    for number in range(5):
        store.put(f"a/{number}", b"x", "w")
    assert (store.requests.puts, store.requests.heads) == (5, 5)


def test_a_lost_put_of_somebody_else_is_a_conflict() -> None:
    """After a lost request, an object of another writer is a conflict."""
    store, _ = faulty(PlannedFault(Operation.CREATE, 2, Effect.LOSE_REQUEST))
    store.put("a", b"12345", "other")
    with pytest.raises(Conflict):
        store.put("a", b"12345", "mine")


def test_a_put_that_nobody_can_look_at_is_unknown() -> None:
    """A put without an answer is `OutcomeUnknown` when the looks fail too."""
    looks = (PlannedFault(Operation.LOOK, n, error=DOWN) for n in range(1, 7))
    store, _ = faulty(PlannedFault(Operation.CREATE, 1, Effect.LOSE_ANSWER), *looks)
    with pytest.raises(OutcomeUnknown):
        store.put("a", b"12345", "mine")
    assert bytes(store.get("a")) == b"12345"


def test_a_put_that_wrote_nothing_fails_plainly() -> None:
    """A put that every try was refused ends with the refusal's own error, and there is no
    object."""
    store, _ = faulty(*(PlannedFault(Operation.CREATE, n, error=DOWN) for n in range(1, 7)))
    with pytest.raises(Unavailable, match="down"):
        store.put("a", b"12345", "mine")
    assert None is store.size_bytes("a")


@pytest.mark.parametrize("nth", range(1, 4))
def test_a_read_survives_the_nth_failure(nth: int) -> None:
    """A read survives the failure of any one call, and waits as long as the store asks."""
    store, clock = faulty(PlannedFault(Operation.GET, nth, error=SLOW))
    store.put("a", b"12345", "mine")
    for _ in range(3):
        assert bytes(store.get("a", ByteRange(1, 2))) == b"23"
    assert clock.slept_s == [2.0]
    assert store.calls(Operation.GET) == 4


def test_a_truncated_read_is_corrupt() -> None:
    """A short answer is `Corrupt`, and its bytes are never returned."""
    store, _ = faulty(PlannedFault(Operation.GET, 1, Effect.TRUNCATE))
    store.put("a", b"12345", "mine")
    with pytest.raises(Corrupt, match="expected 2 bytes, found 1"):
        store.get("a", ByteRange(1, 2))


def test_a_flipped_read_differs_in_one_bit() -> None:
    """A flipped bit reaches the caller, whose checksum must find it; the stored object stays
    right."""
    store, _ = faulty(PlannedFault(Operation.GET, 1, Effect.FLIP))
    store.put("a", b"12345", "mine")
    assert bytes(store.get("a")) == b"12245"
    assert bytes(store.get("a")) == b"12345"


@pytest.mark.parametrize("nth", [1, 2])
def test_one_answer_does_not_make_an_object_lost(nth: int) -> None:
    """A reader asks once more for an object that seems to be gone: an object that it reports as
    lost is deleted."""
    schema = pa.schema([("n", pa.int64())])
    part = Part(pa.record_batch([pa.array([1, 2])], schema), np.zeros(2, np.int64), ())
    gone = FaultPlan((PlannedFault(Operation.GET, nth, error=Lost("404")),))
    with exchange(schema, [part, part], 1, "none", Limits()) as written:
        store = FaultyBlobStore(MemoryBlobStore(written.objects), gone)
        again = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", Limits())
        with closing(again):
            rows = replace(written, environment=again).read(0, 1, written.manifest())
    assert (4, 3) == (rows.num_rows, store.calls(Operation.GET))


@pytest.mark.parametrize(
    "operation", [op for op in Operation if op not in (Operation.CREATE, Operation.LOOK)]
)
def test_every_operation_can_fail(operation: Operation) -> None:
    """The planned error of any operation reaches the caller when no retry is left."""
    store, _ = faulty(PlannedFault(operation, 1, error=DOWN), tries_max=1)
    store.put("a", b"12345", "mine")
    acts: dict[Operation, Callable[[], object]] = {
        Operation.CHECK: lambda: store.check(Deadline.after(1.0)),
        Operation.GET: lambda: store.get("a"),
        Operation.DELETE: lambda: store.delete(["a"]),
        Operation.LIST: lambda: store.list(""),
        Operation.UPLOADS: lambda: store.uploads(""),
        Operation.ABORT: lambda: store.abort(None),  # type: ignore[arg-type]
    }
    with pytest.raises(Unavailable, match="down"):
        acts[operation]()
    assert bytes(store.get("a")) == b"12345"


def test_latency_is_slept_on_the_clock() -> None:
    """Planned latency passes on the store's clock, once per call."""
    clock = StillClock()
    store = FaultyBlobStore(MemoryBlobStore(), FaultPlan(latency_ms=20), clock=clock)
    store.put("a", b"12345", "mine")
    store.get("a")
    assert clock.slept_s == [0.02, 0.02]


def test_backoff_doubles_within_its_limit() -> None:
    """Waits double, stay under their limit, and are the same in every run."""
    settings = RetrySettings(backoff_ms=100, backoff_ms_max=1_000)
    waits_s = [backoff_s(settings, "a", tries) for tries in range(1, 9)]
    assert waits_s == [backoff_s(settings, "a", tries) for tries in range(1, 9)]
    for tries, wait_s in enumerate(waits_s, 1):
        ceiling_s = min(1.0, 0.1 * 2 ** (tries - 1))
        assert ceiling_s / 2 <= wait_s <= ceiling_s
    assert waits_s[0] != backoff_s(settings, "b", 1)


def test_retries_end_with_their_seconds() -> None:
    """A request is not retried beyond its time limit, however many tries are left."""
    clock = StillClock()
    retrier = Retrier(RetrySettings(tries_max=1_000, limit_s=3.0), clock)

    def request() -> None:
        raise SLOW

    with pytest.raises(Throttled):
        retrier.run("a", request)
    assert clock.slept_s == [2.0]


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.GET])
def test_a_store_that_asks_for_less_for_long(operation: Operation) -> None:
    """Retries that help take nothing from the budget that all requests share, however many they
    are."""
    plan = FaultPlan(tuple(PlannedFault(operation, nth, error=SLOW) for nth in range(1, 200, 3)))
    settings = RetrySettings(budget_tokens=3.0)
    store = FaultyBlobStore(MemoryBlobStore(), plan, settings, StillClock())
    for number in range(100):
        store.put(f"a/{number}", b"12345", "mine")
        assert bytes(store.get(f"a/{number}")) == b"12345"
    assert 150 == store.calls(operation)


def test_a_store_that_is_slow_for_a_minute_is_waited_for() -> None:
    """A store that asks for less does answer: neither the tries of a request nor the budget that
    all requests share limit the wait, only its seconds."""
    clock = StillClock()
    retrier = Retrier(RetrySettings(tries_max=3, budget_tokens=3.0), clock)

    def request() -> str:
        if clock.monotonic_s() < 60.0:
            raise Throttled("slow")
        return "answer"

    assert "answer" == retrier.run("a", request)
    assert 60.0 <= clock.monotonic_s() <= 65.0
    assert [True, True, True, False] == [retrier.take() for _ in range(4)]


def test_a_throttled_try_is_no_failed_one() -> None:
    """The tries of a request that meets both kinds of trouble count those that have failed."""
    errors = [DOWN, SLOW, SLOW, SLOW, DOWN, SLOW, DOWN]
    retrier = Retrier(RetrySettings(tries_max=3, limit_s=1_000.0), StillClock())

    def request() -> None:
        raise errors.pop(0)

    with pytest.raises(Unavailable, match="down"):
        retrier.run("a", request)
    assert [] == errors


def test_other_requests_wait_when_the_store_asks_for_less() -> None:
    """A process backs off as a whole: a request that begins while another one waits is sent when
    that wait is over. A put waits too."""
    clock = StillClock()
    retrier = Retrier(RetrySettings(), clock)
    retrier.hold(2.0)
    retrier.hold(0.5)
    assert "answer" == retrier.run("a", lambda: "answer")
    assert clock.slept_s == [2.0]
    retrier.hold(1.0)
    put(Steps([PutAnswer.CREATED], None), retrier, "b", b"1", "mine")
    assert clock.slept_s == [2.0, 1.0]


def test_a_request_that_was_throttled_holds_the_others() -> None:
    """Requests that begin while a throttled one waits are sent no earlier than it."""
    sent_s: list[float] = []

    class Clock(StillClock):
        def sleep_s(self, seconds: float) -> None:
            if not sent_s:  # another thread's request begins now
                sent_s.append(-1.0)
                retrier.run("other", lambda: sent_s.append(self.monotonic_s()))
            super().sleep_s(seconds)

    retrier, answers = Retrier(RetrySettings(), Clock()), [SLOW]

    def request() -> None:
        if answers:
            raise answers.pop()

    retrier.run("first", request)
    assert sent_s == [-1.0, 2.0]


def test_a_store_that_starts_again_is_waited_for() -> None:
    """A store that is unreachable for 15 s fails no request. Spark gives a task four attempts, and
    all of them would fail before the store is back."""
    clock = StillClock()
    back_s = clock.monotonic_s() + 15.0

    def request() -> str:
        if clock.monotonic_s() < back_s:
            raise DOWN
        return "back"

    assert "back" == Retrier(RetrySettings(), clock).run("a", request)


def test_only_retryable_errors_are_tried_again() -> None:
    """An error that is not retryable ends a request at its first try."""
    clock = StillClock()
    for error in (Corrupt("x"), Conflict("x"), OutcomeUnknown("x")):

        def request(error: HeadgateError = error) -> None:
            raise error

        with pytest.raises(type(error)):
            Retrier(RetrySettings(), clock).run("a", request)
    assert clock.slept_s == []


def test_a_memory_url_is_one_bucket_per_process() -> None:
    """Two stores of one URL see the same objects, and closing one leaves the other."""
    first, root = open_store("memory://shared-by-url")
    second, _ = open_store("memory://shared-by-url")
    first.put("a", b"12345", "mine")
    first.close()
    assert (root, bytes(second.get("a"))) == ("", b"12345")
    second.delete(["a"])
    assert list(second.list("")) == []


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory://", {}),
        ("memory://a/b", {}),
        ("file://host/path", {}),
        ("file:///", {}),
        ("/just/a/path", {}),
        ("s3:///root", {}),
        ("gs://bucket", {}),
        ("memory://a", {"endpoint": "http://x"}),
        ("s3://bucket", {"endpont": "http://x"}),
        ("s3://[bucket", {}),
        *((f"s3://bucket/{root}", {"endpoint": "http://x"}) for root in REFUSED_ROOTS),
    ],
)
def test_urls_are_checked(url: str, options: dict[str, str]) -> None:
    """A URL or an option that cannot be used is `Invalid`."""
    with pytest.raises(Invalid):
        open_store(url, options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://bucket/root", "Google Cloud Storage speaks S3"),
        ("abfss://box@account/root", "Azure's stores do not speak S3"),
        ("hdfs://name/root", "Use an S3-compatible store"),
        ("https://minio:9000/bucket", "the address as s3 option endpoint"),
        ("s3n://bucket/root", "Write s3://bucket/root"),
    ],
)
def test_other_stores_are_refused_by_name(url: str, says: str) -> None:
    """A store that there is elsewhere is refused by its name, with what to write instead."""
    with pytest.raises(Invalid) as caught:
        open_store(url)
    assert f"Headgate has no store for {url.partition(':')[0]}://. " in str(caught.value)
    assert says in str(caught.value)


def test_s3a_is_sparks_name_for_s3() -> None:
    """A URL of `s3a` names the bucket that the same URL of `s3` names, alone and among several."""
    store, root = open_store("s3a://bucket/root", {"endpoint": "http://x"})
    store.close()
    assert root == "root"
    assert ("s3://a/r", "s3://b/r") == urls_of("s3a://a/r, s3://b/r")
    assert is_same_place("s3a://a/r/", "s3://a/r")
    assert not is_same_place("s3a://a/r", "s3://a/r,s3://b/r")


@pytest.mark.parametrize("root", REFUSED_ROOTS)
def test_a_refused_root_opens_no_client(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is opened for a root that is refused: nobody would close it."""
    opened: list[object] = []
    monkeypatch.setattr(s3_store, "S3BlobStore", opened.append)
    with pytest.raises(Invalid):
        open_store(f"s3://bucket/{root}", {"endpoint": "http://x"})
    assert not opened


@pytest.mark.parametrize("options", [{}, {"endpoint": "http://x"}])
@pytest.mark.parametrize(
    "url",
    ["s3a://me:hunter2@bucket", "me:hunter2@bucket", "s3://[me:hunter2@b", "s3://hunter2@\u2100"],
)
def test_a_url_that_is_refused_shows_no_password(url: str, options: dict[str, str]) -> None:
    """An error about a URL shows nothing of the user and the password in it."""
    with pytest.raises(Invalid) as caught:
        open_store(url, options)
    assert "hunter2" not in str(caught.value)


def test_an_s3_url_has_a_root() -> None:
    """The path of an s3 URL is the root of the layout's names."""
    store, root = open_store("s3://bucket/team/shuffle/", {"endpoint": "http://127.0.0.1:1"})
    assert (
        root,
        repr(store),
    ) == ("team/shuffle", "S3BlobStore(bucket bucket at http://127.0.0.1:1)")
    store.close()


def test_a_full_disk_gets_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that a full disk ends leaves no file and no folder, and can be repeated later."""
    store = FileBlobStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(files, "open", lambda file, *_, **__: FullDisk(file, "w"), raising=False)
        with pytest.raises(Unavailable, match="No space left"):
            store.create("job/a", memoryview(b"12345"), "mine")
    assert [] == list(tmp_path.iterdir())
    store.put("job/a", b"12345", "mine")
    assert bytes(store.get("job/a")) == b"12345"
