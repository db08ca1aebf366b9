"""A log that fails as planned: the n-th call of one operation raises, before or after it worked.

It wraps any log, and counts the calls of each operation from 1: a test can fail the n-th call for
every n.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..control.clock import Deadline
from ..control.errors import HeadgateError, Unavailable
from ..control.events.types import Event
from ..control.ids import JobId
from ..control.log import (
    Decisions,
    EventLog,
    Follower,
    Holder,
    Membership,
    Receipt,
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


def _faulty(method: str, operation: str = "") -> Any:
    """Return a method that calls that of `inner`, unless a fault is planned for the operation."""

    def call(self: Any, *args: Any, **named: Any) -> Any:
        self.log.raise_before(operation or method)
        return getattr(self.inner, method)(*args, **named)

    return call


def _inner(name: str) -> Any:
    """Return a property: that of `inner`, or a method of it that never fails."""
    return property(lambda self: getattr(self.inner, name))


@dataclass
class FaultyEventLog:
    """A log that delegates to another one. Closing it closes nothing: its owner closes the log."""

    inner: EventLog
    fault: LogFault | None = None
    calls: Counter[str] = field(default_factory=Counter)
    """The calls of each operation so far."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def log(self) -> FaultyEventLog:
        return self

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

    prepare = _faulty("prepare")
    retention_ms = _faulty("retention_ms")
    identity = _faulty("identity")
    group = _faulty("group")
    oldest = _faulty("oldest")
    read_all = _faulty("read_all")
    tail = _faulty("tail")
    read_state = _faulty("read_state")
    read_beats = _faulty("read_beats")
    written = _faulty("written", "end")
    partition = _inner("partition")

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

    def open_decisions(self, job: JobId) -> Decisions:
        self.raise_before("open_decisions")
        return FaultyDecisions(self.inner.open_decisions(job), self)

    def join(self, slot: str, holder: Holder) -> Membership:
        self.raise_before("join")
        return FaultyMembership(self.inner.join(slot, holder), self)

    def beat(self, job: JobId) -> Receipt:
        fault = self.meet("beat")
        if fault is None:
            return self.inner.beat(job)
        if not fault.after:
            raise fault.error
        self.inner.beat(job)
        return NoAnswer(fault.error)

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

    poll = _faulty("poll")
    end = _faulty("end")
    rejected = _inner("rejected")
    position = _inner("position")
    close = _inner("close")


@dataclass
class FaultyTransactions:
    inner: Decisions | Membership
    log: FaultyEventLog

    begin = _faulty("begin")
    write = _faulty("write")
    keep = _faulty("keep")
    abort = _inner("abort")

    def commit(self, position: Any) -> None:
        fault = self.log.meet("commit")
        if fault is None or fault.after:
            self.inner.commit(position)
        else:
            self.inner.abort()
        if fault is not None:
            raise fault.error


@dataclass
class FaultyDecisions(FaultyTransactions):
    inner: Decisions

    def close(self) -> None:
        self.log.meet("close")
        self.inner.close()


@dataclass
class FaultyMembership(FaultyTransactions):
    inner: Membership

    poll = _faulty("poll")
    end = _faulty("end")
    rejected = _inner("rejected")
    position = _inner("position")
    close = _inner("close")
