"""The group of masters on Kafka: a consumer group that shares out the partitions (KIP-447).

Guarantees that a step commits only while its member belongs to the group: the step's offsets carry
the member's place in the group, and the coordinator refuses the offsets, and so the whole step, of
a member that it has given up. A partition is granted only when no former holder's step on it is
open: the coordinator confirms this before its state and its end are read. An event in another
partition than its job's is skipped and counted, because nobody may decide on it there. Assumes that
no caller polls inside a step: rebalances are handled only in `poll` and `close`.
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

from ..clock import PACE, Deadline, ProgressDeadline
from ..errors import Conflict, Corrupt, Fenced, HeadgateError, Lost, Unavailable
from ..events.types import Event, Recorded
from ..ids import JobId
from ..log import Grant, Holder, Placed
from .clients import KafkaClients
from .errors import translate_reading
from .records import Place, decoded, job_of, taken_ms
from .state import read_state
from .transactions import KafkaTransactions

_LOG = logging.getLogger(__name__)

# A dead master's step stalls readers until its slot is joined again, or for this time and the 10 s
# after which a broker looks for such steps.
_STEP_MS_MAX = 4_000
_ANSWER_S_MAX = 3.0  # the time of three heartbeats
_STATE_S_MAX = 60.0  # without progress
_GRANTS = 4  # partitions whose state is read at once
_MISPLACED_MAX = 1_000  # jobs that are named


@dataclass(slots=True)
class _Held:
    """A partition that the member holds."""

    position: int = 0
    end: int | None = None
    """The position from which on the member may decide, None while that is not known."""
    own: deque[tuple[bytes, Event]] = field(default_factory=deque)
    """The member's decisions, with their records, that it has not read back yet."""


