"""Jobs whose masters write snapshots often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.events.types import AttemptFailed, AttemptStarted, Consumed, Fact
from headgate.control.log import EventLog
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps, Outcome
from headgate.control.model.state import JobState
from headgate.control.snapshots.resume import take_up

from .jobs import HURRIED, JOB, OPENING, RESULT, OrderedStorage, attempt, produced, state_facts
from .logs import STEP_EVENTS_MAX
from .steps import StoppedClock, drive

OFTEN = MasterSettings(1_000, STEP_EVENTS_MAX, snapshot_events=2, pace=HURRIED)
HOURLY = replace(OFTEN, snapshot_events=1_000)
LIFE: tuple[Fact, ...] = (
    *OPENING,
    AttemptStarted(attempt(0, 1), "host"),
    produced(0, 1),
    produced(0, 2),
    AttemptFailed(attempt(1, 7), "oom"),
    produced(1, 3),
    Consumed(RESULT, 0, 3, 1, 1, 1, 1),
    produced(1, 4),
)


def opened(
    log: EventLog, settings: MasterSettings = OFTEN, clock: StoppedClock | None = None
) -> JobSteps:
    return JobSteps.open(log, Announcer(JOB, "master", clock or StoppedClock()), settings)


def last_state(outcomes: Sequence[Outcome]) -> JobState:
    state = outcomes[-1].state
    assert state is not None
    return state


def standing(log: EventLog) -> dict[str, bytes]:
    return log.read_state(JOB, Deadline.after(1.0))


def position(log: EventLog) -> int:
    """Return the position at which a master starts to read now."""
    start = take_up(log, JOB, Deadline.after(1.0))
    start.follower.close()
    return start.follower.position()


def live(log: EventLog, facts: Sequence[Fact], every: int) -> JobState:
    """State facts one by one; after every so many, a new master replaces the former one without a
    word."""
    storage = OrderedStorage(log)
    steps = opened(log)
    for number, fact in enumerate(facts):
        if number % every == 0:
            steps = opened(log)
        state_facts(log, fact, by=f"task {number}")
        outcomes = drive(steps, log, storage)
    assert set() == storage.early
    return last_state(outcomes)
