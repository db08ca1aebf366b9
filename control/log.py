"""The event-log port: one totally ordered, durable sequence of events for each job.

Guarantees of every implementation:
- A fact whose receipt was confirmed is in the log exactly once. Facts appended through one log
  object keep their order.
- The decisions of a step and the position they were derived from become visible together, or never.
- Offsets grow from record to record, with gaps: other jobs' records, dropped decisions and the
  markers that end a step take offsets too.
- A follower sees only committed events, in the order of their offsets, and no event after a step
  that is still open.
- State records have keys. The record of a committed step stands until a later step replaces it. A
  reader sees all keys as they were after the same step.
- Opening a job's decisions ends the step that an earlier holder had open. Nothing that the earlier
  holder does later becomes visible: its `commit` raises `Fenced`, and its other calls do so as soon
  as the holder learns that it is fenced.
- One member of the group of masters at a time holds a partition. Once that member may decide there,
  nothing that a former holder does becomes visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol
from zlib import crc32

from .clock import Deadline
from .errors import Unavailable
from .events.types import Event, Recorded
from .ids import JobId

_COVERAGE = re.compile(r"_[0-9]{1,9}")


def partition_of(job: JobId, partitions: int) -> int:
    """Return the partition of a job: the same in every implementation, process and version."""
    if is_coverage(job):
        return int(job[1:])
    return crc32(job.encode()) % partitions


def coverage_of(partition: int) -> JobId:
    """Return the name under which a partition has state records of its own, which are no job's."""
    return JobId(f"_{partition}")


def is_coverage(name: str) -> bool:
    return _COVERAGE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A new value for a key of a job's state."""

    key: str
    """The job's name, alone or followed by a slash and more text; or `coverage_of` a
    partition."""
    body: bytes | None
    """The value; None deletes the key."""


def job_of(key: str) -> JobId:
    """Return the job that a state record's key belongs to."""
    return JobId(key.split("/")[0])


def is_state_of(job: JobId | None, key: str) -> bool:
    """Return True if a state record's key belongs to the job, or with None to any job."""
    owner = job_of(key)
    return not is_coverage(owner) if job is None else owner == job


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record of the log that is not a valid event."""

    partition: int
    offset: int
    reason: str


class Receipt(Protocol):
    """The promise that an appended fact gets an offset in the log."""

    def offset(self, deadline: Deadline) -> int:
        """Wait until the log has confirmed the fact, and return its offset.

        Raises:
            OutcomeUnknown: no confirmation came in time; the fact may or may not be in the log.
            Unavailable: the fact is not in the log.
        """


class Follower(Protocol):
    """Reads one job's events from a position on."""

    rejected: int
    """The number of records so far that are not valid events."""

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        """Return the next events, at most `limit`.

        The list is empty if no event came in time, or if the end was reached and no record on the
        way was an event for this reader.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log no longer holds the events at the position.
        """

    def position(self) -> int:
        """Return the offset after the records that `poll` has passed; `end` if none is left."""

    def end(self) -> int:
        """Return where a reader stalls now: after the newest record, or at the oldest open step.

        Raises:
            Unavailable: the log does not answer.
        """

    def close(self) -> None:
        """Stop reading."""


def read_to(follower: Follower, end: int, limit: int, deadline: Deadline) -> Iterator[Recorded]:
    """Yield the next events until the follower has passed the offset `end`, reading at most `limit`
    at a time. Events that came meanwhile may be among them.

    Raises:
        Unavailable: the log cannot be read, or not within the deadline.
        Lost: the log no longer holds the events at the position.
    """
    before = None
    while (position := follower.position()) < end:
        if position != before:
            deadline.progress()
            before = position
        if deadline.passed:
            raise Unavailable(f"the log was read up to {position} of {end} in time")
        yield from follower.poll(limit, deadline.poll_s)


