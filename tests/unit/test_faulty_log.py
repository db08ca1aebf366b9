"""A log that fails as planned is otherwise the log that it wraps."""

from __future__ import annotations

import pytest

from headgate.control.clock import Deadline
from headgate.control.events.types import Event, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.log import EventLog
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.event_log_suite import EventLogSuite
from headgate.testing.faulty_log import FaultyEventLog

LIMIT_S = 5.0


class TestUnplanned(EventLogSuite):
    """Without a fault the wrapper keeps the contract of its log, but does not close it."""

    @pytest.fixture
    def log(self) -> EventLog:
        return FaultyEventLog(MemoryEventLog(self.PARTITIONS, retention_ms=self.RETENTION_MS))

    def put_garbage(self, log: EventLog, job: JobId, header: str | None, record: bytes) -> None:
        memory_of(log).put_record(job, header, record)

    def expire(self, log: EventLog, job: JobId, before: int) -> None:
        memory_of(log).expire(job, before)

    def test_a_closed_log_takes_nothing(self, log: EventLog, job: JobId) -> None:
        """To close the wrapper closes nothing: its owner closes the log."""
        log.close()
        log.append(Event("e", job, "", 0, "test", None, JobUnregistered(""))).offset(limit())


def memory_of(log: EventLog) -> MemoryEventLog:
    assert isinstance(log, FaultyEventLog)
    assert isinstance(log.inner, MemoryEventLog)
    return log.inner


def limit() -> Deadline:
    return Deadline.after(LIMIT_S)
