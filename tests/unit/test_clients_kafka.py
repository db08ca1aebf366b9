"""The parts of Kafka's door that need no broker: the translation of errors, and who may set an
option."""

from __future__ import annotations

import pickle
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.connectors.spark.settings import read_settings
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import (
    Fenced,
    HeadgateError,
    Invalid,
    Lost,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headgate.control.events.types import JobUnregistered
from headgate.control.ids import JobId
from headgate.control.kafka.clients import KafkaClients
from headgate.control.kafka.errors import MEANINGS, explained, translate, translate_delivery
from headgate.control.kafka.log import KafkaEventLog, KafkaFollower, KafkaSettings
from headgate.control.kafka.records import Place
from headgate.control.kafka.settings import OWNED
from headgate.control.master.announcer import Announcer
from headgate.storage.stores.s3.settings import s3_settings

from ..doubles.steps import StoppedClock

_ADDRESS = "http://me:hunter2@host"
NOWHERE = "127.0.0.1:1"
CODES = {name: code for name, code in vars(KafkaError).items() if isinstance(code, int)}


def test_every_code_of_the_library_has_a_translation() -> None:
    """The table of meanings has exactly the codes that the client library has."""
    assert CODES.keys() == MEANINGS.keys()


@pytest.mark.parametrize("name", sorted(CODES))
def test_a_code_becomes_its_class(name: str) -> None:
    """Every code is raised as the class in the table, and the error names the operation."""
    error = translate(KafkaError(CODES[name]), "reading")
    assert MEANINGS[name] is type(error)
    assert str(error).startswith("reading: ")
    assert name in str(error)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_TRANSPORT", Unavailable),
        ("_ALL_BROKERS_DOWN", Unavailable),
        ("_FENCED", Fenced),
        ("PRODUCER_FENCED", Fenced),
        ("INVALID_PRODUCER_EPOCH", Fenced),
        ("_MSG_TIMED_OUT", OutcomeUnknown),
        ("_AUTO_OFFSET_RESET", Lost),
        ("TOPIC_AUTHORIZATION_FAILED", Invalid),
        ("SASL_AUTHENTICATION_FAILED", Invalid),
        ("MSG_SIZE_TOO_LARGE", Invalid),
        ("THROTTLING_QUOTA_EXCEEDED", Throttled),
    ],
)
def test_what_callers_act_upon(name: str, kind: type[HeadgateError]) -> None:
    """Each code on whose class callers act is translated to that class."""
    assert kind is type(translate(KafkaError(CODES[name]), "reading"))


@pytest.mark.parametrize("name", ["_TRANSPORT", "_TIMED_OUT", "REQUEST_TIMED_OUT", "_FATAL"])
def test_a_lost_confirmation_is_not_a_failure(name: str) -> None:
    """A code that leaves a sent record's fate open is `OutcomeUnknown`."""
    assert OutcomeUnknown is type(translate_delivery(KafkaError(CODES[name]), "appending"))


def test_a_refused_record_is_a_failure() -> None:
    """A record that the broker refused is not `OutcomeUnknown`."""
    refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    assert Invalid is type(translate_delivery(refused, "appending"))


@pytest.mark.parametrize(
    ("name", "why"), [(name, why) for why, names in OWNED.items() for name in names.split()]
)
def test_the_doors_own_options_are_refused(name: str, why: str) -> None:
    """An option on which a promise of the log depends is refused, and the error says why."""
    with pytest.raises(Invalid) as caught:
        KafkaSettings(NOWHERE, options={name: "hunter2"})
    assert f"Kafka option {name} cannot be set: {why}" == str(caught.value)


def test_an_unknown_option_is_named() -> None:
    """A misspelt option is refused when the log is prepared, and the error names it."""
    log = KafkaEventLog(KafkaSettings(NOWHERE, options={"sasl.pasword": "hunter2"}))
    with pytest.raises(Invalid) as caught:
        log.prepare(Deadline.after(1))
    assert str(caught.value) == "the Kafka client has no option sasl.pasword"


