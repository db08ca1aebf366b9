"""What must be made again when partitions are gone: the smallest set, upstream first.

Results joined by pipelined edges fail and restart together. Across a blocking edge a producer is
made again only where its own output is gone; a consumer, only when its input may now differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..events.types import Decision, JobFailed, Reproduce, Superseded, TrackingStopped
from ..ids import ResultId, in_parts
from .state import JobState, ResultState


def decide_again(
    state: JobState, name: ResultId, partitions: Collection[int], reason: str
) -> tuple[Decision, ...]:
    """Forget who won these partitions and all that depends on it, and order them anew."""
    again = {name: set(partitions)}
    restarted: set[ResultId] = set()
    if state.registered:
        _spread(state, again, restarted)
    ordered = [known for known in state.results if known in again]
    decisions: list[Decision] = []
    for known in ordered:
        result = state.results[known]
        decisions += _forget(result, again[known], reason)
        if known in restarted:
            decisions += _fence(result, again[known], reason)
    if state.registered:
        decisions += _order(state, {known: again[known] for known in ordered}, reason)
    return tuple(decisions)


def _spread(state: JobState, again: dict[ResultId, set[int]], restarted: set[ResultId]) -> None:
    """Add what has to run with these partitions, until nothing new comes."""
    readers = _readers(state)
    spreading = list(again)
    while spreading:
        name = spreading.pop()
        result = state.results[name]
        found: dict[ResultId, set[int]] = {}
        for source in result.registered.inputs:
            given = state.results.get(source)
            if given is not None and given.released is None and not given.registered.pipelined:
                found[source] = _missing(given)
        for other in _region(state, name, result, readers):
            restarted.add(other)
            found[other] = set(state.results[other].accepted)
        for other, partitions in found.items():
            if partitions - again.get(other, set()):
                again[other] = again.get(other, set()) | partitions
                spreading.append(other)


def _readers(state: JobState) -> Mapping[ResultId, list[ResultId]]:
    """The results that are made of each, in the order of the job."""
    found: dict[ResultId, list[ResultId]] = {}
    for name, result in state.results.items():
        for source in set(result.registered.inputs):
            found.setdefault(source, []).append(name)
    return found


def _region(
    state: JobState,
    name: ResultId,
    result: ResultState,
    readers: Mapping[ResultId, list[ResultId]],
) -> Iterator[ResultId]:
    """The results that restart as a whole when partitions of this one are made again."""
    if result.registered.pipelined:
        yield name
    for source in result.registered.inputs:
        if source in state.results and state.results[source].registered.pipelined:
            yield source
    if result.registered.pipelined or not result.registered.deterministic:
        for other in readers.get(name, ()):
            consumer = state.results[other]
            if consumer.attempts and consumer.released is None:
                yield other


def _missing(result: ResultState) -> set[int]:
    return set(result.accepted) - result.winners.keys()


def _forget(result: ResultState, partitions: Collection[int], reason: str) -> Iterator[Decision]:
    gone = tuple(result.winners[index] for index in sorted(partitions) if index in result.winners)
    for attempts in in_parts(gone):
        yield TrackingStopped(result.registered.result, attempts, reason)
    for attempt in gone:
        yield Superseded(attempt, reason)


def _fence(result: ResultState, partitions: Collection[int], reason: str) -> Iterator[Decision]:
    """Who is at it may have read what is gone: nothing of theirs may count."""
    for attempt in sorted(result.attempts.keys() - result.superseded):
        index = attempt.partition.index
        if index in partitions and result.winners.get(index) != attempt:
            yield Superseded(attempt, reason)


def _order(state: JobState, again: Mapping[ResultId, set[int]], reason: str) -> Iterator[Decision]:
    for name, partitions in again.items():
        result = state.results[name]
        for source in result.registered.inputs:
            if source not in state.results or state.results[source].released is not None:
                yield JobFailed(f"{name} cannot be made again: its input {source} is released")
                return
        new = partitions - result.reproducing
        if new:
            yield Reproduce(name, tuple(sorted(new)), reason)
