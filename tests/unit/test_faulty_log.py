"""A log that fails as planned is otherwise the log that it wraps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import OutcomeUnknown
from headgate.control.events.types import Event, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.log import EventLog, Membership, StateRecord
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.event_log_suite import EventLogSuite
from headgate.testing.faulty_log import FaultyEventLog, LogFault
from headgate.testing.master_group_suite import Member

from ..doubles.jobs import JOB

LIMIT_S = 5.0
FACT = Event("e", JOB, "", 0, "test", None, JobUnregistered(""))
CALLS: Mapping[str, Callable[[EventLog], object]] = {
    "prepare": lambda log: log.prepare(limit()),
    "retention_ms": lambda log: log.retention_ms(limit()),
    "identity": lambda log: log.identity(limit()),
    "group": lambda log: log.group(limit()),
    "oldest": lambda log: log.oldest(JOB),
    "read_all": lambda log: log.read_all(limit()),
    "tail": lambda log: log.tail(),
    "read_state": lambda log: log.read_state(JOB, limit()),
    "read_beats": lambda log: log.read_beats(JOB, limit()),
    "beat": lambda log: log.beat(JOB),
    "append": lambda log: log.append(FACT).offset(limit()),
    "follow": lambda log: log.follow(JOB),
    "poll": lambda log: log.follow(JOB).poll(1, 0.0),
    "end": lambda log: log.follow(JOB).end(),
    "open_decisions": lambda log: log.open_decisions(JOB),
    "begin": lambda log: log.open_decisions(JOB).begin(),
    "write": lambda log: log.open_decisions(JOB).write(FACT),
    "keep": lambda log: log.open_decisions(JOB).keep(StateRecord("k", b"")),
    "commit": lambda log: log.open_decisions(JOB).commit(0),
    "join": lambda log: Member(log, "0"),
}
CALLS_OF_A_MEMBER: Mapping[str, Callable[[Membership], object]] = {
    "poll": lambda member: member.poll(1, 0.0),
    "end": lambda member: member.end(0),
    "begin": lambda member: member.begin(),
    "commit": lambda member: member.commit({}),
}


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


@pytest.mark.parametrize("operation", CALLS)
def test_a_planned_fault_is_raised(operation: str) -> None:
    """The call for which a fault is planned fails with it."""
    fault = LogFault(operation, 1, OutcomeUnknown("injected"))
    with pytest.raises(OutcomeUnknown, match="injected"):
        CALLS[operation](FaultyEventLog(MemoryEventLog(), fault))


@pytest.mark.parametrize("operation", CALLS_OF_A_MEMBER)
def test_a_planned_fault_of_a_member_is_raised(operation: str) -> None:
    """A member of the group of masters fails as planned, too."""
    log = FaultyEventLog(MemoryEventLog())
    member = Member(log, "0").membership
    log.fault = LogFault(operation, 1, OutcomeUnknown("injected"))
    with pytest.raises(OutcomeUnknown, match="injected"):
        CALLS_OF_A_MEMBER[operation](member)


def memory_of(log: EventLog) -> MemoryEventLog:
    assert isinstance(log, FaultyEventLog)
    assert isinstance(log.inner, MemoryEventLog)
    return log.inner


def limit() -> Deadline:
    return Deadline.after(LIMIT_S)