@pytest.mark.parametrize("name", ["security.protocol", "socket.timeout.ms", "sasl.mechanism"])
def test_a_bad_value_is_named_but_not_shown(name: str) -> None:
    """An error about a bad value names the option and not the value, and no chained error shows
    it."""
    options = {name: "hunter2", "security.protocol": "sasl_plaintext"} | {name: "hunter2"}
    log = KafkaEventLog(KafkaSettings(NOWHERE, options=options))
    with pytest.raises(Invalid, match=name) as caught:
        log.prepare(Deadline.after(1))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_options_stay_out_of_reprs() -> None:
    """The settings' `repr` shows no options, which may hold secrets; pickling keeps them."""
    settings = KafkaSettings(NOWHERE, options={"sasl.password": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert settings == pickle.loads(pickle.dumps(settings))


def test_an_address_with_a_password_is_refused() -> None:
    """An address that contains a password is refused, because Spark shows addresses."""
    with pytest.raises(Invalid, match="password in its address") as caught:
        KafkaSettings(NOWHERE, options={"sasl.oauthbearer.token.endpoint.url": _ADDRESS})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(Invalid, match="password in its address") as caught:
        s3_settings("bucket", {"proxy_url": _ADDRESS})
    assert "hunter2" not in str(caught.value)
    assert "http://host:80/" == s3_settings("bucket", {"endpoint": "http://host:80/"}).endpoint


def test_a_sessions_settings_do_not_show_options() -> None:
    """The `repr` of a session's settings shows no options either."""
    read = read_settings({"spark.headgate.kafka.sasl.password": "hunter2"})
    assert "hunter2" == read.kafka.options["sasl.password"]
    assert "hunter2" not in repr(read)


def test_secrets_are_taken_out_of_the_clients_words() -> None:
    """Every secret in the options is removed from the client library's messages, and nothing
    else."""
    options = {"sasl.password": "hunter2", "sasl.username": "me"}
    assert (
        KafkaSettings(NOWHERE, options=options).scrub("me with hunter2 refused")
        == "me with *** refused"
    )


@pytest.mark.parametrize(
    "config",
    [
        lambda settings: settings.producing(),
        lambda settings: settings.deciding(JobId("job"), 10_000),
        lambda settings: settings.reading("group"),
    ],
)
def test_options_reach_every_client(config: Callable[[KafkaSettings], dict[str, object]]) -> None:
    """A user's option reaches every client, and wins over the door's own defaults."""
    wanted = {"socket.timeout.ms": "1234", "linger.ms": "7", "fetch.wait.max.ms": "50"}
    made = config(KafkaSettings(NOWHERE, options=wanted))
    assert wanted == {name: made[name] for name in wanted}
    assert made["bootstrap.servers"] == NOWHERE


def test_sizes_and_times_reach_the_client_as_numbers() -> None:
    """The client takes numbers only. A text that is neither is left to the client's own error."""
    spelled = {
        "session.timeout.ms": "10s",
        "socket.timeout.ms": "5000",
        "message.max.bytes": "1M",
        "linger.ms": "soon",
        "sasl.password": "1m",
    }
    options = KafkaSettings(NOWHERE, options=spelled).common()
    assert {
        "session.timeout.ms": "10000",
        "socket.timeout.ms": "5000",
        "message.max.bytes": "1048576",
        "linger.ms": "soon",
        "sasl.password": "1m",
    } == {name: options[name] for name in spelled}


def test_a_fact_is_sent_as_long_as_its_confirmation_is_waited_for() -> None:
    """The client does not give a fact up before `wait.ms` are over: a broker may be away for longer
    than one answer may take. A step ends sooner."""
    read = read_settings({"spark.headgate.wait.ms": "90000", "spark.headgate.request.ms": "5000"})
    assert 90_000 == read.kafka.producing()["delivery.timeout.ms"]
    assert 5_000 == read.kafka.deciding("job", 10_000)["delivery.timeout.ms"]


def test_no_answer_is_not_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's marker for an unknown offset is `Unavailable`, never a position."""

    class Silent:
        def list_offsets(
            self, asked: dict[TopicPartition, object], **limits: object
        ) -> dict[TopicPartition, Future[SimpleNamespace]]:
            answer: Future[SimpleNamespace] = Future()
            answer.set_result(SimpleNamespace(offset=OFFSET_INVALID))
            return dict.fromkeys(asked, answer)

    clients = KafkaClients(KafkaSettings(NOWHERE, request_timeout_s=0.1))
    monkeypatch.setattr(clients, "admin", Silent)
    for ask in (clients.end_offset, clients.first_offset):
        with pytest.raises(Unavailable, match="no answer about the offsets"):
            ask(Place("topic", 0))


def test_nobody_there_is_one_clear_error(capfd: pytest.CaptureFixture[str]) -> None:
    """An address without a broker is `Unavailable` within the deadline. The error names the
    address, and nothing is printed to stderr."""
    before = SYSTEM_CLOCK.monotonic_s()
    with pytest.raises(Unavailable) as caught:
        KafkaEventLog(KafkaSettings(NOWHERE)).prepare(Deadline.after(1))
    assert SYSTEM_CLOCK.monotonic_s() - before < 5
    assert f"cannot reach Kafka with bootstrap {NOWHERE}" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "nothing listens there; is the broker running"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there does not speak Kafka"),
        (b"", "nothing answers; is what listens there Kafka"),
    ],
)
def test_whatever_is_asked_first_says_why_nobody_answers(answer: bytes | None, cause: str) -> None:
    """Whatever a command asks of the log first, an address without a broker, or with something
    else than a broker, gives the error of `prepare`, with the likely cause."""
    with ExitStack() as serving:
        address = NOWHERE if answer is None else serving.enter_context(answering(answer))
        settings = KafkaSettings(address, request_timeout_s=0.7)
        asks: list[Callable[[KafkaEventLog], object]] = [
            lambda log: log.read_state(None, Deadline.after(0.7)),
            lambda log: log.beat(JobId("j")),
            lambda log: log.retention_ms(Deadline.after(0.7)),
            lambda log: log.identity(Deadline.after(0.7)),
            lambda log: log.group(Deadline.after(0.7)),
        ]
        for ask in asks:
            with closing(KafkaEventLog(settings)) as log, pytest.raises(Unavailable) as caught:
                ask(log)
            assert (
                f"cannot reach Kafka with bootstrap {address}, security.protocol PLAINTEXT: "
                in str(caught.value)
            )
            assert cause in str(caught.value)


