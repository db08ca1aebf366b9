"""The group of masters on Kafka: a consumer group that shares out the partitions (KIP-447).

Guarantees that a step commits only while its member is one of the group: its offsets carry the
member's place in the group, and the coordinator refuses them, and with them the whole step, from
one that it has given up. A member may decide for a partition only when no former holder's step on
it is under way any more: the coordinator says so before the partition's end is asked for.
Assumes that nobody polls inside a step: a rebalance is heard of in `poll` and `close` only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from ..clock import Deadline
from ..errors import Conflict, Corrupt, Fenced, HeadgateError, Lost, Unavailable
from ..events import codec
from ..events.types import Event, Recorded
from ..log import Grant, Holder, Placed
from .clients import KafkaClients
from .errors import translate_reading
from .records import Place, decoded, job_of, taken_ms
from .state import read_state
from .transactions import KafkaTransactions

_LOG = logging.getLogger(__name__)

# A dead master's step stalls readers until its slot is back, or for so long and the 10 s at which
# a broker looks for such steps.
_STEP_MS_MAX = 4_000
_ANSWER_S_MAX = 3.0  # three heartbeats
_TURN_S = 0.1
_STATE_S_MAX = 60.0
_LATER_S = 5.0


@dataclass(slots=True)
class _Held:
    """`own` are the member's decisions that it has not read back yet, with their records."""

    position: int = 0
    end: int | None = None
    asked: Future[list[TopicPartition]] | None = None
    own: deque[tuple[bytes, Event]] = field(default_factory=deque)


