"""Conversion between events and Kafka's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from weakref import WeakMethod

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, Producer

from ..errors import Closed, Corrupt, Unavailable
from ..events import codec
from ..events.codec import KIND_HEADER
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
    key: str,
    record: bytes | None,
    settle: Callable[[KafkaError | None, Message], None],
    headers: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Hand a record to the client, which calls `settle` when the broker has answered.

    The client keeps its callback until then, perhaps for ever. The callback therefore does not keep
    the owner of `settle`, which keeps the client: neither would ever end.

    Raises:
        Unavailable: too many records wait for an answer.
    """
    owner = WeakMethod(settle)

    def report(error: KafkaError | None, message: Message) -> None:
        if (settle := owner()) is not None:
            settle(error, message)

    try:
        producer.produce(
            place.topic,
            record,
            key.encode(),
            partition=place.partition,
            headers=dict(headers),
            on_delivery=report,
        )
    except BufferError as exc:
        raise Unavailable(f"too many records wait for {place} to confirm them") from exc
    producer.poll(0)


def next_messages(consumer: Consumer, limit: int, timeout_s: float, reader: str) -> list[Message]:
    """Wait for one message, and return it with the others that have already arrived.

    Raises:
        Closed: the consumer is closed. The error names its reader.
    """
    try:
        first = consumer.poll(timeout_s)
        if first is None or limit == 1:
            return [] if first is None else [first]
        return [first, *consumer.consume(limit - 1, 0)]
    except RuntimeError as exc:
        raise Closed(f"{reader} is closed") from exc


def job_of(message: Message) -> bytes | None:
    """Return the job that the record's key names, or None if the record has no key."""
    key = message.key()
    return key.encode() if isinstance(key, str) else key


def is_of_kind(message: Message, kind: type) -> bool:
    """Return True if a header names this kind of event; a record of another tool has none."""
    return (KIND_HEADER, kind.__name__.encode()) in (message.headers() or ())


def taken_ms(message: Message) -> int:
    """Return when the broker took a record, or 0 if its topic has the author's time instead."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0


def decoded(message: Message, job: bytes | None) -> Event:
    """Decode the event of a record whose key names `job`.

    Raises:
        Corrupt: the record is not a valid event, or its event is of another job than the key says.
    """
    record = message.value()
    if job is None or record is None:
        raise Corrupt("the record has no key")
    return codec.decode(record, job.decode(errors="replace"))
