"""Answer what an operator or an engine asks about a job, from its state and without side effects.

An answer holds for that state. To act on it, publish a fact: the master decides on the state of
that time.
"""

from __future__ import annotations

from collections.abc import Collection

from ..errors import Invalid
from ..ids import AttemptId, ResultId, original
from ..model.state import JobState


def check_named(state: JobState, result: ResultId, partition: int | None = None) -> None:
    """Refuse the name of a result or partition that the job has never had, as far as is known.

    Raises:
        Invalid: there is no such result or partition.
    """
    known, earlier = state.results.get(result), state.forgotten.results
    if known is None:
        of_these = f" among its {len(state.results)} newest" if earlier else ""
        raise Invalid(f"job {state.job} has no result {result}{of_these}")
    if known is not None and not 0 <= (partition or 0) < max(1, known.registered.partitions):
        raise Invalid(f"result {result} has {known.registered.partitions} partitions, from 0 on")


def running_on(state: JobState, host: str) -> tuple[AttemptId, ...]:
    """Return the attempts that would be lost with a host: those that have begun there, have not
    ended, and can still become a partition."""
    return tuple(
        sorted(
            attempt
            for result in state.results.values()
            if state.registered and result.fate.released is None
            for attempt, where in result.production.running.items()
            if where == host
            and attempt.epoch == state.epoch
            and attempt not in result.production.superseded
        )
    )


def is_available(state: JobState, result: ResultId, partition: int | None = None) -> bool:
    """Return True if a result, or one partition of it, can be read completely now."""
    result_state = state.unreleased(result)
    if result_state is None or (state.failed is not None and not result_state.kept):
        return False
    if partition is None:
        return result_state.complete
    winner = result_state.production.winners.get(partition)
    return winner is not None and result_state.production.attempts[winner] is not None


def unused(state: JobState, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
    """Return the complete results that nobody needs. A result is needed if it is in use, kept for
    other jobs or still being written, or if such a result was made from it, directly or not. While
    a result is being written, others that hold the same rows may be read for it."""
    kept = {name for name, result in state.results.items() if result.kept}
    written = {
        original(name)
        for name, result in state.results.items()
        if not result.complete and result.fate.released is None
    }
    copies = {name for name in state.results if original(name) in written}
    needed = _with_inputs(state, kept.union(copies, in_use))
    return tuple(
        name
        for name, result in sorted(state.results.items())
        if name not in needed and result.fate.released is None
    )


def cluster_partitions(state: JobState) -> tuple[ResultId, ...]:
    """Return the results that outlive the job: promoted ones, and those that somebody else looks
    after."""
    return tuple(sorted(name for name, result in state.results.items() if result.kept))


def _with_inputs(state: JobState, names: Collection[ResultId]) -> set[ResultId]:
    """Return the results, and all results that they were made from: lost parts are made again from
    these."""
    needed: set[ResultId] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in state.results and name not in needed:
            needed.add(name)
            left += state.results[name].registered.inputs
    return needed
