"""The event log on Kafka: topics of events, state and heartbeats. A job has a partition in each.

Keeps the guarantees of `log.py` with an idempotent producer for facts, a transaction for each step
of decisions, and read_committed readers. Assumes Kafka 3.5 or later, and that the number of the
topics' partitions never changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ..clock import Deadline
from ..errors import Closed, Corrupt, HeadgateError, Lost, OutcomeUnknown
from ..events import codec
from ..events.types import Event, Recorded
from ..ids import JobId
from ..log import GroupMember, Holder, MasterGroup, Rejected, read_to
from .clients import REQUEST_S_MIN, KafkaClients
from .errors import translate_delivery, translate_reading
from .membership import KafkaMembership
from .records import Place, decoded, job_of, next_messages, produce, taken_ms
from .settings import KafkaSettings, TopicSettings
from .state import Beats, read_state
from .tail import KafkaTail
from .transactions import KafkaDecisions

__all__ = ["KafkaEventLog", "KafkaSettings", "TopicSettings"]

_LOG = logging.getLogger(__name__)
_TURN_S = 0.01  # how long one waiting thread polls the client before another one may
_CLOSE_S_MAX = 5.0
_SCAN_LIMIT = 1000
_STAYS_S = 2.0  # a reader that is older stays at the end


class KafkaEventLog:
    """An event log that any number of processes can share."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._clients = KafkaClients(settings)
        self._beats = Beats(self._clients)
        self._closed = False

    def prepare(self, deadline: Deadline) -> None:
        self._open.prepare(deadline)

    def append(self, fact: Event) -> KafkaReceipt:
        topic, what = self.settings.events_topic, f"{fact.kind} {fact.id}"
        return self._append(topic, fact.job, codec.encode(fact), what, codec.headers(fact))

    def topic_settings(self, deadline: Deadline) -> TopicSettings:
        return self._open.topic_settings(deadline)

    def retention_ms(self, deadline: Deadline) -> int:
        return self._open.retention_ms(deadline)

    def identity(self, deadline: Deadline) -> str:
        return self._open.identity(deadline)

    def follow(self, job: JobId, position: int | None = 0) -> KafkaFollower:
        return self._follow(self.settings.group(job), self._open.place(job), job, position)

    def partition(self, job: JobId) -> int:
        return self._open.place(job).partition

    def oldest(self, job: JobId) -> int:
        return self._open.first_offset(self._open.place(job))

    def written(self, job: JobId) -> int:
        return self._open.written_offset(self._open.place(job))

    def open_decisions(self, job: JobId) -> KafkaDecisions:
        return KafkaDecisions(job, self._open)

    def join(self, slot: str, holder: Holder) -> KafkaMembership:
        self._open.producer()  # for later facts: its first request takes half a second
        return KafkaMembership(slot, holder, self._clients)

    def group(self, deadline: Deadline) -> MasterGroup:
        return _read_group(self._open, deadline)

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        for follower in self._followers():
            follower.known = {job.encode(): position for job, position in known.items()}
            with closing(follower):
                yield from read_to(follower, follower.end(), _SCAN_LIMIT, deadline)

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> KafkaTail:
        return KafkaTail(self._open, known)

    def read_rejected(self, deadline: Deadline) -> Iterator[Rejected]:
        """Yield the records of the topic that are not valid events. Every reader skips them.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """
        for follower in self._followers():
            with closing(follower):
                follower.rejections = []
                for _ in read_to(follower, follower.end(), _SCAN_LIMIT, deadline):
                    pass
                yield from follower.rejections

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        state: dict[str, bytes] = {}
        for place in self._scanned(self.settings.state_topic, job, deadline):
            end = self._clients.written_offset(place) if whole else 0
            state |= read_state(self._clients, place, job, deadline, end)
        return state

    def beat(self, job: JobId) -> KafkaReceipt:
        what = f"a heartbeat of the driver of {job}"
        return self._append(self.settings.heartbeats_topic, job, b"", what, {})

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        heard_ms: dict[JobId, int] = {}
        for place in self._scanned(self.settings.heartbeats_topic, job, deadline):
            heard_ms |= self._beats.read(place, deadline)
        return {name: at for name, at in heard_ms.items() if job in (None, name)}

    def _append(
        self, topic: str, job: JobId, record: bytes, what: str, headers: dict[str, bytes]
    ) -> KafkaReceipt:
        clients = self._open
        (place,) = clients.places(topic, job)
        producer = clients.producer()
        receipt = KafkaReceipt(producer, what)
        with clients.producing(f"appending {what}"):
            produce(producer, place, job, record, receipt.settle, headers)
        return receipt

    def _scanned(self, topic: str, job: JobId | None, deadline: Deadline) -> list[Place]:
        """Return the places to read: none if a log of an older version lacks the topic."""
        self._open.meet(deadline)
        there = self._open.exists(topic, deadline)
        return self._clients.places(topic, job) if there else []

    def close(self) -> None:
        """Wait a limited time for the delivery of appended facts, then close the connections."""
        self._closed = True
        if (producer := self._clients.forget_producer()) is not None:
            producer.flush(min(_CLOSE_S_MAX, self.settings.request_timeout_s))

    def _followers(self) -> Iterator[KafkaFollower]:
        """Open a follower of each partition from its oldest record on, one after the other."""
        for place in self._open.places(self.settings.events_topic, None):
            yield self._follow(self.settings.readers_group, place, None, None)

    def _follow(
        self, group: str, place: Place, job: JobId | None, position: int | None
    ) -> KafkaFollower:
        start = self._clients.first_offset(place) if position is None else position
        return KafkaFollower(job, place, self._clients, group, start)

    @property
    def _open(self) -> KafkaClients:
        """Return the clients of a log that is not closed."""
        if self._closed:
            raise Closed("the event log is closed")
        return self._clients


