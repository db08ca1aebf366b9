"""End the leases of jobs that have lost their drivers, and delete what these jobs stored.

A sweep becomes the job's master first. That fences a driver that lives after all: the driver is
told so, and its results are gone. Promoted results stay until their time is over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from ..control.clock import Deadline
from ..control.contract import MasterSettings, PartitionStorage
from ..control.events.types import LeaseExpired, Tick
from ..control.ids import JobId, ResultId
from ..control.inquiry.neglected import Neglected
from ..control.log import EventLog
from ..control.master.announcer import Announcer
from ..control.master.thread import JobMasterThread
from ..control.model.decide import decide
from ..control.model.state import JobState
from ..control.snapshots.resume import forget
from ..control.snapshots.schedule import is_over

_LOG = logging.getLogger(__name__)


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
    """Another driver has attached: the sweep has left the job alone."""
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


def sweep(
    log: EventLog, storage: PartitionStorage, neglected: Neglected, settings: MasterSettings
) -> Swept:
    """End a neglected job, and wait until every object that was ordered to go is gone.

    Raises:
        Fenced: a driver has attached meanwhile.
        Unavailable: the log, a session master or the store did not answer in time.
    """
    if is_over(neglected.state):
        gone = forget(log, neglected.job, Deadline.after(settings.wait_ms / 1000))
        return Swept(neglected.job, forgotten=gone, came_back=not gone)
    announcer = Announcer(neglected.job, f"sweep {os.urandom(4).hex()}")
    loop = JobMasterThread(_SweepContext(neglected.job), log, storage, settings, announcer)
    loop.start()
    with closing(loop):
        loop.wait_until_read("LeaseExpired")
        if loop.state.epoch != neglected.state.epoch:
            return Swept(neglected.job, neglected.silent_ms, came_back=True)
        if loop.state.closed is None:
            reason = f"its driver was silent for {neglected.silent_ms // 1000} s"
            loop.ask(LeaseExpired(reason, neglected.state.epoch)).result(settings.wait_ms / 1000)
        elif decide(loop.state, tick := Tick(neglected.now_ms)):
            loop.ask(tick).result(settings.wait_ms / 1000)
        state = loop.wait_until_left()
        more = storage.sweep(state) if state.closed is not None else 0
        kept = sum(1 for result in state.results.values() if result.kept)
        objects = _deleted(state) - _deleted(neglected.state) + more
        return Swept(neglected.job, neglected.silent_ms, objects, kept)


def _deleted(state: JobState) -> int:
    return state.forgotten.deleted + sum(result.fate.deleted for result in state.results.values())
