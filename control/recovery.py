"""Where a job's log is taken up: at its newest snapshot, or at the oldest event that is left.

Guarantees that a snapshot which cannot be read, or does not belong to the log, is passed over, and
that this is said.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from . import snapshots
from .clock import Deadline
from .errors import Corrupt
from .ids import JobId
from .log import EventLog, Follower, job_of
from .replay import Snapshot
from .snapshots import Standing

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """A follower that stands behind all that `snapshot` knows; `standing` is what the log keeps."""

    follower: Follower
    snapshot: Snapshot | None
    standing: Standing


def take_up(log: EventLog, job: JobId, deadline: Deadline) -> Start:
    """Read a job's state, and follow its log from there on.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    stored = log.read_state(job, deadline)
    snapshot, standing = _read(job, stored)
    with ExitStack() as opening:
        follower = log.follow(job, None)
        opening.callback(follower.close)
        if snapshot is not None and snapshot.position > follower.end():
            _pass_over(job, f"offset {snapshot.position} is not in the log, which is another")
            snapshot, standing = None, Standing(frozenset(stored))
        if snapshot is None or follower.position() >= snapshot.position:
            if snapshot is not None and follower.position() > snapshot.position:
                _LOG.warning(
                    "the log no longer holds offsets %d to %d: what job %s did there is not known",
                    snapshot.position,
                    follower.position() - 1,
                    job,
                )
            opening.pop_all()
            return Start(follower, snapshot, standing)
    return Start(log.follow(job, snapshot.position), snapshot, standing)


def read_snapshots(log: EventLog, job: JobId | None, deadline: Deadline) -> dict[JobId, Snapshot]:
    """The newest snapshot of a job, or with None of every job that has one.

    Raises:
        Unavailable: the log cannot be read in time.
    """
    by_job: dict[JobId, dict[str, bytes]] = {}
    for key, body in log.read_state(job, deadline).items():
        by_job.setdefault(job_of(key), {})[key] = body
    found = {name: _read(name, stored)[0] for name, stored in by_job.items()}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def _read(job: JobId, stored: Mapping[str, bytes]) -> tuple[Snapshot | None, Standing]:
    if not stored:
        return None, Standing()
    try:
        return snapshots.read(job, stored)
    except Corrupt as exc:
        _pass_over(job, str(exc))
        return None, Standing(frozenset(stored))


def _pass_over(job: JobId, why: str) -> None:
    _LOG.warning("the snapshot of job %s is not used, but its log from the oldest: %s", job, why)
