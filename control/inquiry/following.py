"""Follow all jobs of a log, and read each event once.

Guarantees that, at the end of the log, the jobs are those that a new reader of the log would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ..clock import SYSTEM_CLOCK, Clock, Deadline, ProgressDeadline
from ..errors import Lost, Unavailable
from ..events.types import Recorded
from ..ids import JobId
from ..log import EventLog, Placed, Tail, job_of
from .neglected import JobLog, observe, resumed
from .reading import READ_S_MAX, known_without_indexes, without_indexes

_EVENTS_MAX = 1_000
_FORGET_S = 60.0  # how long jobs may be shown that the log has forgotten


class FollowedJobs:
    """All jobs of a log, as far as it was read. Threads must not share it without a lock."""

    def __init__(self, log: EventLog, clock: Clock = SYSTEM_CLOCK) -> None:
        self.jobs: dict[JobId, JobLog] = {}
        self.starts: Mapping[int, int] = {}
        """For each partition, where the log ended when the reading began."""
        self._log = log
        self._clock = clock
        self._tail: Tail | None = None
        self._identity = ""
        self._forget_due_s = 0.0

    def open(self) -> None:
        """Begin with the snapshots that the log has, unless the log is being read.

        Raises:
            Unavailable: the log cannot be read.
        """
        if self._tail is not None:
            return
        identity = self._log.identity(Deadline.after(READ_S_MAX))
        snapshots = known_without_indexes(self._log, "")
        with ExitStack() as opening:
            tail = self._log.tail({job: start.position for job, start in snapshots.items()})
            opening.callback(tail.close)
            self.starts = {number: there.stop for number, there in tail.offsets().items()}
            opening.pop_all()
        self.jobs, self._tail, self._identity = resumed(snapshots), tail, identity
        self._forget_due_s = self._clock.monotonic_s() + _FORGET_S

    def poll(self, timeout_s: float) -> list[Placed]:
        """Wait for events, and return them without the indexes of segments: those of a wide result
        have 100 MB. Give them to `observe`.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log has lost events that were still to be read. The next `open` begins anew.
        """
        assert self._tail is not None, "the log is open"
        try:
            events = self._tail.poll(_EVENTS_MAX, timeout_s)
        except Lost:
            self.close()
            raise
        return [Placed(it.partition, without_indexes(it.recorded)) for it in events]

    def observe(self, recorded: Recorded) -> JobLog:
        """Replay an event that was read, and return its job."""
        return observe(self.jobs, recorded)

    def read_to_end(
        self, deadline: Deadline, see: Callable[[Recorded], None] = lambda recorded: None
    ) -> None:
        """Read the log up to its present end, and let `see` see each event.

        Raises:
            Unavailable: the log cannot be read, or not before the deadline.
            Lost: as `poll`.
        """
        self.open()
        ends = self.offsets()
        lag = before = self.lag(ends)
        while lag:
            if lag < before:
                deadline.progress()
            if deadline.passed:
                raise Unavailable("the log was not read to its end in time")
            for placed in self.poll(deadline.poll_s):
                self.observe(placed.recorded)
                see(placed.recorded)
            before, lag = lag, self.lag(ends)
        self.forget(ends)

    def offsets(self) -> Mapping[int, range]:
        """Return the offsets that each partition holds now.

        Raises:
            Unavailable: the log does not answer.
        """
        assert self._tail is not None, "the log is open"
        return self._tail.offsets()

    @property
    def rejected(self) -> int:
        """Return the number of records of this reading that are no valid events."""
        return 0 if self._tail is None else self._tail.rejected

    def positions(self) -> Mapping[int, int]:
        return {} if self._tail is None else self._tail.positions()

    def lag(self, offsets: Mapping[int, range]) -> int:
        """Return the number of records up to the ends of these offsets that are still to be
        read."""
        positions = self.positions()
        return sum(max(0, there.stop - positions[at]) for at, there in offsets.items())

    def forget(self, offsets: Mapping[int, range]) -> None:
        """Once a minute, drop the jobs of which the log has neither an event nor a snapshot.

        Assumes that the log was read up to the ends of these offsets.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log was deleted and made again. The next `open` begins anew.
        """
        if self._clock.monotonic_s() < self._forget_due_s:
            return
        self._forget_due_s = self._clock.monotonic_s() + _FORGET_S
        if self._log.identity(Deadline.after(READ_S_MAX)) != self._identity:
            self.close()
            raise Lost("another log is in the place of the one that was read", ())
        oldest = {number: there.start for number, there in offsets.items()}
        without_events = [
            job
            for job, entry in self.jobs.items()
            if entry.position <= oldest[self._log.partition(job)]
        ]
        if without_events:
            stored = self._log.read_state(None, ProgressDeadline(READ_S_MAX))
            kept = {job_of(key) for key in stored}
            gone = set(without_events) - kept
            self.jobs = {job: entry for job, entry in self.jobs.items() if job not in gone}

    def close(self) -> None:
        """Stop reading. The log stays open."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None
