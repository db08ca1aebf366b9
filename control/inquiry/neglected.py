"""Find the jobs whose driver is gone, as far as log and heartbeats tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..contract import PER_JOB
from ..errors import Corrupt, Invalid
from ..events.types import Recorded, Tick
from ..ids import JobId
from ..model.decide import decide
from ..model.replay import Replay, Snapshot
from ..model.state import JobState, is_over
from ..snapshots.schedule import is_left


@dataclass(frozen=True, slots=True)
class Neglected:
    """A job that somebody must look after, at a time of the log's clock. A job that is over
    has nothing left but its last snapshot."""

    state: JobState
    mode: str
    store: str
    """The place of the job's objects; empty if no driver said it."""
    silent_ms: int
    """The time of the driver's silence; 0 if the job is closed or has never begun."""
    now_ms: int
    """The time of the log's clock."""
    position: int
    """The offset after the newest event of the job."""

    @property
    def job(self) -> JobId:
        return self.state.job

    @property
    def heard_ms(self) -> int:
        """Return the time at which the driver was last heard."""
        return self.now_ms - self.silent_ms


@dataclass(slots=True)
class JobLog:
    """The log of one job, as far as it was read."""

    replay: Replay
    position: int = 0
    """The offset after the newest event."""
    broken: bool = False
    """True if the job's log does not explain itself, or is of a newer version."""
    newer: str = ""
    """The error for everybody who needs the job, if a newer version has written its log."""


def neglected(
    jobs: Mapping[JobId, JobLog],
    beats: Mapping[JobId, int],
    now_ms: int,
    oldest: Callable[[JobId], int],
) -> Iterator[Neglected]:
    """Yield the jobs that somebody must look after:

    - jobs whose driver was silent for longer than its lease;
    - jobs that are closed, and still have objects that were ordered to go or results that have
      expired;
    - jobs that are over and whose events the log has lost: their position is at or before `oldest`.

    A job whose log does not explain itself, or is of a newer version, is left alone, because such a
    log proves nothing.
    """
    for job, entry in jobs.items():
        if entry.broken:
            continue
        if is_over(entry.replay.state) and entry.position > oldest(job):
            continue
        if (judged := _judged(entry, beats.get(job, 0), now_ms)) is not None:
            yield judged


def follow_jobs(
    records: Iterable[Recorded], snapshots: Mapping[JobId, Snapshot]
) -> dict[JobId, JobLog]:
    """Replay every job from its snapshot, or from its first record, up to the first error."""
    jobs = resumed(snapshots)
    for recorded in records:
        observe(jobs, recorded)
    return jobs


def resumed(snapshots: Mapping[JobId, Snapshot]) -> dict[JobId, JobLog]:
    """Return the jobs that have snapshots, as far as these have read."""
    return {
        job: JobLog(Replay(job, start), start.position, bool(start.newer), start.newer)
        for job, start in snapshots.items()
    }


def observe(jobs: dict[JobId, JobLog], recorded: Recorded) -> JobLog:
    """Replay the next event of its job, and return that job."""
    job = recorded.event.job
    entry = jobs.setdefault(job, JobLog(Replay(job)))
    entry.position = max(entry.position, recorded.offset + 1)
    if not (entry.broken or entry.replay.knows(recorded)):
        try:
            entry.replay.observe(recorded)
        except Corrupt:
            entry.broken = True
        except Invalid as exc:
            entry.broken, entry.newer = True, str(exc)
    return entry


def seen(entry: JobLog, beat_ms: int, now_ms: int) -> Neglected:
    """Return the neglect of a registered job, as if its lease were over now."""
    replay, silent_ms = entry.replay, 0
    assert replay.registered is not None, "somebody has registered the job"
    if replay.state.closed is None:
        silent_ms = now_ms - max(replay.heard_ms, beat_ms)
    mode, store = replay.mode or PER_JOB, replay.registered.store
    return Neglected(replay.state, mode, store, silent_ms, now_ms, entry.position)


def _judged(entry: JobLog, beat_ms: int, now_ms: int) -> Neglected | None:
    state, registered = entry.replay.state, entry.replay.registered
    if registered is None:
        return None
    job = seen(entry, beat_ms, now_ms)
    if is_over(state):
        matters = job.mode == PER_JOB
    elif state.closed is not None:
        matters = not is_left(state) or bool(decide(state, Tick(now_ms)))
    else:
        matters = 0 < registered.lease_ms < job.silent_ms
    return job if matters else None
