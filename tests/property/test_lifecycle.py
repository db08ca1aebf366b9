"""The life of partitions under any facts, against a naive model; replay and tampering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.errors import Corrupt
from headgate.control.events import (
    AttemptFailed,
    AttemptStarted,
    Consumable,
    Consumed,
    Decision,
    Deleted,
    Event,
    Fact,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    PartitionAccepted,
    PartitionRegistered,
    Produced,
    Recorded,
    Released,
    ReleaseRequested,
    ResultComplete,
    ResultRegistered,
    SegmentSummary,
    Superseded,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.lifecycle import JobState, step
from headgate.control.replay import Derived, Replay

MANY = settings(max_examples=4 * settings().max_examples)  # of the profile; a fold is cheap
JOB = JobId("job")
RESULTS = (ResultId("a"), ResultId("b"), ResultId("unknown"))
SIZES = {RESULTS[0]: 2, RESULTS[1]: 0, RESULTS[2]: 3}
SUBPARTITIONS = 4

Steps = list[tuple[Fact, tuple[Decision, ...]]]


def segments(*numbers: int) -> tuple[SegmentSummary, ...]:
    return tuple(SegmentSummary(number, 10, 1, 0, b"") for number in numbers)


RESULT = st.sampled_from((RESULTS[0], RESULTS[0], *RESULTS))
PARTITION = st.builds(PartitionId, RESULT, st.sampled_from((0, 0, 1, 1, 2, -1)))
ATTEMPT = st.builds(AttemptId, PARTITION, st.sampled_from((1, 1, 1, 2, 0, 3)), st.integers(1, 3))
SEGMENTS = st.sampled_from((segments(0), segments(0, 1), segments(), segments(1), segments(0, 0)))

FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Produced, ATTEMPT, SEGMENTS),
    st.builds(Produced, ATTEMPT, st.just(segments(0))),
    st.builds(AttemptStarted, ATTEMPT, st.just("host")),
    st.builds(AttemptFailed, ATTEMPT, st.just("oom")),
    st.builds(Deleted, RESULT, st.lists(ATTEMPT, max_size=4).map(tuple), st.integers(0, 5)),
    RESULT.map(lambda name: ResultRegistered(name, SIZES[name], SUBPARTITIONS, "", "")),
    st.builds(
        PartitionRegistered, RESULT, st.integers(-1, 2), st.sampled_from((2, 2, 1, 0, -1, 3))
    ),
    st.builds(ReleaseRequested, RESULT, st.just("asked")),
    st.builds(
        Consumed,
        RESULT,
        st.integers(-2, 5),
        st.sampled_from((0, 1, 4, -1, 100_000)),
        st.just(1),
        st.just(1),
        st.just(1),
        st.just(1),
    ),
    st.just(JobRegistered("per-job", "0", "app")),
    st.just(JobUnregistered("closed")),
)

# Half of the facts are about few attempts, so that what one says meets what another one said.
NEAR = st.builds(
    AttemptId,
    st.builds(PartitionId, st.just(RESULTS[0]), st.sampled_from((0, 0, 1))),
    st.just(1),
    st.integers(1, 2),
)
NEAR_FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Produced, NEAR, st.sampled_from((segments(0), segments(0), segments(1)))),
    st.builds(Produced, NEAR, st.just(segments(0))),
    st.builds(AttemptStarted, NEAR, st.just("host")),
    st.builds(AttemptFailed, NEAR, st.just("oom")),
    st.builds(
        Deleted, st.just(RESULTS[0]), st.lists(NEAR, min_size=1, max_size=3).map(tuple), st.just(1)
    ),
)

OPENING: tuple[Fact, ...] = (
    JobRegistered("per-job", "0", "app"),
    ResultRegistered(RESULTS[0], 2, SUBPARTITIONS, "", ""),
    PartitionRegistered(RESULTS[0], 0, 2),
)
HISTORIES = st.builds(
    lambda opening, facts: [*opening, *facts],
    st.sampled_from((OPENING, OPENING, OPENING, ())),
    st.lists(NEAR_FACTS | FACTS, max_size=12) | st.lists(NEAR_FACTS, min_size=3, max_size=12),
)


def run(facts: Sequence[Fact], state: JobState | None = None) -> tuple[JobState, Steps]:
    now = state or JobState(JOB)
    steps: Steps = []
    for fact in facts:
        now, decisions = step(now, fact)
        steps.append((fact, decisions))
    return now, steps


@dataclass
class Told:
    """What the naive model knows of one result."""

    partitions: int
    accepted: set[int] = field(default_factory=set)
    barred: set[AttemptId] = field(default_factory=set)
    known: set[AttemptId] = field(default_factory=set)
    winners: dict[int, AttemptId] = field(default_factory=dict)
    released: bool = False


class Naive:
    """Who wins, told by the rules alone: mutable, decision by decision, with no code of ours."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open = False
        self.told: dict[ResultId, Told] = {}
        self.consumable: list[AttemptId] = []

    def take(self, fact: Fact) -> None:
        if isinstance(fact, JobRegistered):
            self.epoch, self.open = self.epoch + 1, True
        elif isinstance(fact, JobUnregistered):
            self.open = False
            for told in self.told.values():
                told.released = True
        elif isinstance(fact, ResultRegistered):
            if self.open:
                self.told.setdefault(fact.result, Told(fact.partitions))
        elif isinstance(fact, (AttemptStarted, AttemptFailed, Produced)):
            self.take_attempt(fact)
        elif fact.result in self.told:
            self.take_result(fact, self.told[fact.result])

    def take_result(self, fact: Fact, told: Told) -> None:
        if isinstance(fact, ReleaseRequested):
            told.released = True
        elif isinstance(fact, PartitionRegistered) and self.open and not told.released:
            wanted = list(range(fact.first, fact.first + fact.count))
            if fact.count >= 0 and fact.first >= 0 and fact.first + fact.count <= told.partitions:
                told.accepted.update(wanted)

    def take_attempt(self, fact: AttemptStarted | AttemptFailed | Produced) -> None:
        told = self.told.get(fact.attempt.partition.result)
        if told is None:
            return
        told.known.add(fact.attempt)
        index = fact.attempt.partition.index
        if fact.attempt == told.winners.get(index) or isinstance(fact, AttemptStarted):
            return
        valid = isinstance(fact, Produced) and self.valid(fact, told)
        if valid and index not in told.winners and not told.released:
            told.winners[index] = fact.attempt
            self.consumable.append(fact.attempt)
        else:
            told.barred.add(fact.attempt)

    def valid(self, fact: Produced, told: Told) -> bool:
        whole = [segment.number for segment in fact.segments] == list(range(len(fact.segments)))
        registered = self.open and fact.attempt.partition.index in told.accepted
        current = fact.attempt.epoch == self.epoch and fact.attempt not in told.barred
        return whole and registered and current


