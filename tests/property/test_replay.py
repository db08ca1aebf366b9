"""A log explains its decisions, wherever they lie in it, and tampering is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.errors import Corrupt
from headgate.control.events.types import (
    Consumable,
    Decision,
    Event,
    JobAccepted,
    PartitionAccepted,
    Recorded,
    Released,
    ResultComplete,
    Superseded,
)
from headgate.control.ids import AttemptId, PartitionId
from headgate.control.model.replay import Derived, Replay

from .lifecycle_model import (
    HISTORIES,
    JOB,
    MANY,
    OPENING,
    RESULTS,
    run,
    said,
)


@st.composite
def logs(draw: st.DrawFn) -> list[Recorded]:
    """Draw facts, with their decisions in order at any later places; some decisions may be
    missing."""
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


def decided(entry: Derived) -> Event:
    return Event(entry.id, JOB, entry.cause, 0, "master", entry.basis, entry.decision)


def replayed(records: Sequence[Recorded]) -> Replay:
    replay = Replay(JOB)
    for record in records:
        replay.observe(record)
    return replay


def places(records: list[Recorded]) -> list[int]:
    """Return the positions of the decisions."""
    return [at for at, record in enumerate(records) if record.event.basis is not None]


@MANY
@given(logs())
def test_a_replay_gives_the_same_state_and_decisions(records: list[Recorded]) -> None:
    """A replay gives the state of the facts and the due decisions, wherever recorded decisions
    lie."""
    facts = [r.event.body for r in records if r.event.basis is None]
    state, steps = run(facts)  # type: ignore[arg-type]
    replay = replayed(records)
    assert state == replace(replay.state, heard=None)
    recorded = [r.event.body for r in records if r.event.basis is not None]
    assert said(steps) == [*recorded, *(entry.decision for entry in replay.due)]
    assert (len(facts), len(recorded)) == (replay.facts, replay.decisions)


@pytest.mark.slow
@MANY
@given(logs(), st.data())
def test_a_dropped_decision_is_found(records: list[Recorded], data: st.DataObject) -> None:
    """A log without one of its decisions is `Corrupt` at the next one, or the decision is still
    due."""
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
    """A decision with another content, basis, cause or id is `Corrupt`, and the error names its
    offset."""
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


@MANY
@given(logs())
def test_a_reason_in_other_words_is_no_other_decision(records: list[Recorded]) -> None:
    """A decision of another version is followed even if its reason is worded differently."""
    reworded = []
    for record in records:
        body = record.event.body
        if isinstance(body, Superseded | Released):
            body = replace(body, reason="other words")
        reworded.append(replace(record, event=replace(record.event, body=body)))
    assert replayed(records).state == replayed(reworded).state


EXTRA = AttemptId(PartitionId(RESULTS[0], 0), 9, 9)


@MANY
@given(logs(), st.data())
def test_swapped_decisions_are_found(records: list[Recorded], data: st.DataObject) -> None:
    """Two swapped decisions are `Corrupt`."""
    where = places(records)
    if len(where) < 2:
        return
    first, second = data.draw(st.lists(st.sampled_from(where), min_size=2, max_size=2, unique=True))
    changed = list(records)
    changed[first] = Recorded(records[first].offset, records[second].event)
    changed[second] = Recorded(records[second].offset, records[first].event)
    with pytest.raises(Corrupt):
        replayed(changed)


@MANY
@given(logs(), st.data())
def test_an_added_decision_is_found(records: list[Recorded], data: st.DataObject) -> None:
    """A repeated decision, or one that does not follow, is `Corrupt`."""
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
    """A decision without a basis is `Corrupt`, and the error names its offset: only the master
    decides."""
    records = [
        Recorded(at, Event(f"f{at}", JOB, "", 0, "", None, f)) for at, f in enumerate(OPENING)
    ]
    with pytest.raises(Corrupt) as caught:
        replayed([*records, Recorded(9, Event("x", JOB, "", 0, "task", None, body))])
    assert caught.value.offsets == (9,)


def test_a_fact_with_a_basis_is_found() -> None:
    """A fact with a basis is `Corrupt`."""
    with pytest.raises(Corrupt):
        replayed([Recorded(0, Event("x", JOB, "", 0, "task", 0, OPENING[0]))])
