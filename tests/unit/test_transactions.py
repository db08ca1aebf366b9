"""The steps of decisions on Kafka, with a client that needs no broker."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from types import SimpleNamespace
from typing import cast
from weakref import ReferenceType, ref

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import (
    Fenced,
    HeadgateError,
    Invalid,
    Unavailable,
)
from headgate.control.events.types import JobUnregistered
from headgate.control.ids import JobId
from headgate.control.kafka.clients import KafkaClients
from headgate.control.kafka.log import KafkaSettings
from headgate.control.kafka.membership import KafkaMembership
from headgate.control.kafka.records import Place, produce
from headgate.control.kafka.transactions import KafkaTransactions
from headgate.control.log import Grant
from headgate.control.master.announcer import Announcer

NOWHERE = "127.0.0.1:1"
CALLS = (
    "init_transactions",
    "begin_transaction",
    "produce",
    "poll",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)
CODES = {name: code for name, code in vars(KafkaError).items() if isinstance(code, int)}


def transactions_over(**calls: Callable[..., object]) -> KafkaTransactions:
    """Return transactions over a client with these calls. Every other call does nothing."""
    producer = SimpleNamespace(**(dict.fromkeys(CALLS, lambda *_, **__: None) | calls))
    clients = KafkaClients(KafkaSettings(NOWHERE, request_timeout_s=0.2))
    return KafkaTransactions(lambda: cast(Producer, producer), clients, "slot a")


def test_a_call_that_never_comes_back_is_left_behind() -> None:
    """A step is given up in time when the client waits without limit for a coordinator that is
    away. Its holder opens the decisions again, and closing does not touch the client."""
    never = Event()
    calls: list[str] = []
    transactions = transactions_over(
        init_transactions=lambda _: calls.append("init"),
        begin_transaction=lambda: calls.append("begin"),
        send_offsets_to_transaction=lambda *_: never.wait(30),
        abort_transaction=lambda _: calls.append("abort"),
    )
    transactions.begin()
    before = SYSTEM_CLOCK.monotonic_s()
    with pytest.raises(Unavailable, match="slot a did not answer during a step"):
        transactions._commit([TopicPartition("events", 0, 7)], None)
    transactions.close()
    never.set()
    assert SYSTEM_CLOCK.monotonic_s() - before < 5
    assert ["init", "begin"] == calls


@pytest.mark.parametrize(
    ("name", "kind"),
    [("MSG_SIZE_TOO_LARGE", Invalid), ("TOPIC_AUTHORIZATION_FAILED", Unavailable)],
)
def test_a_step_is_refused_for_good_by_its_size_only(name: str, kind: type[HeadgateError]) -> None:
    """A commit that is refused for its size is `Invalid`; one that lacks rights may be retried."""
    refused = KafkaError(CODES[name], "refused", txn_requires_abort=True)

    def commit(left_s: float) -> None:
        raise KafkaException(refused)

    transactions = transactions_over(
        commit_transaction=commit,
    )
    transactions.begin()
    with pytest.raises(kind, match=name):
        transactions._commit([TopicPartition("events", 0, 7)], None)


def test_a_fenced_step_is_not_aborted() -> None:
    """A holder whose record has an old epoch takes no new one, and stays fenced."""
    fenced = KafkaError(CODES["INVALID_PRODUCER_EPOCH"], "old epoch", txn_requires_abort=True)
    calls: list[str] = []

    def commit(_: float) -> None:
        raise KafkaException(fenced)

    transactions = transactions_over(
        begin_transaction=lambda: calls.append("begin"),
        commit_transaction=commit,
        abort_transaction=lambda _: calls.append("abort"),
    )
    transactions.begin()
    with pytest.raises(Fenced, match="old epoch"):
        transactions._commit([], None)
    with pytest.raises(Fenced, match="old epoch"):
        transactions.begin()
    transactions.close()
    assert ["begin"] == calls


@pytest.mark.parametrize(
    ("name", "kind", "reports", "ends"),
    [
        ("MSG_SIZE_TOO_LARGE", Invalid, "poll", True),
        ("MSG_SIZE_TOO_LARGE", Invalid, "abort", True),
        ("INVALID_PRODUCER_EPOCH", Fenced, "poll", False),
        ("INVALID_PRODUCER_EPOCH", Fenced, "abort", True),
    ],
)
def test_a_refused_record_is_reported_after_the_call_that_fails_by_it(
    name: str, kind: type[HeadgateError], reports: str, ends: bool
) -> None:
    """A step fails by the error of its refused record, though the report of it comes late."""
    settled: list[Callable[..., None]] = []
    calls: list[str] = []

    def call(calling: str) -> None:
        calls.append(calling)
        if calling == reports:
            settled.pop()(KafkaError(CODES[name], "of the record"), None)

    def hand_over(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "wrong state", txn_requires_abort=True))

    transactions = transactions_over(
        produce=lambda *_, on_delivery, **__: settled.append(on_delivery),
        poll=lambda wait_s: call("poll") if wait_s else None,
        send_offsets_to_transaction=hand_over,
        abort_transaction=lambda _: call("abort"),
    )
    transactions.begin()
    produce(transactions._producer, Place("state", 0), "job-1", b"", transactions._settle)
    with pytest.raises(kind, match="of the record"):
        transactions._commit([], None)
    assert ["poll", "abort"][: 1 + ends] == calls


def test_what_an_abort_takes_back_was_not_refused() -> None:
    """A step fails by its own error, though the abort reports the records that still waited."""
    waiting: list[Callable[..., None]] = []

    def hand_over(*_: object) -> None:
        error = KafkaError(CODES["MSG_SIZE_TOO_LARGE"], "the step", txn_requires_abort=True)
        raise KafkaException(error)

    transactions = transactions_over(
        produce=lambda *_, on_delivery, **__: waiting.append(on_delivery),
        send_offsets_to_transaction=hand_over,
        abort_transaction=lambda _: waiting.pop()(KafkaError(KafkaError._PURGE_QUEUE), None),
    )
    transactions.begin()
    produce(transactions._producer, Place("state", 0), "job-1", b"", transactions._settle)
    with pytest.raises(Invalid, match="the step"):
        transactions._commit([], None)
    assert not waiting


def test_an_ended_producer_keeps_nothing_of_the_step() -> None:
    """The error that ended a producer does not keep the frames that it went through: a master that
    joins again would keep all that it knew before."""

    def commit(_: float) -> None:
        old = KafkaError(CODES["INVALID_PRODUCER_EPOCH"], "old", txn_requires_abort=True)
        raise KafkaException(old)

    transactions = transactions_over(
        commit_transaction=commit,
    )

    def step() -> ReferenceType[Event]:
        known = Event()
        transactions.begin()
        with suppress(Fenced):
            transactions._commit([], None)
        return ref(known)

    assert step()() is None
    assert transactions._ended


@pytest.mark.parametrize("call", ["begin", "produce", "commit", "abort"])
@pytest.mark.parametrize(
    ("name", "kind"), [("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Unavailable), ("_FENCED", Fenced)]
)
def test_what_ends_a_producer_ends_no_job(name: str, kind: type[HeadgateError], call: str) -> None:
    """After an error that is fatal to a producer, another producer may continue, unless it was
    fenced."""
    over = False

    def fails(at: str) -> Callable[..., None]:
        def answer(*_: object, **__: object) -> None:
            nonlocal over
            over = over or at == call
            if over:
                raise KafkaException(KafkaError(CODES[name], "over", fatal=True))

        return answer

    transactions = transactions_over(
        begin_transaction=fails("begin"),
        produce=fails("produce"),
        commit_transaction=fails("commit"),
        abort_transaction=fails("abort"),
    )
    event = Announcer(JobId("job"), "tests").fact(JobUnregistered("closed"))

    def step() -> None:
        transactions.begin()
        transactions._send("write", Place("events", 0), event.job, b"", {})
        transactions.abort() if call == "abort" else transactions._commit([], None)

    with pytest.raises(kind, match=name):
        step()
    assert transactions._ended
    transactions.close()


def test_nobody_waits_for_the_end_of_a_former_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is forgotten may take long to end. Other threads get a new one meanwhile."""
    ended: list[bool] = []
    clients = KafkaClients(KafkaSettings(NOWHERE))

    class Slow:
        def __del__(self) -> None:
            ended.append(clients._lock.locked())

    monkeypatch.setattr(clients, "_make", lambda *_: Slow())
    clients.admin()
    clients._forget_admin()
    assert [False] == ended


