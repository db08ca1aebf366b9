"""The life of a job's partitions, as pure functions: no clock, no randomness, no I/O.

`decide` says what follows from one fact, `apply` what an event changes; `step` does both, so that a
decision takes effect at its basis, live and in replay alike. Invalid facts change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import assert_never

from .events import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Consumable,
    Consumed,
    Decision,
    Deleted,
    Fact,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    PartitionAccepted,
    PartitionRegistered,
    Produced,
    Released,
    ReleaseRequested,
    ResultComplete,
    ResultRegistered,
    Superseded,
)
from .ids import AttemptId, JobId, ResultId

_AGAIN = "it was superseded before"


@dataclass(frozen=True, slots=True)
class Reads:
    """What readers have taken, every reading counted."""

    rows: int = 0
    read_bytes: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What became consumable, and how many attempts did not; stays after the objects are gone."""

    partitions: int = 0
    segments: int = 0
    rows: int = 0
    stored_bytes: int = 0
    superseded: int = 0


@dataclass(frozen=True, slots=True)
class ResultState:
    """One result: every attempt whose objects may still be there, and who won each partition."""

    registered: ResultRegistered
    accepted: frozenset[int] = frozenset()
    attempts: Mapping[AttemptId, Produced | None] = field(default_factory=dict)
    winners: Mapping[int, AttemptId] = field(default_factory=dict)
    superseded: frozenset[AttemptId] = frozenset()
    consumed: frozenset[int] = frozenset()
    written: Written = Written()
    reads: Reads = Reads()
    complete: bool = False
    released: str | None = None
    deleted: int = 0

    def produced(self, partition: int) -> Produced:
        """What the winner of a consumable partition wrote."""
        produced = self.attempts[self.winners[partition]]
        assert produced is not None, "a winner has produced"
        return produced

    @property
    def doomed(self) -> tuple[AttemptId, ...]:
        """The attempts whose objects were ordered to go and are not known to be gone."""
        ordered = self.attempts.keys()
        return tuple(sorted(ordered if self.released is not None else ordered & self.superseded))


@dataclass(frozen=True, slots=True)
class JobState:
    job: JobId
    epoch: int = 0
    results: Mapping[ResultId, ResultState] = field(default_factory=lambda: MappingProxyType({}))
    closed: str | None = None

    @property
    def registered(self) -> bool:
        """Whether a driver speaks for the job: only then can anything new begin."""
        return self.epoch > 0 and self.closed is None


def step(state: JobState, fact: Fact) -> tuple[JobState, tuple[Decision, ...]]:
    """The state behind a fact and all that follows from it."""
    decisions = decide(state, fact)
    state = apply(state, fact)
    for decision in decisions:
        state = apply(state, decision)
    return state, decisions


def decide(state: JobState, fact: Fact) -> tuple[Decision, ...]:
    """What follows from a fact, seen from the state before it."""
    match fact:
        case JobRegistered():
            return (JobAccepted(state.epoch + 1),)
        case PartitionRegistered():
            return _decide_registered(state, fact)
        case Produced():
            return _decide_produced(state, fact)
        case AttemptFailed():
            return _decide_failed(state, fact)
        case ReleaseRequested():
            return _decide_release(state, fact.result, fact.reason)
        case JobUnregistered():
            return tuple(
                decision
                for result in sorted(state.results)
                for decision in _decide_release(state, result, fact.reason)
            )
        case AttemptStarted():
            return _decide_started(state, fact)
        case ResultRegistered() | Consumed() | Deleted():
            return ()
        case _:
            assert_never(fact)


def _decide_registered(state: JobState, fact: PartitionRegistered) -> tuple[Decision, ...]:
    result = state.results.get(fact.result)
    if result is None or result.released is not None or not state.registered:
        return ()
    if fact.first < 0 or fact.count < 0 or fact.first + fact.count > result.registered.partitions:
        return ()
    accepted = PartitionAccepted(fact.result, fact.first, fact.count, state.epoch)
    done = result.registered.partitions == 0 and not result.complete
    return (accepted, ResultComplete(fact.result)) if done else (accepted,)


def _decide_started(state: JobState, fact: AttemptStarted) -> tuple[Decision, ...]:
    """What starts too late writes objects that no earlier order names."""
    result = state.results.get(fact.attempt.partition.result)
    if result is None or fact.attempt in result.attempts:
        return ()
    if result.released is not None:
        return (Superseded(fact.attempt, "the result is released"),)
    return (Superseded(fact.attempt, _AGAIN),) if fact.attempt in result.superseded else ()


def _decide_produced(state: JobState, fact: Produced) -> tuple[Decision, ...]:
    partition = fact.attempt.partition
    result = state.results.get(partition.result)
    if result is None:
        return ()
    if fact.attempt == result.winners.get(partition.index) or _is_superseded(result, fact.attempt):
        return ()
    refusal = _refusal(state, result, fact)
    if refusal is not None:
        return (Superseded(fact.attempt, refusal),)
    if len(result.winners) + 1 == result.registered.partitions:
        return Consumable(fact.attempt), ResultComplete(partition.result)
    return (Consumable(fact.attempt),)


