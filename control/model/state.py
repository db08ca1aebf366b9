"""The state of a job and its results: frozen values, made by folding the facts of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..events import types as ev
from ..events.traits import asking_epoch
from ..events.values import changed
from ..ids import AttemptId, JobId, ResultId
from .persistent import PersistentMap, PersistentSet

GROUP: Mapping[str, bool] = MappingProxyType({"group": True})
_TOTAL_MAX = (1 << 63) - 1


def total(first: int, second: int) -> int:
    """Return the sum, limited to the largest number that a snapshot can hold."""
    return min(first + second, _TOTAL_MAX)


@dataclass(frozen=True, slots=True)
class Reads:
    """The sums of everything that readers have taken; a repeated read counts again."""

    rows: int = 0
    read_bytes: int = 0
    requests: int = 0
    subpartitions: int = 0
    """The number of different subpartitions that were read."""
    throttled: int = 0
    """The answers by which the store asked for fewer requests."""

    def __add__(self, other: Reads) -> Reads:
        return Reads(
            total(self.rows, other.rows),
            total(self.read_bytes, other.read_bytes),
            total(self.requests, other.requests),
            total(self.subpartitions, other.subpartitions),
            total(self.throttled, other.throttled),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """The sums of everything that became consumable. They stay after the objects are gone."""

    partitions: int = 0
    segments: int = 0
    rows: int = 0
    stored_bytes: int = 0
    superseded: int = 0
    """The number of attempts that were superseded."""
    throttled: int = 0
    """The answers by which the store asked for fewer requests."""

    def __add__(self, other: Written) -> Written:
        return Written(
            total(self.partitions, other.partitions),
            total(self.segments, other.segments),
            total(self.rows, other.rows),
            total(self.stored_bytes, other.stored_bytes),
            total(self.superseded, other.superseded),
            total(self.throttled, other.throttled),
        )


@dataclass(frozen=True, slots=True)
class Production:
    """The attempts at a result's partitions, and the winner of each."""

    accepted: PersistentSet[int] = field(default_factory=PersistentSet)
    """The partitions that may be produced."""
    attempts: PersistentMap[AttemptId, ev.Produced | None] = field(default_factory=PersistentMap)
    """The attempts whose objects may still be there; None for an attempt that has not produced."""
    running: PersistentMap[AttemptId, str] = field(default_factory=PersistentMap)
    """The host of each attempt that has not ended."""
    streams: PersistentMap[AttemptId, tuple[ev.SegmentSummary, ...]] = field(
        default_factory=PersistentMap
    )
    """The segments that each attempt at a pipelined result has announced so far."""
    winners: PersistentMap[int, AttemptId] = field(default_factory=PersistentMap)
    """The attempt that readers read, for each consumable partition."""
    superseded: PersistentSet[AttemptId] = field(default_factory=PersistentSet)
    """The attempts that readers never read again."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The partitions that are made again after a loss."""

    before: PersistentMap[int, int | None] = field(default_factory=PersistentMap)
    """The fingerprints of partitions that were lost after they had become consumable."""
    reproducing: PersistentSet[int] = field(default_factory=PersistentSet)
    """The partitions that were ordered again and are not there yet."""
    waiting: PersistentSet[int] = field(default_factory=PersistentSet)
    """The reader tasks that wait for partitions to be made again."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a result. They stay when the objects are gone."""

    consumed: PersistentSet[int] = field(default_factory=PersistentSet)
    """The subpartitions that were read, as long as the result is not released."""
    written: Written = Written()
    reads: Reads = Reads()
    completions: int = 0
    """The number of times that the result became complete."""
    lost_partitions: int = 0
    """The number of times that a consumable partition was lost."""
    lost_rows: int = 0

    @property
    def partitions(self) -> int:
        """Return the number of consumable partitions, now or at the release of the result."""
        return self.written.partitions - self.lost_partitions

    @property
    def rows(self) -> int:
        """Return the rows of these partitions."""
        return self.written.rows - self.lost_rows

    def having(self, produced: ev.Produced) -> Totals:
        """Return the sums with another consumable partition."""
        segments, size_bytes = len(produced.segments), produced.size_bytes
        more = Written(1, segments, produced.rows, size_bytes, throttled=produced.throttled)
        return changed(self, written=self.written + more)

    def without(self, lost: ev.Produced) -> Totals:
        """Return the sums after the loss of a consumable partition."""
        rows = min(total(self.lost_rows, lost.rows), self.written.rows)
        return changed(self, lost_partitions=self.lost_partitions + 1, lost_rows=rows)