def naive(facts: Sequence[Fact]) -> Naive:
    model = Naive()
    for fact in facts:
        model.take(fact)
    return model


def said(steps: Steps) -> list[Decision]:
    return [decision for _, decisions in steps for decision in decisions]


def orders(decision: Decision) -> tuple[AttemptId, ...]:
    """The attempts whose objects a decision orders to go."""
    if isinstance(decision, Superseded):
        return (decision.attempt,)
    return decision.attempts if isinstance(decision, Released) else ()


@MANY
@given(HISTORIES)
def test_the_first_valid_attempt_wins(facts: list[Fact]) -> None:
    """Exactly the first valid `Produced` of each partition becomes consumable, and stays it."""
    state, steps = run(facts)
    model = naive(facts)
    assert model.consumable == [d.attempt for d in said(steps) if isinstance(d, Consumable)]
    assert model.epoch == state.epoch
    assert model.told.keys() == state.results.keys()
    for name, told in model.told.items():
        assert told.released is (state.results[name].released is not None)
        assert told.accepted == state.results[name].accepted
        if not told.released:
            assert told.winners == state.results[name].winners
            assert all(state.results[name].produced(index) for index in told.winners)


@MANY
@given(HISTORIES)
def test_a_winner_goes_only_with_its_result(facts: list[Fact]) -> None:
    """A winner is never superseded, nor its objects ordered to go, before `Released`."""
    won: set[AttemptId] = set()
    released: set[ResultId] = set()
    for decision in said(run(facts)[1]):
        if isinstance(decision, Superseded) and decision.attempt.partition.result not in released:
            assert decision.attempt not in won
        if isinstance(decision, Released):
            released.add(decision.result)
        if isinstance(decision, Consumable):
            won.add(decision.attempt)