def _is_superseded(result: ResultState, attempt: AttemptId) -> bool:
    """Whether an order to delete stands; a deleted attempt that speaks again needs another."""
    return attempt in result.superseded and attempt in result.attempts


def _refusal(state: JobState, result: ResultState, fact: Produced) -> str | None:
    attempt = fact.attempt
    if result.released is not None:
        return "the result is released"
    if attempt.partition.index not in result.accepted:
        return "the partition is not registered"
    if attempt.epoch != state.epoch:
        return f"epoch {attempt.epoch} is fenced by {state.epoch}"
    if attempt in result.superseded:
        return _AGAIN
    if [segment.number for segment in fact.segments] != list(range(len(fact.segments))):
        return "the list of segments is not whole"
    winner = result.winners.get(attempt.partition.index)
    return None if winner is None else f"attempt {winner.task} was first"


def _decide_failed(state: JobState, fact: AttemptFailed) -> tuple[Decision, ...]:
    result = state.results.get(fact.attempt.partition.result)
    if result is None or fact.attempt == result.winners.get(fact.attempt.partition.index):
        return ()
    return () if _is_superseded(result, fact.attempt) else (Superseded(fact.attempt, "failed"),)


def _decide_release(state: JobState, name: ResultId, reason: str) -> tuple[Decision, ...]:
    result = state.results.get(name)
    if result is None or result.released is not None:
        return ()
    return (Released(name, tuple(sorted(result.attempts)), reason),)


def apply(state: JobState, body: Body) -> JobState:
    """The state behind an event."""
    match body:
        case JobAccepted():
            return replace(state, epoch=body.epoch, closed=None)
        case JobUnregistered():
            return replace(state, closed=body.reason)
        case ResultRegistered():
            known = state.results.get(body.result)
            refused = known is not None or not state.registered
            return state if refused else _put(state, body.result, ResultState(body))
        case JobRegistered() | PartitionRegistered() | ReleaseRequested():
            return state
        case AttemptStarted() | AttemptFailed() | Produced() | Consumable() | Superseded():
            return _change(state, body.attempt.partition.result, body)
        case PartitionAccepted() | ResultComplete() | Released() | Consumed() | Deleted():
            return _change(state, body.result, body)
        case _:
            assert_never(body)


def _put(state: JobState, name: ResultId, result: ResultState) -> JobState:
    return replace(state, results=MappingProxyType({**state.results, name: result}))


def _change(state: JobState, name: ResultId, body: Body) -> JobState:
    result = state.results.get(name)
    return state if result is None else _put(state, name, _apply_result(result, body))


def _apply_result(result: ResultState, body: Body) -> ResultState:
    match body:
        case PartitionAccepted():
            accepted = result.accepted.union(range(body.first, body.first + body.count))
            return replace(result, accepted=accepted)
        case AttemptStarted() | AttemptFailed():
            return _note(result, body.attempt, None)
        case Produced():
            return _note(result, body.attempt, body)
        case Consumable():
            return _win(result, body.attempt)
        case Superseded():
            written = replace(result.written, superseded=result.written.superseded + 1)
            return replace(result, superseded=result.superseded | {body.attempt}, written=written)
        case ResultComplete():
            return replace(result, complete=True)
        case Consumed():
            return _consume(result, body)
        case Released():
            return replace(result, released=body.reason)
        case Deleted():
            return _forget(result, body)
        case _:
            return result


def _note(result: ResultState, attempt: AttemptId, produced: Produced | None) -> ResultState:
    """Remember an attempt; what it said first stands, a repetition changes nothing."""
    if result.attempts.get(attempt) is not None:
        return result
    return replace(result, attempts={**result.attempts, attempt: produced})


def _win(result: ResultState, attempt: AttemptId) -> ResultState:
    produced = result.attempts[attempt]
    assert produced is not None, "a winner has produced"
    before = result.written
    written = replace(
        before,
        partitions=before.partitions + 1,
        segments=before.segments + len(produced.segments),
        rows=before.rows + produced.rows,
        stored_bytes=before.stored_bytes + produced.size_bytes,
    )
    winners = {**result.winners, attempt.partition.index: attempt}
    return replace(result, winners=winners, written=written)


def _consume(result: ResultState, body: Consumed) -> ResultState:
    reads = Reads(
        result.reads.rows + body.rows,
        result.reads.read_bytes + body.read_bytes,
        result.reads.requests + body.requests,
    )
    last = min(body.first + body.count, result.registered.subpartitions)
    read = range(max(0, body.first), last)
    return replace(result, consumed=result.consumed.union(read), reads=reads)


def _forget(result: ResultState, deleted: Deleted) -> ResultState:
    """Only what was ordered to go can be stated as gone."""
    gone = set(deleted.attempts) & set(result.doomed)
    return replace(
        result,
        attempts={a: p for a, p in result.attempts.items() if a not in gone},
        winners={i: a for i, a in result.winners.items() if a not in gone},
        deleted=result.deleted + (deleted.objects if gone else 0),
    )
