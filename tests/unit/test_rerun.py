"""Reruns by the driver: how often it tries, and when it gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import SparkContext

from headgate.connectors.spark.exchanges import rerun
from headgate.connectors.spark.exchanges.rerun import Reruns, Writing
from headgate.control.clock import SYSTEM_CLOCK, Deadline, Pace
from headgate.control.events.types import ResultRegistered
from headgate.control.ids import ResultId, job_id
from headgate.control.model.persistent import PersistentSet
from headgate.control.model.state import Reproduction, ResultState

RESULT = ResultId("r")
MISSING = {RESULT: frozenset({1})}


class Driver:
    """A driver with a result that lacks a partition, and a scripted map stage."""

    def __init__(self, stage: Callable[[Driver], None]) -> None:
        self.stage = stage
        self.runs = 0
        self.missing = frozenset({1})
        self.waiting: frozenset[int] = frozenset()
        context = SimpleNamespace(setLocalProperty=lambda *_: None, addJobTag=lambda _: None)
        pace = Pace(poll_s=0.001, retry_s=0.01)
        self.repairs = Reruns(
            cast(SparkContext, context), job_id("job"), "tests", lambda _: self.state(), pace
        )
        self.repairs.writing_of = lambda _: cast(Writing, self)

    def again(self, partitions: list[int]) -> None:
        assert partitions == sorted(self.missing)
        self.runs += 1
        self.stage(self)

    def state(self) -> ResultState:
        registered = ResultRegistered(RESULT, 2, 1, "", "")
        reproduction = Reproduction(
            reproducing=PersistentSet(self.missing), waiting=PersistentSet(self.waiting)
        )
        return ResultState(registered, reproduction=reproduction)

    def tell_often(self) -> None:
        """Report the missing partition again and again, as the master does with each of its
        steps."""
        deadline = Deadline.after(3.0)
        idle = 0
        while idle < 20 and not deadline.passed:
            self.repairs.reproduce(MISSING)
            SYSTEM_CLOCK.sleep_s(0.01)
            idle = 0 if self.repairs._running else idle + 1
        assert idle == 20, "the repair has ended"


def fails(driver: Driver) -> None:
    raise ValueError("a user's code")


def nothing(driver: Driver) -> None:
    """End without making the partition."""


def mends(driver: Driver) -> None:
    driver.missing = frozenset()


@pytest.mark.parametrize(("stage", "runs"), [(fails, 1), (nothing, 4)])
def test_a_repair_that_does_not_help_is_given_up(
    stage: Callable[[Driver], None], runs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A rerun that does not help is given up, however often the master reports the loss."""
    driver = Driver(stage)
    driver.tell_often()
    assert runs == driver.runs
    assert 1 == sum("were not made again" in record.message for record in caplog.records)


def test_a_repair_that_helps_may_be_needed_again() -> None:
    """A partition that is lost again after a rerun is made again."""
    driver = Driver(mends)
    driver.repairs.reproduce(MISSING)
    deadline = Deadline.after(3.0)
    while driver.repairs._running and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.01)
    driver.missing = frozenset({1})
    driver.repairs.reproduce(MISSING)
    while driver.missing and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.01)
    assert (2, frozenset()) == (driver.runs, driver.missing)


def test_nothing_is_made_again_after_close() -> None:
    """A closed headgate starts no rerun."""
    driver: Any = Driver(mends)
    driver.repairs.close()
    driver.repairs.reproduce(MISSING)
    assert (0, set()) == (driver.runs, driver.repairs._running)


@pytest.mark.parametrize(
    ("missing", "free", "most", "turns", "expected"),
    [
        (1, 0, 1, 40, [9]),
        (1, 0, 0, 25, [9, 8, 7]),
        (4, 0, 4, 8, [9, 8, 7, 6]),
        (3, 2, 2, 8, [9]),
        (1, 0, 1, 65, [9, 8]),
    ],
    ids=["a slot", "no slot", "four slots", "two were free", "a slot that does not help"],
)
def test_readers_make_room_until_the_tasks_have_slots(
    missing: int,
    free: int,
    most: int,
    turns: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other reader is killed while tasks that make partitions again start slowly, but each of
    these tasks gets a slot at once."""
    killed: list[int] = []
    ended = threading.Event()
    looked = 0

    def state(driver: Driver) -> ResultState:
        nonlocal looked
        looked += 1
        if looked > turns:
            driver.waiting = frozenset()
            ended.set()
        return Driver.state(driver)

    monkeypatch.setattr(rerun, "await_all_slots", lambda context, stages: False)
    monkeypatch.setattr(rerun, "without_barrier", lambda context, tasks: tasks)
    monkeypatch.setattr(rerun, "running_stages", lambda context, tag: {1})
    monkeypatch.setattr(rerun, "put_first", lambda context, stages: None)
    monkeypatch.setattr(
        rerun, "running_tasks", lambda context, stages: min(most, free + len(killed))
    )
    monkeypatch.setattr(rerun, "kill_task", lambda context, task, reason: killed.append(task))

    def starts_slowly(driver: Driver) -> None:
        assert ended.wait(10)
        mends(driver)

    driver = Driver(starts_slowly)
    driver.missing, driver.waiting = frozenset(range(missing)), frozenset({6, 7, 8, 9})
    driver.repairs.state_of = lambda _: state(driver)
    driver.tell_often()
    assert expected == killed


class Idle:
    """Notes which readers' stages get no slots."""

    def __init__(self, calls: list[object]) -> None:
        self.calls = calls

    def add(self, result: ResultId, tasks: list[int]) -> None:
        self.calls.append(("idle", *tasks))

    def end(self, result: ResultId) -> None:
        self.calls.append("end")


def test_all_readers_make_room_for_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that wait for a stage with a barrier end at once, once each, and no task takes their
    slots until the stage has begun. Those that have a barrier themselves are left for long."""
    calls: list[object] = []
    monkeypatch.setattr(rerun, "StoppedStages", lambda context: Idle(calls))
    monkeypatch.setattr(rerun, "await_all_slots", lambda context, stages: True)
    monkeypatch.setattr(
        rerun, "without_barrier", lambda context, tasks: [each for each in tasks if each < 10]
    )
    monkeypatch.setattr(rerun, "running_stages", lambda context, tag: {1})
    monkeypatch.setattr(rerun, "put_first", lambda context, stages: None)
    monkeypatch.setattr(rerun, "kill_task", lambda context, task, reason: calls.append(task))

    def begins_late(driver: Driver) -> None:
        driver.waiting = frozenset({8, 9, 10})
        SYSTEM_CLOCK.sleep_s(0.1)
        driver.waiting = frozenset({7, 8, 9, 10})
        SYSTEM_CLOCK.sleep_s(0.1)
        mends(driver)

    driver = Driver(begins_late)
    driver.tell_often()
    assert [("idle", 8, 9), 8, 9, ("idle", 7), 7, "end"] == calls