@dataclass(frozen=True, slots=True)
class ResultFate:
    """The end of a result: when it may go, and whether it has gone."""

    expires_ms: int | None = None
    """The time at which a promoted result is released, 0 for never; None if it is not promoted."""
    tracked: bool = True
    """False once somebody else looks after the result."""
    released: str | None = None
    """The reason for which the result was released; None before."""
    deleted: int = 0
    """The number of objects that were deleted."""


@dataclass(frozen=True, slots=True)
class ResultState:
    """One result. Snapshots store the fields of its groups as its own, in this order."""

    registered: ev.ResultRegistered
    production: Production = field(default=Production(), metadata=GROUP)
    reproduction: Reproduction = field(default=Reproduction(), metadata=GROUP)
    totals: Totals = field(default=Totals(), metadata=GROUP)
    complete: bool = False
    """True while every partition may be read."""
    fate: ResultFate = field(default=ResultFate(), metadata=GROUP)
    chosen: ev.WayChosen | None = None
    """The way of its rows to their readers; None before it is chosen."""

    def produced(self, partition: int) -> ev.Produced:
        """Return what the winner of a consumable partition wrote."""
        produced = self.production.attempts[self.production.winners[partition]]
        assert produced is not None, "a winner has produced"
        return produced

    @property
    def kept(self) -> bool:
        """Return True if the result outlives its job."""
        fate = self.fate
        return fate.released is None and (fate.expires_ms is not None or not fate.tracked)

    @property
    def doomed(self) -> tuple[AttemptId, ...]:
        """Return the attempts whose objects were ordered to go and are not known to be gone."""
        ordered = self.production.attempts.keys()
        superseded = ordered & self.production.superseded
        return tuple(sorted(superseded if self.fate.released is None else ordered))


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The sums of results that were released so long ago that nothing else is remembered."""

    results: int = 0
    written: Written = Written()
    reads: Reads = Reads()
    deleted: int = 0

    def having(self, result: ResultState) -> Forgotten:
        """Return the sums with those of another result."""
        return Forgotten(
            self.results + 1,
            self.written + result.totals.written,
            self.reads + result.totals.reads,
            total(self.deleted, result.fate.deleted),
        )


@dataclass(frozen=True, slots=True)
class JobState:
    """One job: its newest driver's epoch, and its results."""

    job: JobId
    epoch: int = 0
    results: PersistentMap[ResultId, ResultState] = field(default_factory=PersistentMap)
    closed: str | None = None
    """The reason for which the job was closed; None while it is open."""
    failed: str | None = None
    """The reason for which the job has failed; None if it has not."""
    gone: tuple[ResultId, ...] = ()
    """The results that were released and deleted last, in that order."""
    forgotten: Forgotten = Forgotten()
    """The sums of results that were released before these."""
    heard: int | None = None
    """The offset of the newest sign of life; None if it is unknown."""

    def unreleased(self, name: ResultId) -> ResultState | None:
        """Return a result, or None if there is no such result or it was released."""
        result = self.results.get(name)
        return None if result is None or result.fate.released is not None else result

    @property
    def registered(self) -> bool:
        """Return True if a driver speaks for the job: only then can anything new begin."""
        return self.epoch > 0 and self.closed is None and self.failed is None


def is_fenced(state: JobState, body: ev.Body) -> bool:
    """Return True if nothing follows from the event, and nothing changes: it is of a driver that
    another one has replaced, or ends the lease of a driver that was heard meanwhile."""
    known = body.heard if isinstance(body, ev.LeaseExpired) else None
    if known is not None and (state.heard or 0) > known:
        return True
    return 0 < asking_epoch(body) < state.epoch


def is_over(state: JobState) -> bool:
    """Return True if the job is closed and none of its objects is left."""
    attempts = (result.production.attempts for result in state.results.values())
    return state.closed is not None and not any(attempts)
