"""What must be made again when partitions are gone: the smallest set, upstream first.

Results joined by pipelined edges fail and restart together. Across a blocking edge a producer is
made again only where its own output is gone; a consumer, only when its input may now differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from .events import Decision, JobFailed, Reproduce, Superseded, TrackingStopped
from .ids import ResultId, in_parts
from .state import JobState, ResultState


def decide_again(
    state: JobState, name: ResultId, partitions: Collection[int], reason: str
) -> tuple[Decision, ...]:
    """Forget who won these partitions and all that depends on it, and order them anew."""
    again = {name: set(partitions)}
    restarted: set[ResultId] = set()
    if state.registered:
        _spread(state, again, restarted, name)
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


def _spread(
    state: JobState, again: dict[ResultId, set[int]], restarted: set[ResultId], name: ResultId
) -> None:
    """Add what has to run with these partitions of a result, until nothing new comes."""
    result = state.results[name]
    for source in result.registered.inputs:
        given = state.results.get(source)
        if given is not None and given.released is None and not given.registered.pipelined:
            _add(state, again, restarted, source, _missing(given))
    for other in _region(state, name, result):
        restarted.add(other)
        _add(state, again, restarted, other, set(state.results[other].accepted))


def _add(
    state: JobState,
    again: dict[ResultId, set[int]],
    restarted: set[ResultId],
    name: ResultId,
    partitions: set[int],
) -> None:
    if partitions - again.get(name, set()):
        again[name] = again.get(name, set()) | partitions
        _spread(state, again, restarted, name)


def _region(state: JobState, name: ResultId, result: ResultState) -> Iterator[ResultId]:
    """The results that restart as a whole when partitions of this one are made again."""
    if result.registered.pipelined:
        yield name
    for source in result.registered.inputs:
        if source in state.results and state.results[source].registered.pipelined:
            yield source
    if result.registered.pipelined or not result.registered.deterministic:
        for other, consumer in state.results.items():
            begun = consumer.attempts and consumer.released is None
            if begun and name in consumer.registered.inputs:
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
