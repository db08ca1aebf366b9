"""Steps of decisions on Kafka. Each step is one transaction.

Guarantees that a reader sees nothing of a step that did not commit, and that a fenced holder gets
`Fenced`. So does a holder whose step the broker ended because it was open for too long. A holder
that is closed leaves neither threads nor connections, whatever has become of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from threading import Thread
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from ..clock import PACE, Deadline
from ..errors import Closed, Fenced, HeadgateError, OutcomeUnknown, Unavailable
from ..events import codec
from ..events.types import Event
from ..ids import JobId
from ..log import StateRecord, job_of
from .clients import REQUEST_S_MIN, KafkaClients
from .errors import translate
from .records import Place, produce

_CLOSE_S_MAX = 5.0
_STEP_S_MAX = 10.0  # the broker ends a step that was open for this long


# Errors of a group's coordinator for a process that is no longer a member.
_LEFT_BEHIND = frozenset(
    ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "STALE_MEMBER_EPOCH"]
)
_TAKEN_BACK = frozenset(["_PURGE_QUEUE", "_PURGE_INFLIGHT"])
_TOO_LARGE = frozenset(["MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"])


class KafkaTransactions:
    """The steps of one holder of a transactional id."""

    def __init__(self, make: Callable[[], Producer], clients: KafkaClients, what: str) -> None:
        self._clients = clients
        self._what = what
        self._begun = False
        self._aborting = False
        self._client: Producer | None = make()
        self._ended: tuple[type[HeadgateError], str] | None = None  # the producer, by this error
        self._refusal: KafkaError | None = None  # the error of the step's first refused record
        try:
            with clients.translated(f"opening the decisions of {what}"):
                deadline = self._deadline()
                self._persist(lambda left_s: self._producer.init_transactions(left_s), deadline)
        except BaseException:
            self._client = None
            raise

    @property
    def _producer(self) -> Producer:
        """Return the client. No frame of ours holds it: an error that somebody keeps would too."""
        if self._client is None:
            raise Closed(f"the steps of {self._what} are closed")
        return self._client

    def begin(self) -> None:
        assert not self._begun, "the former step is still open"
        if self._ended is not None:
            kind, text = self._ended
            raise kind(text)
        self._finish_abort()
        with self._translated("begin"):
            self._producer.begin_transaction()
        self._begun, self._refusal = True, None

    def write(self, decision: Event) -> None:
        self._write(decision)

    def _write(self, decision: Event) -> tuple[Place, bytes]:
        """Add a decision, and return its place and its record."""
        place, record = self._clients.place(decision.job), codec.encode(decision)
        self._send("write", place, decision.job, record, codec.headers(decision))
        return place, record

    def keep(self, record: StateRecord) -> None:
        topic = self._clients.settings.state_topic
        (place,) = self._clients.places(topic, job_of(record.key))
        self._send("keep", place, record.key, record.body, {})

    def _send(
        self, doing: str, place: Place, key: str, body: bytes | None, headers: dict[str, bytes]
    ) -> None:
        assert self._begun, "no step is open"
        try:
            produce(self._producer, place, key, body, self._settle, headers)
        except KafkaException as exc:
            raise self._dropped(exc, doing) from exc

    def abort(self) -> None:
        self._aborting = self._aborting or self._begun
        self._begun = False
        self._finish_abort()

    def close(self) -> None:
        if self._begun:
            self._begun = False
            with suppress(KafkaException):
                self._producer.abort_transaction(_CLOSE_S_MAX)
        self._client = None  # the client ends with the last reference

    def _commit(self, offsets: list[TopicPartition], group: Any) -> None:
        """Commit the step together with `offsets`.

        `group` is the metadata of the consumer that has read the facts: the coordinator refuses a
        consumer that is no longer a member.
        """
        assert self._begun, "no step is open"
        deadline = self._deadline()
        try:
            self._persist(lambda left_s: self._hand_over(offsets, group, left_s), deadline)
        except KafkaException as exc:
            raise self._dropped(exc, "commit") from exc
        self._end(deadline)

    def _hand_over(self, offsets: list[TopicPartition], group: Any, left_s: float) -> None:
        """Add the offsets to the step in a thread of its own, and wait for it a limited time.

        While the group's coordinator is away, the client ignores its own time limit and may never
        return from this call (librdkafka 5456, 5511). Then the thread is abandoned. It keeps the
        producer alive, because closing the producer would wait for ever too.
        """
        answer: Future[None] = Future()
        asked = answer, self._producer, offsets, group, left_s
        Thread(target=_answer, args=asked, daemon=True).start()
        del asked
        try:
            answer.result(min(left_s, _STEP_S_MAX) + REQUEST_S_MIN)
        except TimeoutError:
            raise self._end_with(
                Unavailable(
                    f"the transaction coordinator of {self._what} did not answer during a step"
                )
            ) from None

    def _end(self, deadline: Deadline) -> None:
        try:
            self._persist(lambda left_s: self._producer.commit_transaction(left_s), deadline)
            self._begun = False
        except KafkaException as exc:
            error = exc.args[0]
            if error.fatal() or error.txn_requires_abort():
                raise self._dropped(exc, "commit") from exc
            self._begun = False  # only opening the decisions again settles the step
            raise OutcomeUnknown(f"no answer to the commit of a step of {self._what}") from exc

    def _settle(self, error: KafkaError | None, message: Message) -> None:
        """Take the client's delivery report, which comes before the abort of the step has ended. An
        abort also reports the records that it takes back: these were not refused."""
        if error is not None and error.name() not in _TAKEN_BACK:
            self._refusal = self._refusal or error

    def _dropped(self, exc: KafkaException, doing: str) -> HeadgateError:
        """Abort the step after an error, and return the error to raise.

        The client's calls may only report that an earlier error failed the step, so the error of
        the first refused record comes first. An abort waits for the reports of all records. The
        step of a fenced producer has ended already, and its abort could get a new epoch, which is
        the successor's. Access rights may change at any time, so every refusal but one for size may
        be retried.
        """
        error = exc.args[0]
        if _is_fatal(error):
            return self._over(error, doing)
        if self._refusal is None:
            self._producer.poll(PACE.pause_s)  # the report follows the call that fails by it
        if not isinstance(self._translate(self._refusal or error, doing), Fenced):
            with suppress(Unavailable):  # then the next step begins with the abort
                self.abort()
        refusal = self._refusal or error
        meaning = self._translate(refusal, doing)
        if isinstance(meaning, Fenced):
            return self._end_with(meaning)
        if error.name() in _LEFT_BEHIND:
            return Fenced(f"the group went on without {self._what}: {error.str()}")
        return meaning if refusal.name() in _TOO_LARGE else Unavailable(f"{meaning}: dropped")

    def _over(self, error: KafkaError, doing: str) -> HeadgateError:
        """Give up the producer, and return the error to raise.

        Another producer may go on, unless this one was fenced.
        """
        self._begun = False
        meaning = self._translate(self._cause(error), doing)
        if isinstance(meaning, Fenced):
            return self._end_with(meaning)
        return self._end_with(Unavailable(f"{meaning}: open the decisions again"))

    def _end_with(self, error: HeadgateError) -> HeadgateError:
        # an error that is kept keeps the frames that it went through, and all that they know
        self._begun, self._ended = False, (type(error), str(error))
        return error

    def _finish_abort(self) -> None:
        """Abort the step, or finish an abort that timed out before."""
        if self._aborting:
            with self._translated("abort"):
                deadline = self._deadline()
                self._persist(lambda left_s: self._producer.abort_transaction(left_s), deadline)
            self._aborting = False

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the error that ended the producer: some calls only report that there was one."""
        try:
            self._producer.begin_transaction()
        except KafkaException as exc:
            error = exc.args[0]
        return error

    def _persist(self, call: Callable[[float], None], deadline: Deadline) -> None:
        """Repeat a call until the deadline as long as its error is retriable."""
        while True:
            try:
                return call(max(REQUEST_S_MIN, deadline.left_s))
            except KafkaException as exc:
                if not exc.args[0].retriable() or deadline.passed:
                    raise
                self._producer.poll(PACE.pause_s)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clients.settings.request_timeout_s)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as exc:
            error, fatal = exc.args[0], _is_fatal(exc.args[0])
            raise (self._over if fatal else self._translate)(error, doing) from exc

    def _translate(self, error: KafkaError, doing: str) -> HeadgateError:
        return translate(error, f"{doing} of a step of {self._what}")


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL


def _answer(
    answer: Future[None],
    producer: Producer,
    offsets: list[TopicPartition],
    group: Any,
    left_s: float,
) -> None:
    try:
        producer.send_offsets_to_transaction(offsets, group, left_s)
    except BaseException as exc:
        answer.set_exception(exc.with_traceback(None))  # its frame, this one, holds the client
    else:
        answer.set_result(None)


class KafkaDecisions(KafkaTransactions):
    """The steps of one job's master."""

    def __init__(self, job: JobId, clients: KafkaClients) -> None:
        name = clients.settings.group(job)
        with closing(clients.consumer(name)) as consumer:
            self._group = consumer.consumer_group_metadata()
        self._place = clients.place(job)
        super().__init__(lambda: clients.decider(name), clients, f"job {job}")

    def commit(self, position: int) -> None:
        place = TopicPartition(self._place.topic, self._place.partition, position)
        self._commit([place], self._group)