@MANY
@given(HISTORIES)
def test_an_attempt_is_superseded_once_until_it_is_deleted(facts: list[Fact]) -> None:
    """Its objects are not ordered to go again while the first order stands."""
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
    """After `Released` nothing of it is accepted, consumable, complete or released again."""
    released: set[ResultId] = set()
    for decision in said(run(facts)[1]):
        if isinstance(decision, Consumable):
            assert decision.attempt.partition.result not in released
        if isinstance(decision, (PartitionAccepted, ResultComplete, Released)):
            assert decision.result not in released
        if isinstance(decision, Released):
            released.add(decision.result)


@MANY
@given(HISTORIES)
def test_a_result_completes_once_when_all_is_consumable(facts: list[Fact]) -> None:
    """`ResultComplete` comes exactly once, with the last `Consumable` or for no partitions."""
    left: dict[ResultId, set[int]] = {}
    complete: list[ResultId] = []
    for fact, decisions in run(facts)[1]:
        if isinstance(fact, ResultRegistered):
            left.setdefault(fact.result, set(range(fact.partitions)))
        for decision in decisions:
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
    """After the job's end all that ever started or produced is ordered to go, or deleted."""
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
    known = {a for told in naive(everything).told.values() for a in told.known}
    assert known - deleted(everything) <= doomed(state)
    assert state.closed == "closed"


def doomed(state: JobState) -> set[AttemptId]:
    return {attempt for result in state.results.values() for attempt in result.doomed}


def deleted(facts: Sequence[Fact]) -> set[AttemptId]:
    return {a for fact in facts if isinstance(fact, Deleted) for a in gone(fact)}


def gone(fact: Deleted) -> set[AttemptId]:
    return {a for a in fact.attempts if a.partition.result == fact.result}


@MANY
@given(HISTORIES)
def test_only_what_was_ordered_to_go_counts_as_gone(facts: list[Fact]) -> None:
    """A `Deleted` that nobody ordered forgets nothing; one that was ordered ends the order."""
    state = JobState(JOB)
    for fact in facts:
        before = doomed(state)
        kept = {a for result in state.results.values() for a in result.attempts} - before
        state, _ = step(state, fact)
        after = {a for result in state.results.values() for a in result.attempts}
        assert kept <= after
        if isinstance(fact, Deleted):
            assert before - gone(fact) == doomed(state)


@given(st.integers(-2, 5), st.sampled_from((0, 1, 4, -1, 100_000)))
def test_readers_are_counted_within_the_result(first: int, count: int) -> None:
    """What was consumed is a set of the result's own subpartitions, whatever readers state."""
    state, _ = run([*OPENING, Consumed(RESULTS[0], first, count, 1, 1, 1, 1)])
    own = set(range(SUBPARTITIONS))
    assert own & set(range(first, first + count)) == state.results[RESULTS[0]].consumed


# Replay


@st.composite
def logs(draw: st.DrawFn) -> list[Recorded]:
    """Facts, and each step's decisions at any later place, in their order; some not yet there."""
    replay = Replay(JOB)
    records: list[Recorded] = []
    offset = 0
    waiting: list[Derived] = []
    for number, fact in enumerate(draw(HISTORIES)):
        offset += draw(st.integers(1, 3))
        records.append(Recorded(offset, Event(f"f{number}", JOB, "", 0, "task", None, fact)))
        waiting += replay.observe(records[-1])
        for _ in range(draw(st.integers(0, len(waiting)))):
            offset += draw(st.integers(1, 3))
            records.append(Recorded(offset, decided(waiting.pop(0))))
    return records


def decided(one: Derived) -> Event:
    return Event(one.id, JOB, one.cause, 0, "master", one.basis, one.decision)


def replayed(records: Sequence[Recorded]) -> Replay:
    replay = Replay(JOB)
    for record in records:
        replay.observe(record)
    return replay


def places(records: list[Recorded]) -> list[int]:
    """Where the decisions are."""
    return [at for at, record in enumerate(records) if record.event.basis is not None]


