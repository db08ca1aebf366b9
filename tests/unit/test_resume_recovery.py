"""A master that starts at a snapshot decides as one that reads the whole log."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import HeadgateError, OutcomeUnknown, Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Fact,
    JobAccepted,
    JobUnregistered,
    PartitionRegistered,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
    StopTrackingRequested,
)
from headgate.control.ids import JobId, ResultId
from headgate.control.log import EventLog, StateRecord
from headgate.control.master.announcer import Announcer
from headgate.control.memory.log import MemoryEventLog
from headgate.control.snapshots import records
from headgate.control.snapshots.resume import begin, read_snapshots
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import (
    JOB,
    OPENING,
    REGISTERED,
    RESULT,
    OrderedStorage,
    attempt,
    audited,
    events,
    looping,
    produced,
    state_facts,
)
from ..doubles.logs import FaultyLog
from ..doubles.snapshots import HOURLY, LIFE, OFTEN, last_state, live, opened, position, standing
from ..doubles.steps import StoppedClock, drive

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def carry_state(old: EventLog, log: EventLog) -> None:
    """Copy the job's state records from another log into this one."""
    with closing(log.open_decisions(JOB)) as decisions:
        decisions.begin()
        for key, body in standing(old).items():
            decisions.keep(StateRecord(key, body))
        decisions.commit(0)


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_masters_that_follow_each_other_at_snapshots(every: int) -> None:
    """However often the master changes, state and decisions are those of a master that read
    everything, and doomed objects are deleted once."""
    log = MemoryEventLog()
    state = live(log, LIFE, every)
    assert audited(log).state == state
    assert position(log) > events(log)[0].offset
    assert 3 == state.results[RESULT].fate.deleted


def test_the_head_of_the_log_is_not_needed() -> None:
    """A new master works the same when everything before its snapshot is gone from the log."""
    log, whole = MemoryEventLog(), MemoryEventLog()
    live(log, LIFE, 100)
    log.expire(JOB, position(log))
    assert [] == events(log)
    rest = (produced(0, 9), ReleaseRequested(RESULT, "asked"), JobUnregistered("closed"))
    state = live(log, rest, 1)
    assert live(whole, (*LIFE, *rest), 100) == state
    assert "closed" == state.closed


def test_what_has_ended_stands() -> None:
    """A job's state is stored once more after the job is over and its objects are gone, and not
    before. So the job's name can be used again however much of its former log is gone."""
    log = MemoryEventLog()
    live(log, LIFE, 100)
    with closing(opened(log)) as steps:
        state_facts(log, JobUnregistered("closed"), by="driver")
        outcomes = [steps.step(0.0) for _ in range(5)]
        running = standing(log)
        assert {JOB, f"{JOB}/{RESULT}"} == running.keys()
        for deletion in (order for outcome in outcomes for order in outcome.deletions):
            deletion.run(OrderedStorage(log), log, Deadline.after(1.0))
        drive(steps, log, OrderedStorage(log))
    ended = standing(log)
    assert running != ended
    with closing(opened(log)) as steps:
        drive(steps, log, OrderedStorage(log))
    assert ended == standing(log)
    log.expire(JOB, events(log)[0].offset + len(LIFE))
    again = (REGISTERED, *OPENING[1:], produced(0, 1, 2))
    assert 2 == live(log, again, 100).epoch
    assert {} != standing(log)


@pytest.mark.parametrize("retention_ms", [-1, 600_000])
def test_a_snapshot_follows_facts_or_time(retention_ms: int) -> None:
    """A master writes a snapshot at its start, and the next one after enough facts or time.

    The time is the setting or a part of the log's retention, also when the clock was set back. An
    idle job gets its snapshot too, so that its position stays in the log; an idle log gets none.
    """
    log, clock = MemoryEventLog(1, retention_ms=retention_ms), StoppedClock(10**12)
    after_ms = HOURLY.snapshot_ms if retention_ms < 0 else retention_ms // 4
    with closing(opened(log, HOURLY, clock)) as steps:
        state_facts(log, REGISTERED)
        drive(steps, log, OrderedStorage(log))
        first = position(log)
        assert 1 == first
        state_facts(log, *LIFE[1:])
        drive(steps, log, OrderedStorage(log))
        assert first == position(log)
        clock.at_ms -= after_ms
        drive(steps, log, OrderedStorage(log))
        first = position(log)
        assert first == len(log.partitions[0].entries) > len(LIFE)
        log.append(Announcer(JobId("other"), "somebody", clock).fact(REGISTERED))
        drive(steps, log, OrderedStorage(log))
        assert first == position(log)
        clock.at_ms += after_ms
        drive(steps, log, OrderedStorage(log))
        assert first + 1 == position(log)
        before = standing(log)
        clock.at_ms += after_ms
        drive(steps, log, OrderedStorage(log))
        assert before == standing(log)


