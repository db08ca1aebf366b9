"""A job's decisions on Kafka: every step is one transaction.

Guarantees that a step which did not commit leaves nothing that a reader sees, and that a fenced
holder is told so. A step that the broker ended because it was open for too long looks the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from . import codec
from .clock import Deadline
from .errors import HeadgateError, Invalid, OutcomeUnknown, Unavailable
from .events import Event
from .ids import JobId
from .kafka_clients import KafkaClients, Place, produce
from .kafka_errors import translate

_CLOSE_S_MAX = 5.0
_PAUSE_S = 0.05


class KafkaDecisions:
    """The steps of one job's master."""

    def __init__(self, job: JobId, place: Place, clients: KafkaClients) -> None:
        self._job = job
        self._place = place
        self._clients = clients
        self._begun = False
        self._aborting = False
        self._producer = clients.decider(job)
        with closing(clients.consumer(clients.settings.group(job))) as consumer:
            self._group = consumer.consumer_group_metadata()
        with clients.translated(f"opening the decisions of job {job}"):
            self._persist(self._producer.init_transactions, self._deadline())

    def begin(self) -> None:
        assert not self._begun, "the former step is still open"
        self._finish_abort()
        with self._translated("begin"):
            self._producer.begin_transaction()
        self._begun = True

    def write(self, decision: Event) -> None:
        assert self._begun, "no step is open"
        record = codec.encode(decision)
        try:
            produce(self._producer, self._place, decision, record, None)
        except KafkaException as exc:
            raise self._dropped(exc, "write") from exc

    def commit(self, position: int) -> None:
        assert self._begun, "no step is open"
        deadline = self._deadline()
        offsets = [TopicPartition(self._place.topic, self._place.partition, position)]
        try:
            self._persist(
                lambda left_s: self._producer.send_offsets_to_transaction(
                    offsets, self._group, left_s
                ),
                deadline,
            )
        except KafkaException as exc:
            raise self._dropped(exc, "commit") from exc
        self._commit(deadline)

    def abort(self) -> None:
        self._aborting = self._aborting or self._begun
        self._begun = False
        self._finish_abort()

    def close(self) -> None:
        if self._begun:
            self._begun = False
            with suppress(KafkaException):
                self._producer.abort_transaction(_CLOSE_S_MAX)

    def _commit(self, deadline: Deadline) -> None:
        try:
            self._persist(self._producer.commit_transaction, deadline)
            self._begun = False
        except KafkaException as exc:
            error = exc.args[0]
            if error.fatal() or error.txn_requires_abort():
                raise self._dropped(exc, "commit") from exc
            self._begun = False  # only opening the decisions again settles the step
            raise OutcomeUnknown(f"no answer to the commit of a step of job {self._job}") from exc

    def _dropped(self, exc: KafkaException, doing: str) -> HeadgateError:
        """End the step that an error has spoiled; a fenced producer's is ended already."""
        error = exc.args[0]
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._begun = False
            return self._translate(self._cause(error), doing)
        with suppress(Unavailable):  # then the next step begins with it
            self.abort()
        meaning = self._translate(error, doing)
        return meaning if isinstance(meaning, Invalid) else Unavailable(f"{meaning}: dropped")

    def _finish_abort(self) -> None:
        """Drop the step; where that timed out before, it goes on."""
        if self._aborting:
            with self._translated("abort"):
                self._persist(self._producer.abort_transaction, self._deadline())
            self._aborting = False

    def _cause(self, error: KafkaError) -> KafkaError:
        """What made the producer useless: some calls only tell that something did."""
        try:
            self._producer.begin_transaction()
        except KafkaException as exc:
            error = exc.args[0]
        return error

    def _persist(self, call: Callable[[float], None], deadline: Deadline) -> None:
        """Call again what may be called again, until the deadline."""
        while True:
            try:
                return call(max(_PAUSE_S, deadline.left_s))
            except KafkaException as exc:
                if not exc.args[0].retriable() or deadline.passed:
                    raise
                self._producer.poll(_PAUSE_S)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clients.settings.request_timeout_s)

    def _translated(self, doing: str) -> AbstractContextManager[None]:
        return self._clients.translated(f"{doing} of a step of job {self._job}")

    def _translate(self, error: KafkaError, doing: str) -> HeadgateError:
        return translate(error, f"{doing} of a step of job {self._job}")
