"""The event log in memory: for one process, for tests and for simulation.

Behaves like Kafka: records are bytes, jobs share a partition and its offsets, markers take an
offset, and readers stall at the first record of an open step. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Condition
from types import MappingProxyType

from ..clock import SYSTEM_CLOCK, Clock, Deadline
from ..errors import Closed, Corrupt
from ..events import codec
from ..events.types import Event, Recorded, ResultRegistered
from ..ids import JobId
from ..log import Holder, MasterGroup, Placed, Rejected, is_state_of, partition_of
from .group import MemoryGroup, MemoryMembership
from .partitions import (
    LogEntry,
    MemoryReader,
    MemoryTransactions,
    Partition,
    decoded,
    event_of,
)


@dataclass(frozen=True, slots=True)
class _Receipt:
    at: int

    def offset(self, deadline: Deadline) -> int:
        return self.at


class MemoryEventLog:
    """An event log that the threads of one process share."""

    def __init__(
        self,
        partitions: int = 4,
        clock: Clock = SYSTEM_CLOCK,
        retention_ms: int = -1,
        identity: str = "",
    ) -> None:
        self._identity = identity
        self._retention_ms = retention_ms
        self._clock = clock
        self._beats: dict[JobId, int] = {}
        self.partitions = [Partition(number) for number in range(partitions)]
        self._holders: dict[JobId, MemoryDecisions] = {}
        self._changed = Condition()
        self._group = MemoryGroup(self.partitions, self._changed)
        self._closed = False

    def prepare(self, deadline: Deadline) -> None:
        """Do nothing: a log in memory is always ready."""

    def retention_ms(self, deadline: Deadline) -> int:
        self._check_open()
        return self._retention_ms

    def identity(self, deadline: Deadline) -> str:
        self._check_open()
        return self._identity

    def append(self, fact: Event) -> _Receipt:
        return _Receipt(self.put_record(fact.job, fact.job, codec.encode(fact)))

    def follow(self, job: JobId, position: int | None = 0) -> MemoryFollower:
        partition = self._partition(job)
        start = partition.first if position is None else position
        return MemoryFollower(job, partition, self._changed, start)

    def written(self, job: JobId) -> int:
        with self._changed:
            return len(self._partition(job).entries)

    def open_decisions(self, job: JobId) -> MemoryDecisions:
        self._check_open()
        with self._changed:
            if (former := self._holders.get(job)) is not None:
                former.fence()
            holder = MemoryDecisions(job, self.partitions, self._changed)
            self._holders[job] = holder
            return holder

    def join(self, slot: str, holder: Holder) -> MemoryMembership:
        self._check_open()
        return self._group.join(slot, holder)

    def group(self, deadline: Deadline) -> MasterGroup:
        self._check_open()
        with self._changed:
            return self._group.described()

    def evict(self, slot: str) -> None:
        """Give a member's partitions to others, as a group does after missed heartbeats."""
        self._group.evict(slot)

    def end_step(self, slot: str) -> None:
        """Drop a member's open step, and fence the member, as a broker does after a timeout."""
        self._group.end_step(slot)

    def partition(self, job: JobId) -> int:
        return self._partition(job).number

    def oldest(self, job: JobId) -> int:
        with self._changed:
            return self._partition(job).first

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        self._check_open()
        for partition in self.partitions:
            with self._changed:
                entries = partition.entries[partition.first : partition.stable_end]
            for offset, entry in enumerate(entries, partition.first):
                if not entry.readable or offset < known.get(JobId(entry.job or ""), 0):
                    continue
                if (event := decoded(entry, offset)) is not None:
                    yield Recorded(offset, event, entry.at_ms)

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> MemoryTail:
        self._check_open()
        return MemoryTail(self.partitions, self._changed, known)

    def read_rejected(self, deadline: Deadline) -> Iterator[Rejected]:
        """Yield the records that are not valid events."""
        self._check_open()
        for partition in self.partitions:
            for offset, entry in enumerate(partition.entries[partition.first :], partition.first):
                try:
                    if entry.readable:
                        event_of(entry)
                except Corrupt as exc:
                    yield Rejected(partition.number, offset, str(exc))

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        self._check_open()
        with self._changed:
            stored = {key: body for p in self.partitions for key, body in p.state.items()}
        return {key: body for key, body in stored.items() if is_state_of(job, key)}

    def beat(self, job: JobId) -> _Receipt:
        self._check_open()
        with self._changed:
            self._beats[job] = self._clock.now_ms()
        return _Receipt(0)

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        self._check_open()
        with self._changed:
            return {name: at for name, at in self._beats.items() if job in (None, name)}

    def expire(self, job: JobId, before: int) -> None:
        """Forget the records before an offset in a job's partition, as retention does."""
        with self._changed:
            partition = self._partition(job)
            partition.first = max(partition.first, min(before, partition.stable_end))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def put_record(self, key: JobId, header: str | None, record: bytes) -> int:
        with self._changed:
            offset = self._partition(key).put(LogEntry(header, record, at_ms=self._clock.now_ms()))
            self._changed.notify_all()
            return offset

    def _partition(self, job: JobId) -> Partition:
        self._check_open()
        return self.partitions[partition_of(job, len(self.partitions))]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the event log is closed")


class MemoryFollower(MemoryReader):
    """Reads one job's committed events from a position on."""

    def __init__(self, job: JobId, partition: Partition, changed: Condition, position: int) -> None:
        self._job = job
        self._partition = partition
        self._changed = changed
        self._position = position

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        events: list[Recorded] = []
        with self._changed:
            self._changed.wait_for(lambda: self._read(limit, events), timeout_s)
        return events

    def position(self) -> int:
        return self._position

    def end(self) -> int:
        with self._changed:
            return self._partition.stable_end

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _read(self, limit: int, events: list[Recorded]) -> bool:
        start, job = self._position, (None, self._job)
        more, self._position = self.read_on(
            self._partition, start, limit, lambda entry: entry.job in job
        )
        events += more
        return self._position > start


class MemoryTail(MemoryReader):
    """Reads the committed events of all jobs."""

    def __init__(
        self, partitions: list[Partition], changed: Condition, known: Mapping[JobId, int]
    ) -> None:
        self._partitions = partitions
        self._changed = changed
        self._known = known
        self._positions = {partition.number: partition.first for partition in partitions}

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        events: list[Placed] = []
        with self._changed:
            self._changed.wait_for(lambda: self._read(limit, events), timeout_s)
        return events

    def positions(self) -> Mapping[int, int]:
        return dict(self._positions)

    def offsets(self) -> Mapping[int, range]:
        with self._changed:
            return {each.number: range(each.first, each.stable_end) for each in self._partitions}

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _read(self, limit: int, events: list[Placed]) -> bool:
        before = sum(self._positions.values())
        for partition in self._partitions:
            number, left = partition.number, limit - len(events)
            more, self._positions[number] = self.read_on(partition, self._positions[number], left)
            events += (Placed(number, recorded) for recorded in more if self._is_wanted(recorded))
        return sum(self._positions.values()) > before

    def _is_wanted(self, recorded: Recorded) -> bool:
        event = recorded.event
        is_new = recorded.offset >= self._known.get(event.job, 0)
        return is_new or isinstance(event.body, ResultRegistered)


class MemoryDecisions(MemoryTransactions):
    """The steps of one job's master."""

    def __init__(self, job: JobId, partitions: list[Partition], changed: Condition) -> None:
        super().__init__(partitions, changed, f"job {job}")
        self._partition = partitions[partition_of(job, len(partitions))]

    def commit(self, position: int) -> None:
        with self._changed:
            self._commit()