class KafkaMembership(KafkaTransactions):
    def __init__(self, slot: str, holder: Holder, clients: KafkaClients) -> None:
        producer = clients.decider(clients.settings.slot(slot), _STEP_MS_MAX)
        super().__init__(producer, clients, f"slot {slot}")
        self.rejected = 0
        self._holder = holder
        self._held: dict[int, _Held] = {}
        self._found: list[Placed] = []
        self._failure: HeadgateError | None = None
        self._later: dict[int, Deadline] = {}
        self._granting: tuple[int, Future[Grant]] | None = None
        self._taken = False
        self._name = ""
        self._consumer = clients.member(slot)
        self._outside = clients.consumer(clients.settings.masters_group)
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="headgate-settled")
        self._asking_later = ThreadPoolExecutor(1, thread_name_prefix="headgate-later")
        self._outsider = self._consumer.consumer_group_metadata()
        self._place = self._outsider
        with clients.translated(f"joining the group of masters as slot {slot}"):
            self._consumer.subscribe(
                [clients.settings.events_topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        assert not self._begun, "a step lies between two polls"
        self._raise_failure()
        if self._ended:
            self._raise_ended()
        deadline, self._found = Deadline.after(timeout_s), []
        granted = len(self._held)
        self._take_up_later()
        while not self._found and granted == len(self._held):
            self._take_all(deadline.left_s, 1)  # at once: a call may take partitions away
            if limit > 1:
                self._take_all(0.0, limit - 1)
            if deadline.passed or self._failure is not None:
                break
        if not self._found:
            self._raise_failure()
        return self._found

    def position(self, partition: int) -> int:
        return self._held[partition].position

    def end(self, partition: int) -> int | None:
        held = self._held[partition]
        if held.end is None and self._is_settled(partition, held):
            place = Place(self._clients.settings.events_topic, partition)
            held.end = self._clients.written_offset(place)
        return held.end

    def write(self, decision: Event) -> None:
        record, place = codec.encode(decision), self._clients.place(decision.job)
        self._write(decision, record, place)
        self._held[place.partition].own.append((record, decision))

    def abort(self) -> None:
        for held in self._held.values():
            held.own.clear()
        super().abort()

    def commit(self, positions: Mapping[int, int]) -> None:
        topic = self._clients.settings.events_topic
        offsets = [TopicPartition(topic, number, at) for number, at in positions.items()]
        if self._place == self._outsider:
            self.abort()
            raise Fenced(f"{self._what} is not in the group of masters now")
        self._commit(offsets, self._place)

    def close(self) -> None:
        super().close()
        for asking in (self._asking, self._asking_later):
            asking.shutdown(wait=True, cancel_futures=True)
        self._outside.close()
        with suppress(KafkaException, HeadgateError, RuntimeError):  # the last of a closed one
            self._leave()
        self._consumer.close()
        for number in list(self._held):
            self._let_go(number)

    def _leave(self) -> None:
        """The group's last word is answered before the end: in its `close`, the client refuses or
        never gets the very answers that it asks for."""
        self._consumer.unsubscribe()
        deadline = Deadline.after(_ANSWER_S_MAX)
        self._take_all(0.0, 1)
        while self._held and not deadline.passed:
            self._take_all(_TURN_S, 1)

    def _is_settled(self, partition: int, held: _Held) -> bool:
        """Whether no step is under way whose offsets the coordinator has taken already: after its
        holder has changed, it takes none of a former one's."""
        asked, held.asked = held.asked or self._ask_stable(partition), None
        if not asked.done():
            held.asked = asked
            return False
        try:
            (place,) = asked.result()
        except KafkaException as exc:
            _LOG.debug("the offset of partition %d is not settled: %s", partition, exc)
            return False
        return place.error is None

    def _ask_stable(self, partition: int) -> Future[list[TopicPartition]]:
        """Of a consumer that takes no part, to which only stable offsets are told: an admin client,
        asked the same, kills the process when the coordinator is another one by then."""
        place = TopicPartition(self._clients.settings.events_topic, partition)
        return self._asking.submit(self._outside.committed, [place], _ANSWER_S_MAX)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        starts = [TopicPartition(p.topic, p.partition, self._begin_at(p.partition)) for p in places]
        consumer.incremental_assign(starts)
        if later := [place for place in starts if place.partition in self._later]:
            consumer.pause(later)
        # Not asked for later: the coordinator takes a step that names no member at all, and the
        # client of a member that was given up forgets its name before it calls `_lost`.
        self._place = consumer.consumer_group_metadata()
        self._name = consumer.memberid() or ""

    def _begin_at(self, number: int) -> int:
        """Take up a partition. The client must be told of a place in any case, so `poll`
        raises what fails here. A partition that cannot be asked about, as without a leader, is
        taken up later: the others go on."""
        try:
            grant = self._grant(number)
        except Unavailable as exc:
            _LOG.warning("%s takes up partition %d later: %s", self._what, number, exc)
            self._later[number] = Deadline.after(_LATER_S)
            return OFFSET_BEGINNING
        except HeadgateError as exc:
            self._failure = exc
            return OFFSET_BEGINNING
        self._held[number] = _Held(self._holder.granted(grant))
        return self._held[number].position

    def _take_up_later(self) -> None:
        """Try one partition that could not be asked about, beside the steps."""
        if self._granting is None:
            due = [number for number, again in self._later.items() if again.passed]
            if due:
                self._granting = due[0], self._asking_later.submit(self._grant, due[0])
            return
        number, asked = self._granting
        if not asked.done():
            return
        self._granting = None
        del self._later[number]
        try:
            held = _Held(self._holder.granted(asked.result()))
        except Unavailable:
            self._later[number] = Deadline.after(_LATER_S)
            return
        self._held[number] = held
        place = TopicPartition(self._clients.settings.events_topic, number, held.position)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        self._consumer.resume([place])

    def _grant(self, number: int) -> Grant:
        clients, deadline = self._clients, Deadline.after(_STATE_S_MAX)
        events = Place(clients.settings.events_topic, number)
        state = Place(clients.settings.state_topic, number)
        first = clients.first_offset(events)  # before the state, which is of no older log then
        there = clients.exists(state.topic, deadline)
        stored = read_state(clients, state, None, deadline) if there else {}
        return Grant(number, stored, range(first, clients.written_offset(events)))

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._later.pop(place.partition, None)
            if self._granting is not None and self._granting[0] == place.partition:
                self._granting = None
        for number in {place.partition for place in places} & self._held.keys():
            self._let_go(number)
        consumer.incremental_unassign(places)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._place = self._outsider
        _LOG.warning("%s was fenced: the group of masters went on without it", self._what)
        self._revoked(consumer, places)

    def _let_go(self, number: int) -> None:
        del self._held[number]
        self._found = [placed for placed in self._found if placed.partition != number]
        self._holder.revoked(number)

    def _take_all(self, timeout_s: float, limit: int) -> None:
        try:
            messages = self._consumer.consume(limit, timeout_s)
        except KafkaException as exc:
            raise self._said(exc.args[0]) from exc
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        held = self._held.get(message.partition() or 0)
        if (error := message.error()) is not None:
            self._take_error(error, message, held)
        elif held is not None:
            offset = message.offset()
            assert offset is not None, "a record has an offset"
            held.position, self._clients.has_read = offset + 1, True
            self._decode(message, offset, held.own)

    def _decode(self, message: Message, offset: int, own: deque[tuple[bytes, Event]]) -> None:
        """A decision that was written here is not read again: the same bytes are the same event."""
        number = message.partition() or 0
        try:
            same = own and own[0][0] == message.value()
            event = own.popleft()[1] if same else decoded(message, job_of(message))
            self._found.append(Placed(number, Recorded(offset, event, taken_ms(message))))
        except Corrupt as exc:
            if self.rejected == 0:
                _LOG.warning("skipped offset %d of partition %d: %s", offset, number, exc)
            self.rejected += 1

    def _take_error(self, error: KafkaError, message: Message, held: _Held | None) -> None:
        """Errors wait until what was read before them has been handed out."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._clients.has_read = True
            if held is not None:
                held.position = max(held.position, message.offset() or 0)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            _LOG.warning("%s was away for too long: %s", self._what, error.str())
        else:
            self._failure = self._said(error)

    def _said(self, error: KafkaError) -> HeadgateError:
        if error.code() == KafkaError._FATAL:  # all that is fatal to a static member
            return self._replaced()
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return Lost(f"the head of a partition of {self._what} is gone: {error.str()}")
        return translate_reading(error, f"reading as {self._what}", self._clients.has_read)

    def _replaced(self) -> HeadgateError:
        """What Kafka says to a member whose slot has another one. It says so too to a member that
        the group gave up before, which has lost its name by then: that one may join again."""
        if self._name and self._consumer.memberid() != self._name:
            return Fenced(f"the group of masters has given up {self._what}")
        self._taken = True
        return self._conflict()

    def _conflict(self) -> Conflict:
        return Conflict(f"another master has joined under {self._what}")

    def _raise_ended(self) -> None:
        """Whose transactions were ended has been away for too long, or has been replaced: the
        group's next answers tell which."""
        deadline = Deadline.after(_ANSWER_S_MAX)
        while not self._taken and not deadline.passed:
            self._take_all(_TURN_S, 1)
        raise (
            self._conflict()
            if self._taken
            else Fenced(f"the log has ended the transactions of {self._what}")
        )

    def _raise_failure(self) -> None:
        if self._taken:
            raise self._conflict()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
