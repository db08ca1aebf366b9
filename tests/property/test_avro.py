"""Events in Avro's binary form, compared with fastavro; and the fast construction of values."""

from __future__ import annotations

import io
import json
from dataclasses import MISSING, FrozenInstanceError, asdict, fields, replace
from importlib.resources import files
from typing import Any, get_args

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.errors import Corrupt
from headgate.control.events import avro, codec
from headgate.control.events.types import Body, Event, JobUnregistered, SegmentSummary
from headgate.control.events.values import changed, maker
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.state import JobState

from ..doubles.events import BOUNDED, BUILT, NAMES

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXT = (files("headgate.control.events") / "schemas" / f"event.{codec.VERSION}.avsc").read_text()
SCHEMA = fastavro.parse_schema(json.loads(TEXT))
HEADER_BYTES = 10

st.register_type_strategy(int, INTS)
st.register_type_strategy(SegmentSummary, st.builds(SegmentSummary, **BOUNDED[SegmentSummary]))
EVENTS = st.builds(
    Event,
    job=NAMES,
    basis=st.none() | LONGS,
    time_ms=st.integers(0, 2**47 - 1),
    body=st.one_of(BUILT),
)


def theirs(event: Event) -> bytes:
    plain: dict[str, Any] = asdict(event)
    plain["body"] = (f"headgate.{event.kind}", plain["body"])
    plain["written_as"] = f"headgate.{codec.VERSION}"
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, plain)
    return out.getvalue()


@given(EVENTS)
@settings(deadline=None)
def test_an_event_has_the_bytes_that_another_writer_gives_it(event: Event) -> None:
    """fastavro writes the same bytes as we do, and we read the records that it writes."""
    record = codec.encode(event)
    assert theirs(event) == record[HEADER_BYTES:]
    assert event == codec.decode(record[:HEADER_BYTES] + theirs(event))


@given(LONGS)
def test_a_number_makes_the_round_trip(number: int) -> None:
    """Any 64-bit number is written as fastavro writes it, and read back."""
    out, expected = bytearray(), io.BytesIO()
    avro.write_long(out, number)
    fastavro.schemaless_writer(expected, "long", number)
    assert expected.getvalue() == bytes(out)
    assert (number, len(out)) == avro.read_long(bytes(out), 0)


@pytest.mark.parametrize("record", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"])
def test_a_number_has_64_bits(record: bytes) -> None:
    """A number of more than 64 bits, or of more bytes than those need, is `Corrupt`."""
    with pytest.raises(Corrupt, match="64 bits"):
        avro.read_long(record, 0)


def test_a_missing_field_has_the_default_that_its_schema_states() -> None:
    """The default of a field is the same in our classes and in the schema, so every reader
    agrees."""
    (bodies,) = (p["type"] for p in json.loads(TEXT)["fields"] if p["name"] == "body")
    stated = {
        (body["name"], part["name"]): part["default"]
        for body in bodies
        for part in body["fields"]
        if "default" in part
    }
    ours = {
        (kind.__name__, part.name): [] if part.default == () else part.default
        for kind in get_args(Body)
        for part in fields(kind)
        if part.default is not MISSING
    }
    assert stated
    assert {name: ours.get(name) for name in stated} == stated


def test_a_record_of_fewer_fields_takes_defaults() -> None:
    """A schema may omit only the last fields, and only fields with a default; others are refused at
    once."""
    kinds: dict[str, type] = {"JobUnregistered": JobUnregistered}
    schema: dict[str, Any] = {"type": "record", "name": "JobUnregistered", "fields": []}
    with pytest.raises(AssertionError, match="no default"):
        avro.reader(schema, kinds)
    schema["fields"] = [{"name": "epoch", "type": "long"}]
    with pytest.raises(AssertionError, match="other fields in front"):
        avro.reader(schema, kinds)
    schema["fields"] = [{"name": "reason", "type": "string"}]
    assert (JobUnregistered("x"), 2) == avro.reader(schema, kinds)(b"\x02x", 0)


def test_an_array_may_come_in_sized_blocks() -> None:
    """An array in blocks that state their length, as other writers make it, can be read."""
    read = avro.reader({"type": "array", "items": "long"}, {})
    record = b"\x01\x02\x0e" + b"\x04\x10\x12" + b"\x00"
    assert ((7, 8, 9), len(record)) == read(record, 0)


def test_a_quickly_made_value_is_like_any_other() -> None:
    """A quickly made value equals a normal one, has its class and hash, and is frozen."""
    attempt = AttemptId(PartitionId(ResultId("r"), 1), 2, 3)
    made = maker(AttemptId)(attempt.partition, 2, 3)
    assert (attempt, hash(attempt), AttemptId) == (made, hash(made), type(made))
    with pytest.raises(FrozenInstanceError):
        made.task = 4


@given(st.integers(), st.none() | st.text())
def test_a_changed_value_is_what_replace_gives(epoch: int, closed: str | None) -> None:
    """`changed` gives the same value as `replace`, and does not change the original."""
    before = JobState(JobId("job"), 7)
    after = changed(before, epoch=epoch, closed=closed)
    assert replace(before, epoch=epoch, closed=closed) == after
    assert JobState(JobId("job"), 7) == before
    with pytest.raises(FrozenInstanceError):
        after.epoch = 1  # type: ignore[misc]


def test_a_part_that_is_not_there_is_refused() -> None:
    """A misspelt field name is an error in `changed`, as in `replace`."""
    with pytest.raises(AttributeError):
        changed(JobState(JobId("job")), epok=1)  # type: ignore[call-arg]
