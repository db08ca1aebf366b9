"""What an operator or an engine asks about a job: functions of its state, without side effects.

The answers hold for the state that they are given: whoever acts on one states a fact, and the
master decides on what is true by then.
"""

from __future__ import annotations

from collections.abc import Collection

from ..ids import AttemptId, ResultId
from ..model.state import JobState


def running_on(state: JobState, host: str) -> tuple[AttemptId, ...]:
    """The attempts that would be lost with a host: what has begun there, has not ended, and can
    still become a partition."""
    return tuple(
        sorted(
            attempt
            for result in state.results.values()
            if state.registered and result.released is None
            for attempt, where in result.running.items()
            if where == host and attempt.epoch == state.epoch and attempt not in result.superseded
        )
    )


def may_be_released(state: JobState, host: str) -> bool:
    """Whether the job loses nothing with an executor: what ended there is in the store."""
    return not running_on(state, host)


def is_available(state: JobState, result: ResultId, partition: int | None = None) -> bool:
    """Whether a result, or one partition of it, can be read whole now."""
    known = state.results.get(result)
    if known is None or known.released is not None or (state.failed is not None and not known.kept):
        return False
    if partition is None:
        return known.complete
    winner = known.winners.get(partition)
    return winner is not None and known.attempts[winner] is not None


def unused(state: JobState, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
    """The complete results that nobody needs: not in use, no input of one that is or that is still
    written, and not kept for other jobs."""
    unfinished = {
        name
        for name, result in state.results.items()
        if not result.complete and result.released is None
    }
    needed = _with_inputs(state, unfinished.union(in_use))
    return tuple(
        name
        for name, result in sorted(state.results.items())
        if name not in needed and result.released is None and not result.kept
    )


def cluster_partitions(state: JobState) -> tuple[ResultId, ...]:
    """The results that outlive the job: promoted ones, and those that somebody else looks after."""
    return tuple(sorted(name for name, result in state.results.items() if result.kept))


def _with_inputs(state: JobState, names: Collection[ResultId]) -> set[ResultId]:
    """Results and all that they were made from: what is lost of them is made again from that."""
    found: set[ResultId] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in state.results and name not in found:
            found.add(name)
            left += state.results[name].registered.inputs
    return found
