"""Drivers that send heartbeats, and stop when none is confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline, Pace
from headgate.control.contract import MasterSettings
from headgate.control.errors import OutcomeUnknown, Unavailable
from headgate.control.events.types import JobRegistered
from headgate.control.ids import JobId
from headgate.control.log import EventLog, Receipt
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.heartbeats import HeartbeatThread
from headgate.control.master.job_steps import JobSteps
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.faulty_log import LogFault, NoAnswer

from ..doubles.jobs import JOB, OPENING, SETTINGS, Job, OrderedStorage, bodies
from ..doubles.logs import FaultyLog

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture
def beating() -> Iterator[MemoryEventLog]:
    log = MemoryEventLog()
    storage = OrderedStorage(log)
    settings = replace(SETTINGS, lease_ms=60)
    master = DriverMaster(log, storage, settings, DriverIdentity("driver", "0"))
    master.register_job(Job())
    yield log
    master.close()


def unheard(error: Unavailable) -> None:
    raise AssertionError(error)


def beat_of(log: EventLog) -> int:
    return log.read_beats(JOB, Deadline.after(1.0)).get(JOB, 0)


def await_beat(log: EventLog, after_ms: int) -> int:
    deadline = Deadline.after(3.0)
    while beat_of(log) <= after_ms:
        assert not deadline.passed, "the heart beats"
        SYSTEM_CLOCK.sleep_s(0.005)
    return beat_of(log)


def test_a_driver_beats_while_it_speaks_for_the_job(beating: MemoryEventLog) -> None:
    """A driver sends three heartbeats per lease until it is closed or fenced, and none
    afterwards."""
    first = await_beat(beating, 0)
    assert await_beat(beating, first) - first < 1_000
    registered = bodies(beating)[0]
    assert isinstance(registered, JobRegistered)
    assert 60 == registered.lease_ms
    with closing(JobSteps.open(beating, Announcer(JOB, "successor"), SETTINGS)) as successor:
        beating.append(Announcer(JOB, "successor").fact(OPENING[0]))
        for _ in range(4):
            successor.step(0.0)
        SYSTEM_CLOCK.sleep_s(0.5)
        silent = beat_of(beating)
        SYSTEM_CLOCK.sleep_s(0.2)
        assert silent == beat_of(beating)


def test_a_long_lease_is_no_reason_for_a_long_silence() -> None:
    """A driver with a long lease sends heartbeats much more often than thrice per lease, because
    its own clock may be late and its first heartbeat may be lost."""
    log = MemoryEventLog()
    settings = MasterSettings(lease_ms=86_400_000, pace=Pace(refresh_s=0.01))
    heart = HeartbeatThread(log, JOB, settings, lambda: True, unheard)
    heart.start()
    await_beat(log, await_beat(log, 0))
    heart.stop()


def test_a_beat_that_fails_is_followed_by_the_next() -> None:
    """A heartbeat that fails does not end the thread: the next one follows."""
    log = FaultyLog(MemoryEventLog(), LogFault("beat", 1, Unavailable("injected")))
    heart = HeartbeatThread(log, JOB, MasterSettings(lease_ms=300), lambda: True, unheard)
    heart.start()
    await_beat(log, 0)
    heart.stop()
    last = beat_of(log)
    SYSTEM_CLOCK.sleep_s(0.2)
    assert last == beat_of(log)


class Silent(FaultyLog):
    """A log that takes everything, and confirms no heartbeat."""

    def beat(self, job: JobId) -> Receipt:
        return NoAnswer(OutcomeUnknown("no confirmation"))


def test_a_driver_that_is_not_heard_stops_before_its_lease_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A driver whose heartbeats are not confirmed reports that, and stops before its lease ends and
    its objects may be deleted."""
    log, job = Silent(MemoryEventLog()), Job()
    settings = replace(SETTINGS, lease_ms=600)
    driver = DriverMaster(log, OrderedStorage(log), settings, DriverIdentity("driver", "0"))
    driver.register_job(job)
    begun_s = SYSTEM_CLOCK.monotonic_s()
    deadline = Deadline.after(5.0)
    while not job.errors:
        assert not deadline.passed, "it works on"
        SYSTEM_CLOCK.sleep_s(0.01)
    assert SYSTEM_CLOCK.monotonic_s() - begun_s < 0.6
    with pytest.raises(Unavailable, match="no heartbeat of job job was confirmed"):
        driver.unregister_job()
    driver.close()
    assert "was not confirmed: no confirmation" in caplog.text
