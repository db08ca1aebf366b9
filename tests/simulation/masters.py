"""The deciding processes: successive masters of one job, and the masters of a session."""

from __future__ import annotations

from contextlib import closing

from headgate.control.clock import Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Conflict, Corrupt, Fenced, Lost, OutcomeUnknown, Retryable
from headgate.control.ids import JobId
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import Clearing, Deletion
from headgate.control.master.group_master import Lookout
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.master.job_steps import JobSteps
from headgate.control.master.silence import MASTERS
from headgate.control.master.term import Term
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from .broker import SimLog
from .machines import WAIT_S, World, rooted
from .oracle import JOB, ROOT
from .scheduler import Process, SimClock, SimExecutor

POLL_S = 5.0
PAUSE_S = 0.5
LARGE_SHARE = 0.4  # of the worlds; their snapshots have a step for each result
STEP_BYTES = 16 << 20


class Master:
    """A process that decides until another one takes over. In a session it has a slot."""

    def __init__(self, world: World, process: Process, slot: str) -> None:
        self.world = world
        self.process = process
        self.slot = slot
        self._clock = SimClock(world.scheduler, process)
        self._log = SimLog(world.broker, process)
        self._storage = ObjectDeleter(rooted(world, self._clock, process), ROOT)
        self._deleter = SimExecutor(world.scheduler, process, "delete")
        self._announcer = Announcer(JOB, process.name, self._clock)
        self._term = Term(process.name)
        self._me = MasterIdentity(slot, process.name, self._clock, "")

    def run(self) -> None:
        """Decide, and start over after every error that may pass."""
        again: tuple[type[Exception], ...] = (Retryable, OutcomeUnknown, Lost)
        decide = self._decide
        if self.world.mode == SESSION:
            again, decide = (*again, Fenced), self._decide_session
        while True:
            try:
                decide()
            except again as exc:
                self.world.scheduler.note(f"starts over: {type(exc).__name__}")
                self._clock.sleep_s(PAUSE_S)
            except (Fenced, Conflict):
                return
            except Corrupt as exc:
                self.world.oracle.violated(f"the log does not explain itself: {exc}")
                return

    def _decide(self) -> None:
        settings = self._settings((1, 2, 3, 4, 5))
        with closing(JobSteps.open(self._log, self._announcer, settings, self._term)) as steps:
            while True:
                self._delete(steps.step(POLL_S).deletions)

    def _decide_session(self) -> None:
        settings = self._settings((2, 5, 20))
        with closing(GroupSteps(self._log, self._me, settings)) as steps:
            lookout = Lookout(steps, settings.look_ms / 1000, self._clock)
            while True:
                self._delete(steps.step(POLL_S))
                lookout.look(lambda: self._deleter.submit(self._ask_beats))

    def _ask_beats(self) -> dict[JobId, int]:
        self._log.beat(MASTERS)
        return self._log.read_beats(None, Deadline.after(WAIT_S, self._clock))

    def _settings(self, events_max: tuple[int, ...]) -> MasterSettings:
        dice, sizes = self.world.scheduler.random, self.world.scheduler.dice("steps of snapshots")
        return MasterSettings(
            step_events_max=dice.choice(events_max),
            snapshot_events=dice.choice((3, 10, 1_000)),
            snapshot_step_bytes=1 if sizes.random() < LARGE_SHARE else STEP_BYTES,
        )

    def _delete(self, deletions: tuple[Deletion | Clearing, ...]) -> None:
        for deletion in deletions:
            deadline = Deadline.after(WAIT_S, self._clock)
            self._deleter.submit(deletion.run, self._storage, self._log, deadline)
