"""Results with more partitions than one record can name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.events.codec import encode
from headgate.control.events.types import (
    Body,
    Deleted,
    Event,
    Fact,
    JobRegistered,
    JobUnregistered,
    Lost,
    Produced,
    Released,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
    TrackingStopped,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import DeletionRetrier, Orders
from headgate.control.model.apply import apply
from headgate.control.model.decide import step
from headgate.control.model.persistent import PersistentMap, PersistentSet
from headgate.control.model.state import JobState, Production, ResultState

JOB, RESULT = JobId("j" * 100), ResultId("r" * 100)
PARTITIONS, REGION = 30_000, 6_000


def attempt(index: int) -> AttemptId:
    return AttemptId(PartitionId(RESULT, index), 1, index)


def whole(partitions: int, pipelined: bool = False) -> JobState:
    """Return the state of a complete result, built directly because folding its events takes too
    long."""
    registered = ResultRegistered(RESULT, partitions, 1, "", "", pipelined=pipelined)
    attempts = [attempt(index) for index in range(partitions)]
    segments = (SegmentSummary(0, 10, 1, 0, b""),)
    production = Production(
        accepted=PersistentSet(range(partitions)),
        attempts=PersistentMap({winner: Produced(winner, segments, 1) for winner in attempts}),
        winners=PersistentMap({winner.partition.index: winner for winner in attempts}),
    )
    result = ResultState(registered, production, complete=True)
    state, _ = step(JobState(JOB), JobRegistered("driver", "1", "application"))
    return replace(state, results=PersistentMap({RESULT: result}))


def fits(body: Body) -> bool:
    """Return True if the event can be written; `encode` raises if it exceeds the size of a
    record."""
    return bool(encode(Event("id", JOB, "cause", 0, "by", 0, body)))


@pytest.mark.parametrize("end", [ReleaseRequested(RESULT, "why"), JobUnregistered("close")])
def test_a_large_result_is_released_and_deleted(end: Fact) -> None:
    """Every order and every deletion fits a record, and together they name each attempt once."""
    state, decisions = step(whole(PARTITIONS), end)
    assert all(map(fits, decisions))
    named = [
        winner
        for decision in decisions
        if isinstance(decision, Released)
        for winner in decision.attempts
    ]
    assert [attempt(index) for index in range(PARTITIONS)] == named
    failed = DeletionRetrier(SYSTEM_CLOCK, 0.0)
    deletions = Orders(Announcer(JOB, "master", SYSTEM_CLOCK), failed).following(state, ())
    for deletion in deletions:
        gone = Deleted(RESULT, deletion.attempts, len(deletion.attempts))
        assert fits(gone)
        state = apply(state, gone)
    assert () == state.results[RESULT].doomed
    assert PARTITIONS == state.results[RESULT].fate.deleted


def test_a_large_region_is_made_again() -> None:
    """A lost partition of a large stream restarts the whole stream, and no former winner counts."""
    lost = Lost(attempt(7), "object", "404 twice", 1)
    state, decisions = step(whole(REGION, pipelined=True), lost)
    assert all(map(fits, decisions))
    gone = [
        a
        for decision in decisions
        if isinstance(decision, TrackingStopped)
        for a in decision.attempts
    ]
    assert [attempt(index) for index in range(REGION)] == gone
    assert REGION == len(state.results[RESULT].reproduction.reproducing)
    assert not state.results[RESULT].production.winners
