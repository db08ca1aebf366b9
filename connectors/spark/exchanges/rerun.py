"""Rerun map tasks for lost partitions while the action that needs them waits.

Readers wait inside their tasks. If they leave no task slot for the rerun, its stages are scheduled
first and some readers are killed. Spark does not count that as a failure, and starts them again
later; but it ends the job of a reader whose own stage has a barrier, so such readers are killed
last. A stage with a barrier runs again as a whole, and begins when it has all its slots: the
stages of its readers get none until then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from pyspark import SparkContext
from pyspark.errors import PySparkException

from ....control.clock import PACE, Pace
from ....control.ids import JobId, ResultId
from ..jvm.scheduler import (
    StoppedStages,
    await_all_slots,
    kill_task,
    put_first,
    running_stages,
    running_tasks,
    without_barrier,
)
from ..jvm.task_settings import DESCRIPTION, WRITES, TaskSettings
from ..tasks.shipping import cause
from .progress import StateOf

_LOG = logging.getLogger("headgate")
_ROUNDS_MAX = 4  # as often as Spark tries a task
_SETTLE_TURNS = 10
_PATIENCE_TURNS = 10
_LONG_PATIENCE_TURNS = 60

_POOL = "spark.scheduler.pool"


class MapStage(Protocol):
    """Tasks each of which writes a partition and gives the number of its rows."""

    @property
    def count(self) -> int:
        """Return the number of tasks."""

    def run(self) -> list[int]:
        """Run all tasks, and return the numbers of rows."""

    def run_again(self, partitions: list[int]) -> None:
        """Run the tasks of some partitions once more."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A map stage that writes a result."""

    stage: MapStage
    settings: TaskSettings
    """The settings of the session when the stage was planned."""

    def run(self, described: str) -> list[int]:
        """Run the stage, and return the rows that the successful attempt at each partition
        wrote. The caller carries the settings to the tasks.

        Raises:
            HeadgateError: a task has raised it.
        """
        self.settings.describe(f"{WRITES} {described}")
        try:
            return self.stage.run()
        except PySparkException as exc:
            if ours := cause(exc):
                raise ours from exc
            raise

    def again(self, partitions: list[int]) -> None:
        """Run the stage for these partitions only, with its settings, in any thread."""
        with self.settings.carried():
            self.stage.run_again(partitions)