def test_who_asks_again_is_told_the_same() -> None:
    """The client waits longer before each next connection. Whoever asks meanwhile, as a master
    does, hears why the last one failed."""
    rarely = {"reconnect.backoff.ms": "60000", "reconnect.backoff.max.ms": "60000"}
    settings = KafkaSettings(NOWHERE, request_timeout_s=0.4, options=rarely)
    with closing(KafkaEventLog(settings)) as log:
        for _ in range(3):
            with pytest.raises(Unavailable, match="nothing listens there; is the broker running"):
                log.identity(Deadline.after(0.4))


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Serve one answer to each connection, and then close it; yield the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1_000)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (
            ["1/1 brokers are down", "h:1: Failed to resolve 'h:1'"],
            "the name of the host is not known",
        ),
        (
            ["ssl://h:1: SSL handshake failed: wrong version number"],
            "the broker does not speak TLS",
        ),
        (["h:1: SSL handshake failed: certificate verify failed"], "TLS fails; check"),
        (
            ["x", "h:1: Disconnected (after 5ms in state APIVERSION_QUERY)"],
            "what listens there is not",
        ),
        (["1/1 brokers are down", "y"], "1/1 brokers are down"),
    ],
)
def test_the_surest_cause_is_shown(texts: list[str], shown: str) -> None:
    """The likely cause comes first, with the client's text that shows it."""
    assert explained(texts).startswith(shown)


