"""Find where to resume a job's log: at its newest snapshot, or at the oldest event that is left.

A snapshot that cannot be read, or does not belong to the log, is passed over with a warning. A
snapshot of a newer version stops every process that needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

from ..clock import Deadline
from ..contract import SESSION
from ..errors import Corrupt, Fenced, Invalid, Lost, OutcomeUnknown, Retryable, Unavailable
from ..events.codec import check_known
from ..events.types import Recorded
from ..ids import JobId
from ..log import EventLog, Follower, Grant, coverage_of, job_of, read_to
from ..model.replay import Snapshot
from ..model.state import JobState, is_over
from . import records
from .records import Coverage, Ended, Standing

_LOG = logging.getLogger(__name__)
_EVENTS_MAX = 500


@dataclass(frozen=True, slots=True)
class Start:
    """The place at which a job's log is resumed."""

    follower: Follower
    """Stands after all events that `snapshot` has."""
    snapshot: Snapshot | None
    standing: Standing
    """The snapshot records that the log has of the job."""
    log: str
    """The identity of the log."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The place at which a partition's log is resumed."""

    snapshots: Mapping[JobId, Snapshot]
    """The snapshots that can be used."""
    standings: Mapping[JobId, Standing]
    """The snapshot records that the log has of each job that has not ended."""
    ended: Mapping[JobId, Ended]
    """The jobs that have ended."""
    position: int
    """Every event that the snapshots do not have is at this offset or after it."""
    outdated: tuple[JobId, ...]
    """The session jobs whose snapshots are of another log."""
    newer: Mapping[JobId, Invalid]
    """The errors of the jobs whose snapshots a newer version has written."""


def take_up_partition(grant: Grant, log: str) -> Resumption:
    """Return where a session master resumes a partition in the log of this identity.

    If a snapshot is passed over, the partition is read from its oldest event. This does not hold
    for a snapshot of another log, which says nothing about this one.
    """
    usable: dict[JobId, Snapshot] = {}
    ended: dict[JobId, Ended] = {}
    standings: dict[JobId, Standing] = {}
    outdated: list[JobId] = []
    newer: dict[JobId, Invalid] = {}
    first, is_whole = grant.offsets.start, True
    for job, stored in _by_job(grant.state).items():
        try:
            if (ending := _ended(job, stored, grant.offsets.stop, log)) is not None:
                ended[job] = ending
                continue
            snapshot, standings[job] = _read(job, stored)
        except Invalid as exc:
            newer[job] = exc
            continue
        if snapshot is not None and _belongs(snapshot, grant.offsets.stop, log):
            usable[job] = snapshot
            continue
        standings[job] = Standing(frozenset(stored))
        if snapshot is None or not _is_foreign(snapshot, log):
            is_whole = False
        elif snapshot.mode == SESSION:
            outdated.append(job)
    needs = [snapshot.needed for snapshot in usable.values()]
    newest = max([*needs, *(ending.needed for ending in ended.values())], default=0)
    needed = newest if is_whole else first
    for snapshot in usable.values():
        if snapshot.mode == SESSION and not is_over(snapshot.state):
            _warn_of_gap(snapshot, max(snapshot.position, needed), first)
    return Resumption(usable, standings, ended, max(needed, first), tuple(outdated), newer)


def _ended(job: JobId, stored: Mapping[str, bytes], end: int, log: str) -> Ended | None:
    """Return the snapshot of an ended job without its results, if it can be used; any other is for
    `_read`."""
    try:
        ended = records.ended(job, stored)
    except (Corrupt, Invalid):
        return None
    is_usable = ended is not None and ended.position <= end and ended.log in ("", log)
    return ended if is_usable else None


