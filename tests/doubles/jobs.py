"""A small job, its facts, and a driver's master that runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from headgate.control.clock import Deadline, Pace
from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    Body,
    Fact,
    JobRegistered,
    Newer,
    PartitionRegistered,
    Produced,
    Recorded,
    Released,
    ResultRegistered,
    SegmentSummary,
    Superseded,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.log import Decisions, EventLog
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.job_answers import JobAnswers
from headgate.control.model.replay import Replay
from headgate.control.model.state import JobState, ResultState

from .logs import STEP_EVENTS_MAX, FaultyLog

JOB = JobId("job")
RESULT = ResultId("r1")
WAIT_MS = 1_000
HURRIED = Pace(poll_s=0.02, gather_s=0.01, retry_s=0.01)
SETTINGS = MasterSettings(wait_ms=WAIT_MS, step_events_max=STEP_EVENTS_MAX, pace=HURRIED)


@dataclass
class Job:
    job_id: JobId = JOB
    application: str = "tests"
    errors: list[BaseException] = field(default_factory=list)

    def on_fatal_error(self, error: BaseException) -> None:
        self.errors.append(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nothing is lost here."""


@dataclass
class OrderedStorage:
    """A storage that records every deletion that no committed decision has ordered."""

    log: EventLog
    deleted: set[AttemptId] = field(default_factory=set)
    early: set[AttemptId] = field(default_factory=set)
    failing: bool = False

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        if self.failing:
            raise Unavailable("the store is away")
        self.early |= set(attempts) - ordered(self.log)
        self.deleted.update(attempts)
        return len(attempts)

    def sweep(self, closed: JobState) -> int:
        return 0


def events(log: EventLog) -> list[Recorded]:
    return [record for record in log.read_all(Deadline.after(5.0)) if record.event.job == JOB]


def bodies(log: EventLog) -> list[Body]:
    stated = [record.event.body for record in events(log)]
    return [body for body in stated if not isinstance(body, Newer)]


def ordered(log: EventLog) -> set[AttemptId]:
    attempts: set[AttemptId] = set()
    for body in bodies(log):
        attempts.update((body.attempt,) if isinstance(body, Superseded) else ())
        attempts.update(body.attempts if isinstance(body, Released) else ())
    return attempts


def audited(log: EventLog) -> Replay:
    """Replay the log, and assert that every decision follows and none is due."""
    replay = Replay(JOB)
    for record in events(log):
        replay.observe(record)
    assert list(replay.due) == []
    return replay


@contextmanager
def looping(
    log: EventLog,
    storage: OrderedStorage | None = None,
    by: str = "driver",
    job: Job | None = None,
    settings: MasterSettings = SETTINGS,
) -> Iterator[JobAnswers]:
    """Take the steps of the job, without a driver that registers it."""
    me = DriverIdentity(by, "0")
    with closing(DriverMaster(log, storage or OrderedStorage(log), settings, me)) as master:
        yield master.start_job(job or Job())


REGISTERED = JobRegistered("per-job", "0", "tests")
OPENING: tuple[Fact, ...] = (
    REGISTERED,
    ResultRegistered(RESULT, 2, 3, "", ""),
    PartitionRegistered(RESULT, 0, 2),
)


def attempt(partition: int, task: int, epoch: int = 1) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), epoch, task)


def produced(partition: int, task: int, epoch: int = 1) -> Produced:
    return Produced(attempt(partition, task, epoch), (SegmentSummary(0, 9, 1, 0, b""),))


def state_facts(log: EventLog, *facts: Fact, by: str = "task") -> None:
    announcer = Announcer(JOB, by)
    for fact in facts:
        log.append(announcer.fact(fact)).offset(Deadline.after(1.0))


def deleted_objects(expected: int) -> Callable[[JobState], bool | None]:
    """Return a condition: the state knows of this many deleted objects."""
    return lambda state: (
        True if RESULT in state.results and state.results[RESULT].fate.deleted == expected else None
    )


class Deaf(FaultyLog):
    """A log that never opens decisions."""

    def open_decisions(self, job: JobId) -> Decisions:
        raise Unavailable("nobody answers")
