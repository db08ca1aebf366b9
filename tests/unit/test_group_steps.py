"""Session masters whose steps the tests call without a thread, on one log in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import pytest

from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import (
    Conflict,
    Fenced,
    HeadgateError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)
from headgate.control.events.types import (
    AttemptFailed,
    Event,
    Fact,
    JobAccepted,
    JobRegistered,
    Lost,
    PartitionRegistered,
    Produced,
    Recorded,
    ReleaseRequested,
    Reproduce,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.log import EventLog, partition_of
from headgate.control.master.group_steps import GroupSteps
from headgate.control.memory.log import MemoryEventLog
from headgate.control.memory.partitions import MemoryTransactions
from headgate.control.model import replay
from headgate.control.model.decide import step
from headgate.control.model.state import JobState
from headgate.testing.faulty_log import LogFault

from ..doubles.groups import JOBS, OPENING, Storage, audited, drive, events, joined, state_facts
from ..doubles.jobs import RESULT, attempt, produced
from ..doubles.logs import FaultyLog

PARTITIONS = 4


def deciders(log: EventLog, job: JobId) -> list[str]:
    return [r.event.by for r in events(log, job) if r.event.basis is not None]


def test_many_jobs_are_decided_at_once() -> None:
    """A master decides for many jobs, and the state of each job is what its log says."""
    log, storage = MemoryEventLog(PARTITIONS), Storage()
    with closing(joined(log)) as master:
        for fact in (*OPENING, produced(0, 1), produced(1, 2)):
            for job in JOBS:
                state_facts(log, job, fact, by=f"task {fact}")
            drive(log, storage, master, steps=3)
        drive(log, storage, master)
        for job in JOBS:
            assert audited(log, job).decisions == 5
            assert master.states[job] == audited(log, job).state
            assert master.states[job].results[RESULT].complete


def test_jobs_of_drivers_are_left_to_them() -> None:
    """A session master decides nothing for a job that was first registered in mode `per-job`."""
    log, storage = MemoryEventLog(PARTITIONS), Storage()
    state_facts(log, JOBS[0], JobRegistered("per-job", "0", ""), *OPENING)
    state_facts(log, JOBS[1], AttemptFailed(attempt(0, 1), ""))
    state_facts(log, JOBS[2], *OPENING)
    with closing(joined(log)) as master:
        drive(log, storage, master)
        assert [JOBS[2]] == list(master.states)
    assert [[], []] == [deciders(log, job) for job in JOBS[:2]]
    assert audited(log, JOBS[2]).state.epoch == 1


@pytest.mark.parametrize("evicted", [False, True])
def test_partitions_move_between_masters(evicted: bool) -> None:
    """When a master leaves or is evicted, the others continue in its place: every fact is decided
    once, and its pending deletions are done."""
    log, storage = MemoryEventLog(PARTITIONS), Storage(failures=99)
    with closing(joined(log, "one")) as first, closing(joined(log, "two")) as second:
        for job in JOBS:
            state_facts(log, job, *OPENING, produced(0, 1), AttemptFailed(attempt(1, 9), "oom"))
        drive(log, storage, first, second)
        assert 2 == len({by for job in JOBS for by in deciders(log, job)})
        for job in JOBS:
            state_facts(log, job, produced(1, 2), by="later task")
        storage.failures = 0
        if evicted:
            log.evict("one")
        else:
            first.close()
        drive(log, storage, second)
        assert all(master_has_all(second, job) for job in JOBS)
        for job in JOBS:
            assert audited(log, job).state.results[RESULT].complete
            assert audited(log, job).state.results[RESULT].fate.deleted == 1
        assert {(job, attempt(1, 9)) for job in JOBS} == set(storage.deleted)
        assert len(JOBS) == len(storage.deleted)
        if evicted:
            drive(log, storage, first, second)
            assert first.states.keys() | second.states.keys() == set(JOBS)
            assert first.states.keys() & second.states.keys() == set()


def master_has_all(master: GroupSteps, job: JobId) -> bool:
    return master.states[job].results[RESULT].complete


class _Stalled:
    """A log on which a test can act between a master's last write and its commit."""

    def __init__(self, inner: MemoryEventLog) -> None:
        self.inner = inner
        self.faulty = FaultyLog(inner)
        self.before_commit: Callable[[], None] = lambda: None
        self.faulty.may_commit.wait = self.wait  # type: ignore[method-assign]

    def wait(self, timeout: float | None = None) -> bool:
        call, self.before_commit = self.before_commit, lambda: None
        call()
        return True


