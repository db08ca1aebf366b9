"""Session masters that start at snapshots decide as those that read the whole log, and read
less."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION
from headgate.control.errors import Fenced, HeadgateError, OutcomeUnknown, Unavailable
from headgate.control.events.types import (
    Decision,
    JobRegistered,
    LeaseExpired,
    Released,
    ReleaseRequested,
)
from headgate.control.ids import JobId
from headgate.control.inquiry.audit import audit
from headgate.control.log import StateRecord
from headgate.control.master import group_steps
from headgate.control.master.announcer import Announcer
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.master.job_steps import JobSteps
from headgate.control.master.term import Term
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay, Snapshot
from headgate.control.snapshots import records as snapshots
from headgate.control.snapshots.records import Standing
from headgate.control.snapshots.resume import read_snapshots
from headgate.control.snapshots.schedule import SnapshotSchedule
from headgate.testing.faulty_log import LogFault

from ..doubles.group_snapshots import END, LIFE, NEVER, OFTEN, end, keep, live, standing, state_of
from ..doubles.groups import JOBS, OPENING, Storage, audited, drive, events, joined, state_facts
from ..doubles.jobs import JOB, RESULT, looping, produced
from ..doubles.logs import FaultyLog
from ..doubles.steps import CLOCK, StoppedClock


def test_a_partition_is_read_from_where_it_is_needed() -> None:
    """The next master starts behind everything that snapshots hold, and has the state of every job.
    Later facts are decided as if it had read the whole log."""
    log = MemoryEventLog(1)
    assert 0 == live(log, LIFE, *JOBS[:3], by="early")
    before = end(log)
    start = live(log, (), by="")
    assert before // 2 < start <= before
    log.expire(JOBS[0], start)
    assert start == live(log, (produced(0, 9), ReleaseRequested(RESULT, "asked")), JOBS[1], by="")
    whole = MemoryEventLog(1)
    live(whole, LIFE, *JOBS[:3], by="early")
    live(whole, (produced(0, 9), ReleaseRequested(RESULT, "asked")), JOBS[1], by="")
    for job in JOBS[:3]:
        assert state_of(log, job) == state_of(whole, job) == audited(whole, job).state


def test_a_job_that_no_snapshot_has_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is read from the first event of a job without a snapshot, however recent the
    snapshots of other jobs are."""
    log = MemoryEventLog(1)
    with monkeypatch.context() as without:
        without.setattr(
            SnapshotSchedule, "is_due", lambda schedule, snapshot, _: snapshot.state.job == JOBS[0]
        )
        state_facts(log, JOBS[5], LIFE[0], by="small")
        first = events(log, JOBS[5])[0].offset
        live(log, LIFE, JOBS[0], by="large")
    state_facts(log, JOBS[0], *LIFE[-3:], by="larger")
    assert {} == standing(log, JOBS[5])
    assert {} != standing(log, JOBS[0])
    assert first == live(log, (), by="")
    assert {JOBS[0], JOBS[5]} == {r.event.job for r in log.read_all(Deadline.after(1.0))}
    for job in (JOBS[0], JOBS[5]):
        assert audited(log, job).state == state_of(log, job)


@pytest.mark.parametrize("retention_ms", [-1, 600_000])
@pytest.mark.parametrize("is_time", [False, True])
def test_time_brings_a_snapshot_too(is_time: bool, retention_ms: int) -> None:
    """A job with few events gets another snapshot after an hour, or in time before the log forgets,
    so that a later master reads only what came after it."""
    clock, log = StoppedClock(), MemoryEventLog(1, retention_ms=retention_ms)
    after_ms = NEVER.snapshot_ms if retention_ms < 0 else retention_ms // 4
    me = MasterIdentity("one", "master", clock, "")
    with closing(GroupSteps(log, me, NEVER)) as steps:
        state_facts(log, JOBS[0], OPENING[0])
        drive(log, Storage(), steps)
        state_facts(log, JOBS[0], *OPENING[1:])
        drive(log, Storage(), steps)
        clock.at_ms += after_ms if is_time else after_ms - 1
        assert not steps.look()
        drive(log, Storage(), steps)
        expected = end(log) if is_time else 1
    (snapshot,) = read_snapshots(log, None, Deadline.after(1.0)).values()
    assert expected == snapshot.position == live(log, (), by="")


