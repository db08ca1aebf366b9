"""A snapshot that cannot be made, written or used stops its own job only, and hides no events."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Invalid, Unavailable
from headgate.control.events.types import Event, JobAccepted
from headgate.control.ids import JobId
from headgate.control.log import StateRecord, job_of
from headgate.control.master import group_steps
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.memory.partitions import MemoryTransactions
from headgate.control.snapshots.records import SnapshotSteps
from headgate.control.snapshots.resume import read_snapshots
from headgate.testing.faulty_log import LogFault

from ..doubles.group_snapshots import END, LIFE, NEVER, end, keep, live, standing, state_of
from ..doubles.groups import JOBS, OPENING, Storage, audited, drive, events, state_facts
from ..doubles.jobs import produced
from ..doubles.logs import FaultyLog
from ..doubles.steps import CLOCK, StoppedClock


def test_a_snapshot_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A damaged snapshot is skipped: the partition is read from its oldest event, with a warning.
    Other jobs keep their snapshots, and the next snapshot replaces the damaged one."""
    log = MemoryEventLog(1)
    live(log, LIFE, *JOBS[:2], by="early")
    keep(log, JOBS[0], [StateRecord(JOBS[0], b"of another time")])
    with caplog.at_level(logging.WARNING):
        assert 0 == live(log, LIFE[-2:], *JOBS[:2], by="late")
    assert f"job {JOBS[0]} is not used" in caplog.text
    caplog.clear()
    assert 0 < live(log, (), by="")
    assert "is not used" not in caplog.text
    for job in JOBS[:2]:
        assert audited(log, job).state == state_of(log, job)


def test_snapshots_of_another_log_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A snapshot of a log that was lost is skipped, and the events of the new log count."""
    old, log = MemoryEventLog(1), MemoryEventLog(1)
    live(old, LIFE, JOBS[0], by="early")
    keep(log, JOBS[0], [StateRecord(key, body) for key, body in standing(old, JOBS[0]).items()])
    with caplog.at_level(logging.WARNING):
        live(log, OPENING, JOBS[0], by="new")
    assert "it belongs to" in caplog.text
    assert 1 == audited(log, JOBS[0]).state.epoch


@pytest.mark.parametrize("outdated", [False, True])
def test_many_jobs_are_forgotten_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, outdated: bool
) -> None:
    """The state of many jobs is deleted in several transactions, because a single one may be too
    long for the broker each time that it is tried."""
    old, log = (MemoryEventLog(1, identity=name) for name in ("old", "new"))
    live(old, (*LIFE, END), *JOBS, by="early", settings=NEVER)
    old.expire(JOBS[0], end(old))
    for job in JOBS if outdated else ():
        keep(log, job, [StateRecord(key, body) for key, body in standing(old, job).items()])
    monkeypatch.setattr(group_steps, "_KEPT_MAX", 1)
    faulty = FaultyLog(log if outdated else old)
    state_facts(faulty, JobId("next"), *OPENING)
    with closing(GroupSteps(faulty, MasterIdentity("one", "master", CLOCK, ""), NEVER)) as steps:
        drive(faulty, Storage(), steps)
    assert faulty.calls["commit"] >= len(JOBS)
    assert all({} == standing(faulty, job) for job in JOBS)
    assert 1 == audited(faulty, JobId("next")).state.epoch


def test_a_log_that_has_grown_past_old_snapshots_is_another() -> None:
    """When the events topic was made anew and the state topic was not, the state of former jobs is
    deleted, jobs of the new log continue, and a later master still starts at their snapshots."""
    old, log = (MemoryEventLog(1, identity=name) for name in ("old", "new"))
    live(old, LIFE, *JOBS[:2], by="early")
    for job in JOBS[:2]:
        keep(log, job, [StateRecord(key, body) for key, body in standing(old, job).items()])
    while end(log) <= end(old):
        state_facts(log, JOBS[5], *LIFE, by=f"other {end(log)}")
    state_facts(log, JOBS[1], *OPENING)
    before = end(log)
    live(log, (), by="")
    assert {} == standing(log, JOBS[0])
    assert 1 == audited(log, JOBS[1]).state.epoch
    assert {JOBS[1], JOBS[5]} == read_snapshots(log, None, Deadline.after(1.0)).keys()
    assert before == live(log, (), by="")


def test_a_job_left_alone_is_not_passed_by(caplog: pytest.LogCaptureFixture) -> None:
    """Every later master leaves a job with a wrong decision alone: no snapshot of another job hides
    it."""
    log = MemoryEventLog(1)
    live(log, OPENING, *JOBS[:2], by="early")
    forger = log.open_decisions(JOBS[0])
    forger.begin()
    forger.write(Event("0.0", JOBS[0], "", 0, "forger", 0, JobAccepted(9)))
    forger.commit(0)
    live(log, LIFE[3:], JOBS[1], by="late")
    with caplog.at_level(logging.ERROR):
        live(log, (produced(0, 1),), JOBS[0], by="later")
    assert f"ignores job {JOBS[0]}" in caplog.text
    assert 2 == len([r for r in events(log, JOBS[0]) if r.event.by.startswith("master")])


@pytest.mark.parametrize("part", ["wrote", "end"])
def test_a_snapshot_that_cannot_be_made_stops_its_job_only(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ours in a snapshot stops that job only. Later masters still read all events of
    the job."""

    def make(self: SnapshotSteps, *needed: int) -> object:
        assert self.snapshot.state.job != JOBS[0], "injected"
        return made(self, *needed)

    log, made = MemoryEventLog(1), getattr(SnapshotSteps, part)
    monkeypatch.setattr(SnapshotSteps, part, make)
    with caplog.at_level(logging.ERROR):
        live(log, LIFE, *JOBS[:2], by="early")
    assert f"ignores job {JOBS[0]} from now on: injected" in caplog.text
    assert {} == standing(log, JOBS[0])
    assert audited(log, JOBS[1]).state == state_of(log, JOBS[1])
    monkeypatch.undo()
    assert 0 == live(log, LIFE[-1:], *JOBS[:2], by="late")
    assert audited(log, JOBS[0]).state == state_of(log, JOBS[0])