def test_a_paused_master_is_fenced(caplog: pytest.LogCaptureFixture) -> None:
    """A master that loses its partitions between a write and its commit changes nothing, logs that
    it was fenced, and joins again."""
    log, storage = MemoryEventLog(PARTITIONS), Storage()
    stalled = _Stalled(log)
    with closing(joined(stalled.faulty, "one")) as first, closing(joined(log, "two")) as second:
        drive(log, storage, first, second)
        for job in JOBS:
            state_facts(log, job, *OPENING, AttemptFailed(attempt(1, 9), "oom"))

        def move() -> None:
            log.evict("one")
            drive(log, storage, second)

        stalled.before_commit = move
        with caplog.at_level(logging.WARNING):
            drive(log, storage, first, second)
        assert "slot one was fenced" in caplog.text
        for job in JOBS:
            assert audited(log, job).decisions == 3
        assert len(JOBS) == len(storage.deleted)
        state_facts(log, JOBS[0], produced(0, 1), by="later")
        drive(log, storage, first, second)
        assert audited(log, JOBS[0]).decisions == 4
        assert first.states.keys() & second.states.keys() == set()


def test_a_second_master_of_a_slot_replaces_the_first() -> None:
    """A master that joins under a taken slot gets its partitions, and the former master stops."""
    log, storage = MemoryEventLog(PARTITIONS), Storage()
    state_facts(log, JOBS[0], *OPENING)
    with closing(joined(log)) as former:
        drive(log, storage, former)
        with closing(joined(log, start=1)) as successor:
            state_facts(log, JOBS[0], produced(0, 1), by="later")
            with pytest.raises(Conflict, match="slot one"):
                former.step(0.0)
            drive(log, storage, successor)
    assert ["master one 0"] * 2 + ["master one 1"] == deciders(log, JOBS[0])
    audited(log, JOBS[0])


