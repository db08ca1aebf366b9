"""The events of all jobs, read by one consumer however many partitions there are."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, TopicPartition

from ..clock import Deadline
from ..errors import Corrupt, HeadgateError, Lost
from ..events.types import Recorded, ResultRegistered
from ..ids import JobId
from ..log import Placed
from .clients import KafkaClients
from .errors import translate_reading
from .records import Place, decoded, is_of_kind, job_of, next_messages, taken_ms

_LOG = logging.getLogger(__name__)


class KafkaTail:
    def __init__(self, clients: KafkaClients, known: Mapping[JobId, int]) -> None:
        settings = clients.settings
        self.rejected = 0
        self._clients = clients
        self._known = {job.encode(): position for job, position in known.items()}
        self._places = clients.places(settings.events_topic, None)
        offsets = clients.offsets(self._places)
        self._positions = {
            place.partition: there.start for place, there in zip(self._places, offsets, strict=True)
        }
        self._failure: HeadgateError | None = None
        self._consumer = clients.consumer(settings.readers_group)
        topic, starts = settings.events_topic, self._positions.items()
        with clients.translated(f"following {topic}"):
            self._consumer.assign([TopicPartition(topic, number, at) for number, at in starts])

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        deadline, events, passed = Deadline.after(timeout_s), list[Placed](), self._positions.copy()
        while not events and self._positions == passed:
            self._raise_failure()
            reader = "the tail of the log"
            for message in next_messages(self._consumer, limit, deadline.left_s, reader):
                self._take(message, events)
            if deadline.passed:
                break
        if not events:
            self._raise_failure()
        return events

    def positions(self) -> Mapping[int, int]:
        return self._positions.copy()

    def offsets(self) -> Mapping[int, range]:
        numbers = [place.partition for place in self._places]
        return dict(zip(numbers, self._clients.offsets(self._places), strict=True))

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message, events: list[Placed]) -> None:
        number, offset = message.partition() or 0, message.offset() or 0
        if (error := message.error()) is not None:
            self._take_error(error, number, offset)
            return
        self._positions[number], self._clients.has_read = offset + 1, True
        job = job_of(message)
        is_known = job is not None and offset < self._known.get(job, 0)
        if is_known and not is_of_kind(message, ResultRegistered):
            return
        try:
            event = decoded(message, job)
            events.append(Placed(number, Recorded(offset, event, taken_ms(message))))
        except Corrupt as exc:
            if self.rejected == 0:
                _LOG.warning("skipped offset %d of partition %d: %s", offset, number, exc)
            self.rejected += 1

    def _take_error(self, error: KafkaError, number: int, offset: int) -> None:
        """Keep an error until `poll` has returned the events that were read before it."""
        place = Place(self._clients.settings.events_topic, number)
        if error.code() == KafkaError._PARTITION_EOF:
            self._positions[number] = max(self._positions[number], offset)
            self._clients.has_read = True
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            position = self._positions[number]
            self._failure = Lost(f"{place} no longer holds offset {position}", (position,))
        elif not isinstance(self._failure, Lost):
            doing, has_read = f"following {place}", self._clients.has_read
            self._failure = translate_reading(error, doing, has_read)

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            if not isinstance(failure, Lost):  # the client retries all other errors by itself
                self._failure = None
            raise failure
