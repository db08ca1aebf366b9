"""Decide what follows from the facts of a job: pure functions, without clock, randomness or I/O.

`decide` returns the decisions on one fact. `step` applies the fact and then these decisions, so
that a decision takes effect at its basis, live and in replay alike. Invalid facts change
nothing that readers see.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from ..events import types as ev
from ..events.traits import traits_of
from ..events.values import changed
from ..ids import AttemptId, ResultId, in_parts
from .apply import apply
from .attempts import is_last, is_superseded, refusal, refuse_late, unsound
from .decide_stream import decide_segment, decide_stream_break, decide_stream_end
from .reproduce import decide_again
from .state import JobState, ResultState, is_fenced


def step(
    state: JobState, fact: ev.Fact, at: int | None = None
) -> tuple[JobState, tuple[ev.Decision, ...]]:
    """Return the state after a fact and its decisions, and the decisions. `at` is the fact's
    offset, if it matters when the driver was heard."""
    decisions = decide(state, fact)
    state = apply(state, fact)
    for decision in decisions:
        state = apply(state, decision)
    if at is not None and not traits_of(fact).by_masters:
        state = changed(state, heard=at)
    return state, decisions


def decide(state: JobState, fact: ev.Fact) -> tuple[ev.Decision, ...]:
    """Return the decisions that follow from a fact; `state` is the state before it."""
    if is_fenced(state, fact):
        return ()
    match fact:  # the most frequent facts first
        case ev.AttemptStarted():
            return refuse_late(state, fact.attempt)
        case ev.Produced():
            return _decide_produced(state, fact)
        case ev.ResultRegistered() | ev.WayChosen() | ev.Consumed() | ev.Deleted():
            return ()
        case ev.JobRegistered():
            return (ev.JobAccepted(state.epoch + 1),)
        case ev.PartitionRegistered():
            return _decide_registered(state, fact)
        case ev.SegmentProduced():
            return decide_segment(state, fact)
        case ev.AttemptFailed():
            return _decide_failed(state, fact.attempt)
        case ev.Lost():
            return _decide_lost(state, fact)
        case ev.PromoteRequested():
            return _decide_promotion(state, fact)
        case ev.StopTrackingRequested():
            return _decide_untracked(state, fact)
        case ev.Tick():
            return _decide_expired(state, fact.now_ms)
        case ev.ReleaseRequested():
            return _decide_releases(state, [fact.result], fact.reason)
        case ev.JobUnregistered() | ev.LeaseExpired():
            ended = [name for name, result in state.results.items() if not result.kept]
            return _decide_releases(state, ended, fact.reason)
        case _:
            assert_never(fact)


def _decide_registered(state: JobState, fact: ev.PartitionRegistered) -> tuple[ev.Decision, ...]:
    result = state.unreleased(fact.result)
    if result is None or not state.registered:
        return ()
    if fact.first < 0 or fact.count < 0 or fact.first + fact.count > result.registered.partitions:
        return ()
    accepted = ev.PartitionAccepted(fact.result, fact.first, fact.count, state.epoch)
    done = result.registered.partitions == 0 and not result.complete
    return (accepted, ev.ResultComplete(fact.result)) if done else (accepted,)


def _decide_produced(state: JobState, fact: ev.Produced) -> tuple[ev.Decision, ...]:
    partition = fact.attempt.partition
    result = state.results.get(partition.result)
    if result is None or is_superseded(result, fact.attempt):
        return ()
    if fact.attempt == result.production.winners.get(partition.index):
        return decide_stream_end(state, result, fact)
    refused = refusal(state, result, fact.attempt) or unsound(fact)
    if refused is not None:
        return (ev.Superseded(fact.attempt, refused),)
    if (changed := _changed(result, fact)) is not None:
        return ev.Superseded(fact.attempt, changed), ev.JobFailed(changed)
    won = ev.Consumable(fact.attempt)
    return (won, ev.ResultComplete(partition.result)) if is_last(result, fact.attempt) else (won,)


def _changed(result: ResultState, fact: ev.Produced) -> str | None:
    """Return the reason to fail if a partition is made again with other content. Consumers may have
    read what it held before, so only the same content may replace it."""
    partition = fact.attempt.partition
    if partition.index not in result.reproduction.before:
        return None
    before = result.reproduction.before[partition.index]
    if before is not None and before == fact.fingerprint:
        return None
    return (
        f"partition {partition} was made again with other rows than were read before: what "
        "produces it does not give the same rows each time. Write those to storage first, as a "
        "checkpoint or a table, and exchange what is read from there"
    )


def _decide_failed(state: JobState, attempt: AttemptId) -> tuple[ev.Decision, ...]:
    """Decide on an attempt that has ended without a complete partition."""
    result = state.results.get(attempt.partition.result)
    if result is None or is_superseded(result, attempt):
        return ()
    if attempt != result.production.winners.get(attempt.partition.index):
        return (ev.Superseded(attempt, "failed"),)
    return decide_stream_break(state, result, attempt)


def _decide_lost(state: JobState, fact: ev.Lost) -> tuple[ev.Decision, ...]:
    """Decide on lost objects. Nothing follows without evidence, or if the attempt is not the
    winner."""
    result = state.unreleased(fact.attempt.partition.result)
    if result is None or not fact.evidence:
        return ()
    if fact.attempt != result.production.winners.get(fact.attempt.partition.index):
        return ()
    return decide_again(state, fact.attempt.partition, f"{fact.object} is lost: {fact.evidence}")


def _decide_promotion(state: JobState, fact: ev.PromoteRequested) -> tuple[ev.Decision, ...]:
    result = state.unreleased(fact.result)
    if result is None or not result.complete:
        return ()
    return (ev.Promoted(fact.result, fact.expires_ms),)


def _decide_untracked(state: JobState, fact: ev.StopTrackingRequested) -> tuple[ev.Decision, ...]:
    result = state.unreleased(fact.result)
    if result is None or not result.fate.tracked:
        return ()
    return (ev.TrackingStopped(fact.result, (), fact.reason),)


def _decide_expired(state: JobState, now_ms: int) -> tuple[ev.Decision, ...]:
    expiries = {name: result.fate.expires_ms for name, result in state.results.items()}
    expired = [name for name, at_ms in expiries.items() if at_ms and at_ms <= now_ms]
    return _decide_releases(state, expired, "expired")


def _decide_releases(
    state: JobState, names: Iterable[ResultId], reason: str
) -> tuple[ev.Decision, ...]:
    decisions: list[ev.Decision] = []
    for name in sorted(names):
        if (result := state.unreleased(name)) is not None:
            parts = tuple(in_parts(sorted(result.production.attempts))) or ((),)
            decisions += [ev.Released(name, attempts, reason) for attempts in parts]
    return tuple(decisions)