class KafkaMembership(KafkaTransactions):
    def __init__(
        self, slot: str, holder: Holder, clients: KafkaClients, step_ms_max: int = _STEP_MS_MAX
    ) -> None:
        name = clients.settings.slot(slot)
        super().__init__(lambda: clients.decider(name, step_ms_max), clients, f"slot {slot}")
        self.rejected = 0
        self._holder = holder
        self._held: dict[int, _Held] = {}
        self._found: list[Placed] = []
        self._failure: HeadgateError | None = None
        self._later: dict[int, Deadline] = {}  # partitions that are to be taken up, and when
        self._granting: dict[int, tuple[Future[Grant], ProgressDeadline]] = {}
        self._delayed: dict[int, str] = {}  # partitions that a warning has named, and its reason
        self._taken = False
        self._misplaced: set[JobId] = set()  # with an event in a wrong partition
        self._name = ""
        self._consumer = clients.member(slot)
        self._outside = clients.consumer(clients.settings.masters_group)
        self._asking = ThreadPoolExecutor(_GRANTS, thread_name_prefix="headgate-grant")
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
        self._take_up()
        while not self._found and granted == len(self._held):
            wait_s = min(PACE.gather_s, deadline.left_s) if self._later else deadline.left_s
            self._take_all(wait_s, 1)  # return early: a call may take partitions away
            self._take_up()
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
        holding = self._held[partition]
        if holding.end is None:
            place = Place(self._clients.settings.events_topic, partition)
            holding.end = self._clients.written_offset(place)
        return holding.end

    def write(self, decision: Event) -> None:
        place, record = self._write(decision)
        self._held[place.partition].own.append((record, decision))

    def abort(self) -> None:
        for holding in self._held.values():
            holding.own.clear()
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
        for number in list(self._granting):
            self._stop_granting(number)
        self._asking.shutdown(wait=True, cancel_futures=True)
        self._outside.close()
        with suppress(KafkaException, HeadgateError, RuntimeError):  # the client may be closed
            self._leave()
        self._consumer.close()
        for number in list(self._held):
            self._let_go(number)

    def _leave(self) -> None:
        """Leave the group and wait until its partitions are revoked.

        The client cannot do this in `close`: there it refuses the answers that it asks for, or
        never gets them.
        """
        self._consumer.unsubscribe()
        deadline = Deadline.after(_ANSWER_S_MAX)
        self._take_all(0.0, 1)
        while self._held and not deadline.passed:
            self._take_all(deadline.poll_s, 1)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        starts = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in places]
        consumer.incremental_assign(starts)
        consumer.pause(starts)
        count = self._clients.partitions()
        for number in (place.partition for place in places):
            if number < count:
                self._later[number] = Deadline.after(0.0)
                continue
            text = "%s leaves partition %d alone: the jobs are spread over the first %d partitions"
            _LOG.warning(text, self._what, number, count)
        # Read the place now, not at a commit: the coordinator accepts a step that names no member,
        # and the client of a member that was given up forgets its name before it calls `_lost`.
        self._place = consumer.consumer_group_metadata()
        self._name = consumer.memberid() or ""

    def _take_up(self) -> None:
        """Take up each partition as soon as its state is read, in threads of their own, while steps
        go on. A partition that is unavailable, for example without a leader, is tried again."""
        for number, again in self._later.items():
            if number not in self._granting and again.passed:
                deadline = ProgressDeadline(_STATE_S_MAX)
                asked = self._asking.submit(self._grant, number, deadline)
                self._granting[number] = asked, deadline
        for number in [number for number, (asked, _) in self._granting.items() if asked.done()]:
            try:
                grant = self._granting.pop(number)[0].result()
            except Unavailable as exc:
                if self._delayed.get(number) != str(exc):
                    self._delayed[number] = str(exc)
                    _LOG.warning("%s will take up partition %d later: %s", self._what, number, exc)
                self._later[number] = Deadline.after(PACE.retry_s)
                continue
            del self._later[number]
            self._delayed.pop(number, None)
            holding = self._held[number] = _Held(self._holder.granted(grant))
            place = TopicPartition(self._clients.settings.events_topic, number, holding.position)
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
            self._consumer.resume([place])

    def _grant(self, number: int, deadline: ProgressDeadline) -> Grant:
        self._check_settled(number)
        clients = self._clients
        deadline.progress()  # it may have waited for a thread
        events = Place(clients.settings.events_topic, number)
        state = Place(clients.settings.state_topic, number)
        first = clients.first_offset(events)  # before the state, which is then of no older log
        stored: dict[str, bytes] = {}
        if clients.exists(state.topic, deadline):
            # An open step of anybody hides all later ones, also those of a former holder.
            written = clients.written_offset(state)
            stored = read_state(clients, state, None, deadline, written)
        return Grant(number, stored, range(first, clients.written_offset(events)))

    def _stop_granting(self, number: int) -> None:
        """Let nobody read a state for a partition that this member does not have: it may be large,
        and the threads are few."""
        if (granting := self._granting.pop(number, None)) is not None:
            asked, deadline = granting
            asked.cancel()
            deadline.end()

    def _check_settled(self, number: int) -> None:
        """Check that no open step has sent its offsets for the partition to the coordinator. It may
        yet write records and commit. Once the holder has changed, the coordinator takes no offsets
        of a former holder.

        A consumer outside the group asks for the partition's stable offset. An admin client must
        not ask: it kills the process if the coordinator has changed meanwhile.

        Raises:
            Unavailable: a step is open, or the coordinator does not answer.
        """
        place = TopicPartition(self._clients.settings.events_topic, number)
        try:
            (asked,) = self._outside.committed([place], _ANSWER_S_MAX)
        except KafkaException as exc:
            raise Unavailable(f"no answer about steps of former holders: {exc}") from exc
        if asked.error is not None:
            raise Unavailable(f"a step of a former holder may be open: {asked.error.str()}")

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._later.pop(place.partition, None)
            self._stop_granting(place.partition)
            self._delayed.pop(place.partition, None)
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
        holding = self._held.get(message.partition() or 0)
        if (error := message.error()) is not None:
            self._take_error(error, message, holding)
        elif holding is not None:
            offset = message.offset()
            assert offset is not None, "a record has an offset"
            holding.position, self._clients.has_read = offset + 1, True
            self._decode(message, offset, holding.own)

    def _decode(self, message: Message, offset: int, unread: deque[tuple[bytes, Event]]) -> None:
        """Add the event of a record; do not decode the member's own decision again."""
        number = message.partition() or 0
        try:
            same = unread and unread[0][0] == message.value()
            event = unread.popleft()[1] if same else decoded(message, job_of(message))
            if (ours := self._clients.place(event.job)).partition != number:
                self._skip(event.job, f"offset {offset} of partition {number}", ours)
                return
            self._found.append(Placed(number, Recorded(offset, event, taken_ms(message))))
        except Corrupt as exc:
            if self.rejected == 0:
                _LOG.warning("skipped offset %d of partition %d: %s", offset, number, exc)
            self.rejected += 1

    def _skip(self, job: JobId, where: str, ours: Place) -> None:
        """Count an event of a job in a wrong partition. One line says so for each job."""
        self.rejected += 1
        if job not in self._misplaced and len(self._misplaced) < _MISPLACED_MAX:
            self._misplaced.add(job)
            text = (
                "ignored %s: an event of job %s, which belongs to partition %d. If the number of "
                "partitions of topic %s was changed, end its jobs, and use another prefix of topics"
            )
            _LOG.error(text, where, job, ours.partition, ours.topic)

    def _take_error(self, error: KafkaError, message: Message, holding: _Held | None) -> None:
        """Keep an error until `poll` has returned the events that were read before it."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._clients.has_read = True
            if holding is not None:
                holding.position = max(holding.position, message.offset() or 0)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            _LOG.warning("%s did not poll for too long: %s", self._what, error.str())
        else:
            self._failure = self._said(error)

    def _said(self, error: KafkaError) -> HeadgateError:
        if error.code() == KafkaError._FATAL:  # the only fatal error of a static member
            return self._replaced()
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return Lost(
                f"the log has deleted events that {self._what} had yet to read: {error.str()}"
            )
        return translate_reading(error, f"reading as {self._what}", self._clients.has_read)

    def _replaced(self) -> HeadgateError:
        """Return the error of a member that another one has replaced in its slot.

        Kafka gives the same error to a member that the group has given up, which has lost its name
        by then. Such a member may join again.
        """
        if self._name and self._consumer.memberid() != self._name:
            return Fenced(
                f"the group of masters has removed {self._what}, which did not poll in time"
            )
        self._taken = True
        return self._conflict()

    def _conflict(self) -> Conflict:
        return Conflict(f"another master has joined under {self._what}")

    def _raise_ended(self) -> None:
        """Raise the reason why the log has ended the member's transactions.

        The member was away for too long or has been replaced; the group's next answers show which.
        """
        deadline = Deadline.after(_ANSWER_S_MAX)
        while not self._taken and not deadline.passed:
            self._take_all(deadline.poll_s, 1)
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
