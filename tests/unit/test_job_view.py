"""Threads of one process that wait for the same job do not block each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.events.types import JobAccepted, JobRegistered, ResultRegistered
from headgate.control.ids import JobId, ResultId
from headgate.control.inquiry.job_view import JobView
from headgate.control.master.announcer import Announcer
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Derived
from headgate.control.model.state import JobState

from ..doubles.jobs import JOB as LOOP_JOB
from ..doubles.jobs import RESULT as LOOP_RESULT
from ..doubles.jobs import produced
from ..doubles.snapshots import LIFE, live, position

JOB, RESULT, OTHER = JobId("j"), ResultId("r1"), ResultId("r2")
WAIT_S = 5.0


class World:
    """The log of a job that is registered and accepted, and a view of it."""

    def __init__(self) -> None:
        self.log = MemoryEventLog()
        self.announcer = Announcer(JOB, "driver")
        self.watch = JobView(self.log, JOB)
        registered = self.announcer.fact(JobRegistered("", "", ""))
        at = self.log.append(registered).offset(Deadline.after(WAIT_S))
        decisions = self.log.open_decisions(JOB)
        decisions.begin()
        decisions.write(self.announcer.decision(Derived(at, 0, registered.id, JobAccepted(1))))
        decisions.commit(at + 1)

    def register(self, result: ResultId) -> None:
        self.log.append(self.announcer.fact(ResultRegistered(result, 1, 1, "", "")))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.watch.close()


def until(result: ResultId, world: World, answers: list[bool | None]) -> threading.Thread:
    """Start a thread that waits for a result."""

    def known(state: JobState) -> bool | None:
        return True if result in state.results else None

    def wait() -> None:
        answers.append(world.watch.wait(result, known, lambda: Deadline.after(WAIT_S)))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_question_does_not_wait_for_another_ones_answer(world: World) -> None:
    """A thread is answered at once while another thread waits for a result that does not come."""
    answers: list[bool | None] = []
    waiting = until(RESULT, world, answers)
    began = SYSTEM_CLOCK.monotonic_s()
    for _ in range(5):
        assert world.watch.state(Deadline.after(WAIT_S)).job == JOB
    assert SYSTEM_CLOCK.monotonic_s() - began < WAIT_S / 2
    assert answers == []
    world.register(RESULT)
    waiting.join()
    assert answers == [True]


def test_each_of_two_waits_ends_with_its_own_answer(world: World) -> None:
    """Each wait ends when its own result comes, whichever wait began first."""
    first: list[bool | None] = []
    second: list[bool | None] = []
    earlier = until(RESULT, world, first)
    later = until(OTHER, world, second)
    world.register(OTHER)
    later.join(WAIT_S / 2)
    assert (first, second) == ([], [True])
    world.register(RESULT)
    earlier.join()
    assert first == [True]


def test_a_wait_ends_with_nothing_when_nothing_comes(world: World) -> None:
    """A wait without its result ends at its deadline with None."""
    world.register(OTHER)
    assert world.watch.wait(RESULT, lambda state: None, lambda: Deadline.after(0.1)) is None


def test_a_look_begins_at_the_newest_snapshot() -> None:
    """A view has the job's state from the newest snapshot, even if the log loses events that it had
    not read yet."""
    log = MemoryEventLog(1)
    state = live(log, LIFE, 2)
    start = position(log)
    log.expire(LOOP_JOB, start)
    watch = JobView(log, LOOP_JOB)
    assert state.results == watch.state(Deadline.after(WAIT_S)).results
    live(log, (produced(0, 9), produced(0, 10)), 1)
    log.expire(LOOP_JOB, position(log))
    assert start < position(log)
    later = watch.state(Deadline.after(WAIT_S))
    before, after = (look.results[LOOP_RESULT].totals.written for look in (state, later))
    assert before.superseded + 2 == after.superseded
