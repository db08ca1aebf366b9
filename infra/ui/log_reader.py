"""Read a log for the viewers of the live page: each event once, however many of them look.

Nothing is read unless somebody asks. Threads may share a reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from ...control.clock import SYSTEM_CLOCK, Clock, Deadline, ProgressDeadline
from ...control.errors import Invalid, Lost
from ...control.ids import JobId, job_id
from ...control.inquiry.following import FollowedJobs
from ...control.inquiry.job_history import JobHistory
from ...control.inquiry.listing import ListedJob, list_jobs
from ...control.inquiry.neglected import JobLog
from ...control.inquiry.reading import (
    READ_S_MAX,
    known_without_indexes,
    read_jobs,
    without_indexes,
)
from ...control.log import EventLog, Follower, MasterGroup, read_to
from ...control.snapshots.resume import follow_all
from .masters import Decider, DecisionCounts

_EVENTS_MAX = 500
_IDLE_S = 120.0  # a job at which nobody looks for so long is read from its start when it is wanted
_SAME_S_MAX = 60.0  # how long a job may be shown of a log that was deleted and made again
_LISTING_S_MIN = 2.0
_GROUP_S_MAX = 10.0
_LISTING_SHARE = 10  # to list the jobs takes at most this part of the time


@dataclass(frozen=True, slots=True)
class JobListing:
    jobs: tuple[ListedJob, ...]
    now_ms: int
    """The time for which the conditions and ages of the jobs hold."""
    due: Mapping[JobId, int]
    """The number of decisions that each job waits for, if it waits for any."""
    deciders: tuple[Decider, ...]


class _Watched:
    """One job, its follower, and the lock under which both are used."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.follower: Follower | None = None
        self.history: JobHistory | None = None
        self.identity = ""
        self.identity_due_s = 0.0
        self.beat_ms = 0
        self.beat_due_s = 0.0
        self.used_s = 0.0

    def close(self) -> None:
        if self.follower is not None:
            self.follower.close()
        self.follower = self.history = None


class LogReader:
    def __init__(self, log: EventLog, clock: Clock = SYSTEM_CLOCK, only: str = "") -> None:
        """With `only`, nothing but the job of that name is read."""
        self.clock = clock
        self.only = only
        self._log = log
        self._lock = Lock()
        self._watched: dict[JobId, _Watched] = {}
        self._listing_lock = Lock()
        self._listing: JobListing | None = None
        self._listing_due_s = 0.0
        self._followed = FollowedJobs(log, clock)
        self._counts = DecisionCounts()
        self._group_lock = Lock()
        self._group: MasterGroup | None = None
        self._group_due_s = 0.0

    def listing(self) -> JobListing:
        """Return all jobs, as they were at most a few seconds ago.

        Raises:
            Unavailable: the log cannot be read.
        """
        with self._listing_lock:
            began_s = self.clock.monotonic_s()
            if self._listing is None or began_s >= self._listing_due_s:
                is_first, self._listing = self._listing is None, self._listed()
                now_s = self.clock.monotonic_s()
                took_s = 0.0 if is_first else now_s - began_s
                self._listing_due_s = now_s + max(_LISTING_S_MIN, took_s * _LISTING_SHARE)
            return self._listing

    def _listed(self) -> JobListing:
        deadline = ProgressDeadline(READ_S_MAX)
        jobs = self._jobs(deadline)
        beats = self._log.read_beats(job_id(self.only) if self.only else None, deadline)
        # This machine's clock may be late. To ask the log for its time would write to it.
        now_ms = max([self.clock.now_ms(), *beats.values()])
        due = {job: len(entry.replay.due) for job, entry in jobs.items() if entry.replay.due}
        deciders = self._counts.deciders(now_ms)
        return JobListing(tuple(list_jobs(jobs, beats, now_ms)), now_ms, due, deciders)

    def _jobs(self, deadline: Deadline) -> Mapping[JobId, JobLog]:
        if self.only:
            return read_jobs(self._log, self.only)
        self._followed.read_to_end(deadline, self._counts.see)
        return self._followed.jobs

    def group(self) -> MasterGroup:
        """Return the group of masters, as it was at most a few seconds ago.

        Raises:
            Invalid: the page is that of one job.
            Unavailable: the log does not answer.
        """
        if self.only:
            raise Invalid("a driver's page shows its own job: `headgate ui` shows the masters")
        with self._group_lock:
            if self._group is None or self.clock.monotonic_s() >= self._group_due_s:
                self._group = self._log.group(Deadline.after(_GROUP_S_MAX))
                self._group_due_s = self.clock.monotonic_s() + _LISTING_S_MIN
            return self._group

    def partition(self, job: JobId) -> int:
        return self._log.partition(job)

    @contextmanager
    def history(self, job: str) -> Iterator[JobHistory]:
        """Read a job's log to its present end, and lend its history.

        Raises:
            Invalid: the log has no event of the job.
            Unavailable: the log cannot be read.
        """
        watched = self._of(job_id(job))
        with watched.lock:
            yield self._read(watched, job_id(job))

    def beat_ms(self, job: str) -> int:
        """Return when the job's driver last sent a heartbeat; 0 if it never did."""
        name, watched = job_id(job), self._of(job_id(job))
        with watched.lock:
            if (now_s := self.clock.monotonic_s()) >= watched.beat_due_s:
                beats = self._log.read_beats(name, ProgressDeadline(READ_S_MAX))
                watched.beat_ms = beats.get(name, 0)
                watched.beat_due_s = now_s + _LISTING_S_MIN
            return watched.beat_ms

    def close(self) -> None:
        """Close the followers, except those that somebody still reads; the log stays open."""
        self._forget(-1.0)
        with self._listing_lock:
            self._followed.close()

    def forget_idle(self) -> None:
        """Drop the jobs at which nobody has looked for a while."""
        self._forget(_IDLE_S)

    def _forget(self, idle_s: float) -> None:
        now_s = self.clock.monotonic_s()
        with self._lock:
            for name, watched in list(self._watched.items()):
                if now_s - watched.used_s > idle_s and watched.lock.acquire(blocking=False):
                    watched.close()
                    watched.lock.release()
                    del self._watched[name]

    def _of(self, job: JobId) -> _Watched:
        if self.only not in ("", job):
            raise Invalid(f"a driver's page shows its own job: `headgate ui` shows job {job}")
        with self._lock:
            watched = self._watched.setdefault(job, _Watched())
            watched.used_s = self.clock.monotonic_s()
            return watched

    def _read(self, watched: _Watched, job: JobId) -> JobHistory:
        deadline = ProgressDeadline(READ_S_MAX)
        if watched.follower is None or watched.history is None:
            watched.identity = self._log.identity(deadline)
            snapshot = known_without_indexes(self._log, job).get(job)
            watched.follower = follow_all(self._log, job, deadline)
            watched.history = JobHistory(job, snapshot)
            watched.identity_due_s = self.clock.monotonic_s() + _SAME_S_MAX
        follower, history = watched.follower, watched.history
        try:
            if (now_s := self.clock.monotonic_s()) >= watched.identity_due_s:
                watched.identity_due_s = now_s + _SAME_S_MAX
                if self._log.identity(deadline) != watched.identity:
                    raise Lost("another log is in the place of the one that was read", ())
            history.observe(
                map(without_indexes, read_to(follower, follower.end(), _EVENTS_MAX, deadline))
            )
        except Lost:  # nobody looked for longer than the log keeps events, or this is another log
            watched.close()
            raise
        if not history.records and history.start is None:
            watched.close()
            raise Invalid(f"the log has no events of job {job}")
        return history
