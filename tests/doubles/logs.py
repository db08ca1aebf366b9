"""A log that fails as planned: the n-th call of one operation raises, before or after it worked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headgate.control.clock import Deadline
from headgate.control.errors import HeadgateError, Unavailable
from headgate.control.events.types import Event, Recorded
from headgate.control.ids import JobId
from headgate.control.log import (
    Decisions,
    EventLog,
    Follower,
    Holder,
    Membership,
    Placed,
    Receipt,
    StateRecord,
    Transactions,
)
from headgate.control.snapshots import resume

STEP_EVENTS_MAX = 3  # the most events that a loop under test polls at once
SCANNED = resume._EVENTS_MAX  # the events that a search for a job's former life polls at once


@dataclass(frozen=True)
class Fault:
    """A planned error of the n-th call of an operation, raised before or `after` the call takes
    effect."""

    operation: str
    nth: int
    error: HeadgateError
    after: bool = False


@dataclass
class FaultyLog:
    """A log that delegates to any other log and counts the calls of each operation from 1."""

    inner: EventLog
    fault: Fault | None = None
    calls: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    may_commit: threading.Event = field(default_factory=threading.Event)
    may_open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_open.set()
        self.may_commit.set()

    def meet(self, operation: str) -> Fault | None:
        with self.lock:
            self.calls[operation] += 1
            met = self.fault is not None and self.fault.nth == self.calls[operation]
            return self.fault if met and self.fault and self.fault.operation == operation else None

    def raise_before(self, operation: str) -> None:
        if (fault := self.meet(operation)) is not None:
            raise fault.error

    def prepare(self, deadline: Deadline) -> None:
        self.inner.prepare(deadline)

    def retention_ms(self, deadline: Deadline) -> int:
        return self.inner.retention_ms(deadline)

    def identity(self, deadline: Deadline) -> str:
        return self.inner.identity(deadline)

    def append(self, fact: Event) -> Receipt:
        fault = self.meet("append")
        if fault is None:
            return self.inner.append(fact)
        if isinstance(fault.error, Unavailable):
            raise fault.error
        if fault.after:
            self.inner.append(fact)
        return NoAnswer(fault.error)

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        self.raise_before("follow")
        return FaultyFollower(self.inner.follow(job, position), self)

    def written(self, job: JobId) -> int:
        self.raise_before("end")
        return self.inner.written(job)

    def open_decisions(self, job: JobId) -> Decisions:
        assert self.may_open.wait(5.0)
        self.raise_before("open_decisions")
        return FaultyDecisions(self.inner.open_decisions(job), self)

    def join(self, slot: str, holder: Holder) -> Membership:
        self.raise_before("join")
        return FaultyMembership(self.inner.join(slot, holder), self)

    def partition(self, job: JobId) -> int:
        return self.inner.partition(job)

    def oldest(self, job: JobId) -> int:
        return self.inner.oldest(job)

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        return self.inner.read_all(deadline, known)

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        self.raise_before("read_state")
        return self.inner.read_state(job, deadline, whole)

    def beat(self, job: JobId) -> Receipt:
        fault = self.meet("beat")
        if fault is not None and not fault.after:
            raise fault.error
        return self.inner.beat(job) if fault is None else NoAnswer(fault.error)

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        return self.inner.read_beats(job, deadline)

    def close(self) -> None:
        """Do nothing: many masters share the log, and its owner closes it."""


@dataclass
class NoAnswer:
    error: HeadgateError

    def offset(self, deadline: Deadline) -> int:
        raise self.error


@dataclass
class FaultyFollower:
    inner: Follower
    log: FaultyLog
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        self.log.raise_before("poll")
        assert limit <= STEP_EVENTS_MAX or limit == SCANNED
        return self.inner.poll(limit, timeout_s)

    def position(self) -> int:
        return self.inner.position()

    def end(self) -> int:
        self.log.raise_before("end")
        return self.inner.end()

    def close(self) -> None:
        self.inner.close()


@dataclass
class FaultyTransactions:
    inner: Transactions
    log: FaultyLog

    def begin(self) -> None:
        self.log.raise_before("begin")
        self.inner.begin()

    def write(self, decision: Event) -> None:
        self.log.raise_before("write")
        self.inner.write(decision)

    def keep(self, record: StateRecord) -> None:
        self.log.raise_before("keep")
        self.inner.keep(record)

    def abort(self) -> None:
        self.inner.abort()

    def _commit(self, commit: Callable[[], None]) -> None:
        assert self.log.may_commit.wait(5.0)
        fault = self.log.meet("commit")
        if fault is None or fault.after:
            commit()
        else:
            self.inner.abort()
        if fault is not None:
            raise fault.error


@dataclass
class FaultyDecisions(FaultyTransactions):
    inner: Decisions

    def commit(self, position: int) -> None:
        self._commit(lambda: self.inner.commit(position))

    def close(self) -> None:
        self.log.calls["closed decisions"] += 1
        self.inner.close()


@dataclass
class FaultyMembership(FaultyTransactions):
    inner: Membership
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        self.log.raise_before("poll")
        assert limit <= STEP_EVENTS_MAX
        return self.inner.poll(limit, timeout_s)

    def position(self, partition: int) -> int:
        return self.inner.position(partition)

    def end(self, partition: int) -> int | None:
        self.log.raise_before("end")
        return self.inner.end(partition)

    def commit(self, positions: Mapping[int, int]) -> None:
        self._commit(lambda: self.inner.commit(positions))

    def close(self) -> None:
        self.log.calls["closed memberships"] += 1
        self.inner.close()