def test_each_reason_of_a_delay_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A master that cannot take up a partition says why, and says so again when that changes."""
    member = object.__new__(KafkaMembership)
    reasons = ["no leader", "no leader", "an open step"]

    def refuse(*_: object) -> Future[Grant]:
        refused: Future[Grant] = Future()
        refused.set_exception(Unavailable(reasons.pop(0)))
        return refused

    member._what, member._delayed, member._granting = "slot a", {}, {}
    member._asking = cast(ThreadPoolExecutor, SimpleNamespace(submit=refuse))
    while reasons:
        member._later = {2: Deadline.after(0.0)}
        member._take_up()
    logged = [record.getMessage() for record in caplog.records]
    assert [
        "slot a will take up partition 2 later: no leader",
        "slot a will take up partition 2 later: an open step",
    ] == logged


def test_a_silent_broker_is_asked_once_by_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of an earlier request may go on asking a broker that hangs. The next try has a
    client of its own, and other errors are raised at once."""
    clients, made = KafkaClients(KafkaSettings(NOWHERE)), list[object]()
    outcomes = [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART]

    def describe(topics: object, request_timeout: float) -> dict[str, Future[None]]:
        described: Future[None] = Future()
        described.set_exception(KafkaException(KafkaError(outcomes[len(made) - 1])))
        return {"topic": described}

    def make(*_: object) -> object:
        made.append(SimpleNamespace(describe_topics=describe))
        return made[-1]

    monkeypatch.setattr(clients, "_make", make)
    assert not clients.exists("topic", Deadline.after(20.0))
    assert 3 == len(made)
    made.clear()
    clients._forget_admin()
    with pytest.raises(Unavailable):
        clients.exists("topic", Deadline.after(0.0))
    assert 1 == len(made)


