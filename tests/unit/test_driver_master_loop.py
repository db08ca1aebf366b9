"""The running master of one job: a log that fails, a rival master, and its own death."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing

import pytest

from headgate.control.errors import (
    Closed,
    Corrupt,
    Fenced,
    HeadgateError,
    Lost,
    OutcomeUnknown,
    Unavailable,
)
from headgate.control.events.types import (
    AttemptFailed,
    Event,
    JobAccepted,
    PartitionRegistered,
    ResultRegistered,
)
from headgate.control.ids import ResultId
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.job_answers import JobAnswers
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay
from headgate.control.model.state import JobState
from headgate.control.snapshots.schedule import SnapshotSchedule
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import (
    JOB,
    OPENING,
    REGISTERED,
    RESULT,
    SETTINGS,
    WAIT_MS,
    Deaf,
    Job,
    OrderedStorage,
    attempt,
    audited,
    deleted_objects,
    events,
    looping,
    produced,
    state_facts,
)
from ..doubles.logs import FaultyLog

pytestmark = pytest.mark.usefixtures("no_thread_stays")


# A job, its storage, and the checks of its log


def complete(state: JobState) -> bool | None:
    return True if RESULT in state.results and state.results[RESULT].complete else None


def test_facts_without_decisions_are_decided_by_the_next_master() -> None:
    """A successor decides the facts that a dead driver left undecided, once and in order."""
    log = MemoryEventLog()
    state_facts(log, *OPENING, produced(0, 1), produced(0, 2), produced(1, 3))
    with looping(log) as loop:
        assert loop.wait_for(complete, "completion")
        assert attempt(0, 1) == loop.state.results[RESULT].production.winners[0]
        assert loop.wait_for(deleted_objects(1), "deletion")
    assert audited(log).decisions == 6
    with looping(log) as loop:
        assert loop.wait_for(complete, "completion")
    assert audited(log).decisions == 6


def test_half_decided_facts_are_decided_by_the_next_master() -> None:
    """A successor writes exactly the decisions that its predecessor did not commit."""
    log = MemoryEventLog()
    state_facts(log, *OPENING, produced(0, 1), produced(1, 2))
    replay = Replay(JOB)
    due = [d for record in events(log) for d in replay.observe(record)]
    for count in range(len(due) + 1):
        half = MemoryEventLog()
        state_facts(half, *OPENING, produced(0, 1), produced(1, 2))
        decisions = half.open_decisions(JOB)
        decisions.begin()
        for decision in due[:count]:
            decisions.write(Announcer(JOB, "dead").decision(decision))
        decisions.commit(0)
        decisions.begin()
        for decision in due[count:]:
            decisions.write(Announcer(JOB, "dead").decision(decision))
        with looping(half) as loop:
            assert loop.wait_for(complete, "completion")
        assert len(due) == audited(half).decisions
        made = [r.event.by for r in events(half) if r.event.basis is not None]
        assert ["dead"] * count + ["driver"] * (len(due) - count) == made


def test_a_second_master_fences_the_first() -> None:
    """A second master stops the first one, whose waiters get `Fenced` and which decides nothing
    more."""
    log = MemoryEventLog()
    job = Job()
    with looping(log, by="first", job=job) as first:
        assert (JobAccepted(1),) == first.ask(REGISTERED).result(1.0)
        waiting: Future[object] = Future()
        thread = threading.Thread(target=lambda: wait_into(first, waiting))
        thread.start()
        with looping(log, by="second") as second:
            assert (JobAccepted(2),) == second.ask(REGISTERED).result(1.0)
            assert isinstance(waiting.exception(1.0), Fenced)
            with pytest.raises(Fenced):
                first.ask(REGISTERED)
            state_facts(log, *OPENING[1:], produced(0, 1, 2), produced(1, 2, 2))
            assert second.wait_for(complete, "completion")
        thread.join(1.0)
    assert [Fenced] == [type(error) for error in job.errors]
    made = {r.event.basis: r.event.by for r in events(log) if r.event.basis is not None}
    assert sorted(set(made.values())) == ["first", "second"]
    assert audited(log).state.epoch == 2


def wait_into(loop: JobAnswers, waiting: Future[object]) -> None:
    try:
        waiting.set_result(loop.wait_for(complete, "completion"))
    except HeadgateError as exc:
        waiting.set_exception(exc)


def test_a_question_that_the_predecessor_answered_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fact that the former master decides gets that decision as its answer. A decision behind a
    snapshot would be missed, so a driver asks only after it has read the log."""
    monkeypatch.setattr(SnapshotSchedule, "is_due", lambda *_: False)
    log = MemoryEventLog()
    late = FaultyLog(log)
    late.may_open.clear()
    with looping(log, by="first") as first, looping(late, by="second") as second:
        answer = second.ask(REGISTERED)
        assert first.wait_for(lambda state: state.epoch or None, "the epoch")
        late.may_open.set()
        assert (JobAccepted(1),) == answer.result(1.0)
    assert audited(log).decisions == 1


