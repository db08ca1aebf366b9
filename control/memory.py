"""The event log in memory: for one process, for tests and for simulation.

Keeps what Kafka keeps: records as bytes, jobs that share a partition and its offsets, markers that
take an offset, readers that stall at the first record of an open step. Assumes nothing survives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from threading import Condition

from . import codec
from .clock import Deadline
from .errors import Closed, Corrupt, Fenced, Lost
from .events import Event, Recorded
from .ids import JobId
from .log import partition_of

_LOG = logging.getLogger(__name__)


class _Fate(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class _Step:
    first: int
    fate: _Fate = _Fate.OPEN


@dataclass(frozen=True, slots=True)
class _Entry:
    """One offset: a record, or with `record` None the marker that ends a step."""

    job: str | None
    record: bytes | None
    step: _Step | None = None

    @property
    def readable(self) -> bool:
        return self.record is not None and (self.step is None or self.step.fate is _Fate.COMMITTED)


@dataclass(slots=True)
class _Partition:
    number: int
    first: int = 0
    entries: list[_Entry] = field(default_factory=list)
    open_steps: list[_Step] = field(default_factory=list)

    def put(self, entry: _Entry) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    @property
    def stable_end(self) -> int:
        """Where read_committed readers stall: the first record of the oldest open step."""
        return min((step.first for step in self.open_steps), default=len(self.entries))

    def check(self, position: int) -> None:
        if not self.first <= position <= len(self.entries):
            raise Lost(
                f"partition {self.number} of the log holds offsets {self.first} to "
                f"{len(self.entries)}, not {position}",
                (position,),
            )

    def end_step(self, step: _Step, fate: _Fate) -> None:
        step.fate = fate
        self.open_steps.remove(step)
        self.put(_Entry(None, None))


@dataclass(frozen=True, slots=True)
class _Receipt:
    at: int

    def offset(self, deadline: Deadline) -> int:
        return self.at


class MemoryEventLog:
    """An event log for the threads of one process."""

    def __init__(self, partitions: int = 4) -> None:
        self._partitions = [_Partition(number) for number in range(partitions)]
        self._holders: dict[JobId, MemoryDecisions] = {}
        self._changed = Condition()
        self._closed = False

    def prepare(self, deadline: Deadline) -> None:
        """Nothing to make ready."""

    def append(self, fact: Event) -> _Receipt:
        return _Receipt(self._put(fact.job, fact.job, codec.encode(fact)))

    def follow(self, job: JobId, position: int | None = 0) -> MemoryFollower:
        self._check_open()
        partition = self._partition(job)
        start = partition.first if position is None else position
        return MemoryFollower(job, partition, self._changed, start)

    def open_decisions(self, job: JobId) -> MemoryDecisions:
        self._check_open()
        with self._changed:
            if (former := self._holders.get(job)) is not None:
                former.fence()
            holder = MemoryDecisions(job, self._partition(job), self._changed)
            self._holders[job] = holder
            return holder

    def read_all(self, deadline: Deadline) -> Iterator[Recorded]:
        self._check_open()
        for partition in self._partitions:
            with self._changed:
                entries = partition.entries[partition.first : partition.stable_end]
            for offset, entry in enumerate(entries, partition.first):
                if entry.readable and (event := _decoded(entry, offset)) is not None:
                    yield Recorded(offset, event)

    def expire(self, job: JobId, before: int) -> None:
        """Forget the head of the partition that holds a job, as retention does."""
        with self._changed:
            partition = self._partition(job)
            partition.first = max(partition.first, min(before, partition.stable_end))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, key: JobId, header: str | None, record: bytes) -> int:
        self._check_open()
        with self._changed:
            offset = self._partition(key).put(_Entry(header, record))
            self._changed.notify_all()
            return offset

    def _partition(self, job: JobId) -> _Partition:
        return self._partitions[partition_of(job, len(self._partitions))]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the event log is closed")


class MemoryFollower:
    """Reads one job's committed events from a position on."""

    def __init__(
        self, job: JobId, partition: _Partition, changed: Condition, position: int
    ) -> None:
        self.rejected = 0
        self._job = job
        self._partition = partition
        self._changed = changed
        self._position = position

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        found: list[Recorded] = []
        with self._changed:
            self._changed.wait_for(lambda: self._read(limit, found), timeout_s)
        return found

    def position(self) -> int:
        return self._position

    def end(self) -> int:
        with self._changed:
            return self._partition.stable_end

    def close(self) -> None:
        """Nothing to give back."""

    def _read(self, limit: int, found: list[Recorded]) -> bool:
        self._partition.check(self._position)
        start, entries = self._position, self._partition.entries
        while self._position < self._partition.stable_end and len(found) < limit:
            offset, self._position = self._position, self._position + 1
            self._take(offset, entries[offset], found)
        return self._position > start

    def _take(self, offset: int, entry: _Entry, found: list[Recorded]) -> None:
        if not entry.readable or entry.job not in (None, self._job):
            return
        if (event := _decoded(entry, offset)) is None:
            self.rejected += 1
        else:
            found.append(Recorded(offset, event))


class MemoryDecisions:
    """The steps of one job's master."""

    def __init__(self, job: JobId, partition: _Partition, changed: Condition) -> None:
        self._job = job
        self._partition = partition
        self._changed = changed
        self._fenced = False
        self._begun = False
        self._step: _Step | None = None

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
            if self._step is None:
                self._step = _Step(len(self._partition.entries))
                self._partition.open_steps.append(self._step)
            self._partition.put(_Entry(decision.job, record, self._step))

    def commit(self, position: int) -> None:
        with self._changed:
            self._check_fence()
            assert self._begun, "no step is open"
            self._end(_Fate.COMMITTED)

    def abort(self) -> None:
        with self._changed:
            self._check_fence()
            self._end(_Fate.ABORTED)

    def close(self) -> None:
        with self._changed:
            self._end(_Fate.ABORTED)

    def fence(self) -> None:
        """A successor has come: drop the open step; the caller holds the log's lock."""
        self._fenced = True
        self._end(_Fate.ABORTED)

    def _end(self, fate: _Fate) -> None:
        self._begun = False
        if self._step is not None:
            self._partition.end_step(self._step, fate)
            self._step = None
        self._changed.notify_all()

    def _check_fence(self) -> None:
        if self._fenced:
            raise Fenced(f"somebody else decides for job {self._job} now")


def _decoded(entry: _Entry, offset: int) -> Event | None:
    try:
        if entry.job is None or entry.record is None:
            raise Corrupt("record has no headers")
        event = codec.decode(entry.record)
        if event.job != entry.job:
            raise Corrupt(f"record of {event.job} has the headers of {entry.job}")
        return event
    except Corrupt as exc:
        _LOG.warning("skipped offset %d: %s", offset, exc)
        return None
