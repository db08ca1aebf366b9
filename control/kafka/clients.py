"""librdkafka's clients for one log, and the log's requests to the cluster.

Guarantees that a client is used only in the process that made it, that no client writes to stderr,
and that every request has a deadline. The client library's errors leave this module translated.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    MemberDescription,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from ..clock import PACE, Deadline
from ..errors import Invalid, Unavailable
from ..ids import JobId
from ..log import partition_of
from .errors import explained, translate
from .records import Place
from .settings import KafkaSettings, Topic, TopicSettings

_LOG = logging.getLogger(__name__)

_STEP_MS_MAX = 10_000  # how long an open step may stall the readers of its partition
_ASK_S_MAX = 3.0
_PING_S_MAX = 1.0
REQUEST_S_MIN = 0.05  # given to a request also when its deadline has passed
_COMMITTED = IsolationLevel.READ_COMMITTED
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

# The client's own log is off unless a user turns it on: our errors have what matters.
_CLIENT_LOG = logging.getLogger("headgate.librdkafka")
_CLIENT_LOG.addHandler(logging.NullHandler())
_CLIENT_LOG.propagate = False

# A client goes on asking a broker that does not answer, for as long as that broker is away.
_SILENCE = frozenset(["_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "REQUEST_TIMED_OUT"])

_LOGINS = ("security.protocol", "sasl.mechanism", "sasl.mechanisms")
T = TypeVar("T")


def check_options(settings: KafkaSettings) -> None:
    """Let the client library look at some options of a user. No broker is asked. The way to log in
    is left out: it needs other options, such as a password, which may come from elsewhere.

    Raises:
        Invalid: it refuses one of them.
    """
    alone = {name: it for name, it in settings.options.items() if name not in _LOGINS}
    KafkaClients(replace(settings, options=alone)).producer()


class KafkaClients:
    """Makes clients, and keeps an admin client and a producer of facts for each process."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._lock = Lock()
        # A forked child must not even free its parent's clients: the child lacks their threads. It
        # should end without the interpreter's cleanup, as children of Spark and multiprocessing do.
        self._admins: dict[int, AdminClient] = {}
        self._producers: dict[int, Producer] = {}
        self._errors: deque[KafkaError] = deque(maxlen=8)
        self._partitions = 0
        self._identity = ""
        self._has_met = False
        self.has_read = False  # True after the first successful read

    def admin(self) -> AdminClient:
        with self._lock:
            if (client := self._admins.get(os.getpid())) is None:
                client = self._make(AdminClient, self.settings.common())
                self._admins[os.getpid()] = client
            return client

    def producer(self) -> Producer:
        """Return the producer of facts: a new one after an error that ended the former."""
        with self._lock:
            if (client := self._producers.get(os.getpid())) is None:
                client = self._make(Producer, self.settings.producing())
                self._producers[os.getpid()] = client
            return client

    def forget_producer(self) -> Producer | None:
        with self._lock:
            return self._producers.pop(os.getpid(), None)

    def decider(self, name: str, step_ms_max: int = _STEP_MS_MAX) -> Producer:
        return self._make(Producer, self.settings.deciding(name, step_ms_max))

    def member(self, slot: str) -> Consumer:
        return self._make(Consumer, self.settings.joining(slot))

    def place(self, job: JobId) -> Place:
        """Return the place of a job's events."""
        return Place(self.settings.events_topic, partition_of(job, self.partitions()))

    def places(self, topic: str, job: JobId | None) -> list[Place]:
        """Return the place of a job in a topic, or all places if `job` is None."""
        count = self.partitions()
        numbers = range(count) if job is None else (partition_of(job, count),)
        return [Place(topic, number) for number in numbers]

    def consumer(
        self, group: str, stays: bool = False, isolation: str = "read_committed"
    ) -> Consumer:
        options = self.settings.reading(group, stays) | {"isolation.level": isolation}
        return self._make(Consumer, options)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Translate the client's errors."""
        try:
            yield
        except KafkaException as exc:
            raise translate(exc.args[0], self.settings.scrub(doing)) from exc

    @contextmanager
    def producing(self, doing: str) -> Iterator[None]:
        """Translate the client's errors, and forget the producer of facts after a fatal one."""
        with self.translated(doing):
            try:
                yield
            except KafkaException as exc:
                if exc.args[0].fatal() or exc.args[0].code() == KafkaError._FATAL:
                    self.forget_producer()
                raise

    def partitions(self) -> int:
        """Return the number of partitions of each topic; ask the cluster once for each identity.

        A topic may have got more of them since. It keeps those that the jobs are spread over.
        """
        if not (count := self._partitions):
            deadline = Deadline.after(self.settings.request_timeout_s)
            self.meet(deadline)
            count = self._described(self.settings.events_topic, deadline)
            for topic in self.settings.topics:
                count = min(count, self._seen(topic.name, deadline) or count)
            self._partitions = count
        return count

    def first_offset(self, place: Place) -> int:
        return self._offset(place, _EARLIEST)

    def end_offset(self, place: Place) -> int:
        """Return the offset at which a reader of committed records stalls.

        The admin client asks, because a consumer's own request would wait until its long poll ends.
        """
        return self._offset(place, _LATEST)

    def written_offset(self, place: Place) -> int:
        """Return the offset after the newest record, even if an open step still hides it."""
        return self._offset(place, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def offsets(self, places: Sequence[Place]) -> list[range]:
        """Return the offsets that each place holds for a reader of committed records."""
        first, end = self._offsets(places, _EARLIEST), self._offsets(places, _LATEST)
        return list(map(range, first, end))

    def members(self, group: str, deadline: Deadline) -> list[MemberDescription]:
        """Return the members of a consumer group; none if there is no such group."""
        self.meet(deadline)
        try:
            described = self._ask(
                lambda admin, **limit: admin.describe_consumer_groups([group], **limit), deadline
            )
            return list(described[group].members)
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise translate(exc.args[0], f"asking for the members of {group}") from exc

    def prepare(self, deadline: Deadline) -> None:
        """Reach the broker, then create the topics or compare their settings.

        Raises:
            Unavailable: the broker cannot be reached.
            Invalid: credentials or options are refused, or a topic has other settings.
        """
        self._reach(deadline)
        self.producer()  # start now: its first request takes half a second
        for topic in self.settings.topics:
            if not self.settings.embedded:
                self._make_sure_of(topic, deadline)
            self._described(topic.name, deadline)
        self._partitions = self._described(self.settings.events_topic, deadline)

    def _forget_admin(self) -> None:
        with self._lock:
            former = self._admins.pop(os.getpid(), None)
        del former  # its end may take a while, and nobody should wait for it at the lock

    def _make(self, kind: Callable[..., T], config: dict[str, object]) -> T:
        try:
            return kind(config | {"error_cb": self._errors.append, "logger": _CLIENT_LOG})
        except KafkaException as exc:
            # Leave out the cause: the client's text quotes values, and one may be a secret.
            raise self.settings.refused(exc.args[0].str()) from None

    def meet(self, deadline: Deadline) -> None:
        """Reach the broker before the first request: only then its error says why that fails."""
        if not self._has_met:
            self._reach(Deadline.after(min(deadline.left_s, self.settings.request_timeout_s)))

    def _reach(self, deadline: Deadline) -> None:
        earlier = [] if self._has_met else list(self._errors)
        self._errors.clear()
        while True:
            try:
                self._ping(deadline)
                self._has_met = True
                return
            except KafkaException as exc:
                self._check_reachable(exc, deadline, earlier)

    def _ping(self, deadline: Deadline) -> None:
        limit_s = max(REQUEST_S_MIN, min(deadline.left_s, _PING_S_MAX))
        if self.settings.embedded:  # the mock has no controller to ask
            self.admin().list_topics(timeout=limit_s)
        else:
            admin = self.admin()
            self._answer(admin.describe_cluster(request_timeout=limit_s), deadline)

    def _check_reachable(
        self, exc: KafkaException, deadline: Deadline, earlier: Sequence[KafkaError]
    ) -> None:
        """Raise what keeps this process from the broker, if time does not help, or there is none.

        The client tells ever more rarely why it cannot connect, so without a new reason the earlier
        ones are named at the end. They may be over.
        """
        self.admin().poll(PACE.pause_s)
        errors = [*(self._errors or (earlier if deadline.passed else ())), exc.args[0]]
        fatal = [e for e in errors if isinstance(translate(e, ""), Invalid)]
        if fatal or deadline.passed:
            kind = Invalid if fatal else Unavailable
            reason = self.settings.scrub(explained([e.str() for e in fatal or errors]))
            raise kind(f"cannot reach Kafka with {self.settings.tried}: {reason}") from exc

    def _make_sure_of(self, topic: Topic, deadline: Deadline) -> None:
        """Create or compare a topic, and retry: a broker may not know yet what another has made."""
        while True:
            try:
                self._create(topic, deadline)
                return self._compare(topic, deadline)
            except Unavailable:
                if deadline.passed:
                    raise
                deadline.pause()

    def _create(self, topic: Topic, deadline: Deadline) -> None:
        settings = self.settings.topic
        config = {**topic.config, **topic.wished}
        new = NewTopic(topic.name, settings.partitions, settings.replication, config=config)
        if self.exists(topic.name, deadline):
            return
        try:
            self._ask(lambda admin, **limit: admin.create_topics([new], **limit), deadline)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translate(exc.args[0], f"creating topic {new.topic}") from exc

    def exists(self, name: str, deadline: Deadline) -> bool:
        try:
            self._describe(name, deadline)
            return True
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translate(exc.args[0], f"looking for {name}") from exc
            return False

    def topic_settings(self, deadline: Deadline) -> TopicSettings:
        """Return the settings of the topic of events, if it exists; else those that it would be
        created with."""
        self.meet(deadline)
        name, settings = self.settings.events_topic, self.settings.topic
        if self.settings.embedded or not self.exists(name, deadline):
            return settings
        partitions = self._described(name, deadline)
        return replace(settings, partitions=partitions, retention_ms=self.retention_ms(deadline))

    def retention_ms(self, deadline: Deadline) -> int:
        """Return how long the events topic keeps an event.

        If there is no topic, or the broker does not report the setting, return the configured one.
        """
        default_ms, name = self.settings.topic.retention_ms, self.settings.events_topic
        self.meet(deadline)
        if self.settings.embedded or not self.exists(name, deadline):
            return default_ms
        return int(self._configured(name, deadline).get("retention.ms", default_ms))

    def identity(self, deadline: Deadline) -> str:
        """Return the id of the events topic. A new topic with the same name has another id."""
        name = self.settings.events_topic
        if self.settings.embedded:
            return ""
        self.meet(deadline)
        with self.translated(f"asking for the id of topic {name}"):
            topic_id = self._topic(name, deadline).topic_id
        identity = str(topic_id) if topic_id.get_most_significant_bits() else ""
        if self._identity not in ("", identity):
            self._partitions = 0
        self._identity = identity
        return identity

    def _compare(self, topic: Topic, deadline: Deadline) -> None:
        wanted = {"partitions": str(self.settings.topic.partitions)} | dict(topic.config)
        # a topic that was being deleted may have seemed to be there: then it has to be created
        soon = Deadline.after(min(deadline.left_s, PACE.retry_s))
        actual = {"partitions": str(self._described(topic.name, soon))}
        actual |= self._configured(topic.name, deadline)
        if differences := _others(actual, wanted):
            raise Invalid(
                f"topic {topic.name} exists with other settings: {differences}. "
                "Change the topic, the settings, or the prefix of the topics"
            )
        if differences := _others(actual, topic.wished):
            _LOG.warning(
                "topic %s has other settings than Headgate gives a new topic: %s",
                topic.name,
                differences,
            )

    def _configured(self, name: str, deadline: Deadline) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        with self.translated(f"reading the settings of topic {name}"):
            entries = self._ask(
                lambda admin, **limit: admin.describe_configs([resource], **limit), deadline
            )[resource]
        return {name: str(entry.value) for name, entry in entries.items()}

    def _described(self, name: str, deadline: Deadline) -> int:
        """Wait until each partition of a topic has a leader, and return their number."""
        doing = f"looking for topic {name}, {self.settings.tried}"
        while True:
            try:
                led = self._describe(name, deadline)
                if led and all(led):
                    return len(led)
            except KafkaException as exc:
                if deadline.passed:
                    raise translate(exc.args[0], doing) from exc
            if deadline.passed:
                raise Unavailable(f"{doing}: a partition is missing or has no leader")
            deadline.pause()

    def _seen(self, name: str, deadline: Deadline) -> int:
        """Return the number of a topic's partitions, or 0 if it does not exist or is not for us."""
        try:
            return len(self._describe(name, deadline))
        except KafkaException as exc:
            if exc.args[0].name() in ("UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"):
                return 0
            raise translate(exc.args[0], f"looking for topic {name}") from exc

    def _describe(self, name: str, deadline: Deadline) -> list[bool]:
        """Return for each partition of a topic True if it has a leader."""
        if self.settings.embedded:  # the mock makes a topic on request
            metadata = self.admin().list_topics(name, timeout=max(REQUEST_S_MIN, deadline.left_s))
            return [p.leader >= 0 for p in metadata.topics[name].partitions.values()]
        return [p.leader is not None for p in self._topic(name, deadline).partitions]

    def _topic(self, name: str, deadline: Deadline) -> Any:
        topics = TopicCollection([name])
        return self._ask(lambda admin, **limit: admin.describe_topics(topics, **limit), deadline)[
            name
        ]

    def _offset(self, place: Place, spec: OffsetSpec, level: IsolationLevel = _COMMITTED) -> int:
        return self._offsets([place], spec, level)[0]

    def _offsets(
        self, places: Sequence[Place], spec: OffsetSpec, level: IsolationLevel = _COMMITTED
    ) -> list[int]:
        deadline = Deadline.after(self.settings.request_timeout_s)
        while True:
            try:
                with self.translated(f"asking for the offsets of {places[0]}"):
                    return self._ask_offsets(places, spec, level, deadline)
            except Unavailable:
                if deadline.passed:
                    raise
                self._forget_admin()  # it would go on asking a partition's former leader
                deadline.pause()

    def _ask_offsets(
        self, places: Sequence[Place], spec: OffsetSpec, level: IsolationLevel, deadline: Deadline
    ) -> list[int]:
        there = [TopicPartition(place.topic, place.partition) for place in places]
        specs = dict.fromkeys(there, spec)
        answers = self._ask(
            lambda admin, **limit: admin.list_offsets(specs, isolation_level=level, **limit),
            deadline,
        )
        offsets = [int(answers[each].offset) for each in there]
        for place, offset in zip(places, offsets, strict=True):
            if offset < 0:  # the client had no answer
                raise Unavailable(f"no answer about the offsets of {place}")
        return offsets

    def _ask(self, ask: Callable[..., Mapping[Any, Any]], deadline: Deadline) -> dict[Any, Any]:
        """Return the answers to a request of the admin client. If a broker is silent, ask with a
        new client, which finds the brokers that are there. `ask` is given the client and the time
        limit of one request."""
        while True:
            limit_s = max(REQUEST_S_MIN, min(deadline.left_s, _ASK_S_MAX))
            admin = self.admin()  # held until it has answered, also if others forget it meanwhile
            try:
                asked = ask(admin, request_timeout=limit_s)
                return {what: self._answer(future, deadline) for what, future in asked.items()}
            except KafkaException as exc:
                if exc.args[0].name() not in _SILENCE:
                    raise
                self._forget_admin()
                if deadline.passed:
                    raise
                deadline.pause()

    def _answer(self, future: Any, deadline: Deadline) -> Any:
        try:
            return future.result(max(REQUEST_S_MIN, deadline.left_s) + _ASK_S_MAX)
        except TimeoutError as exc:
            raise Unavailable(f"no answer from Kafka with {self.settings.tried}") from exc


def _others(actual: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return a text on the wanted settings that the broker reports with another value."""
    reported = {name: value for name, value in wanted.items() if name in actual}
    return "; ".join(f"{n} is {actual[n]}, not {w}" for n, w in reported.items() if actual[n] != w)