def begin(log: EventLog, job: JobId, deadline: Deadline, is_new: bool = False) -> None:
    """Write a snapshot in which nothing has happened, before a job's first driver publishes
    anything. So nobody searches older events for the job.

    With `is_new` nobody had the job's name before. Otherwise the log is searched for its events,
    unless the partition is covered: a driver that begins while a partition is empty writes its
    coverage, and from then on every driver writes a snapshot before it publishes anything.

    Raises:
        Invalid: a newer version has written the job's snapshot, or an event behind it.
        Unavailable: the snapshot was not written in time.
    """
    times = 1
    while True:
        try:
            return _begin(log, job, deadline, is_new)
        except (Retryable, OutcomeUnknown, Fenced) as exc:
            if deadline.passed:
                raise Unavailable(
                    f"the start of job {job} could not be stored in time: {exc}"
                ) from exc
            deadline.pause(times)
            times *= 2  # drivers that begin at once fence each other until one is quick enough


def _begin(log: EventLog, job: JobId, deadline: Deadline, is_new: bool) -> None:
    """Write the snapshot, unless the job has begun. A driver that is held up here until another one
    has begun is fenced."""
    if log.read_state(job, deadline):
        return _check_known(log, job, deadline)  # before anybody is fenced
    with closing(log.open_decisions(job)) as decisions:
        position = log.written(job)
        if log.read_state(job, deadline, whole=True):
            return
        identity, number = log.identity(deadline), log.partition(job)
        is_known = is_new or _is_covered(log, number, identity, deadline)
        if not is_known and _has_spoken(log.follow(job, None), position, deadline):
            return
        nothing = Snapshot(JobState(job), (), position, position, log=identity)
        first, _ = records.write(nothing, Standing())
        if position == 0:
            first = (*first, records.write_coverage(number, Coverage(identity)))
        records.keep_all(decisions, first, position)


def _check_known(log: EventLog, job: JobId, deadline: Deadline) -> None:
    """Refuse a job of which a newer version has written the snapshot, or an event behind it."""
    start = take_up(log, job, deadline)
    for recorded in _read_on(start.follower, start.follower.end(), deadline):
        check_known(recorded)


def _is_covered(log: EventLog, partition: int, identity: str, deadline: Deadline) -> bool:
    stored = log.read_state(coverage_of(partition), deadline)
    try:
        return records.read_coverage(partition, stored) == Coverage(identity)
    except (Corrupt, Invalid):
        return False


def _has_spoken(follower: Follower, end: int, deadline: Deadline) -> bool:
    """Return True if the job has an event before `end`."""
    return any(True for _ in _read_on(follower, end, deadline))


def _read_on(follower: Follower, end: int, deadline: Deadline) -> Iterator[Recorded]:
    with closing(follower):
        try:
            yield from read_to(follower, end, _EVENTS_MAX, deadline)
        except Lost as exc:
            raise Unavailable(f"the log deleted events while they were read: {exc}") from exc


def take_up(
    log: EventLog,
    job: JobId,
    deadline: Deadline,
    known: int | None = None,
    is_master: bool = False,
) -> Start:
    """Read a job's snapshot, and follow its log from there on. A master waits for the end of open
    steps of others, which may hide the newest snapshot.

    With `known`, the caller has to see all events after that offset. If the snapshot is newer, the
    log is followed from the job's first event without a snapshot, unless the log has lost that
    event.

    Raises:
        Invalid: a newer version has written the snapshot.
        Unavailable: the log cannot be read in time.
    """
    with ExitStack() as opening:
        follower = log.follow(job, None)  # opened first, so that the state is of no older log
        opening.callback(follower.close)
        stored = log.read_state(job, deadline, whole=is_master)
        identity = log.identity(deadline)
        snapshot, standing = _read(job, stored)
        if snapshot is not None and not _belongs(snapshot, log.written(job), identity):
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
    snapshot = _read_or_newer(job, log.read_state(job, deadline))
    if snapshot is not None and _is_foreign(snapshot, log.identity(deadline)):
        snapshot = None
    follower = log.follow(job, None)
    if snapshot is None or not follower.position() < snapshot.first <= follower.end():
        return follower
    follower.close()
    return log.follow(job, snapshot.first)