class Transactions(Protocol):
    """Writes steps of decisions. Readers see all of a step or nothing."""

    def begin(self) -> None:
        """Open a step.

        Raises:
            Fenced: another process decides now.
            Unavailable: the former step could not be ended; open or join again.
        """

    def write(self, decision: Event) -> None:
        """Add a decision to the open step.

        Raises:
            Fenced: another process decides now.
            Invalid: the decision is too large.
            Unavailable: the log takes no records now; abort the step and begin it again.
        """

    def keep(self, record: StateRecord) -> None:
        """Add a record of a job's state to the open step.

        Raises:
            Fenced: another process decides now.
            Invalid: the record is too large; abort the step.
            Unavailable: the log takes no records now; abort the step and begin it again.
        """

    def abort(self) -> None:
        """Drop the open step, if there is one.

        Raises:
            Fenced: another process decides now.
            Unavailable: the log does not answer; open or join again.
        """

    def close(self) -> None:
        """Close the connections and drop an open step."""


class Decisions(Transactions, Protocol):
    """The right to decide for one job, which one process has at a time."""

    def commit(self, position: int) -> None:
        """Publish the step, and record that all facts before `position` are decided.

        Raises:
            Fenced: another process has opened the job's decisions since.
            Invalid: a record of the step is too large for the log; the step was dropped.
            Unavailable: the step was dropped, and may be begun again.
            OutcomeUnknown: no answer came in time. Open the job's decisions again, which settles
                the step, and read up to `written` to see if the step was committed.
        """


@dataclass(frozen=True, slots=True)
class Placed:
    """An event and the number of its partition."""

    partition: int
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition that the group has given to a member.

    A step that a former holder is just about to commit may be missing in both `state` and
    `offsets`.
    """

    partition: int
    state: Mapping[str, bytes]
    """The state records of the partition's jobs by key, all as they were after the same step."""
    offsets: range
    """The offsets that the partition's log holds."""


class Tail(Protocol):
    """Reads the events of all jobs, those of each partition in their order."""

    rejected: int
    """The number of records so far that are not valid events."""

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        """Return the next events, at most `limit`.

        The list is empty if no event came in time, or if no record on the way was an event for this
        reader.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log no longer holds the events at a position.
        """

    def positions(self) -> Mapping[int, int]:
        """Return for each partition the offset after the records that `poll` has passed."""

    def offsets(self) -> Mapping[int, range]:
        """Return the offsets that each partition holds, up to where a reader stalls now.

        Raises:
            Unavailable: the log does not answer.
        """

    def close(self) -> None:
        """Stop reading."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A master that belongs to the group now."""

    slot: str
    host: str
    """The address of its machine; empty if the log does not know it."""
    partitions: tuple[int, ...]
    """The partitions that the group has given to it."""


