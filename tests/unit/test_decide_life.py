"""Check the tables of docs/life.md: every event in every state.

Print the page anew with `python -c "from tests.unit.test_decide_life import page; print(page())"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import get_args

import pytest

from headgate.control.events import traits
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Consumed,
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
    Superseded,
    Tick,
    TrackingStopped,
    WayChosen,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.decide import decide, step
from headgate.control.model.state import JobState

PAGE = Path(__file__).parents[2] / "docs/life.md"
RESULT = ResultId("r")
EXPIRES_MS = 1_000


def attempt(task: int, partition: int = 0, epoch: int = 1) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), epoch, task)


def segment(number: int = 0, rows: int = 5) -> SegmentSummary:
    return SegmentSummary(number, 100, rows, 7, b"")


def produced(who: AttemptId, *segments: SegmentSummary, fingerprint: int = 1) -> Produced:
    return Produced(who, segments or (segment(),), fingerprint)


def started(who: AttemptId) -> AttemptStarted:
    return AttemptStarted(who, "host")


OURS, OTHER, NEIGHBOUR = attempt(1), attempt(2), attempt(3, partition=1)
REGISTERED = JobRegistered("driver", "1", "application")
FIRST = Lost(OURS, "object", "404 twice", 9)
CLOSED = JobUnregistered("close", 1)


def _result(pipelined: bool) -> ResultRegistered:
    return ResultRegistered(RESULT, 2, 1, "", "", pipelined=pipelined)


def _before(pipelined: bool) -> tuple[Fact, ...]:
    return REGISTERED, _result(pipelined), PartitionRegistered(RESULT, 0, 2), started(OURS)


HALF = (*_before(False), produced(OURS))
WHOLE = (*HALF, started(NEIGHBOUR), produced(NEIGHBOUR))
RELEASED = (*WHOLE, ReleaseRequested(RESULT, "release", 1))
STREAM = (*_before(True), SegmentProduced(OURS, segment()))
NOT_TRACKED = StopTrackingRequested(RESULT, "catalog", 1)

STATES: Mapping[str, Mapping[str, tuple[Fact, ...]]] = {
    "Before it can be read": {
        "no job": (),
        "job": (REGISTERED,),
        "result": (REGISTERED, _result(False)),
        "partition registered": _before(False)[:3],
        "attempt started": _before(False),
        "partition consumable": HALF,
    },
    "While it is read": {
        "result complete": WHOLE,
        "lost, being made again": (*WHOLE, FIRST),
        "made again": (*WHOLE, FIRST, started(OTHER), produced(OTHER)),
        "promoted": (*WHOLE, PromoteRequested(RESULT, EXPIRES_MS, 1)),
        "not tracked": (*WHOLE, NOT_TRACKED),
        "another driver": (*WHOLE, REGISTERED),
    },
    "Its end": {
        "released": RELEASED,
        "deleted": (*RELEASED, Deleted(RESULT, (OURS, NEIGHBOUR), 2)),
        "job closed": (*WHOLE, CLOSED),
        "closed, unfinished": (*_before(False), NOT_TRACKED, CLOSED),
        "closed, promoted": (*WHOLE, PromoteRequested(RESULT, EXPIRES_MS, 1), CLOSED),
        "job failed": (*WHOLE, FIRST, started(OTHER), produced(OTHER, fingerprint=2)),
    },
    "Pipelined": {
        "attempt started": _before(True),
        "segment announced": STREAM,
        "stream ended": (*STREAM, produced(OURS)),
        "made again": (*STREAM, FIRST, started(OTHER), SegmentProduced(OTHER, segment())),
        "released": (*STREAM, ReleaseRequested(RESULT, "release", 1)),
        "closed, unfinished": (*STREAM, NOT_TRACKED, CLOSED),
    },
}

FACTS: Mapping[str, Fact] = {
    "`JobRegistered`": REGISTERED,
    "`ResultRegistered`": _result(False),
    "`ResultRegistered`, another result": ResultRegistered(ResultId("s"), 1, 1, "", ""),
    "`PartitionRegistered`": PartitionRegistered(RESULT, 0, 2),
    "`AttemptStarted`, another attempt": started(OTHER),
    "`AttemptFailed`, the attempt": AttemptFailed(OURS, "why"),
    "`AttemptFailed`, another attempt": AttemptFailed(OTHER, "why"),
    "`SegmentProduced`, the attempt's next": SegmentProduced(OURS, segment(1)),
    "`SegmentProduced`, another attempt's first": SegmentProduced(OTHER, segment()),
    "`Produced`, the attempt": produced(OURS),
    "`Produced`, another attempt, the same content": produced(OTHER),
    "`Produced`, another attempt, other content": produced(OTHER, segment(0, 6), fingerprint=2),
    "`Produced`, a list with a hole": produced(OTHER, segment(0), segment(2)),
    "`Produced`, under an older epoch": produced(attempt(2, epoch=0)),
    "`WayChosen`": WayChosen(RESULT, "direct", 4, 400),
    "`Consumed`": Consumed(RESULT, 0, 1, 4, 5, 100, 1),
    "`Lost`, the attempt": FIRST,
    "`Lost`, without evidence": Lost(OURS, "object", "", 9),
    "`Lost`, another attempt": Lost(OTHER, "object", "404 twice", 9),
    "`PromoteRequested`": PromoteRequested(RESULT, 2 * EXPIRES_MS),
    "`StopTrackingRequested`": StopTrackingRequested(RESULT, "why"),
    "`ReleaseRequested`": ReleaseRequested(RESULT, "why"),
    "`ReleaseRequested`, by the first driver": ReleaseRequested(RESULT, "why", 1),
    "`Tick`, early": Tick(EXPIRES_MS - 1),
    "`Tick`, late": Tick(EXPIRES_MS),
    "`Deleted`": Deleted(RESULT, (OURS,), 1),
    "`LeaseExpired`": LeaseExpired("silent"),
    "`JobUnregistered`": JobUnregistered("why"),
}


def after(facts: Iterable[Fact]) -> JobState:
    *_, last = accumulate(
        facts, lambda state, fact: step(state, fact)[0], initial=JobState(JobId("j"))
    )
    return last


def cell(state: JobState, fact: Fact) -> str:
    """Return the decisions on a fact, `noted` if only the state changes, or a dot if nothing
    changes."""
    then, decisions = step(state, fact)
    names = [type(decision).__name__ for decision in decisions]
    return ", ".join(dict.fromkeys(names)) or ("·" if then == state else "noted")


def table(states: Mapping[str, tuple[Fact, ...]]) -> str:
    columns = [after(facts) for facts in states.values()]
    rows = [[name, *(cell(state, fact) for state in columns)] for name, fact in FACTS.items()]
    lines = [["event", *states], ["---"] * (1 + len(states)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page() -> str:
    return "\n\n".join(f"## {title}\n\n{table(states)}" for title, states in STATES.items())


@pytest.mark.parametrize("title", STATES)
def test_the_page_says_what_happens(title: str) -> None:
    """Every table of the page agrees with the decisions of the code."""
    text = PAGE.read_text()
    section = text.partition(f"## {title}\n\n")[2].partition("\n\n")[0].strip()
    assert table(STATES[title]).splitlines() == section.splitlines()


@pytest.mark.parametrize("epoch", [1, 2])
def test_only_the_newest_driver_is_obeyed(epoch: int) -> None:
    """A request of a driver changes nothing once another one speaks for the job."""
    for request in (
        PromoteRequested(RESULT, EXPIRES_MS, epoch),
        StopTrackingRequested(RESULT, "why", epoch),
        ReleaseRequested(RESULT, "why", epoch),
        LeaseExpired("silent", epoch),
        JobUnregistered("why", epoch),
    ):
        state, decisions = step(after((*WHOLE, REGISTERED)), request)
        assert (epoch == 2) == bool(decisions), request
        assert (epoch == 2) == (state != after((*WHOLE, REGISTERED))), request


@pytest.mark.parametrize("end", [produced(OURS), produced(OURS, segment(0, 6))])
def test_a_stream_that_ends_after_its_result_completes_nothing(end: Produced) -> None:
    """A stream that ends when its result is released changes no decision, and one that ends when
    its job is closed is superseded, as `fsck` takes its objects for those of nobody."""
    registration = ResultRegistered(RESULT, 1, 1, "", "", pipelined=True)
    stream = (REGISTERED, registration, PartitionRegistered(RESULT, 0, 1), *STREAM[3:])
    assert () == decide(after((*stream, ReleaseRequested(RESULT, "release", 1))), end)
    state, decisions = step(after((*stream, NOT_TRACKED, CLOSED)), end)
    assert [TrackingStopped, Superseded] == [type(decision) for decision in decisions]
    assert not state.results[RESULT].complete


def test_decisions_that_order_deletions_have_that_trait() -> None:
    """Whatever the fact and the state, attempts become doomed only by decisions whose traits say
    that they order deletions."""
    ordering: set[type] = set()
    for states in STATES.values():
        for before in map(after, states.values()):
            for fact in FACTS.values():
                then, decisions = step(before, fact)
                if _doomed(then) - _doomed(before):
                    kinds = {type(d) for d in decisions if traits.traits_of(d).orders_deletion}
                    assert kinds, fact
                    ordering |= kinds
    assert {kind for kind, row in traits.TRAITS.items() if row.orders_deletion} == ordering


def test_a_fact_of_a_master_is_no_sign_of_life() -> None:
    """The state notes when a driver was heard, except by what masters publish themselves."""
    for fact in FACTS.values():
        state, _ = step(JobState(JobId("j")), fact, 7)
        assert (None if traits.traits_of(fact).by_masters else 7) == state.heard


def _doomed(state: JobState) -> set[AttemptId]:
    return {attempt for result in state.results.values() for attempt in result.doomed}


def test_every_fact_has_its_row() -> None:
    """Every kind of fact has a row."""
    assert set(get_args(Fact)) == {type(fact) for fact in FACTS.values()}


def test_the_states_are_different() -> None:
    """No two columns of a table are the same state."""
    for states in STATES.values():
        columns = [after(facts) for facts in states.values()]
        assert all(column != other for n, column in enumerate(columns) for other in columns[:n])
