"""A damaged event record is another event or `Corrupt`, never another error, and the log
continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.control.errors import Corrupt
from headgate.control.events import codec
from headgate.control.events.types import Event, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.memory.log import MemoryEventLog

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
HEADER_BYTES = 10
JOB = JobId("job-1")


@cache
def stored() -> tuple[bytes, ...]:
    """Return one record of every type, as each published version wrote it."""
    texts = [path.read_text() for path in sorted(GOLDEN.glob("event.*.json"))]
    return tuple(bytes.fromhex(record) for text in texts for record in json.loads(text).values())


Edit = Callable[[bytes], bytes]

BOMBS = st.sampled_from(
    [
        b"\xff" * 9 + b"\x01",  # the largest length that an Avro number can state, and the least
        b"\xfe" * 9 + b"\x01",
        b"\x80" * 40,
        b"\xff\xff\xff\xff\x0f",
        b"\x00",
        b"\x01",
    ]
)
PIECES = st.binary(min_size=1, max_size=12) | BOMBS
PLACES = st.floats(0, 1, exclude_max=True)


def at(record: bytes, place: float) -> int:
    """Return a place behind the marker and the schema, where damage is not found at once."""
    return HEADER_BYTES + int(place * (len(record) - HEADER_BYTES))


def overwritten(place: float, piece: bytes) -> Edit:
    return lambda record: (
        record[: at(record, place)] + piece + record[at(record, place) + len(piece) :]
    )


def inserted(place: float, piece: bytes) -> Edit:
    return lambda record: record[: at(record, place)] + piece + record[at(record, place) :]


def removed(place: float, length: int) -> Edit:
    return lambda record: record[: at(record, place)] + record[at(record, place) + length :]


def repeated(place: float, length: int) -> Edit:
    return lambda record: record[: at(record, place) + length] + record[at(record, place) :]


EDITS = st.one_of(
    st.builds(overwritten, PLACES, PIECES),
    st.builds(inserted, PLACES, PIECES),
    st.builds(removed, PLACES, st.integers(1, 20)),
    st.builds(repeated, PLACES, st.integers(1, 20)),
)
RECORDS = st.integers(0, 1 << 10).map(lambda which: stored()[which % len(stored())])
DAMAGED = st.builds(
    lambda record, edits: _edited(record, edits), RECORDS, st.lists(EDITS, min_size=1, max_size=4)
)


def _edited(record: bytes, edits: list[Edit]) -> bytes:
    for edit in edits:
        record = edit(record)
    return record


def sound(event: Event) -> bool:
    """Return True if every value of the event is of its type: the event survives a round trip."""
    return event == codec.decode(codec.encode(event))


@given(DAMAGED)
@settings(max_examples=100)
@example(stored()[0][:HEADER_BYTES] + b"\xff" * 9 + b"\x01")
def test_damage_is_another_event_or_corrupt(record: bytes) -> None:
    """A record with overwritten, inserted, removed or repeated bytes is `Corrupt` or a sound
    event."""
    try:
        event = codec.decode(record)
    except Corrupt:
        return
    assert sound(event)


@given(RECORDS, RECORDS, PLACES, PLACES)
@settings(max_examples=100)
def test_halves_of_two_records_are_another_event_or_corrupt(
    left: bytes, right: bytes, first: float, second: float
) -> None:
    """The head of one record before the tail of another one is `Corrupt` or a sound event."""
    try:
        event = codec.decode(left[: at(left, first)] + right[at(right, second) :])
    except Corrupt:
        return
    assert sound(event)


def test_every_byte_may_have_every_value() -> None:
    """A stored record with any byte set to an extreme or nearby value is `Corrupt` or a sound
    event."""
    for record in stored():
        for place in range(len(record)):
            for value in (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, record[place] ^ 1, record[place] ^ 0x80):
                damaged = record[:place] + bytes([value]) + record[place + 1 :]
                try:
                    event = codec.decode(damaged)
                except Corrupt:
                    continue
                assert sound(event)


@given(st.lists(DAMAGED, min_size=1, max_size=5))
def test_a_log_with_damaged_records_goes_on(records: list[bytes]) -> None:
    """A reader skips damaged records, counts those that are no events of its job, and finds the
    next event."""
    log = MemoryEventLog(1)
    last = Event("id", JOB, "", 1, "driver", None, JobUnregistered("end"))
    for record in records:
        log.put_record(JOB, JOB, record)
    log.append(last)
    follower = log.follow(JOB)
    events = [recorded.event for recorded in follower.poll(100, 0.0)]
    assert last == events[-1]
    assert {JOB} == {event.job for event in events}
    assert len(records) + 1 == len(events) + follower.rejected
    assert follower.position() == follower.end()
