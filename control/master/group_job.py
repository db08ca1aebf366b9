"""One job of a group of masters, and a partition with its jobs. A job has a ledger, a snapshot
schedule and orders, as in `JobSteps`. The group also measures the silence of the driver, checks the
store of the objects, and clears what a driver that is gone has left.

A job whose log does not explain itself, or is of a newer version, is left alone: the master neither
decides for it nor deletes its objects nor writes its snapshots.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from ..addresses import is_same_place
from ..errors import HeadgateError
from ..events.types import JobRegistered, LeaseExpired, Recorded, Tick
from ..ids import JobId
from ..model.decide import decide
from ..model.ledger import Ledger
from ..model.replay import Derived, Snapshot
from ..model.state import JobState, is_fenced, is_over
from ..snapshots.records import Ended, Standing
from ..snapshots.schedule import SnapshotSchedule, is_left
from .announcer import Announcer
from .deletions import Clearing, Deletion, DeletionRetrier, Orders
from .silence import SilenceTimer, minds_time

_LOG = logging.getLogger(__name__)


class GroupJob:
    def __init__(
        self,
        announcer: Announcer,
        snapshot: Snapshot | None,
        schedule: SnapshotSchedule,
        failed: DeletionRetrier,
        store: str,
    ) -> None:
        self.announcer = announcer
        self.ledger = Ledger(announcer.job, snapshot)
        self.orders = Orders(announcer, failed)
        self.schedule = schedule
        self.broken = False
        self._store = store
        self._start = self._end = 0
        self._elsewhere = False
        self._abandoned = False
        self._clearing: Clearing | None = None
        self._timer = SilenceTimer()
        if snapshot is not None:
            self._start = self._end = snapshot.position
            # Nobody knows what a former master still had to delete.
            self._abandoned = snapshot.state.closed is not None and not is_over(snapshot.state)
            if snapshot.registered is not None:
                self._check_store(snapshot.registered.store)

    @property
    def state(self) -> JobState:
        """Return what is committed of the job."""
        return self.ledger.state

    def is_new(self, recorded: Recorded) -> bool:
        """Return False if the snapshot has an event already."""
        return recorded.offset >= self._start

    def observe(self, recorded: Recorded) -> None:
        """Take in an event; give the job up if its log does not explain itself."""
        self._end = recorded.offset + 1
        if self.broken:
            return self.schedule.observe(recorded)
        body = recorded.event.body
        if isinstance(body, JobRegistered):
            self._check_store(body.store)
        if isinstance(body, JobRegistered | LeaseExpired) and not is_fenced(
            self.ledger.newest, body
        ):
            self._abandoned, self._clearing = isinstance(body, LeaseExpired), None
        kept = _keeps(self.ledger.newest)
        try:
            self.schedule.observe(recorded)
            self.ledger.observe(recorded)
            self.orders.observe(recorded)
        except Exception as exc:  # the next master would read the same fact
            return self.give_up(exc)
        if kept and self.ledger.newest.closed is not None and not _keeps(self.ledger.newest):
            self._abandoned, self._clearing = True, None  # nobody else is left to clear it

    def give_up(self, error: Exception) -> None:
        self.broken = True
        trace = None if isinstance(error, HeadgateError) else error
        _LOG.error(
            "this group of masters ignores job %s from now on: %s",
            self.announcer.job,
            error,
            exc_info=trace,
        )

    @property
    def unsaved(self) -> range:
        """Return the offsets from the oldest event that no snapshot has to the newest event."""
        first = self.schedule.unsaved
        return range(self._end if first is None else first, self._end)

    def unwritten(self, limit: int) -> tuple[Derived, ...]:
        """Return the next decisions to commit, at most `limit`."""
        return () if self.broken else self.ledger.unwritten(limit)

    @property
    def has_more(self) -> bool:
        """Return True if there is something to commit without another event."""
        return not self.broken and (self.schedule.is_writing or bool(self.ledger.unwritten(1)))

    def settle(self, cleared: deque[Clearing]) -> tuple[Deletion | Clearing, ...]:
        """Return the deletions to run now. The first call includes those that were ordered earlier.
        An abandoned job gets a clearing once it has no other objects to delete."""
        answers = self.ledger.settle()
        if self._elsewhere or self.broken:
            return ()
        deletions = self.orders.following(self.state, answers)
        if not self._abandoned or self._clearing is not None or not is_left(self.state):
            return deletions
        self._clearing = Clearing(self.state, cleared)
        return (*deletions, self._clearing)

    def take_back(self, clearing: Clearing) -> bool:
        """Take in that a clearing has run. Return True if the job's last snapshot may be written
        now. A clearing that should run again is handed out when the job is looked at next."""
        if clearing is not self._clearing:
            return False
        self._clearing, self._abandoned = None, clearing.failed
        return not clearing.failed

    def writes_snapshot(self, position: int) -> bool:
        """Begin the snapshot at `position` if it is due, and return True if a step of a snapshot is
        to be written now. The last snapshot says that nothing is left of the job, so it waits for
        the clearing. A job whose snapshot cannot be made is given up: the next master would fail
        in the same way."""
        if self.broken or self.schedule.is_writing:
            return not self.broken
        if self.ledger.unwritten(1):
            return False
        snapshot, now_ms = self.ledger.snapshot(position), self.announcer.clock.now_ms()
        last = self._elsewhere or not self._abandoned
        is_due = self.schedule.is_due(snapshot, now_ms)
        if not (is_due or (last and self.schedule.is_last_due(snapshot))):
            return False
        try:
            self.schedule.begin(snapshot, now_ms)
        except Exception as exc:
            self.give_up(exc)
        return not self.broken

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended and its last snapshot is written."""
        return self.schedule.unsaved is None and is_over(self.state)

    def is_forgotten(self, oldest: int) -> bool:
        """Return True if the job has ended and the log has none of its events any more."""
        return self.is_over and self.schedule.position <= oldest

    def waits_for(self, now_ms: int) -> bool:
        """Return True if a decision follows from this time."""
        return not self.broken and bool(decide(self.state, Tick(now_ms)))

    @property
    def minds_time(self) -> bool:
        """Return True if the job has a lease, or a promoted result that expires."""
        return self._lease_ms > 0 or minds_time(self.state)

    def seems_silent(self, now_ms: int) -> bool:
        """Return True if it is time to read the driver's last heartbeat."""
        self._timer.hear(self.ledger.heard_ms)
        return self._timer.is_due(self._lease_ms, now_ms)

    def silent_ms(self, heard_ms: int, now_ms: int) -> int:
        """Return the driver's silence by the log's clock once its lease and half a lease more are
        over, else 0."""
        self._timer.hear(max(heard_ms, self.ledger.heard_ms))
        return self._timer.silent_ms(self._lease_ms, now_ms)

    @property
    def _lease_ms(self) -> int:
        state, registered = self.state, self.ledger.registered
        if registered is None or self.broken or self._elsewhere or state.closed is not None:
            return 0
        return registered.lease_ms

    def _check_store(self, store: str) -> None:
        """Check whether the job's objects are in this master's store: if not, the master must not
        announce that they are deleted."""
        self._elsewhere = not is_same_place(store, self._store)
        if self._elsewhere:
            _LOG.error(
                "did not delete the objects of job %s in %s: this master deletes in %s only",
                self.announcer.job,
                store,
                self._store,
            )