@dataclass(slots=True)
class Reruns:
    """The map stages of a job that may be rerun. One rerun of a result goes on at a time. The job's
    master calls this object: it implements `JobShuffleContext`."""

    context: SparkContext
    job_id: JobId
    application: str
    state_of: StateOf
    pace: Pace = PACE
    makes_room: bool = True
    """False if this Spark does not let Headgate give task slots to reruns."""
    writing_of: Callable[[ResultId], Writing | None] = lambda _: None
    """Returns the map stage that makes a result again, None if there is none."""
    _running: set[ResultId] = field(default_factory=set)
    _given_up: set[ResultId] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _stopped: StoppedStages = field(init=False)

    def __post_init__(self) -> None:
        self._stopped = StoppedStages(self.context)

    def on_fatal_error(self, error: BaseException) -> None:
        _LOG.error("the shuffle master of job %s cannot go on: %s", self.job_id, error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Start a rerun of each result with missing partitions, unless one goes on; do not wait."""
        with self._lock:
            for result in missing.keys() - self._running - self._given_up:
                writing = None if self._closed.is_set() else self.writing_of(result)
                if writing is not None:
                    name, given = f"headgate-rerun-{result}", (result, writing)
                    self._running.add(result)
                    threading.Thread(None, self._repair, name, given, daemon=True).start()

    def goes_on(self, result: ResultId) -> bool:
        """Return True while lost partitions of a result are made again."""
        with self._lock:
            return result in self._running

    def close(self) -> None:
        self._closed.set()

    def _repair(self, result: ResultId, stage: Writing) -> None:
        try:
            for _ in range(_ROUNDS_MAX):
                if not (missing := self._missing(result)):
                    return
                _LOG.warning("result %s: making partitions %s again", result, sorted(missing))
                self._run(result, stage, sorted(missing))
                self._settle(result)
            if self._missing(result):
                self._give_up(result, f"in {_ROUNDS_MAX} rounds")
        except Exception:  # the user's code in the map stage may raise anything
            self._give_up(result, "its map stage failed", exc_info=True)
        finally:
            with self._lock:
                self._running.remove(result)

    def _give_up(self, result: ResultId, how: str, exc_info: bool = False) -> None:
        """Try no further rerun of a result. The wait of its readers then times out, and their error
        names the loss."""
        with self._lock:
            self._given_up.add(result)
        _LOG.error(
            "the lost partitions of result %s were not made again: %s",
            result,
            how,
            exc_info=exc_info,
        )

    def _missing(self, result: ResultId) -> frozenset[int]:
        state = None if self._closed.is_set() else self.state_of(result)
        if state is None or state.fate.released:
            return frozenset()
        return frozenset(state.reproduction.reproducing)

    def _run(self, result: ResultId, stage: Writing, missing: list[int]) -> None:
        tag = f"headgate-rerun-{result}"
        with ThreadPoolExecutor(1, thread_name_prefix=tag) as executor:
            job = executor.submit(self._again, tag, result, stage, missing)
            try:
                if self.makes_room:
                    self._make_room(tag, result, missing, job)
            finally:
                self._stopped.end(result)
            job.result()

    def _again(self, tag: str, result: ResultId, stage: Writing, missing: list[int]) -> None:
        context = self.context
        context.addJobTag(tag)
        context.setLocalProperty(_POOL, tag)
        context.setLocalProperty(DESCRIPTION, f"{WRITES} {result} again, {missing}")
        stage.again(missing)

    def _make_room(self, tag: str, result: ResultId, missing: list[int], job: Future[None]) -> None:
        """Kill waiting readers until every task of the rerun has a slot: one in each turn, up to
        the number of slots that it lacked, and one more every `_PATIENCE_TURNS`. If it lacks none,
        its tasks may themselves wait for another result: one more every `_LONG_PATIENCE_TURNS`. A
        reader with a barrier goes last, and after this time: Spark ends its job."""
        killed: set[int] = set()
        turns, needed = 0, len(missing)
        while not job.done() and not self._closed.wait(self.pace.retry_s):
            turns += 1
            state = self.state_of(result)
            if state is None:
                return
            running, winners = state.production.running, state.production.winners
            begun = {attempt.partition.index for attempt in running} | winners.keys()
            waiting = sorted(state.reproduction.waiting - killed)
            if not set(missing) - begun:
                self._stopped.end(result)
                continue
            if not waiting:
                continue
            others = without_barrier(self.context, waiting)
            if not others and turns % _LONG_PATIENCE_TURNS:
                continue
            waiting = others or waiting
            stages = running_stages(self.context, tag)
            reason = f"makes room for result {result}, which it waits for"
            if await_all_slots(self.context, stages):
                put_first(self.context, stages)
                self._stopped.add(result, waiting)
                killed.update(waiting)
                for task in waiting:
                    kill_task(self.context, task, reason)
                continue
            # a task that has a slot may need seconds until the log says that it has begun
            lacking = len(set(missing) - winners.keys()) - running_tasks(self.context, stages)
            needed = min(needed, lacking + len(killed))
            patience = _PATIENCE_TURNS if lacking > 0 else _LONG_PATIENCE_TURNS
            if (lacking > 0 and len(killed) < needed) or turns % patience == 0:
                put_first(self.context, stages)
                killed.add(waiting[-1])
                kill_task(self.context, waiting[-1], reason)

    def _settle(self, result: ResultId) -> None:
        """Wait a while for the master's decisions on the partitions that were produced."""
        for _ in range(_SETTLE_TURNS):
            if not self._missing(result) or self._closed.wait(self.pace.poll_s):
                return
