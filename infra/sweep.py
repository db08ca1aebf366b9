"""End the leases of jobs that have lost their drivers, and delete what these jobs stored.

A driver that was heard again since its job was found neglected keeps its lease, and its master.
Where the lease ends, the sweep becomes the job's master. That fences a driver that lives after all:
the driver is told so, and its results are gone. Promoted results stay until their time is over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from ..control import __version__
from ..control.addresses import is_same_place
from ..control.clock import Deadline
from ..control.contract import SESSION, MasterSettings, PartitionStorage
from ..control.errors import HeadgateError, Unavailable
from ..control.events.codec import check_known
from ..control.events.traits import is_sign_of_life
from ..control.events.types import Tick
from ..control.ids import JobId, ResultId
from ..control.inquiry.neglected import Neglected
from ..control.log import EventLog, Follower, read_to
from ..control.master.announcer import Announcer
from ..control.master.driver_master import DriverIdentity, DriverMaster
from ..control.master.silence import lease_expired
from ..control.model.decide import decide
from ..control.model.state import JobState, is_over
from ..control.snapshots.resume import forget, take_up
from ..storage.stores.rooted import UnknownRoot

_LOG = logging.getLogger(__name__)
_EVENTS_MAX = 500


@dataclass(frozen=True, slots=True)
class Swept:
    """The outcome of the sweep of one job."""

    job: JobId
    silent_ms: int = 0
    """The driver's silence; 0 when the job had ended before."""
    objects: int = 0
    """The number of objects that the sweep deleted."""
    kept: int = 0
    """The number of results that outlive the job."""
    came_back: bool = False
    """The driver, or another one, was heard again: the sweep has left the job alone."""
    forgotten: bool = False
    """The log has no event of the job any more, and now no snapshot either."""


class _SweepContext:
    """Takes the driver's place in the calls of a master."""

    application = "headgate sweep"

    def __init__(self, job: JobId) -> None:
        self.job_id = job

    def on_fatal_error(self, error: BaseException) -> None:
        _LOG.warning("job %s is not swept: %s", self.job_id, error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nobody is left to make partitions again, or to read them."""


@dataclass(frozen=True, slots=True)
class FailedSweep:
    """A job that was to be swept, and was not."""

    job: JobId
    error: str
    failed: bool
    """False if the job is left to another sweep."""


def sweep_all(
    log: EventLog, storage: PartitionStorage, jobs: Iterable[Neglected], store: str, by: str
) -> Iterator[Swept | FailedSweep]:
    """Sweep neglected jobs one after the other, in the name of `by`; `store` is the address of the
    storage. A job that cannot be swept is named with the reason, and the next one is swept."""
    deaf: dict[int, JobId] = {}
    """The partitions whose session masters did not answer, each with the job that has waited."""
    for neglected in jobs:
        job, partition = neglected.job, log.partition(neglected.job)
        is_session = neglected.mode == SESSION
        if not is_same_place(neglected.store, store):
            yield FailedSweep(job, f"its objects are in {neglected.store}", failed=False)
        elif is_session and partition in deaf:
            why = f"no master answered for job {deaf[partition]}, which is in the same partition"
            yield FailedSweep(job, why, failed=True)
        else:
            try:
                yield sweep(log, storage, neglected, MasterSettings(mode=neglected.mode), by)
            except Exception as exc:
                if not isinstance(exc, HeadgateError):
                    _LOG.exception("the sweep of job %s has failed", job)
                if is_session and isinstance(exc, Unavailable):
                    deaf[partition] = job
                yield FailedSweep(job, str(exc) or type(exc).__name__, failed=True)


def sweep(
    log: EventLog,
    storage: PartitionStorage,
    neglected: Neglected,
    settings: MasterSettings,
    by: str = "sweep",
) -> Swept:
    """End a neglected job, and wait until every object that was ordered to go is gone.

    Raises:
        Fenced: a driver has attached meanwhile.
        Unavailable: the log, a session master or the store did not answer in time.
    """
    before, deadline = neglected.state, settings.deadline()
    if is_over(before):
        again = list[int]()
        clear = partial(_sweep_again, storage, again)
        gone = forget(log, neglected.job, deadline, clear)
        return Swept(neglected.job, objects=sum(again), forgotten=gone, came_back=not gone)
    me = DriverIdentity(f"{by} {os.urandom(4).hex()}", __version__)
    if before.closed is None and not end_lease(
        log, me.announcer(neglected.job), neglected, deadline
    ):
        return Swept(neglected.job, neglected.silent_ms, came_back=True)
    with closing(DriverMaster(log, storage, settings, me)) as master:
        answers = master.start_job(_SweepContext(neglected.job))
        answers.wait_until_read("the sweep")
        tick = Tick(neglected.now_ms)
        if before.closed is not None and decide(answers.state, tick):
            answers.ask(tick)
            answers.wait_for(lambda it: None if decide(it, tick) else it, "the time to be decided")
        closed = answers.wait_for(
            lambda now: now if now.closed is not None or now.epoch > before.epoch else None,
            "the end of the lease",
        )
        if closed.epoch > before.epoch:
            return Swept(neglected.job, neglected.silent_ms, came_back=True)
        state = answers.wait_until_left()
        more = storage.sweep(state) if state.closed is not None else 0
        kept = sum(1 for result in state.results.values() if result.kept)
        objects = _deleted(state) - _deleted(before) + more
        return Swept(neglected.job, neglected.silent_ms, objects, kept)


def _sweep_again(storage: PartitionStorage, objects: list[int], closed: JobState) -> None:
    """Sweep a job once more before it is forgotten, and add the number of objects: the sweep at its
    end may have failed, or died. A marker that stays would keep later jobs from its name."""
    try:
        objects.append(storage.sweep(closed))
    except UnknownRoot as exc:
        _LOG.warning("could not look for objects that job %s has left: %s", closed.job, exc)


def end_lease(
    log: EventLog, announcer: Announcer, neglected: Neglected, deadline: Deadline
) -> bool:
    """End the lease of a driver, unless it was heard since the job was found neglected: other jobs
    may have been swept since. Return True if the lease has ended.

    The driver's own master goes on if the lease does not end: nobody becomes the job's master
    before it has ended.
    """
    job, expired = neglected.job, lease_expired(neglected.state, neglected.silent_ms)
    take_up(log, job, deadline).follower.close()  # refuses what a newer version has written
    with closing(log.follow(job, max(neglected.position, log.oldest(job)))) as follower:
        if _is_heard(follower, follower.end(), deadline):
            return False
        if log.read_beats(job, deadline).get(job, 0) > neglected.heard_ms:
            return False
        at = log.append(announcer.fact(expired)).offset(deadline)
        return not _is_heard(follower, at, deadline)


def _is_heard(follower: Follower, end: int, deadline: Deadline) -> bool:
    """Return True if the follower meets a sign of life of the driver before the offset `end`."""
    is_heard = False
    for recorded in read_to(follower, end, _EVENTS_MAX, deadline):
        check_known(recorded)
        is_heard |= is_sign_of_life(recorded.event) and recorded.offset < end
    return is_heard


def _deleted(state: JobState) -> int:
    return state.forgotten.deleted + sum(result.fate.deleted for result in state.results.values())
