"""Jobs of a group of masters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headgate.control.clock import Clock, Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    Fact,
    JobRegistered,
    PartitionRegistered,
    Recorded,
    ResultRegistered,
)
from headgate.control.ids import AttemptId, JobId
from headgate.control.log import EventLog
from headgate.control.master.announcer import Announcer
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.model.replay import Replay
from headgate.control.model.state import JobState, ResultState

from .jobs import RESULT
from .logs import STEP_EVENTS_MAX
from .steps import CLOCK

JOBS = [JobId(f"job-{number}") for number in range(8)]
OPENING: tuple[Fact, ...] = (
    JobRegistered(SESSION, "0", "tests"),
    ResultRegistered(RESULT, 2, 3, "", ""),
    PartitionRegistered(RESULT, 0, 2),
)
STEPS = 30
SETTINGS = MasterSettings(step_events_max=STEP_EVENTS_MAX)


@dataclass
class Storage:
    """A storage that records every deletion."""

    deleted: list[tuple[JobId, AttemptId]] = field(default_factory=list)
    failures: int = 0

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the store is away")
        self.deleted += [(job, attempt) for attempt in attempts]
        return len(attempts)

    def sweep(self, closed: JobState) -> int:
        return 0


def state_facts(
    log: EventLog, job: JobId, *facts: Fact, by: str = "task", clock: Clock = CLOCK
) -> None:
    announcer = Announcer(job, by, clock)
    for fact in facts:
        log.append(announcer.fact(fact)).offset(Deadline.after(1.0, CLOCK))


def joined(
    log: EventLog, slot: str = "one", start: int = 0, settings: MasterSettings = SETTINGS
) -> GroupSteps:
    me = MasterIdentity(slot, f"master {slot} {start}", CLOCK, "memory://here/")
    return GroupSteps(log, me, settings)


def drive(log: EventLog, storage: Storage, *masters: GroupSteps, steps: int = STEPS) -> None:
    for _ in range(steps):
        for master in masters:
            for deletion in master.step(0.0):
                deletion.run(storage, log, Deadline.after(1.0, CLOCK))


def events(log: EventLog, job: JobId) -> list[Recorded]:
    return [r for r in log.read_all(Deadline.after(5.0, CLOCK)) if r.event.job == job]


def audited(log: EventLog, job: JobId) -> Replay:
    """Replay the job's log, and assert that every decision follows and none is due."""
    replay = Replay(job)
    for recorded in events(log, job):
        replay.observe(recorded)
    assert [] == list(replay.due)
    return replay
