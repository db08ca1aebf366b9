"""Snapshots compared with the whole log: any state survives, and any cut gives the same state."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from hashlib import shake_128
from operator import attrgetter
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.errors import Corrupt, Invalid
from headgate.control.events.types import Decision, Event, Fact, Produced, Recorded, SegmentSummary
from headgate.control.ids import AttemptId, JobId, PartitionId
from headgate.control.log import StateRecord
from headgate.control.model.persistent import PersistentMap, PersistentSet
from headgate.control.model.replay import Derived, Replay, Snapshot
from headgate.control.model.state import JobState, ResultState, is_over
from headgate.control.snapshots import container
from headgate.control.snapshots import records as snapshots
from headgate.control.snapshots.records import Standing

from .lifecycle_model import HISTORIES, JOB, MANY, OPENING, RESULTS, run

NOTHING = Standing()
LATE = st.lists(st.integers(0, 3), min_size=13, max_size=40)


def kept(
    records: Sequence[StateRecord], before: dict[str, bytes] | None = None
) -> dict[str, bytes]:
    """Return the values that a compacted log holds behind these records."""
    values = dict(before or {})
    for record in records:
        if record.body is None:
            del values[record.key]
        else:
            values[record.key] = record.body
    return values


def survives(snapshot: Snapshot) -> Snapshot:
    records, standing = snapshots.write(snapshot, NOTHING)
    stored = kept(records)
    assert standing.keys == stored.keys()
    restored, again = snapshots.read(snapshot.state.job, stored)
    assert again == standing
    assert snapshots.write(restored, again)[0] == snapshots.write(snapshot, standing)[0]
    return restored


def log_of(facts: Sequence[Fact], late: Sequence[int]) -> list[Recorded]:
    """Return a log with up to `late` facts between a fact and its decisions. The last decisions may
    be missing."""
    replay, unrecorded, records = Replay(JOB), deque[tuple[int, Derived]](), list[Recorded]()

    def record(body: Fact | Decision, name: str, cause: str, basis: int | None) -> Recorded:
        records.append(Recorded(3 * len(records) + 5, Event(name, JOB, cause, 0, "", basis, body)))
        return records[-1]

    for number, fact in enumerate(facts):
        while unrecorded and unrecorded[0][0] <= number:
            due = unrecorded.popleft()[1]
            record(due.decision, due.id, due.cause, due.basis)
        derived = replay.observe(record(fact, f"f{number}", "", None))
        unrecorded.extend((number + late[number % len(late)], entry) for entry in derived)
    return records


def followed(replay: Replay, records: Sequence[Recorded]) -> Replay:
    for record in records:
        replay.observe(record)
    return replay


@pytest.mark.slow
@MANY
@given(HISTORIES)
def test_any_state_survives(facts: list[Fact]) -> None:
    """A snapshot that is read back equals the written one, and leads to the same later records."""
    snapshot = Snapshot(run(facts)[0], (), 7, 3)
    assert survives(snapshot) == snapshot


@MANY
@given(HISTORIES, LATE)
def test_a_snapshot_and_the_rest_is_the_whole(facts: list[Fact], late: list[int]) -> None:
    """A snapshot and the log behind it give the state, the due decisions and the checks of the
    whole log, at every cut, also between a fact and its decisions."""
    log = log_of(facts, late)
    whole = followed(Replay(JOB), log)
    for cut in range(len(log) + 1):
        head = followed(Replay(JOB), log[:cut])
        position = log[cut - 1].offset + 1 if cut else 0
        rest = followed(Replay(JOB, survives(head.snapshot(position))), log[cut:])
        assert (rest.state, rest.due) == (whole.state, whole.due)
        assert head.facts + rest.facts == whole.facts
        assert rest.first == whole.first


@pytest.mark.slow
@MANY
@given(HISTORIES, st.integers(1, 4))
def test_only_what_changed_is_written(facts: list[Fact], stride: int) -> None:
    """Each of several snapshots is read back whole, without writing unchanged results again, unless
    the job had ended. At the end no record is left."""
    replay, stored, standing = Replay(JOB), dict[str, bytes](), NOTHING
    before: JobState = replay.state
    for number, record in enumerate(log_of(facts, [0])):
        replay.observe(record)
        if number % stride:
            continue
        snapshot = replay.snapshot(record.offset + 1)
        had_ended = standing.ended is not None
        records, standing = snapshots.write(snapshot, standing)
        stored = kept(records, stored)
        assert snapshots.read(JOB, stored) == (snapshot, standing)
        assert (standing.ended is not None) is is_over(snapshot.state)
        assert standing.ended is None or {JOB} == stored.keys()
        same = {n for n, r in replay.state.results.items() if before.results.get(n) is r}
        same = set() if had_ended else same
        assert not {f"{JOB}/{name}" for name in same} & {record.key for record in records}
        before = replay.state
    assert kept(snapshots.end(standing), stored) == {}


@pytest.mark.slow
@given(HISTORIES, st.lists(st.integers(0, 20), min_size=5, max_size=20))
def test_a_snapshot_stands_until_the_next_is_whole(facts: list[Fact], choices: list[int]) -> None:
    """Masters that write each record in a step of its own die after any of them, and the next one
    goes on from the newest whole snapshot."""
    log, stored, whole = log_of(facts, [0]), dict[str, bytes](), Snapshot(JobState(JOB), (), 0, 0)
    replay, standing = Replay(JOB), NOTHING
    for at, record in enumerate(log):
        replay.observe(record)
        lasts, choice = divmod(choices[at % len(choices)], 3)
        snapshot = replay.snapshot(record.offset + 1)
        steps = snapshots.SnapshotSteps(snapshot, standing, 1, is_whole=choice == 1)
        for _ in range(lasts):
            if steps.is_last:
                records, standing = steps.end(0)
                stored, whole = kept(records, stored), snapshot
                assert standing == snapshots.read(JOB, stored)[1]
                break
            stored = kept(steps.parts, stored)
            steps.wrote()
            assert whole.position == 0 or whole == snapshots.read(JOB, stored)[0]
        else:
            start, standing = whole, Standing(frozenset(stored))
            if whole.position:
                start, standing = snapshots.read(JOB, stored)
            replay = Replay(JOB, start if start.position else None)
            followed(replay, [event for event in log[: at + 1] if event.offset >= start.position])
        assert whole.position == 0 or whole == snapshots.read(JOB, stored)[0]


def test_a_whole_snapshot_moves_nothing_that_is_the_same() -> None:
    """A snapshot that writes all results again is harmless for a master that knows only the one
    before: results that have not changed are still where that one says."""
    state = run(OPENING)[0]
    records, before = snapshots.write(Snapshot(state, (), 7, 3), NOTHING)
    stored = kept(records)
    steps = snapshots.SnapshotSteps(Snapshot(state, (), 8, 3), before, 1 << 20, is_whole=True)
    assert {f"{JOB}/{name}" for name in state.results} == {part.key for part in steps.parts}
    stored = kept(steps.end(0)[0], stored)
    later = Snapshot(replace(state, failed="later"), (), 9, 3)
    stored = kept(snapshots.write(later, before)[0], stored)
    assert later == snapshots.read(JOB, stored)[0]


@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_an_ended_job_of_any_size_is_read(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended is one record only where readers take it as one."""
    monkeypatch.setattr(snapshots, "_ENDED_BYTES_MAX", limit)
    snapshot = Snapshot(replace(run(OPENING)[0], closed="closed"), (), 1 << 40, 3)
    records, standing = snapshots.write(snapshot, NOTHING)
    assert (snapshot, standing) == snapshots.read(JOB, kept(records))
    assert (standing.ended is not None) is (limit > 100)


