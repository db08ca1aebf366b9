"""Decide on streams: attempts that are read while they are written. No engine uses this yet.

An attempt at a pipelined partition wins with its first segment, before it has produced. If it does
not produce what it has announced, its readers begin again.
"""

from __future__ import annotations

from ..events import types as ev
from ..ids import AttemptId
from .attempts import CLOSED, is_last, is_superseded, refusal, refuse_late, unsound
from .reproduce import decide_again
from .state import JobState, ResultState

_CONTRADICTED = "its segments are not those that it announced"


def decide_segment(state: JobState, fact: ev.SegmentProduced) -> tuple[ev.Decision, ...]:
    """The first attempt at a pipelined partition that announces a segment wins it."""
    result = state.results.get(fact.attempt.partition.result)
    if result is None or not result.registered.pipelined:
        return refuse_late(state, fact.attempt)
    index = fact.attempt.partition.index
    if fact.attempt == result.production.winners.get(index) or is_superseded(result, fact.attempt):
        return ()
    refused = refusal(state, result, fact.attempt)
    if refused is None and fact.segment.number:
        refused = "its first segment was not announced"
    if refused is not None:
        return (ev.Superseded(fact.attempt, refused),)
    return (ev.Consumable(fact.attempt),)


def decide_stream_end(
    state: JobState, result: ResultState, fact: ev.Produced
) -> tuple[ev.Decision, ...]:
    """Decide on `Produced` by the winner of a partition: it ends a stream, or is a repetition."""
    if result.production.attempts[fact.attempt] is not None or result.fate.released is not None:
        return ()
    announced = result.production.streams.get(fact.attempt, ())
    if unsound(fact) is not None or fact.segments[: len(announced)] != announced:
        return decide_again(state, fact.attempt.partition, _CONTRADICTED)
    if state.closed is not None:
        return decide_again(state, fact.attempt.partition, CLOSED)
    name = result.registered.result
    return (ev.ResultComplete(name),) if is_last(result, fact.attempt) else ()


def decide_stream_break(
    state: JobState, result: ResultState, attempt: AttemptId
) -> tuple[ev.Decision, ...]:
    """Decide on a winner that has failed: a stream breaks off, unless it has produced."""
    if result.production.attempts[attempt] is not None or result.fate.released is not None:
        return ()
    return decide_again(state, attempt.partition, "failed")
