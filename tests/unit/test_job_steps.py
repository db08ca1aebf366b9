"""The steps of a job's master, which the tests call without a thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Fenced, Lost, OutcomeUnknown, Unavailable
from headgate.control.events import types as ev
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Consumable,
    Event,
    Fact,
    JobAccepted,
    LeaseExpired,
    Newer,
    Recorded,
    Released,
    ReleaseRequested,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
    Tick,
)
from headgate.control.ids import JobId
from headgate.control.log import EventLog
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import Deletion
from headgate.control.master.job_steps import JobSteps
from headgate.control.master.term import Term
from headgate.control.memory.log import MemoryEventLog
from headgate.control.snapshots.resume import begin, read_snapshots
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import (
    JOB,
    OPENING,
    REGISTERED,
    RESULT,
    SETTINGS,
    OrderedStorage,
    attempt,
    audited,
    events,
    produced,
    state_facts,
)
from ..doubles.logs import FaultyLog
from ..doubles.steps import CLOCK, STEPS, drive
from ..doubles.storages import BusyStorage

LIMIT_S = 10.0


def opened(log: EventLog, by: str = "master") -> JobSteps:
    return JobSteps.open(log, Announcer(JOB, by, CLOCK), SETTINGS)


def whole_life() -> list[Recorded]:
    log = MemoryEventLog()
    storage = OrderedStorage(log)
    with closing(opened(log)) as steps:
        for fact in (*OPENING, produced(0, 1), produced(0, 2), produced(1, 3)):
            state_facts(log, fact, by=f"task {fact}")
            drive(steps, log, storage)
        state_facts(log, ReleaseRequested(RESULT, "asked"), by="driver")
        state = drive(steps, log, storage)[-1].state
        assert state is not None
        assert 3 == state.results[RESULT].fate.deleted
    audited(log)
    return events(log)


def test_the_same_calls_make_the_same_log() -> None:
    """Two runs write the same records: no thread, clock or chance is in a step."""
    before = threading.active_count()
    first, second = whole_life(), whole_life()
    decided = [[r for r in run if r.event.by == "master"] for run in (first, second)]
    assert decided[0] == decided[1] != []
    assert before == threading.active_count()


def test_nothing_comes_out_of_a_step_that_failed() -> None:
    """A step whose commit fails or is unknown gives no answer, state or deletion. Steps that are
    opened again give each of them once."""
    for error in (Unavailable("injected"), OutcomeUnknown("injected")):
        for after in (False, True):
            log = MemoryEventLog()
            storage = OrderedStorage(log)
            state_facts(log, *OPENING, produced(0, 1), AttemptFailed(attempt(1, 7), "oom"))
            faulty = FaultyLog(log, LogFault("commit", 1, error, after))
            with (
                closing(opened(faulty, "first")) as steps,
                pytest.raises(type(error), match="injected"),
            ):
                drive(steps, log, storage)
            assert set() == storage.deleted
            with closing(opened(faulty, "second")) as steps:
                drive(steps, log, storage)
            assert {attempt(1, 7)} == storage.deleted
            assert set() == storage.early
            assert 4 == audited(log).decisions


def decided_while(
    *coming: Fact, known: tuple[Fact, ...] = OPENING, gather_s: float = LIMIT_S
) -> list[type[Body]]:
    """Return the decisions of a step that is under way while facts come, one after the other.
    Assert that it commits nothing before the last one."""
    log = MemoryEventLog()
    patient = replace(SETTINGS, pace=replace(SETTINGS.pace, gather_s=gather_s))

    def decisions() -> list[type[Body]]:
        stated = [event.event.body for event in events(log) if event.event.by == "master"]
        return [type(body) for body in stated if not isinstance(body, Newer)]

    with (
        closing(JobSteps.open(log, Announcer(JOB, "master"), patient)) as steps,
        ThreadPoolExecutor(1) as pool,
    ):
        state_facts(log, *known)
        drive(steps, log, OrderedStorage(log))
        before, step = decisions(), pool.submit(steps.step, LIMIT_S)
        for fact in coming:
            Deadline.after(LIMIT_S).pause()
            assert (before, False) == (decisions(), step.done())
            state_facts(log, fact)
        assert step.result(LIMIT_S / 2).undecided == 0
    return decisions()[len(before) :]


def test_decisions_on_parts_of_a_result_go_together() -> None:
    """A step waits for the other parts of a result. It commits all that follows when the result is
    complete, when another decision is due, and when it has waited long enough."""
    first, last = produced(0, 1), produced(1, 3)
    assert [Consumable, Consumable, ResultComplete] == decided_while(first, last)
    assert [Consumable, Released] == decided_while(first, ReleaseRequested(RESULT, "asked"))
    assert [Consumable] == decided_while(first, gather_s=0.01)


def test_a_part_that_readers_wait_for_is_decided_at_once() -> None:
    """Readers wait for a part that is a stream, or is made again, not for the whole result."""
    streams = REGISTERED, ResultRegistered(RESULT, 2, 3, "", "", pipelined=True), OPENING[2]
    segment = SegmentProduced(attempt(0, 1), SegmentSummary(0, 9, 1, 0, b""))
    assert [Consumable] == decided_while(segment, known=streams)
    first, last, again = [
        replace(produced(at, task), fingerprint=7) for at, task in ((0, 1), (1, 3), (0, 5))
    ]
    lost = [ev.Lost(each.attempt, "object", "404", task=9) for each in (first, last)]
    assert [Consumable] == decided_while(again, known=(*OPENING, first, last, *lost))


def test_answers_are_the_authors_own() -> None:
    """A step answers each fact of its own author once, and no fact of others."""
    log = MemoryEventLog()
    announcer = Announcer(JOB, "driver", CLOCK)
    own = announcer.fact(REGISTERED)
    with closing(JobSteps.open(log, announcer, SETTINGS)) as steps:
        state_facts(log, REGISTERED, by="another")
        log.append(own)
        outcomes = drive(steps, log, OrderedStorage(log))
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    assert [(own.id, (JobAccepted(2),))] == [(a.cause, a.decisions) for a in answers]


def test_failed_deletions_are_handed_out_again() -> None:
    """A deletion that failed for a while is handed out by a later step, one at a time."""
    log = MemoryEventLog()
    storage = BusyStorage(log)
    state_facts(log, *OPENING, produced(0, 1), ReleaseRequested(RESULT, "asked"))
    with closing(opened(log)) as steps:
        handed = [len(outcome.deletions) for outcome in drive(steps, log, storage)]
    assert storage.deleted == {attempt(0, 1)}
    assert BusyStorage.failures + 1 == sum(handed)


def test_an_attempt_is_handed_out_once_until_it_is_gone() -> None:
    """An attempt is not handed out for deletion again while its deletion runs. Once the log says
    that it is deleted, objects that it writes later are handed out again."""
    log = MemoryEventLog()
    storage = OrderedStorage(log)

    def handed_out(steps: JobSteps) -> list[Deletion]:
        return [d for _ in range(STEPS) for d in steps.step(0.0).deletions]

    with closing(opened(log)) as steps:
        state_facts(log, *OPENING, AttemptFailed(attempt(0, 7), "oom"))
        (running,) = handed_out(steps)
        state_facts(log, AttemptFailed(attempt(0, 8), "oom"), by="another")
        (other,) = handed_out(steps)
        assert [(attempt(0, 7),), (attempt(0, 8),)] == [running.attempts, other.attempts]
        for deletion in (running, other):
            deletion.run(storage, log, Deadline.after(1.0, CLOCK))
        assert [] == handed_out(steps)
        state_facts(log, AttemptStarted(attempt(0, 7), "host"), by="zombie")
        (again,) = handed_out(steps)
        assert (attempt(0, 7),) == again.attempts


def test_a_deletion_whose_fact_is_in_doubt_is_handed_out_again() -> None:
    """A `Deleted` without a confirmation is published again by the same master."""
    log = FaultyLog(MemoryEventLog())
    storage = OrderedStorage(log)
    state_facts(log, *OPENING, produced(0, 1), produced(0, 2))
    log.fault = LogFault("append", log.calls["append"] + 1, OutcomeUnknown("no confirmation"))
    with closing(opened(log)) as steps:
        state = drive(steps, log, storage)[-1].state
        assert state is not None
        assert () == state.results[RESULT].doomed


def test_decisions_behind_an_open_step_are_waited_for() -> None:
    """A successor does not repeat decisions of a former master that it cannot read yet, because
    they lie behind another job's open step."""
    log = MemoryEventLog(1)
    storage = OrderedStorage(log)
    dead = log.open_decisions(JobId("dead"))
    with closing(opened(log, "first")) as first:
        drive(first, log, storage)
        state_facts(log, REGISTERED)
        dead.begin()
        dead.write(Event("0.0", JobId("dead"), "", 0, "dead", 0, JobAccepted(1)))
        drive(first, log, storage)
    with closing(opened(log, "second")) as second:
        assert [None] * STEPS == [outcome.state for outcome in drive(second, log, storage)]
        dead.close()
        drive(second, log, storage)
    assert audited(log).decisions == 1


