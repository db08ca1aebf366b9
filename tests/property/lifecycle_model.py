"""Draw any facts about few partitions, and compute the winners by the rules alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Consumed,
    Decision,
    Deleted,
    Fact,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    Lost,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
    StopTrackingRequested,
    Tick,
    WayChosen,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.decide import step
from headgate.control.model.state import JobState

MANY = settings(max_examples=3 * settings().max_examples)  # a fold is cheap
JOB = JobId("job")
RESULTS = (ResultId("a"), ResultId("b"), ResultId("unknown"))
SIZES = {RESULTS[0]: 2, RESULTS[1]: 0, RESULTS[2]: 3}
SUBPARTITIONS = 4

Steps = list[tuple[Fact, tuple[Decision, ...]]]


def segments(*numbers: int) -> tuple[SegmentSummary, ...]:
    return tuple(SegmentSummary(number, 10, 1 + number, 0, b"") for number in numbers)


RESULT = st.sampled_from((RESULTS[0], RESULTS[0], *RESULTS))
PARTITION = st.builds(PartitionId, RESULT, st.sampled_from((0, 0, 1, 1, 2, -1)))
ATTEMPT = st.builds(AttemptId, PARTITION, st.sampled_from((1, 1, 1, 2, 0, 3)), st.integers(1, 3))
SEGMENTS = st.sampled_from((segments(0), segments(0, 1), segments(), segments(1), segments(0, 0)))

FINGERPRINT = st.sampled_from((1, 1, 1, 2, None))
EPOCH = st.sampled_from((0, 1, 1, 2))
HOST = st.sampled_from(("host", "other"))

FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Produced, ATTEMPT, SEGMENTS, FINGERPRINT),
    st.builds(Produced, ATTEMPT, st.just(segments(0)), FINGERPRINT),
    st.builds(AttemptStarted, ATTEMPT, HOST),
    st.builds(SegmentProduced, ATTEMPT, st.sampled_from(segments(0, 1))),
    st.builds(Lost, ATTEMPT, st.just("object"), st.sampled_from(("404", "404", ""))),
    st.builds(PromoteRequested, RESULT, st.sampled_from((0, 10, 20)), EPOCH),
    st.builds(StopTrackingRequested, RESULT, st.just("mine"), EPOCH),
    st.builds(Tick, st.sampled_from((5, 15, 25))),
    st.builds(LeaseExpired, st.just("silent"), EPOCH),
    st.builds(AttemptFailed, ATTEMPT, st.just("oom")),
    st.builds(Deleted, RESULT, st.lists(ATTEMPT, max_size=4).map(tuple), st.integers(0, 5)),
    RESULT.map(lambda name: ResultRegistered(name, SIZES[name], SUBPARTITIONS, "", "")),
    st.builds(
        PartitionRegistered, RESULT, st.integers(-1, 2), st.sampled_from((2, 2, 1, 0, -1, 3))
    ),
    st.builds(ReleaseRequested, RESULT, st.just("asked"), EPOCH),
    st.builds(WayChosen, RESULT, st.just("direct"), st.just(4), st.just(400)),
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
    st.builds(JobUnregistered, st.just("closed"), EPOCH),
)

# Half of the facts are about few attempts, so that several facts are about the same one.
NEAR = st.builds(
    AttemptId,
    st.builds(PartitionId, st.just(RESULTS[0]), st.sampled_from((0, 0, 1))),
    st.just(1),
    st.integers(1, 2),
)
NEAR_FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Produced, NEAR, st.sampled_from((segments(0), segments(1))), FINGERPRINT),
    st.builds(Produced, NEAR, st.just(segments(0)), FINGERPRINT),
    st.builds(Produced, NEAR, st.just(segments(0)), FINGERPRINT),
    st.builds(Lost, NEAR, st.just("object"), st.just("404")),
    st.builds(AttemptStarted, NEAR, HOST),
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
    """The naive model's state of one result."""

    partitions: int
    accepted: set[int] = field(default_factory=set)
    barred: set[AttemptId] = field(default_factory=set)
    known: set[AttemptId] = field(default_factory=set)
    winners: dict[int, Produced] = field(default_factory=dict)
    read: dict[int, int | None] = field(default_factory=dict)
    readable: bool = False
    expires_ms: int | None = None
    tracked: bool = True
    released: bool = False


