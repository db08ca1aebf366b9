"""The life of partitions under any facts, compared with a naive model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headgate.control.events.types import (
    Consumable,
    Consumed,
    Decision,
    Deleted,
    Fact,
    JobRegistered,
    JobUnregistered,
    PartitionAccepted,
    PartitionRegistered,
    Promoted,
    Released,
    Reproduce,
    ResultComplete,
    ResultRegistered,
    Superseded,
    TrackingStopped,
)
from headgate.control.ids import AttemptId, ResultId
from headgate.control.model.decide import step
from headgate.control.model.state import JobState

from .lifecycle_model import (
    FACTS,
    HISTORIES,
    JOB,
    MANY,
    NEAR_FACTS,
    OPENING,
    RESULTS,
    SUBPARTITIONS,
    Naive,
    run,
    said,
)


def naive(facts: Sequence[Fact]) -> Naive:
    model = Naive()
    for fact in facts:
        model.take(fact)
    return model


NEW_LIFE = (PartitionAccepted, ResultComplete, Reproduce, TrackingStopped, Promoted, Released)


def orders(decision: Decision) -> tuple[AttemptId, ...]:
    """Return the attempts whose objects a decision orders to be deleted."""
    if isinstance(decision, Superseded):
        return (decision.attempt,)
    return decision.attempts if isinstance(decision, Released) else ()


@MANY
@given(HISTORIES)
def test_the_first_valid_attempt_wins(facts: list[Fact]) -> None:
    """Exactly the first valid `Produced` of each partition becomes and stays consumable, and the
    counts of a result are those of the partitions that can be read now."""
    state, steps = run(facts)
    model = naive(facts)
    assert model.consumable == [d.attempt for d in said(steps) if isinstance(d, Consumable)]
    assert model.epoch == state.epoch
    assert model.told.keys() == state.results.keys()
    for name, result in model.told.items():
        assert result.released is (state.results[name].fate.released is not None)
        if not result.released:
            assert result.accepted == set(state.results[name].production.accepted)
            assert result.tracked is state.results[name].fate.tracked
            assert result.expires_ms == state.results[name].fate.expires_ms
            assert result.winners.keys() == state.results[name].production.winners.keys()
            totals = state.results[name].totals
            rows = sum(produced.rows for produced in result.winners.values())
            assert (len(result.winners), rows) == (totals.partitions, totals.rows)
            for index, produced in result.winners.items():
                assert produced.attempt == state.results[name].production.winners[index]
                assert produced.attempt == state.results[name].produced(index).attempt
    assert model.failed is (state.failed is not None)


@MANY
@given(HISTORIES)
def test_a_winner_goes_only_with_its_result(facts: list[Fact]) -> None:
    """A winner's objects are not ordered to be deleted before `Released`, unless it no longer
    counts."""
    won: set[AttemptId] = set()
    released: set[ResultId] = set()
    for decision in said(run(facts)[1]):
        if isinstance(decision, Superseded) and decision.attempt.partition.result not in released:
            assert decision.attempt not in won
        if isinstance(decision, Released):
            released.add(decision.result)
        if isinstance(decision, TrackingStopped):
            won.difference_update(decision.attempts)
        if isinstance(decision, Consumable):
            won.add(decision.attempt)


@MANY
@given(HISTORIES)
def test_an_attempt_is_superseded_once_until_it_is_deleted(facts: list[Fact]) -> None:
    """An attempt is not superseded again while its first order to delete stands."""
    standing: set[AttemptId] = set()
    state = JobState(JOB)
    for fact in facts:
        if isinstance(fact, Deleted):
            standing -= gone(fact)
        state, decisions = step(state, fact)
        for decision in decisions:
            if isinstance(decision, Superseded):
                assert decision.attempt not in standing
                standing.add(decision.attempt)


@MANY
@given(HISTORIES)
def test_nothing_lives_after_release(facts: list[Fact]) -> None:
    """After `Released` nothing of the result is accepted, consumable, complete or released
    again."""
    released: set[ResultId] = set()
    for decision in said(run(facts)[1]):
        if isinstance(decision, Consumable):
            assert decision.attempt.partition.result not in released
        if isinstance(decision, NEW_LIFE):
            assert decision.result not in released
        if isinstance(decision, Released):
            released.add(decision.result)


@MANY
@given(HISTORIES)
def test_a_result_completes_when_all_is_consumable(facts: list[Fact]) -> None:
    """`ResultComplete` comes with the last `Consumable`, or at once for no partitions. It comes
    again only after a partition was lost."""
    left: dict[ResultId, set[int]] = {}
    complete: list[ResultId] = []
    for fact, decisions in run(facts)[1]:
        if isinstance(fact, ResultRegistered):
            left.setdefault(fact.result, set(range(fact.partitions)))
        for decision in decisions:
            if isinstance(decision, TrackingStopped) and decision.attempts:
                left[decision.result].update(a.partition.index for a in decision.attempts)
                complete = [name for name in complete if name != decision.result]
            if isinstance(decision, Consumable):
                left[decision.attempt.partition.result].remove(decision.attempt.partition.index)
            if isinstance(decision, ResultComplete):
                assert decision.result not in complete
                assert set() == left[decision.result]
                complete.append(decision.result)
        won = {d.attempt.partition.result for d in decisions if isinstance(d, Consumable)}
        assert all(name in complete for name in won if not left[name])


def test_a_result_without_partitions_completes_once() -> None:
    """Registering no partitions again does not complete the result again."""
    none = ResultRegistered(RESULTS[1], 0, SUBPARTITIONS, "", "")
    again = PartitionRegistered(RESULTS[1], 0, 0)
    decisions = said(run([OPENING[0], none, again, again])[1])
    assert [ResultComplete(RESULTS[1])] == [d for d in decisions if isinstance(d, ResultComplete)]


@MANY
@given(HISTORIES, st.lists(NEAR_FACTS | FACTS, max_size=8))
def test_whatever_was_written_is_ordered_to_go_at_the_end(
    facts: list[Fact], late: list[Fact]
) -> None:
    """After the job's end every attempt that ever started or produced is ordered to be deleted, or
    deleted."""
    late = [fact for fact in late if not isinstance(fact, JobRegistered)]
    everything = [*facts, JobUnregistered("closed"), *late]
    state = JobState(JOB)
    ordered: set[AttemptId] = set()
    for fact in everything:
        if isinstance(fact, Deleted):
            ordered -= gone(fact)
        state, decisions = step(state, fact)
        for decision in decisions:
            ordered.update(orders(decision))
        assert doomed(state) <= ordered
    known = {
        a for result in naive(everything).told.values() if result.released for a in result.known
    }
    assert known - deleted(everything) <= doomed(state)
    assert state.closed in ({"closed", "silent"} if state.epoch > 0 else {None})
    assert all(result.kept or result.fate.released for result in state.results.values())


def doomed(state: JobState) -> set[AttemptId]:
    return {attempt for result in state.results.values() for attempt in result.doomed}


def deleted(facts: Sequence[Fact]) -> set[AttemptId]:
    return {a for fact in facts if isinstance(fact, Deleted) for a in gone(fact)}


def gone(fact: Deleted) -> set[AttemptId]:
    return {a for a in fact.attempts if a.partition.result == fact.result}


@MANY
@given(HISTORIES)
def test_only_what_was_ordered_to_go_counts_as_gone(facts: list[Fact]) -> None:
    """A `Deleted` without an order has no effect; a `Deleted` with one ends the order."""
    state = JobState(JOB)
    for fact in facts:
        before = doomed(state)
        kept = {a for result in state.results.values() for a in result.production.attempts} - before
        state, _ = step(state, fact)
        after = {a for result in state.results.values() for a in result.production.attempts}
        assert kept <= after
        if isinstance(fact, Deleted):
            assert before - gone(fact) == doomed(state)


@given(st.integers(-2, 5), st.sampled_from((0, 1, 4, -1, 100_000)))
def test_readers_are_counted_within_the_result(first: int, count: int) -> None:
    """The consumed set holds only the result's own subpartitions, whatever range a reader
    states."""
    state, _ = run([*OPENING, Consumed(RESULTS[0], first, count, 1, 1, 1, 1)])
    own = set(range(SUBPARTITIONS))
    consumed = state.results[RESULTS[0]].totals.consumed
    assert own & set(range(first, first + count)) == set(consumed)
