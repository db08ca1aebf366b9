"""Decide which partitions must be made again after a loss: the smallest set, upstream first.

Results joined by pipelined edges fail and restart together. Across a blocking edge a producer is
made again only where its own output is gone, and a consumer only where its input may now differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..events.types import Decision, JobFailed, Reproduce, Superseded, TrackingStopped
from ..ids import PartitionId, ResultId, in_parts
from .state import JobState, Production, ResultState


def decide_again(state: JobState, partition: PartitionId, reason: str) -> tuple[Decision, ...]:
    """Return the decisions that drop the winners of a partition and of all that depends on it, and
    order them again."""
    reason = f"{partition}: {reason}"
    again = {partition.result: {partition.index}}
    restarted: set[ResultId] = set()
    if state.registered:
        _spread(state, again, restarted)
    ordered = {name: again[name] for name in state.results if name in again}
    decisions: list[Decision] = []
    for name, partitions in ordered.items():
        decisions += _forget(state.results[name], partitions, reason)
        if name in restarted:
            decisions += _fence(state.results[name], partitions, reason)
    if state.registered:
        decisions += _order(state, ordered, reason)
    return tuple(decisions)


def _spread(state: JobState, again: dict[ResultId, set[int]], restarted: set[ResultId]) -> None:
    """Add the partitions that must be made again together with these, until there are no more."""
    readers = _readers(state)
    spreading = list(again)
    while spreading:
        name = spreading.pop()
        result = state.results[name]
        additions: dict[ResultId, set[int]] = {}
        for source in result.registered.inputs:
            if (producer := state.unreleased(source)) is not None:
                additions[source] = _missing(producer.production)
        for other in _region(state, result, readers):
            restarted.add(other)
            additions[other] = set(state.results[other].production.accepted)
        for other, partitions in additions.items():
            if partitions - again.get(other, set()):
                again[other] = again.get(other, set()) | partitions
                spreading.append(other)


def _missing(production: Production) -> set[int]:
    """Return the accepted partitions that are not consumable. Each of many lost partitions asks, so
    that it must not cost much if there are none, as usual."""
    accepted, winners = production.accepted, production.winners
    if len(accepted) == len(winners):  # only accepted partitions win
        return set()
    return winners.missing(accepted)


def _readers(state: JobState) -> Mapping[ResultId, list[ResultId]]:
    """Return for each result the results that are made from it, in the order of the job."""
    readers: dict[ResultId, list[ResultId]] = {}
    for name, result in state.results.items():
        for source in set(result.registered.inputs):
            readers.setdefault(source, []).append(name)
    return readers


def _region(
    state: JobState, result: ResultState, readers: Mapping[ResultId, list[ResultId]]
) -> Iterator[ResultId]:
    """Yield the results that restart as a whole when partitions of this one are made again."""
    name = result.registered.result
    if result.registered.pipelined:
        yield name
    for source in result.registered.inputs:
        if source in state.results and state.results[source].registered.pipelined:
            yield source
    if result.registered.pipelined or not result.registered.deterministic:
        for other in readers.get(name, ()):
            consumer = state.unreleased(other)
            if consumer is not None and consumer.production.attempts:
                yield other


def _forget(result: ResultState, partitions: set[int], reason: str) -> Iterator[Decision]:
    winners = result.production.winners
    gone = tuple(winners[index] for index in sorted(partitions - winners.missing(partitions)))
    for attempts in in_parts(gone):
        yield TrackingStopped(result.registered.result, attempts, reason)
    for attempt in gone:
        yield Superseded(attempt, reason)


def _fence(result: ResultState, partitions: Collection[int], reason: str) -> Iterator[Decision]:
    """Supersede the attempts that are not winners: they may have read what is gone, so they must
    not count."""
    production = result.production
    for attempt in sorted(production.attempts.keys() - production.superseded):
        index = attempt.partition.index
        if index in partitions and production.winners.get(index) != attempt:
            yield Superseded(attempt, reason)


def _order(state: JobState, again: Mapping[ResultId, set[int]], reason: str) -> Iterator[Decision]:
    for name, partitions in again.items():
        result = state.results[name]
        for source in result.registered.inputs:
            if state.unreleased(source) is None:
                yield JobFailed(f"{name} cannot be made again: its input {source} is released")
                return
        new = result.reproduction.reproducing.missing(partitions)
        if new:
            yield Reproduce(name, tuple(sorted(new)), reason)
