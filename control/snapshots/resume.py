"""Where a job's log is taken up: at its newest snapshot, or at the oldest event that is left.

Guarantees that a snapshot which cannot be read, or does not belong to the log, is passed over, and
that this is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

from ..clock import Deadline
from ..contract import SESSION
from ..errors import Fenced, Lost, OutcomeUnknown, Retryable, Unavailable
from ..ids import JobId
from ..log import EventLog, Follower, Grant, job_of
from ..model.replay import Snapshot
from ..model.state import JobState
from . import records
from .records import Standing
from .schedule import is_over

_LOG = logging.getLogger(__name__)
_PAUSE_S = 0.2
_EVENTS_MAX = 500


@dataclass(frozen=True, slots=True)
class Start:
    """A follower that stands behind all that `snapshot` knows; `standing` is what the log keeps,
    and `log` its identity."""

    follower: Follower
    snapshot: Snapshot | None
    standing: Standing
    log: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """The jobs of a partition whose log is read from `position` on: there or behind it is all that
    their snapshots do not know. `outdated` are the session jobs of another log."""

    snapshots: Mapping[JobId, Snapshot]
    standings: Mapping[JobId, Standing]
    position: int
    outdated: tuple[JobId, ...]


def take_up_partition(grant: Grant, log: str) -> Resumption:
    """Begin as a session master in a log of this identity: with a snapshot that is passed over, at
    the oldest event. One of another log has promised nothing about this one."""
    taken = {job: _read(job, stored) for job, stored in _by_job(grant.state).items()}
    foreign = {job: one for job, (one, _) in taken.items() if _is_foreign(one, log)}
    checked = {
        job: (_check_log(snapshot, grant.offsets.stop, log), standing)
        for job, (snapshot, standing) in taken.items()
    }
    found = {job: snapshot for job, (snapshot, _) in checked.items() if snapshot is not None}
    standings = {
        job: standing if job in found else Standing(frozenset(standing.keys))
        for job, (_, standing) in checked.items()
    }
    outdated = tuple(job for job, one in foreign.items() if one is not None and one.mode == SESSION)
    first = grant.offsets.start
    needed = max((snapshot.needed for snapshot in found.values()), default=0)
    if len(found) + len(foreign) < len(taken):
        needed = first
    for snapshot in found.values():
        if snapshot.mode == SESSION and not is_over(snapshot.state):
            _warn_of_gap(snapshot, max(snapshot.position, needed), first)
    return Resumption(found, standings, max(needed, first), outdated)


def begin(log: EventLog, job: JobId, deadline: Deadline, is_new: bool = False) -> None:
    """Keep that nothing is known of a job, before its first driver states anything: so nobody has
    to look for its events in what the log held before. A name that nobody had before `is_new`; for
    another one the log is looked through once.

    Raises:
        Unavailable: it was not kept in time.
    """
    pause_s = _PAUSE_S
    while True:
        try:
            return _begin(log, job, deadline, is_new)
        except (Retryable, OutcomeUnknown, Fenced) as exc:
            if deadline.passed:
                raise Unavailable(
                    f"the log did not keep in time that job {job} begins: {exc}"
                ) from exc
            deadline.clock.sleep_s(min(pause_s, deadline.left_s))
            pause_s *= 2  # drivers that begin at once fence each other until one is quick enough


def _begin(log: EventLog, job: JobId, deadline: Deadline, is_new: bool) -> None:
    """A driver that is held up here until another one has begun is fenced."""
    if log.read_state(job, deadline):
        return
    with closing(log.open_decisions(job)) as decisions:
        position = log.written(job)
        if log.read_state(job, deadline, whole=True):
            return
        if not is_new and _has_spoken(log.follow(job, None), position, deadline):
            return
        identity = log.identity(deadline)
        nothing = Snapshot(JobState(job), (), position, position, log=identity)
        decisions.begin()
        for record in records.write(nothing, Standing())[0]:
            decisions.keep(record)
        decisions.commit(position)


def _has_spoken(follower: Follower, end: int, deadline: Deadline) -> bool:
    """Return whether the job has an event before `end`."""
    with closing(follower):
        while follower.position() < end:
            try:
                if follower.poll(_EVENTS_MAX, min(_PAUSE_S, deadline.left_s)):
                    return True
            except Lost as exc:
                raise Unavailable(f"the log's head went while it was read: {exc}") from exc
            if deadline.passed:
                raise Unavailable("the log was not read to its end in time")
    return False


def take_up(log: EventLog, job: JobId, deadline: Deadline, known: int | None = None) -> Start:
    """Read a job's state, and follow its log from there on. Who has to see all that stands behind
    the offset `known` follows from the job's first event where the snapshot is newer than that,
    unless the log has lost it.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    with ExitStack() as opening:
        follower = log.follow(job, None)  # before the state, which is of no older log then
        opening.callback(follower.close)
        stored, identity = log.read_state(job, deadline), log.identity(deadline)
        snapshot, standing = _read(job, stored)
        if snapshot is not None and _check_log(snapshot, log.written(job), identity) is None:
            snapshot, standing = None, Standing(frozenset(stored))
        newer = snapshot is not None and known is not None and known < snapshot.position
        if snapshot is not None and newer and follower.position() <= snapshot.first:
            return Start(log.follow(job, snapshot.first), None, standing, identity)
        if snapshot is None or follower.position() >= snapshot.position:
            if snapshot is not None:
                _warn_of_gap(snapshot, snapshot.position, follower.position())
            opening.pop_all()
            return Start(follower, snapshot, standing, identity)
    return Start(log.follow(job, snapshot.position), snapshot, standing, identity)


