"""The event-log port: per job one totally ordered, durable sequence of events.

Guarantees of every implementation:
- A fact whose receipt was confirmed is in the log once, in the order of this log's appends.
- Decisions of one step become visible together with the position they were derived from, or never.
- Offsets grow from record to record, with gaps: other jobs' records, dropped decisions and the
  marks that end a step take offsets too.
- A follower sees committed events only, in the order of their offsets, and no event behind a step
  that is still open.
- State is kept by key: what a committed step has kept stands until a later one replaces it. A
  reader sees every key as it was behind one and the same step.
- Opening a job's decisions ends whatever an earlier holder had open. Nothing that holder does later
  becomes visible; its `commit` raises `Fenced`, its other calls as soon as it has learned of it.
- A partition is held by one member of the group of masters at a time. Once that member may decide
  there, nothing that a former holder does becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol
from zlib import crc32

from .clock import Deadline
from .events.types import Event, Recorded
from .ids import JobId


def partition_of(job: JobId, partitions: int) -> int:
    """Where a job's events are kept; the same in every implementation, process and version."""
    return crc32(job.encode()) % partitions


@dataclass(frozen=True, slots=True)
class StateRecord:
    """What stands under a key from now on; nothing any more with `body` None. A key is the job's
    name, alone or with a slash and more."""

    key: str
    body: bytes | None


def job_of(key: str) -> JobId:
    """Whose record stands under a key."""
    return JobId(key.split("/")[0])


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no event."""

    partition: int
    offset: int
    reason: str


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


class Transactions(Protocol):
    """Steps of decisions: all of a step is seen, or nothing."""

    def begin(self) -> None:
        """Open a step.

        Raises:
            Fenced: somebody else decides now.
            Unavailable: the former step could not be ended; open or join again.
        """

    def write(self, decision: Event) -> None:
        """Add a decision to the open step.

        Raises:
            Fenced: somebody else decides now.
            Invalid: the decision is too large.
            Unavailable: the log takes nothing now; abort the step and begin it again.
        """

    def keep(self, record: StateRecord) -> None:
        """Add a record of a job's state to the open step.

        Raises:
            Fenced: somebody else decides now.
            Invalid: the record is too large; abort the step.
            Unavailable: the log takes nothing now; abort the step and begin it again.
        """

    def abort(self) -> None:
        """Drop the open step, if there is one.

        Raises:
            Fenced: somebody else decides now.
            Unavailable: the log does not answer; open or join again.
        """

    def close(self) -> None:
        """Give back connections; an open step is dropped."""


class Decisions(Transactions, Protocol):
    """The one place that a job's decisions come from."""

    def commit(self, position: int) -> None:
        """Make visible what is in the step, and that the facts before `position` are decided.

        Raises:
            Fenced: somebody else has opened the job's decisions since.
            Invalid: something in the step is too large for the log; the step was dropped.
            Unavailable: the step was dropped, and may be begun again.
            OutcomeUnknown: no answer came in time. Open the job's decisions again, which settles
                the step, and read up to what is `written` to see how.
        """


@dataclass(frozen=True, slots=True)
class Placed:
    """An event and the partition that it is kept in."""

    partition: int
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition that is granted: what stands of its jobs' state, by key, as it was behind one and
    the same step, and which offsets its log holds. A former holder's last step may be missing in
    both."""

    partition: int
    state: Mapping[str, bytes]
    offsets: range


class Holder(Protocol):
    """Who decides for the partitions of a member; told of them within `poll` and `close`."""

    def granted(self, grant: Grant) -> int:
        """The partition is this member's, and is read from the offset that is answered."""

    def revoked(self, partition: int) -> None:
        """As soon as this returns the partition may be another member's: forget it."""


class Membership(Transactions, Protocol):
    """A place in the group of masters: reads the partitions that it holds, and decides there.

    `rejected` counts records that are no events. Steps lie between two polls.
    """

    rejected: int

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        """The next events of all partitions held, at most `limit`, each partition's in order.

        Raises:
            Conflict: another master has joined under the same slot.
            Fenced: this membership is over; join again.
            Unavailable: the log cannot be read.
            Lost: the log no longer holds the events at a position; join again.
        """

    def position(self, partition: int) -> int:
        """The offset behind all that `poll` has passed of a partition that is held."""

    def end(self, partition: int) -> int | None:
        """Behind which position the member may decide for a partition that it holds: all that a
        former holder has committed lies before it, also behind a step that is still open, and no
        former holder commits anything more. None while one still can.

        Raises:
            Unavailable: the log does not answer.
        """

    def commit(self, positions: Mapping[int, int]) -> None:
        """Make visible what is in the step, and that the facts before `positions`, one for each
        partition of the step, are decided.

        Raises:
            Fenced: the group went on without this member, or the log ended the step. Nothing became
                visible. Abort; the next `poll` tells what is still held, or that all is over.
            Invalid: something in the step is too large for the log; the step was dropped.
            Unavailable: the step was dropped, and may be begun again.
            OutcomeUnknown: no answer came in time. Join again, which settles the step.
        """


class EventLog(Protocol):
    def prepare(self, deadline: Deadline) -> None:
        """Reach the log and make it ready for use.

        Raises:
            Unavailable: the log cannot be reached.
            Invalid: it refuses these settings, or exists with others.
        """

    def retention_ms(self, deadline: Deadline) -> int:
        """Return how long the log keeps an event, below 0 for ever.

        Raises:
            Unavailable: the log does not answer.
        """

    def identity(self, deadline: Deadline) -> str:
        """Return the name that this log alone has, other than one of the same place that was before
        it; empty where nobody gave it one.

        Raises:
            Unavailable: the log does not answer.
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

    def written(self, job: JobId) -> int:
        """Behind which position nothing stands of a job: all that was committed lies before it,
        also behind a step of another job that is still open. Who has opened a job's decisions may
        decide there.

        Raises:
            Unavailable: the log does not answer.
        """

    def open_decisions(self, job: JobId) -> Decisions:
        """Become the one who decides for a job, fencing whoever did before.

        Raises:
            Unavailable: the log cannot be reached, or did not end the former holder's step in time.
        """

    def join(self, slot: str, holder: Holder) -> Membership:
        """Enter the group of masters under a name that one master has at a time; whatever step an
        earlier master of that name had open is dropped.

        Raises:
            Unavailable: the log cannot be reached, or did not end the earlier step in time.
        """

    def partition(self, job: JobId) -> int:
        """Return where a job's events are: jobs of the same partition share its offsets.

        Raises:
            Unavailable: the log does not answer.
        """

    def oldest(self, job: JobId) -> int:
        """The oldest offset that is still kept where a job's events are.

        Raises:
            Unavailable: the log does not answer.
        """

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        """Every job's committed events up to now, each job's in order; of a job that is known up to
        an offset only those behind it.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        """What stands of a job's state, or with None of every job's, by key. A step of another job
        that is still open may hide what was committed behind it; with `whole` its end is waited
        for.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def beat(self, job: JobId) -> Receipt:
        """Say that the job's driver lives, without waiting whether it is heard.

        Raises:
            Unavailable: too much waits to be sent.
        """

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        """When a job's driver, or with None every job's, was last heard, in milliseconds since 1970
        by the log's clock; beats are kept for a day or two.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def close(self) -> None:
        """Give back connections; the log is not used afterwards."""
