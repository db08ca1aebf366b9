"""The parts of the event log in memory: partitions, their records, and steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from threading import Condition

from ..errors import Corrupt, Fenced, Lost
from ..events import codec
from ..events.types import Event, Recorded
from ..log import StateRecord, job_of, partition_of

_LOG = logging.getLogger(__name__)

_decode = lru_cache(4096)(codec.decode)  # several readers decode the same records


class Fate(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Step:
    first: int
    fate: Fate = Fate.OPEN


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The content of one offset: a record, or the marker that ends a step if `record` is None."""

    job: str | None
    record: bytes | None
    step: Step | None = None
    at_ms: int = 0

    @property
    def readable(self) -> bool:
        return self.record is not None and (self.step is None or self.step.fate is Fate.COMMITTED)


@dataclass(slots=True)
class Partition:
    number: int
    first: int = 0
    entries: list[LogEntry] = field(default_factory=list)
    open_steps: list[Step] = field(default_factory=list)
    state: dict[str, bytes] = field(default_factory=dict)

    def put(self, entry: LogEntry) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    @property
    def stable_end(self) -> int:
        """Return where committed readers stall: at the first record of the oldest open step."""
        return min((step.first for step in self.open_steps), default=len(self.entries))

    def check(self, position: int) -> None:
        if not self.first <= position <= len(self.entries):
            raise Lost(
                f"partition {self.number} of the log holds offsets {self.first} to "
                f"{len(self.entries)}, not {position}",
                (position,),
            )

    def keep(self, record: StateRecord) -> None:
        self.state.pop(record.key, None)
        if record.body is not None:
            self.state[record.key] = record.body

    def end_step(self, step: Step, fate: Fate) -> None:
        step.fate = fate
        self.open_steps.remove(step)
        self.put(LogEntry(None, None))


class MemoryReader:
    rejected = 0
    """The records so far that are no events."""

    def read_on(
        self,
        partition: Partition,
        at: int,
        limit: int,
        wants: Callable[[LogEntry], bool] = lambda entry: True,
    ) -> tuple[list[Recorded], int]:
        """Return the next events of a partition, and the offset after them."""
        partition.check(at)
        events: list[Recorded] = []
        while at < partition.stable_end and len(events) < limit:
            entry, offset, at = partition.entries[at], at, at + 1
            if not entry.readable or not wants(entry):
                continue
            if (event := decoded(entry, offset)) is None:
                self.rejected += 1
            else:
                events.append(Recorded(offset, event, entry.at_ms))
        return events, at


class MemoryTransactions:
    """Writes steps over the partitions. Callers of `fence` hold the log's lock."""

    def __init__(self, partitions: list[Partition], changed: Condition, what: str) -> None:
        self._partitions = partitions
        self._changed = changed
        self._what = what
        self._begun = False
        self._steps: dict[int, Step] = {}
        self._kept: list[StateRecord] = []
        self.fenced = False

    def begin(self) -> None:
        with self._changed:
            self._check_fence()
            assert not self._begun, "the former step is still open"
            self._begun = True

    def write(self, decision: Event) -> None:
        record = codec.encode(decision)
        with self._changed:
            self._check_fence()
            assert self._begun, "no step is open"
            number = partition_of(decision.job, len(self._partitions))
            partition = self._partitions[number]
            if number not in self._steps:
                self._steps[number] = Step(len(partition.entries))
                partition.open_steps.append(self._steps[number])
            partition.put(LogEntry(decision.job, record, self._steps[number]))

    def keep(self, record: StateRecord) -> None:
        with self._changed:
            self._check_fence()
            assert self._begun, "no step is open"
            self._kept.append(record)

    def abort(self) -> None:
        with self._changed:
            self._check_fence()
            self._end(Fate.ABORTED)

    def close(self) -> None:
        with self._changed:
            self._end(Fate.ABORTED)

    def fence(self) -> None:
        """Drop the open step, and refuse all later ones."""
        self.fenced = True
        self._end(Fate.ABORTED)

    def _commit(self) -> None:
        self._check_fence()
        assert self._begun, "no step is open"
        for record in self._kept:
            number = partition_of(job_of(record.key), len(self._partitions))
            self._partitions[number].keep(record)
        self._end(Fate.COMMITTED)

    def _end(self, fate: Fate) -> None:
        self._begun = False
        for number, step in self._steps.items():
            self._partitions[number].end_step(step, fate)
        self._steps.clear()
        self._kept.clear()
        self._changed.notify_all()

    def _check_fence(self) -> None:
        if self.fenced:
            raise Fenced(f"another master decides for {self._what} now")


def decoded(entry: LogEntry, offset: int) -> Event | None:
    try:
        return event_of(entry)
    except Corrupt as exc:
        _LOG.warning("skipped offset %d: %s", offset, exc)
        return None


def event_of(entry: LogEntry) -> Event:
    """Decode the event of a record.

    Raises:
        Corrupt: the record is not a valid event.
    """
    if entry.job is None or entry.record is None:
        raise Corrupt("the record has no key")
    return _decode(entry.record, entry.job)