@dataclass(frozen=True, slots=True)
class MasterGroup:
    """The group of masters as it is now, and how far it has come."""

    members: tuple[GroupMember, ...] = ()
    decided: Mapping[int, int] = field(default_factory=dict)
    """For each partition, the position that the last committed step there was derived from."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """For each partition, the offset after its newest record."""


class Holder(Protocol):
    """Decides for the partitions of a member. Its methods are called within `poll` and `close`."""

    def granted(self, grant: Grant) -> int:
        """Take over a partition, and return the offset to read it from."""

    def revoked(self, partition: int) -> None:
        """Forget a partition: once this returns, another member may hold it."""


class Membership(Transactions, Protocol):
    """A place in the group of masters: reads and decides the partitions that it holds.

    A step must begin and end between two polls.
    """

    rejected: int
    """The number of records so far that are not valid events."""

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        """Return the next events of the partitions held, at most `limit`, in each one's order.

        Raises:
            Conflict: another master has joined under the same slot.
            Fenced: this membership is over; join again.
            Unavailable: the log cannot be read.
            Lost: the log no longer holds the events at a position; join again.
        """

    def position(self, partition: int) -> int:
        """Return the offset after the records that `poll` has passed in a partition held."""

    def end(self, partition: int) -> int | None:
        """Return the position from which on the member may decide for a partition that it holds.

        Everything that a former holder has committed lies before that position, even if a step
        that is still open hides it. No former holder can commit any more; while one still can, the
        method returns None.

        Raises:
            Unavailable: the log does not answer.
        """

    def commit(self, positions: Mapping[int, int]) -> None:
        """Publish the step, and record that all facts before `positions` are decided.

        `positions` has one entry for each partition of the step.

        Raises:
            Fenced: the group went on without this member, or the log ended the step. Nothing became
                visible. Abort; the next `poll` revokes partitions or raises an error.
            Invalid: a record of the step is too large for the log; the step was dropped.
            Unavailable: the step was dropped, and may be begun again.
            OutcomeUnknown: no answer came in time. Join again, which settles the step.
        """


class EventLog(Protocol):
    def prepare(self, deadline: Deadline) -> None:
        """Reach the log and make it ready for use.

        Raises:
            Unavailable: the log cannot be reached.
            Invalid: the log refuses these settings, or exists with other settings.
        """

    def retention_ms(self, deadline: Deadline) -> int:
        """Return how long the log keeps an event; negative means for ever.

        Raises:
            Unavailable: the log does not answer.
        """

    def identity(self, deadline: Deadline) -> str:
        """Return the id of this log, or an empty text if the log has none.

        A log that was deleted and made again at the same place has another id.

        Raises:
            Unavailable: the log does not answer.
        """

    def append(self, fact: Event) -> Receipt:
        """Hand a fact to the log without waiting for its confirmation.

        Raises:
            Invalid: the fact is too large.
            Unavailable: too many facts wait for confirmation.
        """

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        """Read a job's events from a position on; None means the oldest offset in the log.

        Raises:
            Unavailable: the log cannot be reached.
        """

    def written(self, job: JobId) -> int:
        """Return a position after every committed event of a job.

        That includes events that an open step of another job still hides. The process that has
        opened the job's decisions may decide from there on.

        Raises:
            Unavailable: the log does not answer.
        """

    def open_decisions(self, job: JobId) -> Decisions:
        """Take over the right to decide for a job, and fence the former holder.

        Raises:
            Unavailable: the log cannot be reached, or did not end the former holder's step in time.
        """

    def join(self, slot: str, holder: Holder) -> Membership:
        """Enter the group of masters under a slot, which one master has at a time.

        The step that an earlier master of the slot had open is dropped.

        Raises:
            Unavailable: the log cannot be reached, or did not end the earlier step in time.
        """

    def group(self, deadline: Deadline) -> MasterGroup:
        """Return the members of the group of masters, in the order of their slots. The group is
        empty if nobody has joined it. Nothing is written.

        Raises:
            Unavailable: the log does not answer.
        """

    def partition(self, job: JobId) -> int:
        """Return the partition of a job's events. Jobs of the same partition share its offsets.

        Raises:
            Unavailable: the log does not answer.
        """

    def oldest(self, job: JobId) -> int:
        """Return the oldest offset that the partition of a job still holds.

        Raises:
            Unavailable: the log does not answer.
        """

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        """Yield the committed events of all jobs up to now, in the order of each job.

        Yield the events of a job in `known` from its offset on only.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> Tail:
        """Read the events of all jobs from the oldest on, and go on as they come.

        The events of a job in `known` are read from its offset on, and before it the registrations
        of results only.

        Raises:
            Unavailable: the log cannot be reached.
        """

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        """Return the state records of a job by key, or of all jobs if `job` is None. A partition's
        `coverage_of` stands for a job.

        An open step of another job may hide records that were committed after it. With `whole`,
        wait until that step ends.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def beat(self, job: JobId) -> Receipt:
        """Send a heartbeat of the job's driver without waiting for its confirmation.

        Raises:
            Unavailable: too many records wait to be sent.
        """

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        """Return when the driver of a job, or of each job if `job` is None, was last heard.

        Times are milliseconds since 1970 by the log's clock. The log keeps heartbeats for a day or
        two.

        Raises:
            Unavailable: the log cannot be read, or not within the deadline.
        """

    def close(self) -> None:
        """Close the connections. The log must not be used afterwards."""