def test_large_results_are_cut() -> None:
    """A result over the size of a record is stored in several parts and may shrink again. A missing
    or old part is noticed."""
    state = run(OPENING)[0]
    result, attempt = state.results[RESULTS[0]], AttemptId(PartitionId(RESULTS[0], 0), 1, 1)
    body = Produced(attempt, (SegmentSummary(0, 1, 1, 0, shake_128(b"").digest(1_200_000)),))
    production = replace(result.production, attempts=PersistentMap({attempt: body}))
    results = PersistentMap({RESULTS[0]: replace(result, production=production)})
    large = replace(state, results=results)
    records, standing = snapshots.write(Snapshot(large, (), 9, 0), NOTHING)
    assert max(len(record.body or b"") for record in records) <= 512 * 1024
    stored = kept(records)
    assert snapshots.read(JOB, stored)[0].state == large
    parts = sorted(stored.keys() - {str(JOB)})
    assert len(parts) == 3
    for lost in parts:
        with pytest.raises(Corrupt):
            snapshots.read(JOB, {key: part for key, part in stored.items() if key != lost})
    after = kept(snapshots.write(Snapshot(state, (), 10, 0), standing)[0], stored)
    assert snapshots.read(JOB, after)[0].state == state
    assert len(after) == 2
    other = replace(state, results=PersistentMap({RESULTS[0]: replace(result, complete=True)}))
    small, _ = snapshots.write(Snapshot(other, (), 9, 0), NOTHING)
    with pytest.raises(Corrupt, match="belongs to another snapshot"):
        snapshots.read(JOB, after | {f"{JOB}/{RESULTS[0]}/1": kept(small)[f"{JOB}/{RESULTS[0]}"]})


