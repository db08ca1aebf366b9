"""Jobs of a group of masters that write snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.events.types import AttemptFailed, Consumed, Fact, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.log import EventLog, Grant, StateRecord
from headgate.control.master.group_steps import GroupSteps
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState

from .groups import OPENING, Storage, drive, joined, state_facts
from .jobs import HURRIED, RESULT, attempt, produced
from .logs import STEP_EVENTS_MAX

OFTEN = MasterSettings(step_events_max=STEP_EVENTS_MAX, snapshot_events=2, pace=HURRIED)
NEVER = replace(OFTEN, snapshot_events=1_000)
LIFE: tuple[Fact, ...] = (
    *OPENING,
    produced(0, 1),
    produced(0, 2),
    AttemptFailed(attempt(1, 7), "oom"),
    produced(1, 3),
    Consumed(RESULT, 0, 3, 1, 1, 1, 1),
    produced(1, 4),
)
END = JobUnregistered("closed")


@dataclass
class Read:
    """A master, and the positions from which it has read the only partition."""

    steps: GroupSteps
    starts: list[int] = field(default_factory=list)

    def granted(self, grant: Grant) -> int:
        self.starts.append(GroupSteps.granted(self.steps, grant))
        return self.starts[-1]


def watched(steps: GroupSteps) -> Read:
    reader = Read(steps)
    steps.granted = reader.granted  # type: ignore[method-assign]
    return reader


def live(
    log: EventLog, facts: Sequence[Fact], *jobs: JobId, settings: MasterSettings = OFTEN, by: str
) -> int:
    """Start a master, state facts one by one, end the master, and return the position where it
    began."""
    storage = Storage()
    with closing(joined(log, settings=settings)) as steps:
        read = watched(steps)
        drive(log, storage, steps, steps=4)
        for number, fact in enumerate(facts):
            for job in jobs:
                state_facts(log, job, fact, by=f"{by} {number}")
            drive(log, storage, steps, steps=4 * len(jobs))
        drive(log, storage, steps)
    return read.starts[0]


def end(log: MemoryEventLog) -> int:
    return len(log.partitions[0].entries)


def standing(log: EventLog, job: JobId) -> dict[str, bytes]:
    return log.read_state(job, Deadline.after(1.0))


def keep(log: MemoryEventLog, job: JobId, records: Sequence[StateRecord]) -> None:
    with closing(log.open_decisions(job)) as decisions:
        decisions.begin()
        for record in records:
            decisions.keep(record)
        decisions.commit(0)


def state_of(log: EventLog, job: JobId) -> JobState:
    """Return the state of a job as a master that starts now sees it."""
    with closing(joined(log, settings=NEVER)) as steps:
        drive(log, Storage(), steps)
        return steps.states[job]
