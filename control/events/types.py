"""The events of the log: facts, published by tasks, drivers and masters, and decisions of the
master.

An `Event` is an envelope around one body. Bodies hold only plain values, so that an event of any
published version can be read for as long as the log keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ..ids import AttemptId, JobId, ResultId

BY_DRIVER = -1
"""Stands where an event names the reader task: no task, but the driver has read."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One stored object that holds part or all of a partition."""

    number: int
    size_bytes: int
    rows: int
    checksum: int
    index: bytes
    """The rows, bytes and checksum of each subpartition, in a format of the storage code.

    Empty if the index is too large for an event; then only the segment's footer has it.
    """
    format: int = 2
    """The format of the object."""


# Facts


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A driver asks to speak for the job."""

    mode: str
    version: str
    application: str
    store: str = ""
    """The place of the job's objects."""
    lease_ms: int = 0
    """A driver that is silent for this long may be taken for dead; 0 means never."""


@dataclass(frozen=True, slots=True)
class ResultRegistered:
    """A result is about to be produced."""

    result: ResultId
    partitions: int
    subpartitions: int
    schema: str
    label: str
    inputs: tuple[ResultId, ...] = ()
    """The results that the producers read."""
    deterministic: bool = True
    """False if a producer that runs again may write other rows."""
    pipelined: bool = False
    """True if readers read a partition while it is still being written."""


@dataclass(frozen=True, slots=True)
class PartitionRegistered:
    """The producers of `count` neighbouring partitions are known. A stage needs only one event."""

    result: ResultId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """An attempt has begun.

    The log confirms this before the attempt's first write, so that all its objects can be found.
    """

    attempt: AttemptId
    host: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True)
class Produced:
    """An attempt has written a whole partition."""

    attempt: AttemptId
    segments: tuple[SegmentSummary, ...]
    fingerprint: int | None = None
    """A hash of the content, None if it was not computed."""
    throttled: int = 0
    """The answers by which the store asked the writer for fewer requests."""
    plain_bytes: int = 0
    """The bytes of the rows without compression, 0 if they were not counted."""

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SegmentProduced:
    """An attempt at a pipelined partition has written one segment, and goes on."""

    attempt: AttemptId
    segment: SegmentSummary


@dataclass(frozen=True, slots=True)
class WayChosen:
    """The way of a complete result's rows to their readers, which its driver has chosen, and the
    costs that the driver expects of these readers."""

    result: ResultId
    way: str
    gets: int
    ms: int
    """The time from now to the end of the last of them, if they share the work evenly."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """A reader task has read and verified its part of `count` neighbouring subpartitions.

    The part is all partitions of the result, or some of them if a subpartition is skewed. The
    driver may have read a small result instead, all of it at once.
    """

    result: ResultId
    first: int
    count: int
    task: int
    """The reader task, or `BY_DRIVER`."""
    rows: int
    read_bytes: int
    requests: int
    throttled: int = 0
    """The answers by which the store asked the reader for fewer requests."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An object that an attempt had announced is missing."""

    attempt: AttemptId
    object: str
    evidence: str
    """The observation that proves the loss. If it is empty, no decision follows."""
    task: int = 0
    """The reader task that waits for the partition to be made again, 0 if none does."""


@dataclass(frozen=True, slots=True)
class PromoteRequested:
    """A request to keep a result beyond its job."""

    result: ResultId
    expires_ms: int
    """The time at which the result expires; 0 means never."""
    epoch: int = 0
    """The epoch of the driver that asks; 0 for an operator, who is never fenced."""


@dataclass(frozen=True, slots=True)
class StopTrackingRequested:
    """A request to leave the result to another owner."""

    result: ResultId
    reason: str
    epoch: int = 0
    """The epoch of the driver that asks; 0 for an operator, who is never fenced."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The driver of an epoch was silent for longer than the job's lease. Nothing follows if the log
    has a later sign of life than the author knew."""

    reason: str
    epoch: int = 0
    """The epoch of the silent driver."""
    heard: int | None = None
    """The offset of the last sign of life that the author knew; None if it was not known."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The current time, which decisions know from this fact alone."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    result: ResultId
    reason: str
    epoch: int = 0
    """The epoch of the driver that asks; 0 for an operator, who is never fenced."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The objects of these attempts are gone."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    objects: int


@dataclass(frozen=True, slots=True)
class JobUnregistered:
    reason: str
    epoch: int = 0
    """The epoch of the driver that asks; 0 for an operator, who is never fenced."""


# Decisions


@dataclass(frozen=True, slots=True)
class JobAccepted:
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionAccepted:
    result: ResultId
    first: int
    count: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Consumable:
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Superseded:
    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True)
class ResultComplete:
    result: ResultId


@dataclass(frozen=True, slots=True)
class Reproduce:
    """An order to produce these partitions again."""

    result: ResultId
    partitions: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TrackingStopped:
    """Attempts no longer count, or the whole result has another owner."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    """The attempts that no longer count. If empty, the result has another owner."""
    reason: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result outlives its job until `expires_ms`; 0 means for ever."""

    result: ResultId
    expires_ms: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """The result must not be read any more, and the objects of these attempts must be deleted."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Newer:
    """An event that a newer version of Headgate has written: nothing else is known of it."""

    version: int
    """The version of its schema."""


Fact: TypeAlias = (
    JobRegistered
    | ResultRegistered
    | PartitionRegistered
    | AttemptStarted
    | AttemptFailed
    | SegmentProduced
    | Produced
    | WayChosen
    | Consumed
    | Lost
    | PromoteRequested
    | StopTrackingRequested
    | ReleaseRequested
    | LeaseExpired
    | Tick
    | Deleted
    | JobUnregistered
)
BY_HAND = ("operator ", "fsck ")
"""Beginnings of the names of authors whose facts are an operator's: nobody has heard the driver."""
Decision: TypeAlias = (
    JobAccepted
    | PartitionAccepted
    | Consumable
    | Superseded
    | ResultComplete
    | Reproduce
    | TrackingStopped
    | Promoted
    | Released
    | JobFailed
)
Body: TypeAlias = Fact | Decision


@dataclass(frozen=True, slots=True)
class Event:
    """A fact or a decision in its envelope."""

    id: str
    job: JobId
    cause: str
    """The id of the event that led to this one, empty if there is none."""
    time_ms: int
    """The time in milliseconds since 1970 by the author's clock."""
    by: str
    """The name of the author."""
    basis: int | None
    """The offset of the fact that a decision follows from, None for a fact."""
    body: Body | Newer

    @property
    def kind(self) -> str:
        return type(self.body).__name__


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event and its offset in the log."""

    offset: int
    event: Event
    at_ms: int = field(default=0, compare=False)
    """The time at which the log took the event, by the log's clock; 0 if it is unknown."""