@pytest.mark.slow
@MANY
@given(HISTORIES, st.data())
def test_damage_is_noticed(facts: list[Fact], data: st.DataObject) -> None:
    """A snapshot record with a changed byte, or cut short anywhere, is `Corrupt`, never another
    state."""
    snapshot = Snapshot(run(facts)[0], (), 7, 3)
    stored = kept(snapshots.write(snapshot, NOTHING)[0])
    key = data.draw(st.sampled_from(sorted(stored)))
    body = bytearray(stored[key])
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body[at] ^= data.draw(st.integers(1, 255))
    else:
        del body[at:]
    with pytest.raises(Corrupt):
        snapshots.read(JOB, stored | {key: bytes(body)})


def test_newer_and_foreign_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot with a newer format or newer events is `Invalid`, that of an ended job too, and
    one of another job is `Corrupt`."""
    open_job = run(OPENING)[0]
    stored = kept(snapshots.write(Snapshot(run(OPENING)[0], (), 7, 3), NOTHING)[0])
    other = JobId("other")
    moved = {key.replace(JOB, other): body for key, body in stored.items()}
    with pytest.raises(Corrupt, match=f"{other} belongs to job {JOB}"):
        snapshots.read(other, moved)
    ours = snapshots._NOTES
    for name in ("headgate.format", "headgate.events"):
        notes = dict(ours)
        notes[name] = str(int(notes[name]) + 1)
        with monkeypatch.context() as patch:
            patch.setattr(snapshots, "_NOTES", notes)
            for state in (open_job, replace(open_job, closed="closed")):
                newer = kept(snapshots.write(Snapshot(state, (), 7, 3), NOTHING)[0])
                with monkeypatch.context() as this:
                    this.setattr(snapshots, "_NOTES", ours)
                    with pytest.raises(Invalid, match=f"{name} is {notes[name]}"):
                        snapshots.read(JOB, newer)


def test_a_shape_that_has_grown_takes_old_values() -> None:
    """A field that a stored value lacks takes its default, and a stored field that is gone is
    dropped. A missing field without a default makes the value unreadable."""

    @dataclass(frozen=True, slots=True)
    class Before:
        kept: int
        gone: str | None

    @dataclass(frozen=True, slots=True)
    class After:
        kept: int
        added: PersistentSet[int] = field(default_factory=lambda: PersistentSet({1}))

    @dataclass(frozen=True, slots=True)
    class Demanding:
        kept: int
        added: int

    body = container.pack(Before(3, "x"), {})
    assert After(3) == container.unpack(body, After, lambda notes: None)
    with pytest.raises(Corrupt, match="Demanding cannot be read"):
        container.unpack(body, Demanding, lambda notes: None)


def test_a_result_is_stored_without_its_groups() -> None:
    """The record of a result has the fields of its groups as its own, in an order that stays."""
    first = "registered accepted attempts running streams winners superseded"
    then = "before reproducing waiting consumed written reads completions lost_partitions lost_rows"
    last = "complete expires_ms tracked released deleted chosen"
    schema = json.loads(container._schema_of(ResultState))
    assert f"{first} {then} {last}".split() == [part["name"] for part in schema["fields"]]


@dataclass(frozen=True, slots=True)
class Inner:
    number: int


@dataclass(frozen=True, slots=True)
class Outer:
    number: int = 0
    text: str | None = None
    texts: PersistentMap[int, str] = field(default_factory=PersistentMap)
    numbers: PersistentSet[int] = field(default_factory=PersistentSet)
    inner: tuple[Inner | None, ...] = ()
    plain: Inner = Inner(0)
    more_texts: PersistentMap[int, str] = field(default_factory=PersistentMap)
    unknown_before: int = 0


_OLDER = [*get_type_hints(Outer).items()][:-1]


def wrong(name: str, kind: Any, value: object) -> object:
    """Return a record with one field of `Outer` in another type."""
    return make_dataclass("Wrong", [(name, kind)], frozen=True, slots=True)(value)


@pytest.mark.parametrize(
    "foreign",
    [
        wrong("number", str, "7"),
        wrong("number", float, 7.0),
        wrong("number", bool, True),
        wrong("number", int | None, None),
        wrong("number", tuple[int, ...], (7,)),
        wrong("text", bytes | None, b"7"),
        wrong("text", Inner | None, Inner(7)),
        wrong("text", Inner, Inner(7)),
        wrong("texts", PersistentMap[str, str], {"7": "7"}),
        wrong("texts", PersistentMap[int, int], {7: 7}),
        wrong("texts", tuple[int, ...], (7,)),
        wrong("numbers", PersistentSet[str], {"7"}),
        wrong("numbers", int, 7),
        wrong("inner", tuple[str | None, ...], ("7",)),
        wrong("inner", tuple[Outer | None, ...], (Outer(7),)),
        wrong("inner", tuple[Inner, ...], (Inner(7),)),
        wrong("plain", Inner | None, Inner(7)),
        wrong("plain", (other := make_dataclass("Inner", [("number", str)])), other("7")),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_none_of_ours(foreign: object) -> None:
    """A value of a wrong type is found when it is read, not when it is used."""
    texts, numbers = PersistentMap({7: "7"}), PersistentSet({7})
    outer = Outer(7, "7", texts, numbers, (Inner(7), None), Inner(7), texts)
    older = make_dataclass("Older", _OLDER)(*attrgetter(*(n for n, _ in _OLDER))(outer))
    assert outer == container.unpack(container.pack(older, {}), Outer, lambda notes: None)
    with pytest.raises(Corrupt, match="does not fit Outer"):
        container.unpack(container.pack(foreign, {}), Outer, lambda notes: None)


@pytest.mark.parametrize(("first", "needed"), [(8, 0), (-1, 0), (3, 8), (3, -1)])
def test_offsets_that_no_snapshot_has_are_corrupt(first: int, needed: int) -> None:
    """A snapshot whose first event, or whose needed offset, lies behind its position is
    `Corrupt`."""
    snapshot = Snapshot(run(OPENING)[0], (), 7, first, needed=needed)
    with pytest.raises(Corrupt, match="offsets"):
        snapshots.read(JOB, kept(snapshots.write(snapshot, NOTHING)[0]))
