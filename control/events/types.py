"""What can happen: facts, stated by tasks and drivers, and decisions, stated by the master.

An event on its way is an `Event`: an envelope around one body. Bodies hold plain values only, so
that a stored event of any published version can be read for as long as the log is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ..ids import AttemptId, JobId, ResultId


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One object of a partition. `index` is the storage room's: rows, bytes and checksums per
    subpartition; empty when it is too large for an event: then only the footer has it."""

    number: int
    size_bytes: int
    rows: int
    checksum: int
    index: bytes


# Facts


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """`store` is where the job's objects are; a driver that is silent for `lease_ms` is taken for
    dead, 0 is never."""

    mode: str
    version: str
    application: str
    store: str = ""
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class ResultRegistered:
    """`inputs` are the results that its producers read. Where these producers need not write the
    same rows again it is not `deterministic`; `pipelined`, it is read while it is written."""

    result: ResultId
    partitions: int
    subpartitions: int
    schema: str
    label: str
    inputs: tuple[ResultId, ...] = ()
    deterministic: bool = True
    pipelined: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRegistered:
    """The producers of `count` neighbouring partitions are known: one event for a whole stage."""

    result: ResultId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """Confirmed before the attempt's first write: whatever it leaves behind can be found."""

    attempt: AttemptId
    host: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True)
class Produced:
    """`fingerprint` is the same for the same content, None when nobody computed it."""

    attempt: AttemptId
    segments: tuple[SegmentSummary, ...]
    fingerprint: int | None = None

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SegmentProduced:
    """One segment of an attempt that goes on writing."""

    attempt: AttemptId
    segment: SegmentSummary


@dataclass(frozen=True, slots=True)
class Consumed:
    """A reader task has read and verified what it had to of `count` neighbouring subpartitions:
    all, or of a skewed one what some partitions hold."""

    result: ResultId
    first: int
    count: int
    task: int
    rows: int
    read_bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What an attempt had announced is not there; without evidence nothing follows from it. `task`
    is the reader that waits for it to come again, 0 when nobody does."""

    attempt: AttemptId
    object: str
    evidence: str
    task: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """Whatever runs on the host ends without another word."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class PromoteRequested:
    """A result is to outlive its job until a point in time, 0 for ever."""

    result: ResultId
    expires_ms: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StopTrackingRequested:
    """Somebody else looks after the result from now on."""

    result: ResultId
    reason: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The driver of an epoch was silent for longer than its job's lease."""

    reason: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """How late it is: the only time that decisions know."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """`epoch` is that of the driver that asks, here and below; 0 is an operator, whom nobody
    replaces."""

    result: ResultId
    reason: str
    epoch: int = 0


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
    """These partitions are to be made again."""

    result: ResultId
    partitions: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TrackingStopped:
    """These attempts count no longer; with none named, the whole result is somebody else's."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result outlives its job."""

    result: ResultId
    expires_ms: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """Nobody may read the result any more; the objects of these attempts are to be deleted."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    reason: str


Fact: TypeAlias = (
    JobRegistered
    | ResultRegistered
    | PartitionRegistered
    | AttemptStarted
    | AttemptFailed
    | SegmentProduced
    | Produced
    | Consumed
    | Lost
    | ExecutorLost
    | PromoteRequested
    | StopTrackingRequested
    | ReleaseRequested
    | LeaseExpired
    | Tick
    | Deleted
    | JobUnregistered
)
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
    """One record of the log. `basis` is the offset of the fact that a decision follows from, None
    for a fact; `cause` is the id of the event that led to this one, empty when nothing did."""

    id: str
    job: JobId
    cause: str
    time_ms: int
    by: str
    basis: int | None
    body: Body

    @property
    def kind(self) -> str:
        return type(self.body).__name__


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event at its place in the log. `at_ms` is when the log took it, by the log's own clock; 0
    where that is not known."""

    offset: int
    event: Event
    at_ms: int = field(default=0, compare=False)