def test_a_successors_decision_ends_the_steps() -> None:
    """Steps that read a successor's decision raise `Fenced`, even with nothing to commit."""
    log = MemoryEventLog()
    begin(log, JOB, Deadline.after(1.0))
    with closing(opened(log, "first")) as first, closing(opened(log, "second")) as second:
        assert first.step(0.0).state is not None
        state_facts(log, REGISTERED)
        second.step(0.0)
        with pytest.raises(Fenced, match="second decides"):
            first.step(0.0)


def test_a_head_that_goes_while_a_master_starts_begins_it_anew() -> None:
    """A master gets `Lost` if the log loses its head between the read of a snapshot and the read of
    the log. When it opens again it starts at the newer snapshot."""
    log, storage = MemoryEventLog(1), OrderedStorage(MemoryEventLog(1))
    settings = replace(SETTINGS, snapshot_events=1)

    def go_on(by: str, *facts: Fact) -> None:
        with closing(JobSteps.open(log, Announcer(JOB, by, CLOCK), settings)) as steps:
            for fact in facts:
                state_facts(log, fact)
                drive(steps, log, storage)

    class Slow(FaultyLog):
        def read_state(
            self, job: JobId | None, deadline: Deadline, whole: bool = False
        ) -> dict[str, bytes]:
            stored: dict[str, bytes] = super().read_state(job, deadline, whole)
            if self.calls["read_state"] == 1:
                go_on("second", produced(0, 2), produced(1, 3))
                log.expire(JOB, read_snapshots(log, JOB, deadline)[JOB].position)
            return stored

    go_on("first", *OPENING, produced(0, 1))
    slow = Slow(log)
    steps = JobSteps.open(slow, Announcer(JOB, "third", CLOCK), settings)
    with closing(steps), pytest.raises(Lost):
        drive(steps, log, storage)
    with closing(JobSteps.open(slow, Announcer(JOB, "third", CLOCK), settings)) as steps:
        assert drive(steps, log, storage)[-1].state is not None


