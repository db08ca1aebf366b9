"""A log that fails as planned: the n-th call of one operation raises, before or after it worked.

It wraps any log, and counts the calls of each operation from 1: a test can fail the n-th call for
every n.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..control.clock import Deadline
from ..control.errors import HeadgateError, Unavailable
from ..control.events.types import Event, Recorded
from ..control.ids import JobId
from ..control.log import (
    Decisions,
    EventLog,
    Follower,
    Holder,
    MasterGroup,
    Membership,
    Placed,
    Receipt,
    StateRecord,
    Tail,
    Transactions,
)


@dataclass(frozen=True, slots=True)
class LogFault:
    """A planned error of one call."""

    operation: str
    """The name of a method of the log, or of what it opened. `written` counts as `end`. The calls
    of `partition`, `position`, `abort` and `close` never fail."""
    nth: int
    """The call that fails; the first one is 1."""
    error: HeadgateError
    after: bool = False
    """Raise the error after an `append`, `beat` or `commit` has taken effect, as when its answer is
    lost. Any other call fails before it does anything."""


@dataclass
class FaultyEventLog:
    """A log that delegates to another one. Closing it closes nothing: its owner closes the log."""

    inner: EventLog
    fault: LogFault | None = None
    calls: Counter[str] = field(default_factory=Counter)
    """The calls of each operation so far."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def meet(self, operation: str) -> LogFault | None:
        """Count a call, and return the fault that is planned for it."""
        with self.lock:
            self.calls[operation] += 1
            call = (operation, self.calls[operation])
            fault = self.fault
        return fault if fault is not None and call == (fault.operation, fault.nth) else None

    def raise_before(self, operation: str) -> None:
        if (fault := self.meet(operation)) is not None:
            raise fault.error

    def prepare(self, deadline: Deadline) -> None:
        self.raise_before("prepare")
        self.inner.prepare(deadline)

    def retention_ms(self, deadline: Deadline) -> int:
        self.raise_before("retention_ms")
        return self.inner.retention_ms(deadline)

    def identity(self, deadline: Deadline) -> str:
        self.raise_before("identity")
        return self.inner.identity(deadline)

    def append(self, fact: Event) -> Receipt:
        """Append a fact. A planned `Unavailable` is raised; other errors come with the receipt."""
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
        self.raise_before("open_decisions")
        return FaultyDecisions(self.inner.open_decisions(job), self)

    def join(self, slot: str, holder: Holder) -> Membership:
        self.raise_before("join")
        return FaultyMembership(self.inner.join(slot, holder), self)

    def group(self, deadline: Deadline) -> MasterGroup:
        self.raise_before("group")
        return self.inner.group(deadline)

    def partition(self, job: JobId) -> int:
        return self.inner.partition(job)

    def oldest(self, job: JobId) -> int:
        self.raise_before("oldest")
        return self.inner.oldest(job)

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        self.raise_before("read_all")
        return self.inner.read_all(deadline, known)

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> Tail:
        self.raise_before("tail")
        return self.inner.tail(known)

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        self.raise_before("read_state")
        return self.inner.read_state(job, deadline, whole)

    def beat(self, job: JobId) -> Receipt:
        fault = self.meet("beat")
        if fault is None:
            return self.inner.beat(job)
        if not fault.after:
            raise fault.error
        self.inner.beat(job)
        return NoAnswer(fault.error)

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        self.raise_before("read_beats")
        return self.inner.read_beats(job, deadline)

    def close(self) -> None:
        """Do nothing: several users share the log."""


@dataclass
class NoAnswer:
    """The receipt of an append whose answer is lost."""

    error: HeadgateError

    def offset(self, deadline: Deadline) -> int:
        raise self.error


@dataclass
class FaultyFollower:
    inner: Follower
    log: FaultyEventLog
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        self.log.raise_before("poll")
        events = self.inner.poll(limit, timeout_s)
        self.rejected = self.inner.rejected
        return events

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
    log: FaultyEventLog

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
        self.log.meet("close")
        self.inner.close()


@dataclass
class FaultyMembership(FaultyTransactions):
    inner: Membership
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        self.log.raise_before("poll")
        events = self.inner.poll(limit, timeout_s)
        self.rejected = self.inner.rejected
        return events

    def position(self, partition: int) -> int:
        return self.inner.position(partition)

    def end(self, partition: int) -> int | None:
        self.log.raise_before("end")
        return self.inner.end(partition)

    def commit(self, positions: Mapping[int, int]) -> None:
        self._commit(lambda: self.inner.commit(positions))

    def close(self) -> None:
        self.inner.close()
