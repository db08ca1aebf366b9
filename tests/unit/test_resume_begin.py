"""The start of a job in a log with many other jobs: its driver need not read their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Fenced, Unavailable
from headgate.control.events.types import Fact, JobAccepted, JobUnregistered, PromoteRequested
from headgate.control.ids import JobId
from headgate.control.log import Decisions, EventLog, Follower, StateRecord, coverage_of
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Derived
from headgate.control.model.state import JobState
from headgate.control.snapshots import records
from headgate.control.snapshots.records import Coverage
from headgate.control.snapshots.resume import begin, forget, read_snapshots, take_up
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import (
    JOB,
    OPENING,
    REGISTERED,
    RESULT,
    OrderedStorage,
    audited,
    events,
    state_facts,
)
from ..doubles.logs import FaultyLog
from ..doubles.snapshots import HOURLY, LIFE, OFTEN, last_state, live, opened, position, standing
from ..doubles.steps import StoppedClock, drive

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def crowded() -> MemoryEventLog:
    """Return a log that holds many events of another job."""
    log = MemoryEventLog(1)
    other = Announcer(JobId("other"), "somebody")
    for _ in range(100):
        log.append(other.fact(REGISTERED))
    return log


@pytest.mark.parametrize("open_steps", [JobSteps.open, JobSteps.follow])
def test_a_new_job_is_not_looked_for_among_others(open_steps: Callable[..., JobSteps]) -> None:
    """The first driver of a job stores an empty state, and nobody reads the events before it. A
    second driver changes nothing of that, even if the first one registered and got no answer."""
    log = crowded()
    begin(log, JOB, Deadline.after(1.0))
    kept, at = standing(log), position(log)
    assert 100 <= at
    assert {} == read_snapshots(log, None, Deadline.after(1.0))
    state_facts(log, replace(REGISTERED, mode=""), by="first")
    log.append(Announcer(JobId("other"), "somebody").fact(REGISTERED))
    begin(log, JOB, Deadline.after(1.0))
    assert (kept, at) == (standing(log), position(log))
    with closing(open_steps(log, Announcer(JOB, "second"), OFTEN)) as steps:
        assert at == steps._follower.position()


def test_the_log_of_a_job_that_began_among_others_is_whole() -> None:
    """The job's own first event counts as its first, so that an audit replays the whole job."""
    log = crowded()
    begin(log, JOB, Deadline.after(1.0))
    state = live(log, LIFE, 2)
    snapshot = read_snapshots(log, JOB, Deadline.after(1.0))[JOB]
    assert events(log)[0].offset == snapshot.first < snapshot.position
    assert audited(log).state == state
    with closing(JobSteps.follow(log, Announcer(JOB, "driver"), OFTEN, known=0)) as steps:
        assert snapshot.first == steps._follower.position()


def test_who_begins_late_undoes_nothing() -> None:
    """A driver that is delayed while another driver begins and registers stores nothing."""
    log = MemoryEventLog()
    looks = count()

    class Slow(FaultyLog):
        def read_state(
            self, job: JobId | None, deadline: Deadline, whole: bool = False
        ) -> dict[str, bytes]:
            state = log.read_state(job, deadline)
            if next(looks) == 1:
                begin(log, JOB, deadline)
                state_facts(log, *LIFE)
            return state

    begin(Slow(log), JOB, Deadline.after(1.0))
    assert 0 == position(log)


def test_a_name_that_was_had_before_is_looked_for() -> None:
    """A job whose state is gone, but whose events are not, continues its epochs and its
    promotions."""
    log = crowded()
    kept = (PromoteRequested(RESULT, 0, 1), JobUnregistered("closed", 1))
    state = live_by(log, HOURLY, (*LIFE, *kept))
    assert state.results[RESULT].kept
    with closing(log.open_decisions(JOB)) as decisions:
        decisions.begin()
        for key in standing(log):
            decisions.keep(StateRecord(key, None))
        decisions.commit(0)
    begin(log, JOB, Deadline.after(1.0))
    assert {} == standing(log)
    again = live_by(log, HOURLY, (REGISTERED,))
    assert (2, True) == (again.epoch, again.results[RESULT].kept)


def test_a_job_that_is_forgotten_while_it_begins_is_not_missed() -> None:
    """A sweep deletes the last snapshot after a driver has seen it. The driver registers and is
    held up; the next one goes on with its epochs, although the partition is covered."""
    log = MemoryEventLog(1)
    begin(log, JOB, Deadline.after(1.0))
    live_by(log, HOURLY, (REGISTERED, JobUnregistered("closed", 1)))
    log.expire(JOB, log.written(JOB))
    begin(log, JOB, Deadline.after(1.0))
    assert forget(log, JOB, Deadline.after(1.0))
    with closing(JobSteps.open(log, Announcer(JOB, "held up"), HOURLY)) as steps:
        drive(steps, log, OrderedStorage(log))
        state_facts(log, *OPENING, by="held up")
        for _ in range(2):  # too few for a snapshot
            outcome = steps.step(0.0)
    assert outcome.state is not None
    assert 1 == outcome.state.epoch
    begin(log, JOB, Deadline.after(1.0))
    state = live_by(log, HOURLY, (REGISTERED,))
    assert (2, [RESULT]) == (state.epoch, list(state.results))