@MANY
@given(logs())
def test_a_replay_gives_the_same_state_and_decisions(records: list[Recorded]) -> None:
    """Wherever its decisions lie, a log gives the state of its facts, and what is still due."""
    facts = [r.event.body for r in records if r.event.basis is None]
    state, steps = run(facts)  # type: ignore[arg-type]
    replay = replayed(records)
    assert state == replay.state
    recorded = [r.event.body for r in records if r.event.basis is not None]
    assert said(steps) == [*recorded, *(one.decision for one in replay.due)]
    assert (len(facts), len(recorded)) == (replay.facts, replay.decisions)


@MANY
@given(logs(), st.data())
def test_a_dropped_decision_is_found(records: list[Recorded], data: st.DataObject) -> None:
    """Without one of its decisions a log is `Corrupt` at the next one, or has it still due."""
    where = places(records)
    if not where:
        return
    at = data.draw(st.sampled_from(where))
    kept = [*records[:at], *records[at + 1 :]]
    if at != where[-1]:
        with pytest.raises(Corrupt):
            replayed(kept)
    else:
        assert records[at].event.body == replayed(kept).due[0].decision


@MANY
@given(logs(), st.data())
def test_an_altered_decision_is_found(records: list[Recorded], data: st.DataObject) -> None:
    """A decision of another content, basis, cause or id is `Corrupt`, naming its place."""
    where = places(records)
    if not where:
        return
    at = data.draw(st.sampled_from(where))
    event = records[at].event
    assert event.basis is not None
    altered = data.draw(
        st.sampled_from(
            [
                replace(event, basis=event.basis + 1),
                replace(event, cause="somebody"),
                replace(event, id="0.0"),
                replace(event, body=Consumable(EXTRA)),
            ]
        )
    )
    changed = [*records[:at], Recorded(records[at].offset, altered), *records[at + 1 :]]
    with pytest.raises(Corrupt) as caught:
        replayed(changed)
    assert (records[at].offset,) == caught.value.offsets


EXTRA = AttemptId(PartitionId(RESULTS[0], 0), 9, 9)


@MANY
@given(logs(), st.data())
def test_swapped_decisions_are_found(records: list[Recorded], data: st.DataObject) -> None:
    """Two decisions in each other's places are `Corrupt`."""
    where = places(records)
    if len(where) < 2:
        return
    one, other = data.draw(st.lists(st.sampled_from(where), min_size=2, max_size=2, unique=True))
    changed = list(records)
    changed[one] = Recorded(records[one].offset, records[other].event)
    changed[other] = Recorded(records[other].offset, records[one].event)
    with pytest.raises(Corrupt):
        replayed(changed)


@MANY
@given(logs(), st.data())
def test_an_added_decision_is_found(records: list[Recorded], data: st.DataObject) -> None:
    """A decision twice, or one that follows from nothing, is `Corrupt`."""
    where = places(records)
    made = Event("1.7", JOB, "f0", 0, "master", 1, Consumable(EXTRA))
    added = data.draw(st.sampled_from([made, *(records[at].event for at in where)]))
    after = max((at for at in where if records[at].event is added), default=-1)
    at = data.draw(st.integers(after + 1, len(records)))
    with pytest.raises(Corrupt):
        replayed([*records[:at], Recorded(0, added), *records[at:]])


BODIES: tuple[Decision, ...] = (
    JobAccepted(7),
    PartitionAccepted(RESULTS[0], 0, 1, 1),
    Consumable(EXTRA),
    Superseded(EXTRA, ""),
    ResultComplete(RESULTS[0]),
    Released(RESULTS[0], (), ""),
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_decision_stated_as_a_fact_is_found(body: Decision) -> None:
    """Only the master decides: a decision without a basis is `Corrupt`, naming its place."""
    records = [
        Recorded(at, Event(f"f{at}", JOB, "", 0, "", None, f)) for at, f in enumerate(OPENING)
    ]
    with pytest.raises(Corrupt) as caught:
        replayed([*records, Recorded(9, Event("x", JOB, "", 0, "task", None, body))])
    assert caught.value.offsets == (9,)


def test_a_fact_with_a_basis_is_found() -> None:
    """A fact that claims to follow from another one is `Corrupt`."""
    with pytest.raises(Corrupt):
        replayed([Recorded(0, Event("x", JOB, "", 0, "task", 0, OPENING[0]))])
