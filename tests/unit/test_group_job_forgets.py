"""Session masters forget ended jobs once the log has, and no sooner."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Unavailable
from headgate.control.events.types import Fact
from headgate.control.ids import JobId
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay
from headgate.control.snapshots.resume import read_snapshots

from ..doubles.group_snapshots import END, LIFE, NEVER, end, live, standing
from ..doubles.groups import JOBS, Storage, audited, drive, events, joined, state_facts
from ..doubles.jobs import produced
from ..doubles.steps import StoppedClock


def test_what_has_ended_stands_until_the_log_forgets_it() -> None:
    """The state of an ended job is kept, and its epochs continue, while the log has any event of
    it. Then its state is deleted and its epochs start again."""
    log = MemoryEventLog(1)
    live(log, (*LIFE, END), JOBS[0], by="first", settings=NEVER)
    assert {} != standing(log, JOBS[0])
    live(log, LIFE, JOBS[1], by="other")
    start = live(log, (LIFE[0], END), JOBS[0], by="second", settings=NEVER)
    assert start > events(log, JOBS[0])[0].offset
    assert 2 == audited(log, JOBS[0]).state.epoch
    live(log, (), by="")
    assert {} != standing(log, JOBS[0])
    log.expire(JOBS[0], end(log))
    live(log, (), by="")
    assert {} == standing(log, JOBS[0])
    live(log, (LIFE[0],), JOBS[0], by="third")
    assert 1 == audited(log, JOBS[0]).state.epoch


@pytest.mark.parametrize("late", [LIFE[0], produced(0, 9)])
def test_an_ended_job_whose_events_came_without_a_master_is_not_forgotten(late: Fact) -> None:
    """The log has lost what a job did before it ended, and its next driver, or a late attempt, has
    spoken while no master was there. That driver, and others who have read the snapshot, expect the
    next epoch, and the attempt's objects are to be deleted."""
    log, storage = MemoryEventLog(1), Storage()
    live(log, (*LIFE, END), JOBS[0], by="first", settings=NEVER)
    log.expire(JOBS[0], end(log))
    snapshot = read_snapshots(log, JOBS[0], Deadline.after(1.0))[JOBS[0]]
    state_facts(log, JOBS[0], late, by="late")
    with closing(joined(log, settings=NEVER)) as steps:
        drive(log, storage, steps)
        expected = 2 if late is LIFE[0] else 1
        assert expected == steps.states[JOBS[0]].epoch
    replay = Replay(JOBS[0], snapshot)
    for recorded in events(log, JOBS[0]):
        replay.observe(recorded)
    assert expected == replay.state.epoch
    assert (late is LIFE[0]) == (not storage.deleted)


@pytest.mark.parametrize("recovered", [True, False])
def test_a_job_that_begins_again_is_not_forgotten_before_its_event_is_read(recovered: bool) -> None:
    """A master asks for the oldest offset while the next driver of an ended job has spoken, and it
    has not read that yet: it may be far behind, or have read the partition to its end just
    before. The driver has the next epoch."""
    log, clock, settings = MemoryEventLog(1), StoppedClock(), replace(NEVER, step_events_max=1)
    live(log, (*LIFE, END), JOBS[0], by="first", settings=NEVER)
    snapshot, ended = read_snapshots(log, JOBS[0], Deadline.after(1.0))[JOBS[0]], end(log)
    if not recovered:
        log.expire(JOBS[0], ended)
        state_facts(log, JOBS[1], *LIFE, by="other")
    with closing(GroupSteps(log, MasterIdentity("one", "m", clock, ""), settings)) as steps:
        if recovered:
            drive(log, Storage(), steps)
            log.expire(JOBS[0], ended)
        else:
            steps.step(0.0)
        state_facts(log, JOBS[0], LIFE[0], by="second")
        assert recovered == steps._held[0].recovered
        clock.at_ms += 301_000
        steps.look()
        drive(log, Storage(), steps, steps=60)
        assert 2 == steps.states[JOBS[0]].epoch
    replay = Replay(JOBS[0], snapshot)
    for each in events(log, JOBS[0]):
        replay.observe(each)
    assert 2 == replay.state.epoch


def test_a_partition_that_does_not_answer_lets_others_forget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile one of two partitions has no leader."""
    log, clock = MemoryEventLog(2), StoppedClock()
    jobs = [next(job for job in JOBS if log.partition(job) == number) for number in (0, 1)]
    live(log, (*LIFE, END), *jobs, by="first", settings=NEVER)
    ask = log.oldest

    def refuse(job: JobId) -> int:
        if log.partition(job) == first:
            raise Unavailable("no leader")
        return ask(job)

    with closing(GroupSteps(log, MasterIdentity("one", "m", clock, ""), NEVER)) as steps:
        drive(log, Storage(), steps)
        first = next(iter(steps._held))
        monkeypatch.setattr(log, "oldest", refuse)
        for job in jobs:
            log.expire(job, len(log.partitions[log.partition(job)].entries))
        for _ in range(2):
            clock.at_ms += 301_000
            steps.look()
            drive(log, Storage(), steps)
    left = read_snapshots(log, None, Deadline.after(1.0))
    assert [first] == [log.partition(job) for job in left]
