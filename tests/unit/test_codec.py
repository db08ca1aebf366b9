"""The bytes of events: complete, readable for ever, and `Corrupt` for any garbage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.resources import files
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.errors import Corrupt, Invalid
from headgate.control.events import codec
from headgate.control.events.types import (
    Body,
    Consumable,
    Consumed,
    Deleted,
    Event,
    JobAccepted,
    JobUnregistered,
    PartitionRegistered,
    Produced,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
    Tick,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId

from ..doubles.events import (
    ATTEMPT,
    BODIES,
    BOUNDED,
    BUILT,
    GOLDEN,
    NAMES,
    RESULT,
    SEGMENT,
    assert_no_event,
    event,
)

INTS = st.integers(-(2**31), 2**31 - 1)
st.register_type_strategy(int, INTS)
st.register_type_strategy(SegmentSummary, st.builds(SegmentSummary, **BOUNDED[SegmentSummary]))
events = st.builds(
    Event,
    job=NAMES,
    time_ms=st.integers(0, 2**47 - 1),
    basis=st.none() | st.integers(0, 2**63 - 1),
    body=st.one_of(BUILT),
)


def schema() -> dict[str, Any]:
    text = (
        files("headgate.control.events") / "schemas" / f"event.{codec.VERSION}.avsc"
    ).read_text()
    content: dict[str, Any] = json.loads(text)
    return content


def records(node: object) -> Mapping[str, list[str]]:
    """Return the field names of every record in a schema."""
    if isinstance(node, list):
        return {name: own for item in node for name, own in records(item).items()}
    if not isinstance(node, dict):
        return {}
    inner = records(list(node.values()))
    if node.get("type") != "record":
        return inner
    return {node["name"]: [f["name"] for f in node["fields"]], **inner}


def stored(version: int) -> dict[str, str]:
    content: dict[str, str] = json.loads((GOLDEN / f"event.{version}.json").read_text())
    return content


@given(events)
@settings(deadline=None)
def test_every_event_makes_the_round_trip(original: Event) -> None:
    """A decoded event equals the encoded one, for any event of any type."""
    assert original == codec.decode(codec.encode(original))


@pytest.mark.parametrize("version", range(1, codec.VERSION + 1))
@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_stored_record_stays_readable(body: Body, version: int) -> None:
    """A record that a published version wrote is decoded to the same event today."""
    record = stored(version).get(type(body).__name__)
    assert record is None or event(body) == codec.decode(bytes.fromhex(record))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_version_writes_the_same_bytes_for_ever(body: Body) -> None:
    """Each type of event is encoded today to the bytes that are stored for the newest version."""
    assert stored(codec.VERSION)[type(body).__name__] == codec.encode(event(body)).hex()


def test_every_type_has_a_stored_record() -> None:
    """Every type of event has a stored record of the newest version."""
    types = {kind.__name__ for kind in get_args(Body)}
    assert types == stored(codec.VERSION).keys()
    assert types == {type(body).__name__ for body in BODIES}


def test_every_class_has_its_avro_record() -> None:
    """The classes of events and the newest schema have the same types with the same fields."""
    classes = [*get_args(Body), Event, SegmentSummary, AttemptId, PartitionId]
    expected = {kind.__name__: [f.name for f in fields(kind)] for kind in classes}
    expected["Event"].insert(0, "written_as")
    assert expected == records(schema())


@given(st.binary(max_size=300))
def test_garbage_is_corrupt(garbage: bytes) -> None:
    """Bytes that were not written by the encoder are `Corrupt`."""
    with pytest.raises(Corrupt):
        codec.decode(garbage)


@given(events, st.data())
@settings(deadline=None)
def test_a_truncated_record_is_corrupt(original: Event, data: st.DataObject) -> None:
    """A record that is cut short or has bytes behind its end is `Corrupt`."""
    record = codec.encode(original)
    cut = data.draw(st.integers(0, len(record) - 1))
    for broken in (record[:cut], record + b"\x00"):
        with pytest.raises(Corrupt):
            codec.decode(broken)


@given(events, st.data())
@settings(deadline=None, max_examples=300)
def test_a_mutated_record_raises_nothing_else(original: Event, data: st.DataObject) -> None:
    """A record with one changed byte is another event or `Corrupt`; no other error is raised."""
    record = bytearray(codec.encode(original))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = codec.decode(bytes(record))
    except Corrupt:
        return
    assert isinstance(decoded, Event)


def test_a_record_has_a_limit() -> None:
    """A record of exactly the size limit is written; one byte more is `Invalid`, and the error
    names it."""

    def registered(chars: int) -> Event:
        return event(ResultRegistered(RESULT, 1, 1, "x" * chars, ""))

    empty = len(codec.encode(registered(100_000))) - 100_000
    full = codec.RECORD_BYTES_MAX - empty
    assert len(codec.encode(registered(full))) == codec.RECORD_BYTES_MAX
    with pytest.raises(Invalid, match="ResultRegistered id-1 has 524289 bytes, over 524288"):
        codec.encode(registered(full + 1))


def test_headers_name_what_a_reader_skips_by() -> None:
    """The headers hold type, job, epoch, attempt and trace of an event, as far as it has them."""
    headers = dict(codec.headers(event(Consumable(ATTEMPT))))
    trace = codec.trace_id(event(Consumable(ATTEMPT)))
    expected = {
        "headgate-type": b"Consumable",
        "headgate-job": b"job-1",
        "headgate-epoch": b"2",
        "headgate-attempt": b"result-1/3/2-1099511627776",
        "headgate-trace": trace.encode(),
    }
    assert expected == headers
    assert dict(codec.headers(event(JobUnregistered("x"))))["headgate-attempt"] == b""
    assert dict(codec.headers(event(JobAccepted(5))))["headgate-epoch"] == b"5"


def test_one_exchange_is_one_trace() -> None:
    """All events of a result have the same trace id, and events of another result have another
    one."""
    same: list[Body] = [
        Consumable(ATTEMPT),
        ResultComplete(RESULT),
        PartitionRegistered(RESULT, 0, 1),
    ]
    assert len({codec.trace_id(event(body)) for body in same}) == 1
    other = codec.trace_id(event(ResultComplete(ResultId("result-2"))))
    assert other != codec.trace_id(event(ResultComplete(RESULT)))


HUGE = 2**63 - 1
UNCOUNTED: tuple[Body, ...] = (
    Consumed(RESULT, 0, 1, 1, HUGE, 0, 0),
    Consumed(RESULT, 0, 1, 1, 0, HUGE, 0),
    Consumed(RESULT, 0, 1, 1, 0, 0, -1),
    Deleted(RESULT, (ATTEMPT,), HUGE),
    Produced(ATTEMPT, (SEGMENT, replace(SEGMENT, rows=HUGE))),
    SegmentProduced(ATTEMPT, replace(SEGMENT, size_bytes=-1)),
)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(event(Tick(1)), job=JobId("other/job")),
        replace(event(Tick(1)), job=JobId("..")),
        replace(event(Tick(1)), time_ms=2**60),
        replace(event(Tick(1)), time_ms=-1),
        event(ResultRegistered(ResultId("../r"), 1, 1, "", "")),
        event(ResultRegistered(RESULT, 1, 2**40, "", "")),
        event(ResultRegistered(RESULT, 2**40, 1, "", "")),
        event(ResultRegistered(RESULT, -1, 1, "", "")),
        *map(event, UNCOUNTED),
    ],
    ids=lambda wrong: f"{wrong.job} {wrong.time_ms} {wrong.kind}",
)
def test_what_is_beyond_all_bounds_is_no_event(wrong: Event) -> None:
    """An event with a value out of bounds is neither encoded nor decoded: it would fill a master's
    memory, name another job's objects, or overflow a snapshot's sums."""
    assert_no_event(wrong)