def forget(
    log: EventLog,
    job: JobId,
    deadline: Deadline,
    clear: Callable[[JobState], None] = lambda closed: None,
) -> bool:
    """Clear what is left of a job that has ended, then delete its last snapshot. Return False if
    the job has begun again. A driver that attaches reads the log after it has fenced this process;
    until then it gets the next epoch, so that nothing of it is cleared.

    Raises:
        Fenced: a driver has attached meanwhile.
        Unavailable: the log cannot be read in time.
        OutcomeUnknown: nobody answered in time whether the snapshot is gone.
    """
    with closing(log.open_decisions(job)) as decisions:
        start = take_up(log, job, deadline, is_master=True)
        end, snapshot = log.written(job), start.snapshot
        if _has_spoken(start.follower, end, deadline):
            return False
        if snapshot is not None and snapshot.state.epoch > 0:
            if not is_over(snapshot.state):
                return False
            clear(snapshot.state)
        records.keep_all(decisions, records.end(start.standing), end)
    return True


def read_snapshots(
    log: EventLog,
    job: JobId | None,
    deadline: Deadline,
    take: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
) -> dict[JobId, Snapshot]:
    """Return the newest snapshot of a job, or with None of every job, also those of newer versions,
    as `take` leaves it: the snapshots of all jobs may be large. Jobs whose first driver has not
    registered are left out, and snapshots that do not belong to the log.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    by_job = _by_job(log.read_state(job, deadline))
    wanted: dict[JobId, Snapshot] = {}
    for name in list(by_job):
        snapshot = _read_or_newer(name, by_job.pop(name))
        if snapshot and (snapshot.state.epoch or snapshot.newer):
            wanted[name] = take(snapshot)
    identity = log.identity(deadline) if wanted else ""
    written = by_partition(log, log.written)
    return {
        name: snapshot
        for name, snapshot in wanted.items()
        if _belongs(snapshot, written(name), identity)
    }


def by_partition(log: EventLog, ask: Callable[[JobId], int]) -> Callable[[JobId], int]:
    """Return a function that asks for an offset once for each partition, however many jobs it is
    called for."""
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
    except Invalid as exc:
        raise Invalid(f"job {job}: {exc}") from exc
    except Exception as exc:  # somebody else's records may be of any form
        _pass_over(job, str(exc))
        return None, Standing(frozenset(stored))


def _read_or_newer(job: JobId, stored: Mapping[str, bytes]) -> Snapshot | None:
    try:
        return _read(job, stored)[0]
    except Invalid as exc:
        return Snapshot(JobState(job), (), 0, -1, newer=str(exc))


def _belongs(snapshot: Snapshot, end: int, log: str) -> bool:
    """Return True if the snapshot is of this log, which ends at `end`. Warn if it is not."""
    reason = ""
    if _is_foreign(snapshot, log):
        reason = f"it belongs to log {snapshot.log}, not to {log}"
    elif snapshot.position > end:
        reason = f"it belongs to another log: this one has no offset {snapshot.position}"
    if reason:
        _pass_over(snapshot.state.job, reason)
    return not reason


def _is_foreign(snapshot: Snapshot, log: str) -> bool:
    """Return True if the snapshot is of another log, as far as both have an identity. Offsets do
    not tell: a new log under the same name grows, and some day has any offset of the former one."""
    return bool(snapshot.log and log) and snapshot.log != log


def _warn_of_gap(snapshot: Snapshot, needed: int, first: int) -> None:
    if first > needed:
        _LOG.warning(
            "the log no longer holds offsets %d to %d: the events of job %s there are unknown",
            needed,
            first - 1,
            snapshot.state.job,
        )


def _pass_over(job: JobId, why: str) -> None:
    _LOG.warning(
        "the snapshot of job %s is not used, its log is read from the oldest event: %s", job, why
    )