def test_a_broker_is_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts within the deadline is reached, however long that is."""
    clock = StoppedClock()

    def ping(_: Deadline) -> None:
        clock.at_ms += 1_000
        if clock.at_ms < 58_000:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "refused"))

    clients = KafkaClients(KafkaSettings(NOWHERE))
    monkeypatch.setattr(clients, "admin", lambda: SimpleNamespace(poll=lambda _: 0))
    monkeypatch.setattr(clients, "_ping", ping)
    clients._reach(Deadline.after(60, clock))
    clock.at_ms = 0
    with pytest.raises(Unavailable, match="refused"):
        clients._reach(Deadline.after(50, clock))
    assert 50_000 <= clock.at_ms < 52_000


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that does not know a topic which another broker has just made is asked again."""
    settings = KafkaSettings(NOWHERE, "p")
    topic = settings.topics[0]
    unknown: Future[object] = Future()
    unknown.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    known: Future[object] = Future()
    known.set_result({name: SimpleNamespace(value=value) for name, value in topic.config.items()})
    answers = [unknown, known]
    described: Future[object] = Future()
    leaders = [SimpleNamespace(leader=1)] * settings.topic.partitions
    described.set_result(SimpleNamespace(partitions=leaders))
    admin = SimpleNamespace(
        describe_topics=lambda *_, **__: {topic.name: described},
        describe_configs=lambda resources, **_: {resources[0]: answers.pop(0)},
    )
    clients = KafkaClients(settings)
    monkeypatch.setattr(clients, "admin", lambda: admin)
    clients._make_sure_of(topic, Deadline.after(5))
    assert [] == answers


def test_a_topic_that_was_just_deleted_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may still show a topic that is gone a moment later. Then it is created."""
    made: list[str] = []
    settings = KafkaSettings(NOWHERE)
    topic, shown = settings.topics[0], [True]

    def describe(self: KafkaClients, name: str, deadline: Deadline) -> list[bool]:
        if made or (shown and shown.pop()):
            return [True] * settings.topic.partitions
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    def create(topics: list[Any], **limits: object) -> dict[str, Future[None]]:
        made.append(topics[0].topic)
        done: Future[None] = Future()
        done.set_result(None)
        return {made[-1]: done}

    monkeypatch.setattr(KafkaClients, "_describe", describe)
    monkeypatch.setattr(KafkaClients, "_configured", lambda *_: dict(topic.config))
    monkeypatch.setattr(KafkaClients, "admin", lambda self: SimpleNamespace(create_topics=create))
    with closing(KafkaEventLog(settings)) as log:
        log._clients._make_sure_of(topic, Deadline.after(5.0))
    assert made == [topic.name]


def test_a_reader_is_refused_for_good_at_first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has read before survives missing rights, which may be missing for a moment
    while they are granted anew; so does every later reader."""
    refused, at_end = "TOPIC_AUTHORIZATION_FAILED", KafkaError._PARTITION_EOF
    clients = KafkaClients(KafkaSettings(NOWHERE))

    def poll(*codes: int) -> None:
        coming = iter(codes)

        def message(_: float) -> SimpleNamespace:
            return SimpleNamespace(error=lambda: KafkaError(next(coming)), offset=lambda: 0)

        consumer = SimpleNamespace(poll=message, assign=lambda places: None)
        monkeypatch.setattr(clients, "consumer", lambda group, stays: consumer)
        follower = KafkaFollower(JobId("job"), Place("topic", 0), clients, "group", 0)
        for _ in codes:
            follower.poll(1, 0.0)
        follower.poll(1, 0.0)

    with pytest.raises(Invalid, match=refused):
        poll(CODES[refused])
    for codes in ((at_end, CODES[refused]), (CODES[refused],)):
        with pytest.raises(Unavailable, match=refused):
            poll(*codes)


