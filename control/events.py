"""What can happen: facts, stated by tasks and drivers, and decisions, stated by the master.

An event on its way is an `Event`: an envelope around one body. Bodies hold plain values only, so
that a stored event of any published version can be read for as long as the log is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .ids import AttemptId, JobId, ResultId


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
    mode: str
    version: str
    application: str


@dataclass(frozen=True, slots=True)
class ResultRegistered:
    result: ResultId
    partitions: int
    subpartitions: int
    schema: str
    label: str


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
    attempt: AttemptId
    segments: tuple[SegmentSummary, ...]

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A reader task has read and verified `count` neighbouring subpartitions in full."""

    result: ResultId
    first: int
    count: int
    task: int
    rows: int
    read_bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    result: ResultId
    reason: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """The objects of these attempts are gone."""

    result: ResultId
    attempts: tuple[AttemptId, ...]
    objects: int


@dataclass(frozen=True, slots=True)
class JobUnregistered:
    reason: str


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
    | Produced
    | Consumed
    | ReleaseRequested
    | Deleted
    | JobUnregistered
)
Decision: TypeAlias = (
    JobAccepted | PartitionAccepted | Consumable | Superseded | ResultComplete | Released
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
    """An event at its place in the log."""

    offset: int
    event: Event
