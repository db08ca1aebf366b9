"""The event-log port: per job one totally ordered, durable sequence of events.

Guarantees of every implementation:
- A fact whose receipt was confirmed is in the log once, in the order of this log's appends.
- Decisions of one step become visible together with the position they were derived from, or never.
- Offsets grow from record to record, with gaps: other jobs' records, dropped decisions and the
  marks that end a step take offsets too.
- A follower sees committed events only, in the order of their offsets, and no event behind a step
  that is still open.
- Opening a job's decisions ends whatever an earlier holder had open. Nothing that holder does later
  becomes visible; its `commit` raises `Fenced`, its other calls as soon as it has learned of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from zlib import crc32

from .clock import Deadline
from .events import Event, Recorded
from .ids import JobId


def partition_of(job: JobId, partitions: int) -> int:
    """Where a job's events are kept; the same in every implementation, process and version."""
    return crc32(job.encode()) % partitions


class Receipt(Protocol):
    """What an append gives back: the promise of a place in the log."""

    def offset(self, deadline: Deadline) -> int:
        """Wait until the log has confirmed the fact.

        Raises:
            OutcomeUnknown: no confirmation came in time; the fact may or may not be in the log.
            Unavailable: the fact is not in the log.
        """


class Follower(Protocol):
    """Reads one job's events from a position on; `rejected` counts records that are no events."""

    rejected: int

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        """The next events, at most `limit`; an empty list when none came in time, or when the end
        was reached past records that are not for this reader.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log no longer holds the events at the position.
        """

    def position(self) -> int:
        """The offset behind all that `poll` has passed; reaches `end` when nothing is left."""

    def end(self) -> int:
        """Where a reader stalls now: behind the newest record, or at the oldest open step.

        Raises:
            Unavailable: the log does not answer.
        """

    def close(self) -> None:
        """Stop reading."""


class Decisions(Protocol):
    """The one place that a job's decisions come from; every step is a transaction."""

    def begin(self) -> None:
        """Open a step.

        Raises:
            Fenced: somebody else has opened the job's decisions since.
            Unavailable: the former step could not be ended; open the job's decisions again.
        """

    def write(self, decision: Event) -> None:
        """Add a decision to the open step.

        Raises:
            Fenced: somebody else has opened the job's decisions since.
            Invalid: the decision is too large.
            Unavailable: the log takes nothing now; abort the step and begin it again.
        """

    def commit(self, position: int) -> None:
        """Make the step's decisions visible, and that the facts before `position` are decided.

        Raises:
            Fenced: somebody else has opened the job's decisions since.
            Unavailable: the step was dropped, and may be begun again.
            OutcomeUnknown: no answer came in time. Open the job's decisions again, which settles
                the step, and read up to `end` to see how.
        """

    def abort(self) -> None:
        """Drop the open step, if there is one.

        Raises:
            Fenced: somebody else has opened the job's decisions since.
            Unavailable: the log does not answer; open the job's decisions again.
        """

    def close(self) -> None:
        """Give back connections; an open step is dropped."""


class EventLog(Protocol):
    def prepare(self, deadline: Deadline) -> None:
        """Reach the log and make it ready for use.

        Raises:
            Unavailable: the log cannot be reached.
            Invalid: it refuses these settings, or exists with others.
        """

    def append(self, fact: Event) -> Receipt:
        """Hand a fact to the log without waiting for it.

        Raises:
            Invalid: the fact is too large.
            Unavailable: too many facts wait for their confirmation.
        """

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        """Read a job's events from a position on; None is the oldest that the log still holds.

        Raises:
            Unavailable: the log cannot be reached.
        """

    def open_decisions(self, job: JobId) -> Decisions:
        """Become the one who decides for a job, fencing whoever did before.

        Raises:
            Unavailable: the log cannot be reached, or did not end the former holder's step in time.
        """

    def read_all(self, deadline: Deadline) -> Iterator[Recorded]:
        """Every job's committed events up to now, each job's in order.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def close(self) -> None:
        """Give back connections; the log is not used afterwards."""