@pytest.mark.parametrize(("at_once", "steps_taken"), [(1_000, 1), (1, 3)])
def test_many_jobs_are_kept_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int, steps_taken: int
) -> None:
    """Snapshots of small jobs share a transaction."""
    monkeypatch.setattr(group_steps, "_KEPT_MAX", at_once)
    clock, log = StoppedClock(), MemoryEventLog(1)
    faulty = FaultyLog(log)
    with closing(GroupSteps(faulty, MasterIdentity("one", "master", clock, ""), NEVER)) as steps:
        for job in JOBS[:3]:
            state_facts(log, job, *OPENING)
        drive(faulty, Storage(), steps)
        before = faulty.calls["commit"]
        clock.at_ms += NEVER.snapshot_ms
        steps.look()
        drive(faulty, Storage(), steps)
    assert before + steps_taken == faulty.calls["commit"]
    assert set(JOBS[:3]) == read_snapshots(log, None, Deadline.after(1.0)).keys()
    assert end(log) == live(log, (), by="")


@pytest.mark.parametrize("form", ["as an older version wrote it", "small"])
def test_a_job_that_has_ended_is_read_when_an_event_of_it_comes(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master keeps one record of a job that has ended, and reads it when an event of the job
    comes. A late attempt is deleted, and the next driver has the next epoch. So it is where an
    older version has written the job."""
    log, reads, is_old = MemoryEventLog(1), list[bytes](), form != "small"
    with monkeypatch.context() as older:
        if is_old:
            older.setattr(snapshots, "is_over", lambda state: False)
        live(log, (*LIFE, END), JOBS[0], by="first", settings=NEVER)
    assert is_old or {JOBS[0]} == standing(log, JOBS[0]).keys()
    unpack = snapshots._unpack_ended

    def read(body: bytes) -> Snapshot:
        reads.append(body)
        return unpack(body)

    monkeypatch.setattr(snapshots, "_unpack_ended", read)
    storage = Storage()
    with closing(joined(log)) as steps:
        drive(log, storage, steps)
        assert steps._held[0].recovered
        assert [] == reads
        state_facts(log, JOBS[0], produced(0, 9), by="late")
        drive(log, storage, steps)
        assert [(JOBS[0], produced(0, 9).attempt)] == storage.deleted
        assert 1 == len(reads) + is_old
        assert {} == steps._held[0].jobs
        state_facts(log, JOBS[0], LIFE[0], by="second")
        drive(log, storage, steps)
        assert 2 == steps.states[JOBS[0]].epoch
    assert 2 == audited(log, JOBS[0]).state.epoch


@pytest.mark.parametrize("at", [6, 10, 12, 30, 45, -1])
def test_an_ended_job_that_is_damaged_is_passed_over(at: int) -> None:
    """The log is read from its oldest event where the record of an ended job is damaged."""
    log = MemoryEventLog(1)
    live(log, (*LIFE, END), JOBS[0], by="first", settings=NEVER)
    body = bytearray(standing(log, JOBS[0])[JOBS[0]])
    body[at] ^= 1
    keep(log, JOBS[0], [StateRecord(JOBS[0], bytes(body))])
    assert 0 == live(log, (LIFE[0],), JOBS[0], by="second")
    assert 2 == audited(log, JOBS[0]).state.epoch


def test_a_master_that_stays_forgets_what_the_log_has_forgotten() -> None:
    """A master that keeps its partition looks now and then for ended jobs that the log has lost."""
    clock = StoppedClock(10**12)
    log = MemoryEventLog(1, clock)
    with closing(GroupSteps(log, MasterIdentity("one", "master", clock, ""), OFTEN)) as steps:
        drive(log, Storage(), steps)
        for job in JOBS[:2]:
            state_facts(log, job, *LIFE, clock=clock)
        state_facts(log, JOBS[0], END, clock=clock)
        drive(log, Storage(), steps)
        log.expire(JOBS[0], end(log))
        for forgotten in (False, True):
            steps.look()
            drive(log, Storage(), steps)
            assert forgotten is (JOBS[0] not in steps.states)
            assert forgotten is ({} == standing(log, JOBS[0]))
            clock.at_ms += 300_000
        assert JOBS[1] in steps.states


def test_a_master_forgets_the_names_of_jobs_that_it_ignores() -> None:
    """The name of a job of a driver is kept while the log has an event of the job, and no longer.
    Then it may be the name of a job of a session."""
    clock = StoppedClock(10**12)
    log = MemoryEventLog(1, clock)
    with closing(GroupSteps(log, MasterIdentity("one", "master", clock, ""), OFTEN)) as steps:
        state_facts(log, JOBS[0], JobRegistered("per-job", "0", "tests"), clock=clock)
        for forgotten in (False, True):
            drive(log, Storage(), steps)
            clock.at_ms += 300_000
            steps.look()
            assert forgotten is ({} == steps._held[0].ignored)
            log.expire(JOBS[0], end(log))
        state_facts(log, JOBS[0], *LIFE, clock=clock)
        drive(log, Storage(), steps)
        assert JOBS[0] in steps.states


def test_time_brings_nothing_to_a_job_that_has_ended() -> None:
    """A master's look skips jobs that have ended, of which there may be many."""
    log = MemoryEventLog(1)
    with closing(joined(log, settings=OFTEN)) as steps:
        for job in JOBS[:2]:
            state_facts(log, job, *LIFE)
        state_facts(log, JOBS[0], END)
        drive(log, Storage(), steps)
        steps.look()
        assert {JOBS[1]} == steps._held[0].touched.keys()
        assert set(JOBS[:2]) == steps.states.keys()


def test_a_log_without_its_head_is_verified_from_its_snapshots() -> None:
    """The audit verifies the decisions behind each job's snapshot when the log's head is gone."""
    log = MemoryEventLog(1)
    live(log, LIFE, *JOBS[:2], by="early")
    newest = read_snapshots(log, None, Deadline.after(1.0))
    assert set(JOBS[:2]) == newest.keys()
    state_facts(log, JOBS[0], produced(0, 9), ReleaseRequested(RESULT, ""), by="late")
    live(log, (), by="", settings=NEVER)
    log.expire(JOBS[0], min(snapshot.position for snapshot in newest.values()))
    audits = audit(
        log.read_all(Deadline.after(1.0)), read_snapshots(log, None, Deadline.after(1.0))
    )
    assert [""] * 2 == [verdict.violation for verdict in audits]
    assert any(verdict.decisions for verdict in audits)


def test_jobs_of_drivers_are_left_to_them_behind_snapshots_too() -> None:
    """A session master neither uses nor deletes the snapshot of a job in mode `per-job`."""
    log = MemoryEventLog(1)
    live(log, LIFE, JOBS[0], by="ours")
    snapshot = Replay(JOBS[1]).snapshot(3)
    keep(log, JOBS[1], snapshots.write(replace(snapshot, mode="per-job"), Standing())[0])
    live(log, (), by="")
    with closing(joined(log)) as steps:
        drive(log, Storage(), steps)
        state_facts(log, JOBS[1], *OPENING[1:], produced(0, 1))
        state_facts(log, JOBS[1], JobRegistered("session", "0", "tests"))
        drive(log, Storage(), steps)
        assert [JOBS[0]] == list(steps.states)
    assert {} != standing(log, JOBS[1])


def test_a_driver_follows_a_job_whose_head_is_gone() -> None:
    """A driver starts to read at the snapshot only if the log has lost the job's first event."""
    log = MemoryEventLog(1)
    live(log, LIFE, JOBS[0], by="early")
    snapshot = read_snapshots(log, None, Deadline.after(1.0))[JOBS[0]]
    whole = audited(log, JOBS[0]).state
    for before in (0, 1, snapshot.position):
        log.expire(JOBS[0], before)
        announcer = Announcer(JOBS[0], "driver", CLOCK)
        with closing(JobSteps.follow(log, announcer, OFTEN, known=0)) as steps:
            assert (snapshot.position if before else 0) == steps._follower.position()
            states = [steps.step(0.0).state for _ in range(30)]
        assert whole == states[-1]


def test_a_successor_is_seen_behind_a_snapshot() -> None:
    """A driver that was cut off until the log had lost its successor's first events is fenced."""
    log, term = MemoryEventLog(1), Term("driver")
    announcer = Announcer(JOBS[0], "driver", CLOCK)
    log.append(announcer.fact(LIFE[0]))
    live(log, LIFE[1:], JOBS[0], by="early")
    with closing(JobSteps.follow(log, announcer, OFTEN, term, known=0)) as steps:
        for _ in range(30):
            steps.step(0.0)
    assert 1 == term.epoch
    live(log, LIFE, JOBS[0], by="successor")
    snapshot = read_snapshots(log, None, Deadline.after(1.0))[JOBS[0]]
    log.expire(JOBS[0], snapshot.position)
    steps = JobSteps.follow(log, announcer, OFTEN, term)
    with closing(steps), pytest.raises(Fenced, match="a later driver has attached to job"):
        [steps.step(0.0) for _ in range(30)]


def test_a_session_driver_whose_lease_has_ended_is_over() -> None:
    """A session driver that reads the end of its own lease is fenced, without any successor."""
    log, term = MemoryEventLog(1), Term("driver")
    announcer = Announcer(JOBS[0], "driver", CLOCK)
    log.append(announcer.fact(LIFE[0]))
    live(log, (), by="")
    with closing(JobSteps.follow(log, announcer, OFTEN, term, known=0)) as steps:
        [steps.step(0.0) for _ in range(30)]
        state_facts(log, JOBS[0], LeaseExpired("silent for a night", 1))
        with pytest.raises(Fenced, match="silent for a night"):
            [steps.step(0.0) for _ in range(30)]


def test_a_life_that_began_anew_is_anothers() -> None:
    """A driver that finds its job at an earlier epoch, because the log was lost, is fenced."""
    old, new, term = MemoryEventLog(1), MemoryEventLog(1), Term("driver")
    announcer = Announcer(JOBS[0], "driver", CLOCK)
    live(old, LIFE, JOBS[0], by="former")
    old.append(announcer.fact(LIFE[0]))
    live(old, (), by="")
    with closing(JobSteps.follow(old, announcer, OFTEN, term, known=0)) as steps:
        for _ in range(30):
            steps.step(0.0)
    assert 2 == term.epoch
    live(new, OPENING, JOBS[0], by="somebody")
    steps = JobSteps.follow(new, announcer, OFTEN, term)
    with closing(steps), pytest.raises(Fenced, match="with epoch 1"):
        [steps.step(0.0) for _ in range(30)]


@pytest.mark.usefixtures("no_thread_stays")
def test_a_question_is_answered_that_comes_while_a_driver_opens_anew() -> None:
    """A question that is asked while the driver starts over is answered, even if the master stores
    the answer in a snapshot before the driver reads that."""
    log, asked = MemoryEventLog(1), list[Future[tuple[Decision, ...]]]()

    class Asking(FaultyLog):
        def read_state(
            self, job: JobId | None, deadline: Deadline, whole: bool = False
        ) -> dict[str, bytes]:
            if self.calls["read_state"]:
                asked.append(loop.ask(ReleaseRequested(RESULT, "asked")))
                drive(log, Storage(), steps)
                assert read_snapshots(log, JOB, deadline)[JOB].position > before
            state: dict[str, bytes] = super().read_state(job, deadline, whole)
            return state

    faulty, settings = Asking(log), replace(OFTEN, wait_ms=1_000, mode=SESSION)
    with (
        closing(joined(log, settings=OFTEN)) as steps,
        looping(faulty, settings=settings) as loop,
    ):
        answer = loop.ask(LIFE[0])
        drive(log, Storage(), steps)
        assert 1 == len(answer.result(1.0))
        state_facts(log, JOB, *LIFE[1:])
        drive(log, Storage(), steps)
        before = end(log)
        faulty.fault = LogFault("poll", faulty.calls["poll"] + 5, Unavailable("injected"))
        loop.wait_for(lambda _: asked or None, "the driver that begins anew")
        assert any(isinstance(decision, Released) for decision in asked[0].result(1.0))


@pytest.mark.usefixtures("no_thread_stays")
def test_a_question_is_answered_though_the_log_is_away_for_a_moment() -> None:
    """A question is answered although the log fails once, in a job whose first events are gone."""
    log = MemoryEventLog(1)
    faulty, settings = FaultyLog(log), replace(OFTEN, wait_ms=1_000, mode=SESSION)
    with (
        closing(joined(log, settings=OFTEN)) as steps,
        looping(faulty, settings=settings) as loop,
    ):
        for fact in OPENING:
            answer = loop.ask(fact)
            drive(log, Storage(), steps)
            answer.result(1.0)
        snapshot = read_snapshots(log, JOB, Deadline.after(1.0))[JOB]
        log.expire(JOB, 1)
        answer = loop.ask(ReleaseRequested(RESULT, "asked"))
        assert snapshot.position < end(log)
        faulty.fault = LogFault("poll", faulty.calls["poll"] + 1, Unavailable("injected"))
        followed, deadline = faulty.calls["follow"], Deadline.after(5.0)
        while faulty.calls["follow"] == followed:
            assert not deadline.passed
            SYSTEM_CLOCK.sleep_s(0.01)
        drive(log, Storage(), steps)
        assert any(isinstance(decision, Released) for decision in answer.result(1.0))


FAILURES: list[tuple[str, HeadgateError, bool]] = [
    ("keep", Unavailable("injected"), False),
    ("begin", Unavailable("injected"), False),
    *[("commit", error, False) for error in (Unavailable("injected"), Fenced("injected"))],
    *[("commit", OutcomeUnknown("injected"), after) for after in (False, True)],
]


@pytest.mark.parametrize(
    ("operation", "error", "after"),
    FAILURES,
    ids=[f"{name}-{type(error).__name__}-{after}" for name, error, after in FAILURES],
)
def test_whichever_step_fails_nothing_is_lost(
    operation: str, error: HeadgateError, after: bool
) -> None:
    """Whichever call fails, the same master or the next one writes the missing snapshots, and every
    fact is decided once."""
    for nth in range(1, 60):
        log, storage = MemoryEventLog(1), Storage()
        faulty = FaultyLog(log, LogFault(operation, nth, error, after))
        for job in JOBS[:2]:
            state_facts(log, job, *LIFE)
        for start in range(3):
            try:
                with closing(joined(faulty, start=start, settings=OFTEN)) as steps:
                    drive(faulty, storage, steps, steps=20)
            except (Unavailable, OutcomeUnknown):
                continue
        assert 0 < live(log, (), by="")
        for job in JOBS[:2]:
            assert audited(log, job).state == state_of(log, job)
            assert 3 == audited(log, job).state.results[RESULT].fate.deleted
        if faulty.calls[operation] < nth:
            return
    raise AssertionError("some call of it was never tried")


def test_the_same_calls_make_the_same_log() -> None:
    """Two runs of the same calls write the same records and the same state."""

    def run() -> tuple[object, ...]:
        log = MemoryEventLog(1, CLOCK)
        live(log, LIFE, *JOBS[:3], by="early")
        return [r for job in JOBS for r in events(log, job)], log.read_state(
            None, Deadline.after(1.0, CLOCK)
        )

    assert run() == run()