@pytest.mark.parametrize("body", [PromoteRequested(RESULT, 0), StopTrackingRequested(RESULT, "")])
def test_what_is_to_outlive_its_job_is_kept_at_once(body: Fact) -> None:
    """A result that is to outlive its job is in a snapshot at once, so that it survives when the
    driver dies and the log forgets."""
    log = MemoryEventLog(1)
    with closing(opened(log, HOURLY)) as steps:
        state_facts(log, *LIFE)
        drive(steps, log, OrderedStorage(log))
        state_facts(log, body)
        drive(steps, log, OrderedStorage(log))
    log.expire(JOB, len(log.partitions[0].entries))
    (snapshot,) = read_snapshots(log, JOB, Deadline.after(1.0)).values()
    assert snapshot.state.results[RESULT].kept


@pytest.mark.parametrize("life_ms", [HOURLY.snapshot_ms // 2, 1_000])
def test_masters_of_short_lives_keep_what_they_read(life_ms: int) -> None:
    """Each master starts where the former one stopped, so that the log may forget the rest."""
    log, clock = MemoryEventLog(1), StoppedClock()
    for number in range(4):
        before = len(log.partitions[0].entries)
        with closing(opened(log, HOURLY, clock)) as steps:
            state_facts(log, *(LIFE if number == 0 else LIFE[-2:]), by=f"life {number}")
            drive(steps, log, OrderedStorage(log))
            clock.at_ms += life_ms
        assert before <= position(log) <= len(log.partitions[0].entries)


def test_a_large_result_is_not_written_again_for_a_few_facts() -> None:
    """A result with many attempts is written again only after as many new facts."""
    log = MemoryEventLog()
    attempts = [AttemptStarted(attempt(0, task), "host") for task in range(50)]
    with closing(opened(log)) as steps:
        state_facts(log, *OPENING, *attempts, by="early")
        for _ in range(5):
            drive(steps, log, OrderedStorage(log))
        first = standing(log)
        positions = set()
        for number in range(60):
            state_facts(log, Consumed(RESULT, 0, 1, number, 1, 1, 1), by=f"reader {number}")
            drive(steps, log, OrderedStorage(log))
            positions.add(position(log))
    assert first != {}
    assert len(positions) in (2, 3)


@pytest.mark.parametrize(
    ("operation", "error", "after"),
    [
        ("commit", OutcomeUnknown("injected"), True),
        ("commit", OutcomeUnknown("injected"), False),
        ("commit", Unavailable("injected"), False),
        ("keep", Unavailable("injected"), False),
        ("begin", Unavailable("injected"), False),
    ],
)
@pytest.mark.parametrize("nth", range(1, 8))
def test_whatever_fails_every_question_is_answered(
    nth: int, operation: str, error: HeadgateError, after: bool
) -> None:
    """A loop whose snapshots fail, or are stored without an answer, answers every question once and
    rightly: no snapshot hides an open question."""
    log = MemoryEventLog()
    faulty = FaultyLog(log, LogFault(operation, nth, error, after))
    with looping(faulty, settings=OFTEN) as loop:
        answers = [loop.ask(fact) for fact in (*LIFE, ReleaseRequested(RESULT, "asked"))]
        decisions = [answer.result(3.0) for answer in answers]
    assert (JobAccepted(1),) == decisions[0]
    replay = audited(log)
    assert replay.decisions == sum(map(len, decisions))


def test_a_snapshot_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A damaged snapshot is skipped: the log is read from its oldest
    event, with one warning, and the next snapshot replaces the bad one."""
    log = MemoryEventLog()
    live(log, LIFE, 100)
    for key in standing(log):
        with closing(log.open_decisions(JOB)) as decisions:
            decisions.begin()
            decisions.keep(StateRecord(key, b"of another time"))
            decisions.commit(0)
        caplog.clear()
        with caplog.at_level(logging.WARNING), closing(opened(log)) as steps:
            drive(steps, log, OrderedStorage(log))
            state_facts(log, *LIFE[-2:], by=f"late {key}")
            state = last_state(drive(steps, log, OrderedStorage(log)))
        assert ["is not used"] == [
            "is not used" for r in caplog.records if f"job {JOB} is not used" in r.getMessage()
        ]
        assert audited(log).state == state
        assert records.read(JOB, standing(log))[0].position == position(log)


@pytest.mark.parametrize("grown", [0, 100])
def test_a_snapshot_of_another_log_is_passed_over(
    caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    """A snapshot that was taken on another log is skipped, and the events that this log holds
    count. A log that has the snapshot's offset again is told apart by its identity."""
    old, log = (MemoryEventLog(1, identity=name if grown else "") for name in ("old", "new"))
    live(old, LIFE, 100)
    carry_state(old, log)
    for number in range(grown):
        log.append(Announcer(JobId("other"), f"somebody {number}").fact(REGISTERED))
    with caplog.at_level(logging.WARNING):
        state = live(log, OPENING, 100)
    assert "it belongs to" in caplog.text
    assert audited(log).state == state
    assert 1 == state.epoch


def test_what_is_gone_behind_a_snapshot_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A snapshot older than the log's oldest event is used, and a warning names the gap."""
    log = MemoryEventLog(1)
    live(log, LIFE, 100)
    start = position(log)
    log.append(Announcer(JobId("other"), "somebody").fact(REGISTERED))
    log.expire(JOB, start + 1)
    with caplog.at_level(logging.WARNING):
        assert start + 1 == position(log)
    assert f"offsets {start} to {start}" in caplog.text


def test_snapshots_of_all_jobs_are_found() -> None:
    """A reader of the whole log gets the newest snapshot of each job."""
    log = MemoryEventLog()
    live(log, LIFE, 100)
    newest = read_snapshots(log, None, Deadline.after(1.0))
    assert {JOB} == newest.keys()
    assert newest == read_snapshots(log, JOB, Deadline.after(1.0))
    assert {} == read_snapshots(log, JobId("other"), Deadline.after(1.0))


def test_a_snapshot_of_another_log_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    """A reader of all jobs skips a snapshot of another log, as the job's master does."""
    old, log = MemoryEventLog(), MemoryEventLog()
    live(old, LIFE, 100)
    carry_state(old, log)
    assert {} == read_snapshots(log, None, Deadline.after(1.0))
    assert "it belongs to" in caplog.text


def test_a_state_that_is_lost_is_whole_again_some_time_later() -> None:
    """A running master writes everything again once in a while: when the log has lost its head, the
    next driver has the job with all its results."""
    log, clock = MemoryEventLog(1), StoppedClock()
    storage = OrderedStorage(log)
    begin(log, JOB, Deadline.after(1.0))
    with closing(opened(log, OFTEN, clock)) as steps:
        state_facts(log, *LIFE, PromoteRequested(RESULT, 0, 1))
        drive(steps, log, storage)
        log.partitions[0].state.clear()
        for number in range(2, 6):
            clock.at_ms += OFTEN.snapshot_ms
            name = ResultId(f"r{number}")
            facts = (ResultRegistered(name, 1, 1, "", ""), PartitionRegistered(name, 0, 1))
            state_facts(log, *facts, ReleaseRequested(name, "asked", 1), by=f"driver {number}")
            drive(steps, log, storage)
    log.expire(JOB, events(log)[-4].offset)
    begin(log, JOB, Deadline.after(1.0))
    with closing(opened(log)) as steps:
        state_facts(log, REGISTERED, by="next")
        state = last_state(drive(steps, log, storage))
    assert (2, True) == (state.epoch, state.results[RESULT].kept)
