"""Events as Kafka's records: where they go, and what they are when they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer

from ..errors import Corrupt, Unavailable
from ..events import codec
from ..events.types import Event


@dataclass(frozen=True, slots=True)
class Place:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def produce(
    producer: Producer,
    place: Place,
    event: Event,
    record: bytes,
    settle: Callable[[KafkaError | None, Message], None] | None,
) -> None:
    try:
        producer.produce(
            place.topic,
            record,
            event.job.encode(),
            partition=place.partition,
            headers=dict(codec.headers(event)),
            on_delivery=settle,
        )
    except BufferError as exc:
        raise Unavailable(f"too many events wait for {place} to confirm them") from exc
    producer.poll(0)


def job_of(message: Message) -> bytes | None:
    """The job whose record it is by its key, None for a foreign record."""
    key = message.key()
    return key.encode() if isinstance(key, str) else key


def taken_ms(message: Message) -> int:
    """When the log took a record; 0 where its topic has the time of who wrote it."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0


def decoded(message: Message, job: bytes | None) -> Event:
    """The event of a record with this key.

    Raises:
        Corrupt: it is none, or the one of another job than its key says.
    """
    record = message.value()
    if job is None or record is None:
        raise Corrupt("record has no key")
    event = codec.decode(record)
    if event.job.encode() != job:
        raise Corrupt(f"record of {event.job} has the key of another job")
    return event