def follow_all(log: EventLog, job: JobId, deadline: Deadline) -> Follower:
    """Follow a job's log from its oldest event that is left.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    snapshot, _ = _read(job, log.read_state(job, deadline))
    if snapshot is not None and _is_foreign(snapshot, log.identity(deadline)):
        snapshot = None
    follower = log.follow(job, None)
    if snapshot is None or not follower.position() < snapshot.first <= follower.end():
        return follower
    follower.close()
    return log.follow(job, snapshot.first)


def forget(log: EventLog, job: JobId, deadline: Deadline) -> bool:
    """Take back the last snapshot of a job that has ended; false when its log has an event of it
    again. A driver that attaches reads the log after it has fenced this.

    Raises:
        Fenced: a driver has attached meanwhile.
        Unavailable: the log cannot be read in time.
        OutcomeUnknown: nobody answered in time whether the snapshot is gone.
    """
    with closing(log.open_decisions(job)) as decisions:
        start = take_up(log, job, deadline)
        end = log.written(job)
        if _has_spoken(start.follower, end, deadline):
            return False
        decisions.begin()
        for record in records.end(start.standing):
            decisions.keep(record)
        decisions.commit(end)
    return True


def read_snapshots(
    log: EventLog, job: JobId | None, deadline: Deadline, begun: bool = True
) -> dict[JobId, Snapshot]:
    """The newest snapshot of a job, or with None of every job that has one, and has `begun`, as its
    first driver has registered. One that does not belong to the log is none.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    by_job = _by_job(log.read_state(job, deadline))
    found = {name: _read(name, stored)[0] for name, stored in by_job.items()}
    told = {n: one for n, one in found.items() if one and (one.state.epoch or not begun)}
    identity = log.identity(deadline) if told else ""
    written = by_partition(log, log.written)
    checked = {name: _check_log(one, written(name), identity) for name, one in told.items()}
    return {name: one for name, one in checked.items() if one is not None}


def by_partition(log: EventLog, ask: Callable[[JobId], int]) -> Callable[[JobId], int]:
    """Return what asks for an offset once for each partition, however many jobs it is asked for."""
    offsets: dict[int, int] = {}

    def asked(job: JobId) -> int:
        number = log.partition(job)
        if number not in offsets:
            offsets[number] = ask(job)
        return offsets[number]

    return asked


def _by_job(stored: Mapping[str, bytes]) -> dict[JobId, dict[str, bytes]]:
    by_job: dict[JobId, dict[str, bytes]] = {}
    for key, body in stored.items():
        by_job.setdefault(job_of(key), {})[key] = body
    return by_job


def _read(job: JobId, stored: Mapping[str, bytes]) -> tuple[Snapshot | None, Standing]:
    if not stored:
        return None, Standing()
    try:
        return records.read(job, stored)
    except Exception as exc:  # somebody else's records may be of any form
        _pass_over(job, str(exc))
        return None, Standing(frozenset(stored))


def _check_log(snapshot: Snapshot | None, end: int, log: str) -> Snapshot | None:
    if snapshot is None:
        return None
    if _is_foreign(snapshot, log):
        _pass_over(snapshot.state.job, f"it is of log {snapshot.log}, which is another than {log}")
        return None
    if snapshot.position > end:
        said = f"offset {snapshot.position} is not in the log, which is another"
        _pass_over(snapshot.state.job, said)
        return None
    return snapshot


def _is_foreign(snapshot: Snapshot | None, log: str) -> bool:
    """Return whether the snapshot is of another log, as far as both have an identity: one made anew
    under the same name grows, and has any offset of the former some day."""
    return snapshot is not None and bool(snapshot.log and log) and snapshot.log != log


def _warn_of_gap(snapshot: Snapshot, needed: int, first: int) -> None:
    if first > needed:
        _LOG.warning(
            "the log no longer holds offsets %d to %d: what job %s did there is not known",
            needed,
            first - 1,
            snapshot.state.job,
        )


def _pass_over(job: JobId, why: str) -> None:
    _LOG.warning("the snapshot of job %s is not used, but its log from the oldest: %s", job, why)