class KafkaReceipt:
    """The receipt of a fact. Several threads may wait for the same or other receipts at once."""

    def __init__(self, producer: Producer, what: str) -> None:
        self._producer = producer
        self._what = what
        self._offset: int | None = None
        self._error: KafkaError | None = None

    def settle(self, error: KafkaError | None, message: Message) -> None:
        """Take the client's delivery report."""
        self._error = error
        self._offset = message.offset()

    def offset(self, deadline: Deadline) -> int:
        while True:
            if self._error is not None:
                raise translate_delivery(self._error, f"appending {self._what}")
            if self._offset is not None:
                if self._offset < 0:  # a broker that a retry reached twice may report none
                    raise OutcomeUnknown(
                        f"{self._what} is in the log, but the broker did not tell its offset"
                    )
                return self._offset
            if deadline.passed:
                raise OutcomeUnknown(f"no confirmation of {self._what} in time")
            self._producer.poll(min(deadline.left_s, _TURN_S))


class KafkaFollower:
    """Reads one job's committed events, or those of all jobs if `job` is None."""

    def __init__(
        self,
        job: JobId | None,
        place: Place,
        clients: KafkaClients,
        group: str,
        position: int,
    ) -> None:
        self.rejected = 0
        self.rejections: list[Rejected] | None = None
        self.known: Mapping[bytes, int] = {}
        self._job = job
        self._place = place
        self._clients = clients
        self._group = group
        self._position = position
        self._consumer = self._reader(stays=False)
        self._young = Deadline.after(_STAYS_S)
        self._may_stay = not clients.settings.embedded  # the mock does not end a long wait
        self._at_end = False
        self._failure: HeadgateError | None = None

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        deadline = Deadline.after(timeout_s)
        start, events = self._position, list[Recorded]()
        while True:
            self._raise_failure()
            reader = f"the follower of {self._place}"
            for message in next_messages(self._consumer, limit, deadline.left_s, reader):
                self._take(message, events)
            passed = self._at_end and self._position > start
            if events or passed or deadline.passed:
                break
        if not events:
            self._raise_failure()
            self._stay()
        return events

    def position(self) -> int:
        return self._position

    def end(self) -> int:
        return self._clients.end_offset(self._place)

    def close(self) -> None:
        self._consumer.close()

    def _reader(self, stays: bool) -> Consumer:
        consumer = self._clients.consumer(self._group, stays)
        with self._clients.translated(f"following {self._place}"):
            place = self._place
            consumer.assign([TopicPartition(place.topic, place.partition, self._position)])
        return consumer

    def _stay(self) -> None:
        """Ask the broker less often from now on, if this reader is at the end and no longer young:
        short readings are over by then. If that is not possible, go on as before."""
        if self._at_end and self._may_stay and self._young.passed:
            self._may_stay = False
            with suppress(HeadgateError):
                asking, self._consumer = self._consumer, self._reader(stays=True)
                asking.close()

    def _take(self, message: Message, events: list[Recorded]) -> None:
        if (error := message.error()) is not None:
            self._take_error(error, message)
            return
        offset = message.offset()
        assert offset is not None, "a record has an offset"
        self._position, self._at_end, self._clients.has_read = offset + 1, False, True
        job = job_of(message)
        if self._job is not None and job not in (None, self._job.encode()):
            return
        if job is not None and offset < self.known.get(job, 0):
            return
        try:
            events.append(Recorded(offset, decoded(message, job), taken_ms(message)))
        except Corrupt as exc:
            self._reject(offset, exc)

    def _take_error(self, error: KafkaError, message: Message) -> None:
        """Keep an error until `poll` has returned the events that were read before it."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._position, self._at_end = max(self._position, message.offset() or 0), True
            self._clients.has_read = True
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._failure = Lost(self._gone(), (self._position,))
        else:
            doing, has_read = f"following {self._place}", self._clients.has_read
            self._failure = translate_reading(error, doing, has_read)

    def _gone(self) -> str:
        with suppress(HeadgateError):
            first = self._clients.first_offset(self._place)
            return f"{self._place} holds offsets {first} to {self.end()}, not {self._position}"
        return f"{self._place} no longer holds offset {self._position}"

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            if not isinstance(failure, Lost):  # the client retries all other errors by itself
                self._failure = None
            raise failure

    def _reject(self, offset: int, exc: Corrupt) -> None:
        if self.rejected == 0:
            _LOG.warning("skipped offset %d of %s, and maybe more: %s", offset, self._place, exc)
        self.rejected += 1
        if self.rejections is not None:
            self.rejections.append(Rejected(self._place.partition, offset, str(exc)))


def _read_group(clients: KafkaClients, deadline: Deadline) -> MasterGroup:
    """Return the members of the group, and how far they have come. Masters are static members: the
    group knows each of them by its slot. Nothing here joins the group or commits."""
    settings = clients.settings
    if settings.embedded:  # the mock broker has no groups to tell of
        return MasterGroup()
    members = [
        GroupMember(
            member.group_instance_id or member.member_id,
            member.host.removeprefix("/"),
            tuple(sorted(place.partition for place in member.assignment.topic_partitions)),
        )
        for member in clients.members(settings.masters_group, deadline)
    ]
    places = clients.places(settings.events_topic, None)
    ends = {place.partition: clients.written_offset(place) for place in places}
    members.sort(key=lambda member: member.slot)
    return MasterGroup(tuple(members), _decided(clients, settings, sorted(ends), deadline), ends)


def _decided(
    clients: KafkaClients, settings: KafkaSettings, numbers: list[int], deadline: Deadline
) -> dict[int, int]:
    """Return the offsets that the group has committed. Those of an open step do not count, and are
    not waited for.

    An admin client must not ask: it kills the process if the coordinator has changed meanwhile.
    """
    asked = [TopicPartition(settings.events_topic, number) for number in numbers]
    group, limit_s = settings.masters_group, max(REQUEST_S_MIN, deadline.left_s)
    outside = clients.consumer(group, isolation="read_uncommitted")
    with closing(outside), clients.translated(f"asking for the offsets of {group}"):
        places = outside.committed(asked, limit_s)
    return {place.partition: place.offset for place in places if place.offset >= 0}