def test_a_question_survives_an_unknown_commit() -> None:
    """A decision whose commit got no answer is made once, and still answers the question."""
    log = MemoryEventLog()
    for after in (False, True):
        faulty = FaultyLog(log, LogFault("commit", 1, OutcomeUnknown("injected"), after))
        with looping(faulty, by=f"driver {after}") as loop:
            assert (JobAccepted(1 + after),) == loop.ask(REGISTERED).result(1.0)
    assert audited(log).decisions == 2


def test_nothing_is_told_or_deleted_before_it_is_committed() -> None:
    """Before a commit has ended, no question is answered, no state changes and no object is
    deleted."""
    log = MemoryEventLog()
    faulty, storage = FaultyLog(log), OrderedStorage(log)
    with looping(faulty, storage) as loop:
        faulty.may_commit.clear()
        answer = loop.ask(REGISTERED)
        with pytest.raises(TimeoutError):
            answer.result(0.1)
        assert loop.state.epoch == 0
        faulty.may_commit.set()
        assert (JobAccepted(1),) == answer.result(1.0)
        state_facts(log, *OPENING[1:])
        assert loop.wait_for(lambda s: RESULT in s.results or None, "the result")
        faulty.may_commit.clear()
        released = loop.ask(AttemptFailed(attempt(1, 7), "oom"))
        with pytest.raises(TimeoutError):
            released.result(0.1)
        assert storage.deleted == set()
        faulty.may_commit.set()
        assert loop.wait_for(deleted_objects(1), "deletion")
    assert storage.early == set()


@pytest.mark.parametrize(
    "operation", ["open_decisions", "read_state", "follow", "end", "poll", "begin", "write"]
)
def test_whatever_was_opened_is_closed(operation: str) -> None:
    """A loop that starts over closes the decisions that it had opened."""
    faulty = FaultyLog(MemoryEventLog(), LogFault(operation, 1, Unavailable("injected")))
    with looping(faulty) as loop:
        assert (JobAccepted(1),) == loop.ask(REGISTERED).result(1.0)
    opened = faulty.calls["open_decisions"] - (operation == "open_decisions")
    assert opened == faulty.calls["close"]


