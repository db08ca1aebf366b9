"""A log that fails as planned, whose commits can be held back, and whose polls are limited."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headgate.control.events.types import Recorded
from headgate.control.ids import JobId
from headgate.control.log import Follower, Holder, Membership, Placed
from headgate.control.snapshots import resume
from headgate.testing.faulty_log import (
    FaultyEventLog,
    FaultyFollower,
    FaultyMembership,
    LogFault,
)

STEP_EVENTS_MAX = 3  # the most events that a loop under test polls at once
SCANNED = resume._EVENTS_MAX  # the events that a search for a job's former life polls at once


@dataclass
class FaultyLog(FaultyEventLog):
    may_commit: threading.Event = field(default_factory=threading.Event)
    may_open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_open.set()
        self.may_commit.set()

    def meet(self, operation: str) -> LogFault | None:
        """Wait until the operation is allowed, before it counts."""
        opens = {"follow": self.may_open, "open_decisions": self.may_open}
        allowed = {"commit": self.may_commit, **opens}.get(operation)
        assert allowed is None or allowed.wait(5.0)
        return super().meet(operation)

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        self.raise_before("follow")
        return LimitedFollower(self.inner.follow(job, position), self)

    def join(self, slot: str, holder: Holder) -> Membership:
        self.raise_before("join")
        return LimitedMembership(self.inner.join(slot, holder), self)


class LimitedFollower(FaultyFollower):
    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        assert limit <= STEP_EVENTS_MAX or limit == SCANNED
        events: list[Recorded] = super().poll(limit, timeout_s)
        return events


class LimitedMembership(FaultyMembership):
    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        assert limit <= STEP_EVENTS_MAX
        events: list[Placed] = super().poll(limit, timeout_s)
        return events