def test_a_request_to_a_broker_that_hangs_ends_soon() -> None:
    """Every client gives up a request long before `wait.ms` are over, and a step's client before
    its step is. A user's own limit is kept."""
    settings = KafkaSettings(NOWHERE)
    limits = [
        config["socket.timeout.ms"]
        for config in (settings.producing(), settings.reading("g"), settings.deciding("j", 4_000))
    ]
    assert [10_000, 10_000, 3_900] == limits
    mine = KafkaSettings(NOWHERE, options={"socket.timeout.ms": "2000"})
    assert "2000" == mine.deciding("j", 4_000)["socket.timeout.ms"]
    KafkaClients(settings).decider("j")


def test_a_client_lives_until_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that another thread forgets meanwhile still answers: its end would end the
    master."""
    clients, gone = KafkaClients(KafkaSettings(NOWHERE)), list[bool]()

    class Client:
        def describe_topics(self, topics: object, request_timeout: float) -> dict[str, object]:
            client = ref(self)

            def result(timeout: float) -> object:
                clients._forget_admin()
                gone.append(client() is None)
                return SimpleNamespace(partitions=[])

            return {"topic": SimpleNamespace(result=result)}

    monkeypatch.setattr(clients, "_make", lambda *_: Client())
    assert clients.exists("topic", Deadline.after(5.0))
    assert [False] == gone
