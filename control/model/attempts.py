"""Judge an attempt: the rules that whole partitions and streams have in common."""

from __future__ import annotations

from ..events.types import Decision, Produced, Superseded
from ..ids import AttemptId
from .state import JobState, ResultState

CLOSED = "the job is closed"
_AGAIN = "it was superseded before"


def refuse_late(state: JobState, attempt: AttemptId) -> tuple[Decision, ...]:
    """Supersede an attempt that starts too late: no earlier order names its objects."""
    result = state.results.get(attempt.partition.result)
    if result is None or attempt in result.production.attempts:
        return ()
    if result.fate.released is not None:
        return (Superseded(attempt, "the result is released"),)
    return (Superseded(attempt, _AGAIN),) if attempt in result.production.superseded else ()


def is_last(result: ResultState, attempt: AttemptId) -> bool:
    """Return True if the result is complete as soon as this attempt's partition is."""
    index, attempts = attempt.partition.index, result.production.attempts
    winners = result.production.winners
    won = len(winners) + (index not in winners)
    if won < result.registered.partitions or result.complete:
        return False
    return all(attempts[winners[other]] is not None for other in winners.keys() - {index})


def is_superseded(result: ResultState, attempt: AttemptId) -> bool:
    """Return True if an order to delete the attempt's objects stands. A deleted attempt that writes
    again needs another order."""
    return attempt in result.production.superseded and attempt in result.production.attempts


def refusal(state: JobState, result: ResultState, attempt: AttemptId) -> str | None:
    if result.fate.released is not None:
        return "the result is released"
    if state.failed is not None:
        return "the job has failed"
    if state.closed is not None:
        return CLOSED
    production, index = result.production, attempt.partition.index
    if index not in production.accepted:
        return "the partition is not registered"
    if attempt.epoch != state.epoch:
        return f"epoch {attempt.epoch} is fenced by {state.epoch}"
    if attempt in production.superseded:
        return _AGAIN
    winner = production.winners.get(index)
    return None if winner is None else f"attempt {winner.task} was first"


def unsound(fact: Produced) -> str | None:
    is_complete = [segment.number for segment in fact.segments] == list(range(len(fact.segments)))
    return None if is_complete else "the list of segments is not whole"
