"""Read what commands need of a log: the events of one job or of all, snapshots, and states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from ..clock import PACE, SYSTEM_CLOCK, ProgressDeadline
from ..errors import Invalid
from ..events.types import Produced, Recorded, SegmentProduced, SegmentSummary
from ..ids import JobId, job_id
from ..log import EventLog, read_to
from ..model.persistent import PersistentMap
from ..model.replay import Snapshot
from ..model.state import JobState
from ..snapshots.resume import follow_all, read_snapshots
from .audit import fold
from .listing import ListedJob, list_jobs
from .neglected import JobLog, follow_jobs

READ_S_MAX = 300.0  # without progress
_POLL_EVENTS_MAX = 500


def known(
    log: EventLog, job: str, take: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
) -> dict[JobId, Snapshot]:
    """Return the snapshots of one job, or of all jobs, as `take` leaves them. Read them before the
    events: then no event between the two is missed."""
    return read_snapshots(log, job_id(job) if job else None, ProgressDeadline(READ_S_MAX), take)


def read(log: EventLog, job: str, otherwise: Collection[JobId] = ()) -> Iterator[Recorded]:
    """Yield all events up to now of one job, or of all jobs if none is named.

    Raises:
        Invalid: the log has no event of the job, and `otherwise` does not name it.
        Unavailable: the log cannot be read, or no longer.
    """
    deadline = ProgressDeadline(READ_S_MAX)
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
    """Read the events of one job, or of all jobs, that are newer than the snapshots, without the
    indexes of segments: a state holds all of them."""
    return map(without_indexes, _read_news(log, job, snapshots))


def _read_news(log: EventLog, job: str, snapshots: Mapping[JobId, Snapshot]) -> Iterator[Recorded]:
    if job and (snapshot := snapshots.get(job_id(job))) is not None:
        deadline = ProgressDeadline(READ_S_MAX)
        start = max(snapshot.position, log.oldest(job_id(job)))
        with closing(log.follow(job_id(job), start)) as follower:
            yield from read_to(follower, follower.end(), _POLL_EVENTS_MAX, deadline)
        return
    if job:
        yield from read(log, job)
        return
    positions = {name: snapshot.position for name, snapshot in snapshots.items()}
    yield from log.read_all(ProgressDeadline(READ_S_MAX), positions)


def read_jobs(log: EventLog, job: str) -> dict[JobId, JobLog]:
    """Replay one job, or all jobs, up to now, without the indexes of segments."""
    snapshots = known_without_indexes(log, job)
    return follow_jobs(read_news(log, job, snapshots), snapshots)


def list_present(log: EventLog, job: str) -> tuple[list[ListedJob], int]:
    """List one job, or all jobs, the oldest first. Return also the time by the clock that is ahead:
    this machine's may be late, and to ask the log for its time would write to it."""
    beats = log.read_beats(job_id(job) if job else None, ProgressDeadline(READ_S_MAX))
    now_ms = max([SYSTEM_CLOCK.now_ms(), *beats.values()])
    return list(list_jobs(read_jobs(log, job), beats, now_ms)), now_ms


def states(log: EventLog, job: str) -> tuple[JobState, ...]:
    """Return the present states of one job, or of all jobs, without the indexes of segments."""
    snapshots = known_without_indexes(log, job)
    return fold(read_news(log, job, snapshots), snapshots)


def follow(log: EventLog, job: str) -> Iterator[Recorded]:
    if not job:
        raise Invalid("--follow needs --job: only the events of one job have an order")
    with closing(follow_all(log, job_id(job), ProgressDeadline(READ_S_MAX))) as follower:
        while True:
            yield from follower.poll(_POLL_EVENTS_MAX, PACE.poll_s)


def without_indexes(recorded: Recorded) -> Recorded:
    """Return an event of which nobody reads rows."""
    body = recorded.event.body
    if isinstance(body, Produced):
        body = replace(body, segments=_without(body.segments))
    elif isinstance(body, SegmentProduced):
        body = replace(body, segment=replace(body.segment, index=b""))
    else:
        return recorded
    return replace(recorded, event=replace(recorded.event, body=body))


def known_without_indexes(log: EventLog, job: str) -> dict[JobId, Snapshot]:
    """Return the snapshots to which events without indexes may be added: what an attempt has
    announced is compared with what it has produced."""
    return known(log, job, _lean)


def _lean(snapshot: Snapshot) -> Snapshot:
    state = snapshot.state
    for name, result in state.results.items():
        production = result.production
        attempts = {
            attempt: produced and replace(produced, segments=_without(produced.segments))
            for attempt, produced in production.attempts.items()
        }
        streams = {attempt: _without(parts) for attempt, parts in production.streams.items()}
        production = replace(
            production, attempts=PersistentMap(attempts), streams=PersistentMap(streams)
        )
        results = state.results.having(name, replace(result, production=production))
        state = replace(state, results=results)
    return replace(snapshot, state=state)


def _without(segments: tuple[SegmentSummary, ...]) -> tuple[SegmentSummary, ...]:
    return tuple(replace(segment, index=b"") for segment in segments)
