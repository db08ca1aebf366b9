"""Read what commands need of a log: the events of one job or of all, snapshots, and states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

from ..clock import PACE, Deadline
from ..errors import Invalid
from ..events.types import Recorded
from ..ids import JobId, job_id
from ..log import EventLog, read_to
from ..model.replay import Snapshot
from ..model.state import JobState
from ..snapshots.resume import follow_all, read_snapshots
from .audit import fold

READ_S_MAX = 300.0
_POLL_EVENTS_MAX = 500


def known(log: EventLog, job: str) -> dict[JobId, Snapshot]:
    """Return the snapshots of one job, or of all jobs. Read them before the events: then no event
    between the two is missed."""
    return read_snapshots(log, job_id(job) if job else None, Deadline.after(READ_S_MAX))


def read(log: EventLog, job: str, otherwise: Collection[JobId] = ()) -> Iterator[Recorded]:
    """Yield all events up to now of one job, or of all jobs if none is named.

    Raises:
        Invalid: the log has no event of the job, and `otherwise` does not name it.
        Unavailable: the log cannot be read in time.
    """
    deadline = Deadline.after(READ_S_MAX)
    if not job:
        yield from log.read_all(deadline)
        return
    with closing(follow_all(log, job_id(job), deadline)) as follower:
        is_empty = True
        for recorded in read_to(follower, follower.end(), _POLL_EVENTS_MAX, deadline):
            is_empty = False
            yield recorded
    if is_empty and job_id(job) not in otherwise:
        raise Invalid(f"the log has no events of job {job}")


def read_news(log: EventLog, job: str, snapshots: Mapping[JobId, Snapshot]) -> Iterator[Recorded]:
    """Read the events of one job, or of all jobs, that are newer than the snapshots."""
    if job and (snapshot := snapshots.get(job_id(job))) is not None:
        deadline = Deadline.after(READ_S_MAX)
        start = max(snapshot.position, log.oldest(job_id(job)))
        with closing(log.follow(job_id(job), start)) as follower:
            yield from read_to(follower, follower.end(), _POLL_EVENTS_MAX, deadline)
        return
    if job:
        yield from read(log, job)
        return
    positions = {name: snapshot.position for name, snapshot in snapshots.items()}
    yield from log.read_all(Deadline.after(READ_S_MAX), positions)


def states(log: EventLog, job: str) -> tuple[JobState, ...]:
    snapshots = known(log, job)
    return fold(read_news(log, job, snapshots), snapshots)


def follow(log: EventLog, job: str) -> Iterator[Recorded]:
    if not job:
        raise Invalid("--follow needs --job: only the events of one job have an order")
    with closing(follow_all(log, job_id(job), Deadline.after(READ_S_MAX))) as follower:
        while True:
            yield from follower.poll(_POLL_EVENTS_MAX, PACE.poll_s)
