"""What is known of a job and its results: frozen values, made by folding the log's facts."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ..events.types import (
    Body,
    JobUnregistered,
    LeaseExpired,
    Produced,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
    StopTrackingRequested,
)
from ..ids import AttemptId, JobId, ResultId
from .persistent import PersistentMap, PersistentSet

_TOTAL_MAX = (1 << 63) - 1


def total(one: int, other: int) -> int:
    """Return the sum, or the largest number that a snapshot takes."""
    return min(one + other, _TOTAL_MAX)


@dataclass(frozen=True, slots=True)
class Reads:
    """What readers have taken, every reading counted, and how many subpartitions were read."""

    rows: int = 0
    read_bytes: int = 0
    requests: int = 0
    subpartitions: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(
            total(self.rows, other.rows),
            total(self.read_bytes, other.read_bytes),
            total(self.requests, other.requests),
            total(self.subpartitions, other.subpartitions),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What became consumable, and how many attempts did not; stays after the objects are gone."""

    partitions: int = 0
    segments: int = 0
    rows: int = 0
    stored_bytes: int = 0
    superseded: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            total(self.partitions, other.partitions),
            total(self.segments, other.segments),
            total(self.rows, other.rows),
            total(self.stored_bytes, other.stored_bytes),
            total(self.superseded, other.superseded),
        )


@dataclass(frozen=True, slots=True)
class ResultState:
    """One result: every attempt whose objects may still be there, and who won each partition.

    `running` tells the host of the attempts that have not ended, `streams` what those of a
    pipelined result have announced so far. `before` holds the fingerprint of a partition that was
    lost after it had become consumable, `reproducing` what is ordered and not there,
    `waiting` the reader tasks that wait for it.
    """

    registered: ResultRegistered
    accepted: Set[int] = field(default_factory=PersistentSet)
    attempts: Mapping[AttemptId, Produced | None] = field(default_factory=PersistentMap)
    running: Mapping[AttemptId, str] = field(default_factory=PersistentMap)
    streams: Mapping[AttemptId, tuple[SegmentSummary, ...]] = field(default_factory=PersistentMap)
    winners: Mapping[int, AttemptId] = field(default_factory=PersistentMap)
    superseded: Set[AttemptId] = field(default_factory=PersistentSet)
    before: Mapping[int, int | None] = field(default_factory=PersistentMap)
    reproducing: Set[int] = field(default_factory=PersistentSet)
    waiting: Set[int] = field(default_factory=PersistentSet)
    consumed: Set[int] = field(default_factory=PersistentSet)
    written: Written = Written()
    reads: Reads = Reads()
    completions: int = 0
    complete: bool = False
    expires_ms: int | None = None
    tracked: bool = True
    released: str | None = None
    deleted: int = 0

    def produced(self, partition: int) -> Produced:
        """What the winner of a consumable partition wrote."""
        produced = self.attempts[self.winners[partition]]
        assert produced is not None, "a winner has produced"
        return produced

    @property
    def kept(self) -> bool:
        """Whether it outlives its job."""
        return self.released is None and (self.expires_ms is not None or not self.tracked)

    @property
    def doomed(self) -> tuple[AttemptId, ...]:
        """The attempts whose objects were ordered to go and are not known to be gone."""
        ordered = self.attempts.keys()
        return tuple(sorted(ordered if self.released is not None else ordered & self.superseded))


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The sums of results that were released so long ago that nothing else is remembered."""

    results: int = 0
    written: Written = Written()
    reads: Reads = Reads()
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class JobState:
    """`gone` are the results that were released and deleted last, in that order."""

    job: JobId
    epoch: int = 0
    results: Mapping[ResultId, ResultState] = field(default_factory=PersistentMap)
    closed: str | None = None
    failed: str | None = None
    gone: tuple[ResultId, ...] = ()
    forgotten: Forgotten = Forgotten()

    @property
    def registered(self) -> bool:
        """Whether a driver speaks for the job: only then can anything new begin."""
        return self.epoch > 0 and self.closed is None and self.failed is None


def is_fenced(state: JobState, body: Body) -> bool:
    """Whether it is said by or of a driver that another one has replaced: nothing follows, nothing
    changes."""
    match body:
        case ReleaseRequested() | PromoteRequested() | StopTrackingRequested():
            return 0 < body.epoch < state.epoch
        case JobUnregistered() | LeaseExpired():
            return 0 < body.epoch < state.epoch
        case _:
            return False
