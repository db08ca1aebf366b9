"""A sweeper that looks for silent drivers and ends their jobs, as `headgate sweep` does."""

from __future__ import annotations

from contextlib import closing

from headgate.control.clock import Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.ids import JobId
from headgate.control.inquiry.neglected import Neglected, follow_jobs, neglected
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps, Outcome
from headgate.control.master.silence import time_of
from headgate.control.model.state import JobState
from headgate.control.snapshots.resume import read_snapshots
from headgate.infra import sweep
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from .broker import SimLog
from .machines import WAIT_S, World, rooted
from .oracle import JOB, ROOT
from .scheduler import Process, SimClock, SimExecutor

STEP_S = 2.0
OTHERS_SHARE, OTHERS_S_MAX = 0.5, 60.0


class Sweeper:
    """A single sweep by a process that may die, freeze, or have a wrong clock."""

    def __init__(self, world: World, process: Process) -> None:
        self.process = process
        self._mode = world.mode
        self._dice = world.scheduler.dice(f"list of {process.name}")
        self._clock = SimClock(world.scheduler, process)
        self._log = SimLog(world.broker, process)
        self._storage = ObjectDeleter(rooted(world, self._clock, process), ROOT)
        self._deleter = SimExecutor(world.scheduler, process, "delete")
        self._announcer = Announcer(JOB, process.name, self._clock)

    def run(self) -> None:
        """Sweep once.

        Raises:
            HeadgateError: the sweep did not come to its end; the next one continues.
        """
        now_ms = time_of(self._log, JobId(self.process.name), self._deadline())
        beats = self._log.read_beats(None, self._deadline())
        snapshots = read_snapshots(self._log, None, self._deadline())
        positions = {job: snapshot.position for job, snapshot in snapshots.items()}
        jobs = follow_jobs(self._log.read_all(self._deadline(), positions), snapshots)
        for silent in list(neglected(jobs, beats, now_ms, self._log.oldest)):
            self._sweep_others()
            if silent.job == JOB:
                self._end(silent)

    def _sweep_others(self) -> None:
        """Take the time in which other jobs of the list are swept."""
        if self._dice.random() < OTHERS_SHARE:
            self._clock.sleep_s(OTHERS_S_MAX * self._dice.random())

    def _end(self, silent: Neglected) -> None:
        is_open = silent.state.closed is None
        if is_open and not sweep.end_lease(self._log, self._announcer, silent, self._deadline()):
            return
        opening = JobSteps.follow if self._mode == SESSION else JobSteps.open
        with closing(
            opening(self._log, self._announcer, MasterSettings(mode=silent.mode))
        ) as steps:
            state = self._until_read(steps)
            deadline = self._deadline()
            while state.closed is None or any(r.doomed for r in state.results.values()):
                if deadline.passed or state.epoch > silent.state.epoch:
                    return
                state = self._step(steps).state or state
            self._storage.sweep(state)

    def _until_read(self, steps: JobSteps) -> JobState:
        while (state := self._step(steps).state) is None:
            pass
        return state

    def _step(self, steps: JobSteps) -> Outcome:
        outcome = steps.step(STEP_S)
        for deletion in outcome.deletions:
            self._deleter.submit(deletion.run, self._storage, self._log, self._deadline())
        return outcome

    def _deadline(self) -> Deadline:
        return Deadline.after(WAIT_S, self._clock)