@pytest.mark.parametrize("why_not", ["", "embedded", "refused"])
def test_a_reader_that_stays_asks_less_often(why_not: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has been at the end for a while goes on from its position with a consumer
    that waits longer. It keeps its consumer before the end, where no other can be made, and on the
    embedded broker, which would not end a long wait for a record that comes."""
    settings = KafkaSettings(NOWHERE, embedded=why_not == "embedded")
    clients, made = KafkaClients(settings), list[tuple[bool, int]]()
    at_end, closed = KafkaError(KafkaError._PARTITION_EOF), list[bool]()
    coming = iter([None, SimpleNamespace(error=lambda: at_end, offset=lambda: 7), None])

    def consumer(group: str, stays: bool) -> SimpleNamespace:
        if stays and why_not == "refused":
            raise Invalid("no more threads")
        return SimpleNamespace(
            poll=lambda timeout_s: next(coming, None),
            assign=lambda places: made.append((stays, places[0].offset)),
            close=lambda: closed.append(stays),
        )

    monkeypatch.setattr(clients, "consumer", consumer)
    follower = KafkaFollower(JobId("job"), Place("topic", 0), clients, "group", 3)
    follower._young = Deadline.after(0.0)
    follower.poll(1, 0.0)
    assert ([(False, 3)], []) == (made, closed)
    for _ in range(3):
        follower.poll(1, 0.0)
    after = ([(False, 3)], []) if why_not else ([(False, 3), (True, 7)], [False])
    assert after == (made, closed)
    assert 500 == clients.settings.reading("group", stays=True)["fetch.wait.max.ms"]


@pytest.mark.parametrize("call", ["append", "beat"])
def test_a_producer_that_an_error_has_ended_is_replaced(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that a fatal error has ended is replaced, even if heartbeats are all that the
    driver sends: otherwise the driver would be taken for dead."""
    ended, made = KafkaException(KafkaError(KafkaError._FATAL)), list[str]()

    def produce(*record: object, **more: object) -> None:
        if len(made) == 1:
            raise ended

    def make(kind: object, config: object) -> object:
        made.append("a producer")
        return SimpleNamespace(produce=produce, poll=lambda s: 0, flush=lambda s: 0)

    log = KafkaEventLog(KafkaSettings(NOWHERE))
    monkeypatch.setattr(log._clients, "_make", make)
    monkeypatch.setattr(log._clients, "_partitions", 1)
    fact = Announcer(JobId("job"), "tests").fact(JobUnregistered("closed"))
    with closing(log):
        with pytest.raises(Unavailable):
            log.append(fact) if call == "append" else log.beat(fact.job)
        log.append(fact) if call == "append" else log.beat(fact.job)
    assert 2 == len(made)


_NAMES = st.text("ab-._", min_size=1, max_size=4) | st.sampled_from(["jobs", "masters"])


@given(st.tuples(_NAMES, _NAMES), st.tuples(_NAMES, _NAMES))
@example(("headgate", "prod-etl"), ("headgate-prod", "etl"))
@example(("headgate-jobs", "jobs"), ("headgate", "jobs-jobs"))
def test_deployments_share_no_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    """Two deployments on one broker never share the name of a transaction or a group, and a job
    never has the masters' name."""

    def names(prefix: str, name: str) -> list[str]:
        settings = KafkaSettings(NOWHERE, prefix)
        job = [] if name == "masters" else [settings.group(JobId(name))]
        return [*job, settings.slot(name), settings.masters_group]

    union = {*names(*first), *names(*second)}
    expected = len(names(*first)) + (len(names(*second)) if first != second else 0)
    assert len(union) == expected - (first[0] == second[0] and first != second)


def test_no_job_is_called_as_the_masters_beat() -> None:
    with pytest.raises(Invalid, match="job id masters"):
        KafkaSettings(NOWHERE).group(JobId("masters"))