def live_by(log: EventLog, settings: MasterSettings, facts: Sequence[Fact]) -> JobState:
    with closing(opened(log, settings)) as steps:
        state_facts(log, *facts, by=f"driver {len(facts)}")
        return last_state(drive(steps, log, OrderedStorage(log)))


@dataclass
class Sleeper(StoppedClock):
    """A clock that only sleeping moves on; it records each pause."""

    pauses: list[float] = field(default_factory=list)

    def sleep_s(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at_ms += round(1000 * seconds)


def test_drivers_that_begin_at_once_make_way() -> None:
    """A driver that another one fences waits longer each time, and never beyond its deadline."""

    class Crowded(FaultyLog):
        def open_decisions(self, job: JobId) -> Decisions:
            raise Fenced("another driver begins")

    clock = Sleeper()
    with pytest.raises(Unavailable, match="another driver begins"):
        begin(Crowded(MemoryEventLog()), JOB, Deadline.after(4.0, clock))
    assert [0.1, 0.2, 0.4, 0.8, 1.6] == clock.pauses[:5]
    assert 4.0 == pytest.approx(sum(clock.pauses))


class Forgetful(FaultyLog):
    """A log that loses its head after the first look at it and before it is read."""

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        follower = super().follow(job, position)
        if self.meet("forget") is not None:
            assert isinstance(self.inner, MemoryEventLog)
            self.inner.expire(job, self.inner.written(job))
        return follower


def test_a_head_that_goes_while_it_is_read_only_delays() -> None:
    """When the log loses its head while it is read, a driver that begins looks again, and a sweeper
    gets a retryable error."""
    once = LogFault("forget", 1, Unavailable("not raised"))
    begin(Forgetful(crowded(), once), JOB, Deadline.after(2.0))
    log = MemoryEventLog(1)
    live(log, (*LIFE, JobUnregistered("closed")), 100)
    state_facts(log, *LIFE[-2:], by="later")
    with pytest.raises(Unavailable, match="deleted events"):
        forget(Forgetful(log, once), JOB, Deadline.after(1.0))
    assert forget(log, JOB, Deadline.after(1.0))
    assert {} == standing(log)


def test_a_job_may_begin_behind_a_step_that_is_open(caplog: pytest.LogCaptureFixture) -> None:
    """A state that is stored behind another job's open transaction belongs to the same log,
    although that transaction hides the end of the log."""
    log, other = crowded(), Announcer(JobId("other"), "somebody")
    with closing(log.open_decisions(other.job)) as theirs:
        theirs.begin()
        theirs.write(other.decision(Derived(0, 0, "0", JobAccepted(1))))
        begin(log, JOB, Deadline.after(1.0), is_new=True)
        start = take_up(log, JOB, Deadline.after(1.0))
        with closing(start.follower) as follower:
            assert follower.end() < follower.position()
    assert start.snapshot is not None
    assert "it belongs to" not in caplog.text


def test_a_new_name_is_not_looked_for() -> None:
    log = crowded()
    looked: list[JobId] = []

    class Watched(FaultyLog):
        def follow(self, job: JobId, position: int | None = 0) -> Follower:
            looked.append(job)
            return super().follow(job, position)

    begin(Watched(log), JOB, Deadline.after(1.0), is_new=True)
    assert [] == looked
    begin(Watched(log), JobId("another"), Deadline.after(1.0))
    assert ["another"] == looked


def test_a_covered_partition_is_not_searched() -> None:
    """Who begins in an empty partition covers it: later drivers read no events of others, and the
    coverage is no job's."""
    log = MemoryEventLog(1)
    begin(log, JobId("first"), Deadline.after(1.0), is_new=True)
    for _ in range(100):
        log.append(Announcer(JobId("other"), "somebody").fact(REGISTERED))
    watched = FaultyLog(log)
    begin(watched, JOB, Deadline.after(1.0))
    assert (0, 100) == (watched.calls["poll"], position(log))
    assert {"first", JOB} == log.read_state(None, Deadline.after(1.0)).keys()


@pytest.mark.parametrize("body", [None, b"", records.write_coverage(0, Coverage("former")).body])
def test_a_partition_that_has_events_is_never_covered(body: bytes | None) -> None:
    """A coverage that cannot be read, or is of another log, is as good as none. None is written
    where a job without a snapshot may have events."""
    log = crowded()
    state_facts(log, *LIFE)
    with closing(log.open_decisions(JOB)) as decisions:
        decisions.begin()
        decisions.keep(StateRecord(coverage_of(0), body))
        decisions.commit(0)
    for job in ("another", JOB):
        begin(log, JobId(job), Deadline.after(1.0))
    assert {} == standing(log)


def test_only_older_snapshots_are_taken_by_who_asked() -> None:
    """A master that waits for an answer starts at a snapshot from before its question, or at the
    beginning."""
    log = crowded()
    live(log, LIFE, 100)
    first, newest = events(log)[0].offset, position(log)
    for known, expected in ((None, newest), (newest, newest), (newest - 1, first), (0, first)):
        with closing(take_up(log, JOB, Deadline.after(1.0), known).follower) as follower:
            assert expected == follower.position()
