"""A name that was a per-job job's, and is a session job's once the log has forgotten that job."""

from __future__ import annotations

from contextlib import closing

from headgate.control.clock import Deadline
from headgate.control.events.types import JobUnregistered
from headgate.control.memory.log import MemoryEventLog
from headgate.control.snapshots.resume import begin, forget

from ..doubles import groups
from ..doubles.jobs import JOB, REGISTERED, OrderedStorage, state_facts
from ..doubles.snapshots import HOURLY, opened
from ..doubles.steps import drive


def test_a_forgotten_name_is_a_session_jobs_for_running_masters_too() -> None:
    """A session master ignores a per-job job as long as the log has events of it, and no longer."""
    log, storage = MemoryEventLog(1), groups.Storage()
    master = groups.joined(log)
    begin(log, JOB, Deadline.after(1.0))
    with closing(opened(log, HOURLY)) as steps:
        state_facts(log, REGISTERED, JobUnregistered("closed", 1), by="first")
        drive(steps, log, OrderedStorage(log))
    groups.drive(log, storage, master)
    groups.state_facts(log, JOB, groups.OPENING[0], by="too early")
    groups.drive(log, storage, master)
    assert {} == master.states
    log.expire(JOB, log.written(JOB))
    assert forget(log, JOB, Deadline.after(1.0))
    begin(log, JOB, Deadline.after(1.0))
    groups.state_facts(log, JOB, groups.OPENING[0], by="second")
    groups.drive(log, storage, master)
    assert [1] == [state.epoch for state in master.states.values()]