def _keeps(state: JobState) -> bool:
    """Return True if the job has ended, and results of it are kept."""
    return state.closed is not None and any(r.kept for r in state.results.values())


@dataclass(slots=True)
class HeldPartition:
    """A partition that this master holds, with its jobs."""

    oldest: int
    """The oldest offset of the partition's log, once all that was written then is read."""
    standings: dict[JobId, Standing]
    """The snapshot records of jobs that are not in `jobs` yet."""
    outdated: tuple[JobId, ...] = ()
    """Session jobs of another log, and those that the log has forgotten; their records are to be
    deleted."""
    jobs: dict[JobId, GroupJob] = field(default_factory=dict)
    """The session jobs that go on, and those whose state is too large for one record of `ended`."""
    ended: dict[JobId, Ended] = field(default_factory=dict)
    """The session jobs that have ended: their states are read when an event of them comes."""
    given_up: dict[JobId, range] = field(default_factory=dict)
    """The jobs that are left alone, each with the offsets of its events that no snapshot has."""
    ignored: dict[JobId, int] = field(default_factory=dict)
    """Jobs for which no session master decides, each with the position after its newest event."""
    touched: dict[JobId, GroupJob] = field(default_factory=dict)
    """The jobs that the next commit looks at; none before the partition is recovered."""
    asked: tuple[int, int] | None = None
    """The oldest offset when last asked for, and the end of the log then, until it is read."""
    recovered: bool = False
    """True once the partition is read to its end, and this master decides in it."""

    def needed(self, position: int, written: Collection[JobId]) -> int:
        """Return the offset from which the partition must be read once the next steps of the
        snapshots in `written` are committed: that of the oldest event that no snapshot has, or
        `position`."""
        unsaved = (
            job.schedule.unsaved_then() if name in written else job.schedule.unsaved
            for name, job in self.jobs.items()
        )
        known = range(self.oldest, position)
        given_up = (
            max(it.start, known.start) for it in self.given_up.values() if it.stop - 1 in known
        )
        left = (at for at in (*unsaved, *given_up) if at is not None)
        return min(left, default=position)

    def passes(self, recorded: Recorded) -> bool:
        """Return True if the event is of a job that is left alone."""
        name, offset = recorded.event.job, recorded.offset
        if (left := self.given_up.get(name)) is not None and offset >= left.stop:
            self.given_up[name] = range(left.start if left else offset, offset + 1)
        return left is not None

    def end(self, name: JobId) -> None:
        """Keep no more than the records of a job that has ended and has nothing left to do, and the
        offsets of a job that is given up."""
        if (job := self.jobs.get(name)) is None or not (job.is_over or job.broken):
            return
        if job.broken:
            del self.jobs[name]
            self.given_up[name] = job.unsaved
            return
        if (ended := job.schedule.ended) is not None:
            self.ended[name] = ended
            del self.jobs[name]

    def forget(self, position: int) -> None:
        """Forget the jobs of which the log has no event any more, if the position is far enough:
        such a job may begin again with an event that is not read yet."""
        if self.asked is None or position < self.asked[1]:
            return
        oldest, ignored = self.asked[0], self.ignored.items()
        self.oldest, self.asked = oldest, None
        self.ignored = {name: position for name, position in ignored if position > oldest}
        gone = [name for name, ended in self.ended.items() if ended.position <= oldest]
        for name in gone:
            self.standings[name] = Standing(frozenset(self.ended.pop(name).stored))
        self.outdated += tuple(gone)

    def alive(self) -> dict[JobId, GroupJob]:
        """Return the jobs for which there may be work as time goes by. A job that has ended is
        among them only when the log has forgotten it."""
        return {
            name: job
            for name, job in self.jobs.items()
            if not job.is_over or job.is_forgotten(self.oldest)
        }
