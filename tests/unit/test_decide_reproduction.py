"""The work for each lost partition is bounded, however wide results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.control.events.types import (
    Decision,
    Fact,
    JobRegistered,
    Lost,
    PartitionRegistered,
    Produced,
    Reproduce,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.decide import step
from headgate.control.model.persistent import PersistentMap, PersistentSet
from headgate.control.model.state import JobState

WIDTH = 200
INPUT, RESULT = ResultId("r1"), ResultId("r2")


def attempt(result: ResultId, index: int) -> AttemptId:
    return AttemptId(PartitionId(result, index), 1, index)


def complete(result: ResultId, *inputs: ResultId) -> list[Fact]:
    """Return the facts of a complete result."""
    whole = (SegmentSummary(0, 9, 1, 0, b""),)
    return [
        ResultRegistered(result, WIDTH, 1, "", "", inputs),
        PartitionRegistered(result, 0, WIDTH),
        *[Produced(attempt(result, index), whole, 7) for index in range(WIDTH)],
    ]


def after(state: JobState, *facts: Fact) -> tuple[JobState, list[Decision]]:
    decided: list[Decision] = []
    for fact in facts:
        state, decisions = step(state, fact)
        decided += decisions
    return state, decided


@pytest.mark.parametrize("is_input_lost", [False, True])
def test_a_loss_costs_about_the_same_however_wide_its_input_is(
    monkeypatch: pytest.MonkeyPatch, is_input_lost: bool
) -> None:
    """A lost partition is ordered again without a slow look at each partition of its input: all
    partitions may be lost, one after the other, and those of the input with them."""
    opened = JobRegistered("per-job", "0", "tests")
    state, _ = after(JobState(JobId("job")), opened, *complete(INPUT), *complete(RESULT, INPUT))
    for index in range(WIDTH if is_input_lost else 0):
        state, _ = after(state, Lost(attempt(INPUT, index), f"r1/{index}", "404"))
    looks: list[object] = []
    for kind in (PersistentMap, PersistentSet):
        monkeypatch.setattr(kind, "__contains__", counted(kind.__contains__, looks))
    _, decided = after(state, Lost(attempt(RESULT, 3), "r2/3", "404", 1))
    assert [(RESULT, (3,))] == [(d.result, d.partitions) for d in decided if type(d) is Reproduce]
    assert len(looks) < WIDTH / 2


def counted(
    contains: Callable[[Any, object], bool], looks: list[object]
) -> Callable[[Any, object], bool]:
    def look(collection: object, key: object) -> bool:
        looks.append(key)
        return contains(collection, key)

    return look