@pytest.mark.parametrize("call", ["keep", "commit"])
def test_a_snapshot_that_the_log_does_not_take_stops_its_job_only(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot record that is too large for its topic stops its job only, whether the record or
    its commit is refused. Kafka's client drops one more step after a refusal."""
    refused, gaps = Invalid("injected: too large"), list[int]()

    def keep(self: MemoryTransactions, record: StateRecord) -> None:
        took(self, record)
        if call == "keep" and job_of(record.key) == JOBS[0]:
            raise refused

    def commit(self: MemoryTransactions) -> None:
        if any(job_of(record.key) == JOBS[0] for record in self._kept):
            self.abort()
            gaps.append(1)
            raise refused
        if gaps:
            gaps.clear()
            self.abort()
            raise Unavailable("injected: skipped sequence numbers")
        committed(self)

    log, took, committed = MemoryEventLog(1), MemoryTransactions.keep, MemoryTransactions._commit
    for job in JOBS[:3]:
        state_facts(log, job, *OPENING, by="early")
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(MemoryTransactions, "keep", keep)
        patch.setattr(MemoryTransactions, "_commit", commit)
        live(log, LIFE[3:], *JOBS[:3], by="late")
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith(f"this group of masters ignores job {JOBS[0]}")
    assert {} == standing(log, JOBS[0])
    assert {} != standing(log, JOBS[1]) != standing(log, JOBS[2]) != {}
    assert 0 == live(log, LIFE[-1:], *JOBS[:3], by="later")
    for job in JOBS[:3]:
        assert audited(log, job).state == state_of(log, job)


def test_a_log_that_does_not_answer_is_asked_once_in_a_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A master that holds several partitions asks for their oldest offsets. If the log does not
    answer, the master takes its next step, and asks again later: each question takes its time."""
    clock, log = StoppedClock(10**12), MemoryEventLog(4)
    faulty = FaultyLog(log, LogFault("oldest", 1, Unavailable("no answer")))
    me = MasterIdentity("one", "master", clock, "")
    with closing(GroupSteps(faulty, me, NEVER)) as steps:
        for job in JOBS:
            state_facts(log, job, *OPENING, END)
        drive(log, Storage(), steps)
        partitions = len({log.partition(job) for job in JOBS})
        clock.at_ms += 300_001
        for asked in (1, 1, 1 + partitions):
            steps.look()
            assert asked == faulty.calls["oldest"]
            clock.at_ms += 150_001
    assert 1 == sum("could not ask for the oldest offset" in line for line in caplog.messages)