def test_a_master_that_was_cut_off_leaves_its_successor_alone() -> None:
    """A master that loses the log within a step looks for a successor before it opens decisions
    again, and does not disturb that successor."""
    log = MemoryEventLog()
    for nth in (3, 4):
        cut_off = FaultyLog(log, LogFault("commit", nth, Unavailable("injected")))
        first, second = Job(), Job()
        with looping(cut_off, by=f"first {nth}", job=first) as loop:
            (accepted,) = loop.ask(REGISTERED).result(1.0)
            cut_off.may_open.clear()
            state_facts(
                log, *[ResultRegistered(ResultId(f"{nth}-{n}"), 1, 1, "", "") for n in "ab"]
            )
            state_facts(log, *[PartitionRegistered(ResultId(f"{nth}-{n}"), 0, 1) for n in "ab"])
            counted = FaultyLog(log)
            with looping(counted, by=f"second {nth}", job=second) as successor:
                assert isinstance(accepted, JobAccepted)
                successor.wait_until_read("it")
                follows = (JobAccepted(accepted.epoch + 1),)
                assert follows == successor.ask(REGISTERED).result(1.0)
                cut_off.may_open.set()
                with pytest.raises(Fenced):
                    loop.wait_for(lambda _: None, "what never comes")
                result = ResultRegistered(ResultId(f"{nth}-c"), 1, 1, "", "")
                assert () == successor.ask(result).result(1.0)
                registered = PartitionRegistered(result.result, 0, 1)
                assert 1 == len(successor.ask(registered).result(1.0))
                assert 1 == counted.calls["open_decisions"]
        assert ([Fenced], []) == ([type(error) for error in first.errors], second.errors)
    audited(log)


@pytest.mark.parametrize("operation", ["begin", "write", "commit"])
def test_a_master_that_was_away_in_a_step_goes_on(operation: str) -> None:
    """A master whose open step the log has ended continues when no other master has come."""
    job = Job()
    faulty = FaultyLog(
        MemoryEventLog(), LogFault(operation, 3, Fenced("the step was open too long"))
    )
    with looping(faulty, job=job) as loop:
        assert (JobAccepted(1),) == loop.ask(REGISTERED).result(1.0)
        for fact in (*OPENING[1:], produced(0, 1), produced(1, 2)):
            state_facts(faulty, fact)
        assert loop.wait_for(complete, "completion")
    assert [] == job.errors
    assert faulty.calls[operation] > 3
    audited(faulty)


def test_a_master_whose_place_in_the_log_is_gone_begins_anew() -> None:
    """A master whose position is no longer in the log starts over, as after an absence longer than
    the log's retention."""
    faulty = FaultyLog(MemoryEventLog(), LogFault("poll", 2, Lost("injected")))
    with looping(faulty) as loop:
        for epoch in (1, 2, 3):
            assert (JobAccepted(epoch),) == loop.ask(REGISTERED).result(1.0)
    assert faulty.calls["poll"] > 2


def test_a_wait_has_a_deadline_and_names_what_it_waits_for() -> None:
    """Every wait ends at its deadline with an error that names the wait and the job."""
    with (
        looping(MemoryEventLog()) as loop,
        pytest.raises(Unavailable, match=f"{WAIT_MS} ms for completion of job {JOB}"),
    ):
        loop.wait_for(complete, "completion")


def test_closing_while_somebody_waits_gives_closed() -> None:
    """Closing a master gives `Closed` to everyone who waits, and to everyone who asks later."""
    log, me = Deaf(MemoryEventLog()), DriverIdentity("driver", "0")
    with closing(DriverMaster(log, OrderedStorage(log), SETTINGS, me)) as master:
        loop, waiting = master.start_job(Job()), Future[object]()
        thread = threading.Thread(target=lambda: wait_into(loop, waiting))
        thread.start()
        answer = loop.ask(REGISTERED)
        master.close()
        thread.join(1.0)
        assert isinstance(answer.exception(1.0), Closed)
        assert isinstance(waiting.exception(1.0), Closed)
        with pytest.raises(Closed):
            loop.ask(REGISTERED)
        with pytest.raises(Closed):
            loop.wait_for(complete, "completion")


def test_a_forged_decision_stops_the_master() -> None:
    """A master that reads a decision which does not follow stops, and reports `Corrupt`."""
    log = MemoryEventLog()
    state_facts(log, *OPENING)
    forger = log.open_decisions(JOB)
    forger.begin()
    forger.write(Event("0.0", JOB, "", 0, "forger", 0, JobAccepted(9)))
    forger.commit(0)
    job = Job()
    with looping(log, job=job) as loop, pytest.raises(Corrupt):
        loop.wait_for(complete, "completion")
    assert [Corrupt] == [type(error) for error in job.errors]
    assert len(events(log)) == 4
