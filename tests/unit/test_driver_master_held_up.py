"""A driver that the machine holds up before it registers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Unavailable
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.job_answers import JobAnswers
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import SETTINGS, Job, OrderedStorage
from ..doubles.logs import FaultyLog

WAIT = replace(SETTINGS, wait_ms=500)


@dataclass
class Paused(FaultyLog):
    """A log whose followers hear nothing while their process is held up."""

    awake: threading.Event = field(default_factory=threading.Event)

    def meet(self, operation: str) -> LogFault | None:
        assert operation != "poll" or self.awake.wait(5.0)
        return super().meet(operation)


def test_who_was_held_up_for_too_long_takes_nobodys_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose process is held up before it registers, for longer than it may wait, gives up:
    another driver may have the job by then."""
    log = MemoryEventLog(1)
    paused = Paused(log)
    paused.awake.set()
    late = DriverMaster(paused, OrderedStorage(log), WAIT, DriverIdentity("late", "0"))
    meanwhile = DriverMaster(log, OrderedStorage(log), WAIT, DriverIdentity("meanwhile", "0"))
    job = Job()
    original = JobAnswers.wait_until_read

    def held_up(loop: JobAnswers, what: str, deadline: Deadline | None = None) -> None:
        original(loop, what, deadline)
        paused.awake.clear()
        SYSTEM_CLOCK.sleep_s(0.1)  # until its thread is held up too
        monkeypatch.undo()
        meanwhile.register_job(job)
        SYSTEM_CLOCK.sleep_s(0.6)
        threading.Timer(0.1, paused.awake.set).start()

    monkeypatch.setattr(JobAnswers, "wait_until_read", held_up)
    try:
        with pytest.raises(Unavailable, match="JobRegistered"):
            late.register_job(Job())
        SYSTEM_CLOCK.sleep_s(0.2)
        assert ([], 1) == (job.errors, meanwhile.state().epoch)
    finally:
        meanwhile.close()
        late.close()