def test_a_job_that_does_not_explain_itself_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A forged decision stops its own job, with an error that names the job, and no other job."""
    log, storage = MemoryEventLog(1), Storage()
    state_facts(log, JOBS[0], *OPENING)
    forger = log.open_decisions(JOBS[0])
    forger.begin()
    forger.write(Event("0.0", JOBS[0], "", 0, "forger", 0, JobAccepted(9)))
    forger.commit(0)
    state_facts(log, JOBS[1], *OPENING)
    with closing(joined(log)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    assert ["forger"] == deciders(log, JOBS[0])
    assert f"ignores job {JOBS[0]}" in caplog.text
    assert audited(log, JOBS[1]).decisions == 2


def test_a_decision_that_no_log_takes_stops_its_job_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A decision over the size limit stops its own job; the decisions of other jobs are
    committed."""
    log, storage, write = MemoryEventLog(1), Storage(), MemoryTransactions.write
    for job in JOBS[:3]:
        state_facts(log, job, *OPENING)

    def refusing(self: MemoryTransactions, decision: Event) -> None:
        if decision.job == JOBS[1]:
            raise Invalid("injected: too large")
        write(self, decision)

    monkeypatch.setattr(MemoryTransactions, "write", refusing)
    with closing(joined(log)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    (message,) = [r.getMessage() for r in caplog.records]
    assert (
        message == f"this group of masters ignores job {JOBS[1]} from now on: injected: too large"
    )
    assert [2, 0, 2] == [len(deciders(log, job)) for job in JOBS[:3]]


def test_a_step_that_no_log_takes_stops_one_job_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a whole step is refused for its size, its jobs are tried one by one, and only the job of
    the large decision stops. That holds although Kafka's client drops one more step after a
    refusal."""
    log, storage, gaps = MemoryEventLog(1), Storage(), list[int]()
    for job in JOBS[:3]:
        state_facts(log, job, *OPENING)
    committed = MemoryTransactions._commit

    def commit(self: MemoryTransactions) -> None:
        entries, mine = log.partitions[0].entries, tuple(self._steps.values())
        if any(entry.job == JOBS[1] for entry in entries if entry.step in mine):
            self.abort()
            gaps.append(1)
            raise Invalid("injected: too large")
        if gaps:
            gaps.clear()
            self.abort()
            raise Unavailable("injected: skipped sequence numbers")
        committed(self)

    monkeypatch.setattr(MemoryTransactions, "_commit", commit)
    with closing(joined(log)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith(f"this group of masters ignores job {JOBS[1]}")
    assert [2, 0, 2] == [len(deciders(log, job)) for job in JOBS[:3]]


def test_a_refusal_that_comes_late_stops_the_right_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A late refusal stops the job of the refused record, although Kafka's client reports it when
    another job's record is written."""
    many = MasterSettings(step_events_max=100)
    log, storage, written = MemoryEventLog(1), Storage(), list[JobId]()
    for job in JOBS[:3]:
        state_facts(log, job, *OPENING)
    begin, write = MemoryTransactions.begin, MemoryTransactions.write
    committed = MemoryTransactions._commit

    def begun(self: MemoryTransactions) -> None:
        written.clear()
        begin(self)

    def late(self: MemoryTransactions, decision: Event) -> None:
        if JOBS[1] in written and decision.job != JOBS[1]:
            raise Invalid("injected: too large")
        written.append(decision.job)
        write(self, decision)

    def commit(self: MemoryTransactions) -> None:
        if JOBS[1] in written:
            self.abort()
            raise Invalid("injected: too large")
        committed(self)

    for name, double in (("begin", begun), ("write", late), ("_commit", commit)):
        monkeypatch.setattr(MemoryTransactions, name, double)
    with closing(joined(log, settings=many)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith(f"this group of masters ignores job {JOBS[1]}")
    assert [2, 0, 2] == [len(deciders(log, job)) for job in JOBS[:3]]


def test_a_fact_that_nobody_can_decide_stops_its_job_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours in one job stops that job only. If the master ended instead, the next master
    would read the same fact and end too."""

    def decide(state: JobState, fact: Fact, at: int) -> NoReturn:
        raise RecursionError("injected")

    log, storage = MemoryEventLog(1), Storage()
    patched = {JOBS[0]: decide}
    monkeypatch.setattr(replay, "step", lambda s, *fact: patched.get(s.job, step)(s, *fact))
    for job in JOBS[:2]:
        state_facts(log, job, *OPENING)
    with closing(joined(log)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    assert f"ignores job {JOBS[0]} from now on: injected" in caplog.text
    assert ([], 2) == (deciders(log, JOBS[0]), len(deciders(log, JOBS[1])))


@pytest.mark.slow
def test_a_loss_below_a_long_chain_is_decided() -> None:
    """A loss at the start of a long chain of nondeterministic results orders all of them again, in
    order."""
    log, storage = MemoryEventLog(1), Storage()
    names = [ResultId(f"r{number}") for number in range(1_500)]
    state_facts(log, JOBS[0], OPENING[0])
    for source, name in zip([None, *names], names, strict=False):
        inputs = () if source is None else (source,)
        made = AttemptId(PartitionId(name, 0), 1, 1)
        state_facts(
            log,
            JOBS[0],
            ResultRegistered(name, 1, 1, "", "", inputs, deterministic=False),
            PartitionRegistered(name, 0, 1),
            Produced(made, (SegmentSummary(0, 9, 1, 0, b""),)),
        )
    state_facts(log, JOBS[0], Lost(AttemptId(PartitionId(names[0], 0), 1, 1), "o", "404"))
    with closing(joined(log, settings=MasterSettings())) as master:
        drive(log, storage, master)
    bodies = [recorded.event.body for recorded in events(log, JOBS[0])]
    assert names == [body.result for body in bodies if isinstance(body, Reproduce)]


def test_failed_deletions_are_tried_again() -> None:
    """A deletion that failed for a while is done by a later step of the same master."""
    log, storage = MemoryEventLog(PARTITIONS), Storage(failures=5)
    state_facts(log, JOBS[0], *OPENING, produced(0, 1), ReleaseRequested(RESULT, "asked"))
    with closing(joined(log)) as master:
        drive(log, storage, master)
    assert [(JOBS[0], attempt(0, 1))] == storage.deleted
    assert audited(log, JOBS[0]).state.results[RESULT].fate.deleted == 1


def test_objects_in_another_store_stay(caplog: pytest.LogCaptureFixture) -> None:
    """A master leaves a job's objects in another store alone and does not state them as deleted: a
    master of that store does it."""
    log, storage = MemoryEventLog(PARTITIONS), Storage()
    for job, store in zip(JOBS, ("memory://here", "memory://there"), strict=False):
        registered = JobRegistered(SESSION, "0", "tests", store)
        state_facts(log, job, registered, *OPENING[1:], AttemptFailed(attempt(1, 9), "oom"))
    with closing(joined(log)) as master, caplog.at_level(logging.ERROR):
        drive(log, storage, master)
    assert [(JOBS[0], attempt(1, 9))] == storage.deleted
    assert f"did not delete the objects of job {JOBS[1]} in memory://there" in caplog.text
    assert audited(log, JOBS[1]).state.results[RESULT].fate.deleted == 0


FAILURES: list[tuple[str, HeadgateError, bool]] = [
    *[(name, Unavailable("injected"), False) for name in ("poll", "end", "begin", "write")],
    *[("commit", error, False) for error in (Unavailable("injected"), Fenced("injected"))],
    *[("commit", OutcomeUnknown("injected"), after) for after in (False, True)],
]


@pytest.mark.parametrize(
    ("operation", "error", "after"),
    FAILURES,
    ids=[f"{name}-{type(error).__name__}-{after}" for name, error, after in FAILURES],
)
def test_any_one_call_may_fail(operation: str, error: HeadgateError, after: bool) -> None:
    """Whichever call of the log fails, every fact is decided once in the end, by the same steps or
    by steps that join again."""
    for nth in range(1, 100):
        log, storage = MemoryEventLog(PARTITIONS), Storage()
        faulty = FaultyLog(log, LogFault(operation, nth, error, after))
        for job in JOBS[:3]:
            state_facts(log, job, *OPENING, produced(0, 1), AttemptFailed(attempt(1, 9), "oom"))
        try:
            with closing(joined(faulty)) as master:
                drive(faulty, storage, master)
        except (Unavailable, OutcomeUnknown):
            with closing(joined(faulty, start=1)) as master:
                drive(faulty, storage, master)
        for job in JOBS[:3]:
            assert audited(log, job).decisions == 4
            assert audited(log, job).state.results[RESULT].fate.deleted == 1
        if faulty.calls[operation] < nth:
            return
    assert operation in ("poll",), "some call of it was never tried"


def test_the_same_calls_make_the_same_log() -> None:
    """Two runs write the same records: no thread, clock or chance is in a step."""

    def run() -> list[Recorded]:
        log, storage = MemoryEventLog(PARTITIONS), Storage()
        for job in JOBS:
            state_facts(log, job, *OPENING, AttemptFailed(attempt(1, 9), "oom"))
        with closing(joined(log, "one")) as first, closing(joined(log, "two")) as second:
            drive(log, storage, first, second)
        return [r for job in JOBS for r in events(log, job)]

    assert run() == run()


def test_jobs_of_one_partition_share_it() -> None:
    """The jobs of these tests lie in several partitions, and some share one."""
    assert 1 < len({partition_of(job, PARTITIONS) for job in JOBS}) < len(JOBS)