def test_a_driver_whose_lease_has_ended_is_over() -> None:
    """A driver that reads the end of its own lease is fenced; the end of an earlier driver's lease
    does not concern it."""
    log, term = MemoryEventLog(), Term("driver")
    announcer = Announcer(JOB, "driver", CLOCK)
    with closing(JobSteps.open(log, announcer, SETTINGS, term)) as steps:
        for epoch in (1, 2):
            log.append(announcer.fact(REGISTERED))
            state_facts(log, LeaseExpired("late", epoch - 1), by="sweep")
            (*_, last) = (steps.step(0.0).state for _ in range(3))
            assert last is not None
            assert epoch == last.epoch
        state_facts(log, LeaseExpired("silent for a night", 2), by="sweep")
        with pytest.raises(Fenced, match="silent for a night"):
            drive(steps, log, OrderedStorage(log))
    assert term.is_over


@pytest.mark.parametrize("fact", [REGISTERED, Tick(1)])
def test_a_successor_that_stands_in_a_snapshot_only_is_not_fenced(fact: Fact) -> None:
    """A master that finds its successor only in a snapshot does not open the decisions again, which
    would fence the successor. That holds even if the successor stored the snapshot before it
    registered."""
    log, storage = MemoryEventLog(1), OrderedStorage(MemoryEventLog(1))
    settings, terms = replace(SETTINGS, snapshot_events=1), (Term("first"), Term("second"))

    def taken_up(term: Term) -> JobSteps:
        return JobSteps.open(log, Announcer(JOB, term.by, CLOCK), settings, term)

    with closing(taken_up(terms[0])) as first:
        state_facts(log, *OPENING, by="first")
        drive(first, log, storage)
        with closing(taken_up(terms[1])) as second:
            drive(second, log, storage)
            state_facts(log, fact, by="second")
            drive(second, log, storage)
            known = terms[0].position
            assert known is not None
            assert known < read_snapshots(log, JOB, Deadline.after(1.0))[JOB].position
            log.expire(JOB, len(log.partitions[0].entries))
            with pytest.raises(Fenced):
                taken_up(terms[0])
            state_facts(log, ReleaseRequested(RESULT, "asked"), by="second")
            answered = drive(second, log, storage)[-1].state
    assert terms[0].is_over
    assert answered is not None
    assert "asked" == answered.results[RESULT].fate.released
