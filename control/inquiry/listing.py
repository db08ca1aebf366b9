"""List the jobs of a log: the condition of each, who decides for it, and what it has stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ..contract import PER_JOB, beat_ms
from ..events.types import JobRegistered
from ..ids import JobId
from ..model.state import JobState, Reads, ResultState, Written
from ..snapshots.schedule import is_left
from .neglected import JobLog

_BEATS_MISSING = 2


class JobCondition(Enum):
    RUNNING = "running"
    SILENT = "silent"
    """Two heartbeats of the driver are missing, and its lease is not over."""
    NEGLECTED = "neglected"
    """The driver was silent for longer than its lease."""
    FAILED = "failed"
    ENDING = "ending"
    """The job has ended, and objects that were ordered to go are still there."""
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The log has no registration of the job."""
    DAMAGED = "damaged"
    """The log does not explain itself: the numbers are those before the first wrong event."""
    NEWER = "newer"
    """A newer version has written the log: the numbers are those before its first event."""


@dataclass(frozen=True, slots=True)
class ListedJob:
    state: JobState
    condition: JobCondition
    mode: str
    """Tells who decides for the job: its driver, or the masters of a session."""
    registered: JobRegistered
    """The job's newest registration; an empty one if the log has none."""
    began_ms: int
    """The time of the job's first event; 0 if it is unknown."""
    heard_ms: int
    """The time at which the driver was last heard; 0 if it never was."""

    @property
    def job(self) -> JobId:
        return self.state.job

    @property
    def lease_ends_ms(self) -> int:
        """Return the time at which the lease of an open job ends if its driver stays silent; 0 if
        it never ends."""
        is_open = self.condition in (JobCondition.RUNNING, JobCondition.SILENT, JobCondition.FAILED)
        lease_ms = self.registered.lease_ms if is_open else 0
        return self.heard_ms + lease_ms if lease_ms else 0

    @property
    def exchanges(self) -> int:
        return len(self.state.results) + self.state.forgotten.results

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of all objects that may still be there."""
        return sum(
            produced.size_bytes
            for result in self.state.results.values()
            for produced in result.production.attempts.values()
            if produced is not None
        )


def list_jobs(
    jobs: Mapping[JobId, JobLog], beats: Mapping[JobId, int], now_ms: int
) -> Iterator[ListedJob]:
    """Yield all jobs, the oldest first."""
    for job, entry in sorted(jobs.items(), key=lambda named: (named[1].replay.began_ms, named[0])):
        replay = entry.replay
        heard_ms = max(replay.heard_ms, beats.get(job, 0))
        condition = condition_of(replay.state, replay.registered, now_ms - heard_ms)
        if entry.broken:
            condition = JobCondition.NEWER if entry.newer else JobCondition.DAMAGED
        yield ListedJob(
            replay.state,
            condition,
            replay.mode or PER_JOB,
            replay.registered or JobRegistered("", "", ""),
            replay.began_ms,
            heard_ms,
        )


def condition_of(state: JobState, registered: JobRegistered | None, silent_ms: int) -> JobCondition:
    """Return the condition of a job whose log explains itself."""
    if registered is None:
        return JobCondition.UNKNOWN
    if state.closed is not None:
        return JobCondition.ENDED if is_left(state) else JobCondition.ENDING
    if 0 < registered.lease_ms < silent_ms:
        return JobCondition.NEGLECTED
    if state.failed is not None:
        return JobCondition.FAILED
    missing = registered.lease_ms > 0 and _BEATS_MISSING * beat_ms(registered.lease_ms) < silent_ms
    return JobCondition.SILENT if missing else JobCondition.RUNNING


def phases(result: ResultState) -> list[str]:
    """Return how far each partition of a result is: pending, writing, consumable, ordered again,
    released or deleted."""
    production, is_released = result.production, result.fate.released is not None
    writing = {a for a, produced in production.attempts.items() if produced is None}
    begun = {attempt.partition.index for attempt in writing - production.superseded}
    written = {at for at, winner in production.winners.items() if production.attempts.get(winner)}
    stored = {attempt.partition.index for attempt in production.attempts}

    def phase(index: int) -> str:
        if is_released:
            return "released" if index in stored else "deleted"
        if index in written:
            return "consumable"
        if index in result.reproduction.reproducing:
            return "again"
        return "writing" if index in begun else "pending"

    return [phase(index) for index in range(result.registered.partitions)]


def written(state: JobState) -> Written:
    """Return the sums of everything that became consumable in a job."""
    totals = (result.totals.written for result in state.results.values())
    return sum(totals, state.forgotten.written)


def reads(state: JobState) -> Reads:
    """Return the sums of everything that readers of a job have taken."""
    totals = (result.totals.reads for result in state.results.values())
    return sum(totals, state.forgotten.reads)