class Naive:
    """A mutable model that follows the rules fact by fact, and uses no code of the product."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open = False
        self.failed = False
        self.told: dict[ResultId, Told] = {}
        self.consumable: list[AttemptId] = []

    def take(self, fact: Fact) -> None:
        if 0 < getattr(fact, "epoch", 0) < self.epoch:
            return
        if isinstance(fact, JobRegistered):
            self.epoch, self.open, self.failed = self.epoch + 1, True, False
        elif isinstance(fact, (JobUnregistered, LeaseExpired)):
            self.open = False
            for result in self.told.values():
                result.released |= result.expires_ms is None and result.tracked
        elif isinstance(fact, Tick):
            for result in self.told.values():
                result.released |= (
                    bool(result.expires_ms) and (result.expires_ms or 0) <= fact.now_ms
                )
        elif isinstance(fact, ResultRegistered):
            if self.open and not self.failed:
                self.told.setdefault(fact.result, Told(fact.partitions))
        elif isinstance(fact, (AttemptStarted, AttemptFailed, SegmentProduced, Produced, Lost)):
            if fact.attempt.partition.result in self.told:
                self.take_attempt(fact, self.told[fact.attempt.partition.result])
        elif fact.result in self.told:
            self.take_result(fact, self.told[fact.result])

    def take_result(self, fact: Fact, result: Told) -> None:
        if isinstance(fact, ReleaseRequested):
            result.released = True
        elif isinstance(fact, PromoteRequested):
            if not result.released and self.complete(result):
                result.expires_ms = fact.expires_ms
        elif isinstance(fact, StopTrackingRequested):
            result.tracked &= result.released
        elif isinstance(fact, PartitionRegistered) and self.open and not self.failed:
            wanted = list(range(fact.first, fact.first + fact.count))
            fits = fact.count >= 0 and fact.first >= 0
            if fits and fact.first + fact.count <= result.partitions and not result.released:
                result.accepted.update(wanted)
                result.readable |= not result.partitions

    def complete(self, result: Told) -> bool:
        return result.readable and len(result.winners) == result.partitions

    def take_attempt(
        self, fact: AttemptStarted | AttemptFailed | SegmentProduced | Produced | Lost, result: Told
    ) -> None:
        attempt, index = fact.attempt, fact.attempt.partition.index
        winner = result.winners.get(index)
        won = winner is not None and winner.attempt == attempt
        if isinstance(fact, Lost):
            if won and fact.evidence and not result.released:
                self.lose(result, index)
            return
        result.known.add(attempt)
        if isinstance(fact, AttemptFailed | Produced) and not won:
            self.end(fact, result)

    def lose(self, result: Told, index: int) -> None:
        lost = result.winners.pop(index)
        result.barred.add(lost.attempt)
        result.read.setdefault(index, lost.fingerprint)

    def end(self, fact: AttemptFailed | Produced, result: Told) -> None:
        index = fact.attempt.partition.index
        free = index not in result.winners and not result.released
        if not (isinstance(fact, Produced) and self.valid(fact, result) and free):
            result.barred.add(fact.attempt)
        elif index in result.read and not self.same(result.read[index], fact.fingerprint):
            result.barred.add(fact.attempt)
            self.failed = True
        else:
            result.winners[index] = fact
            result.readable |= len(result.winners) == result.partitions
            self.consumable.append(fact.attempt)

    def same(self, before: int | None, now: int | None) -> bool:
        return before is not None and before == now

    def valid(self, fact: Produced, result: Told) -> bool:
        whole = [segment.number for segment in fact.segments] == list(range(len(fact.segments)))
        registered = self.open and not self.failed
        registered = registered and fact.attempt.partition.index in result.accepted
        current = fact.attempt.epoch == self.epoch and fact.attempt not in result.barred
        return whole and registered and current


def said(steps: Steps) -> list[Decision]:
    return [decision for _, decisions in steps for decision in decisions]
