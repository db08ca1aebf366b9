"""State records and drivers' heartbeats: topics that are read from their beginning, by key.

Assumes that the broker compacts no record at or after an open step. A reader of committed records
therefore sees the state as it was after one step, up to the offset at which it stalls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from threading import Lock

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ..clock import SYSTEM_CLOCK, Deadline
from ..errors import Lost, Unavailable
from ..ids import JobId, is_name
from ..log import is_coverage, is_state_of, job_of, partition_of
from .clients import KafkaClients
from .errors import translate
from .records import Place
from .settings import BEATS_MS

_LOG = logging.getLogger(__name__)
_SCAN_LIMIT = 500


def read_state(
    clients: KafkaClients, place: Place, job: JobId | None, deadline: Deadline, end: int = 0
) -> dict[str, bytes]:
    """Return the state records of one job, or of all jobs if `job` is None, in one partition.

    Read up to the oldest open step. If that lies before `end`, wait until the step has ended.
    """
    state: dict[str, bytes] = {}
    for key, message in _scan(clients, place, deadline, end):
        if not is_state_of(job, key):
            continue
        state.pop(key, None)
        if (body := message.value()) is not None:
            state[key] = body
    return state


class Beats:
    """Reads every heartbeat once, and remembers when the broker took the last one of each job."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._heard: dict[Place, dict[JobId, tuple[int, float]]] = {}  # and the time of reading
        self._positions: dict[Place, int] = {}
        self._lock = Lock()

    def read(self, place: Place, deadline: Deadline) -> dict[JobId, int]:
        """Return when each job of a partition was last heard, unless that heartbeat is too old."""
        if not self._lock.acquire(timeout=deadline.left_s):
            raise Unavailable(f"{place} was not read in time")
        try:
            try:
                self._read_on(place, deadline)
            except Lost:  # the topic was deleted and made again
                del self._heard[place], self._positions[place]
                self._read_on(place, deadline)
            oldest_s = SYSTEM_CLOCK.monotonic_s() - BEATS_MS / 1000
            heard = self._heard[place]
            self._heard[place] = {job: beat for job, beat in heard.items() if beat[1] >= oldest_s}
            return {job: at_ms for job, (at_ms, _) in self._heard[place].items()}
        finally:
            self._lock.release()

    def _read_on(self, place: Place, deadline: Deadline) -> None:
        heard, start = self._heard.setdefault(place, {}), self._positions.setdefault(place, 0)
        for key, message in _scan(self._clients, place, deadline, start=start):
            heard[JobId(key)] = message.timestamp()[1], SYSTEM_CLOCK.monotonic_s()
            self._positions[place] = (message.offset() or 0) + 1


def _scan(
    clients: KafkaClients, place: Place, deadline: Deadline, end: int = 0, start: int = 0
) -> Iterator[tuple[str, Message]]:
    start, foreign = max(start, clients.first_offset(place)), False
    with closing(clients.consumer(clients.settings.readers_group)) as consumer:
        with clients.translated(f"reading {place}"):
            consumer.assign([TopicPartition(place.topic, place.partition, start)])
        for message in _to_end(consumer, place, deadline, end):
            if (key := _key(message, place, clients.partitions())) is not None:
                yield key, message
            elif not foreign:
                foreign = True
                _LOG.warning(
                    "%s has a record whose key names no job, at offset %s: skipped",
                    place,
                    message.offset(),
                )


def _to_end(consumer: Consumer, place: Place, deadline: Deadline, end: int) -> Iterator[Message]:
    while not deadline.passed:
        first = consumer.poll(deadline.poll_s)
        if first is None:
            continue
        deadline.progress()
        for message in (first, *consumer.consume(_SCAN_LIMIT, 0)):  # does not wait for a second one
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise translate(error, f"reading {place}")
            elif (message.offset() or 0) >= end:
                return
    raise Unavailable(f"{place} was not read to its end in time")


def _key(message: Message, place: Place, partitions: int) -> str | None:
    """Return the key of a record, or None for a foreign record.

    The key of a foreign record names neither a job nor a coverage, or one of another partition.
    """
    key = message.key()
    try:
        text = key.decode() if isinstance(key, bytes) else key or ""
    except UnicodeDecodeError:
        return None
    owner = job_of(text)
    is_ours = is_name(owner) or is_coverage(owner)
    return text if is_ours and partition_of(owner, partitions) == place.partition else None
