"""Whatever text a stranger, an operator or an exception gives, the decisions on it fit a record."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from headgate.control.events import codec, traits
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Decision,
    Event,
    Fact,
    JobFailed,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    Lost,
    Released,
    ReleaseRequested,
    Reproduce,
    ResultRegistered,
    StopTrackingRequested,
    Superseded,
    TrackingStopped,
)
from headgate.control.ids import AttemptId, PartitionId, ResultId, in_parts
from headgate.control.memory.log import MemoryEventLog

from ..doubles.events import BODIES, assert_no_event, event
from ..doubles.jobs import (
    JOB,
    OPENING,
    REGISTERED,
    RESULT,
    OrderedStorage,
    attempt,
    audited,
    produced,
    state_facts,
)
from ..doubles.snapshots import last_state, opened, standing
from ..doubles.steps import drive

LONG = "x" * (codec.RECORD_BYTES_MAX - 200)
WIDE = "\U0001f642" * 600_000
STATED: tuple[Fact, ...] = (
    AttemptFailed(attempt(1, 7), LONG),
    Lost(attempt(0, 1), "object", LONG),
    Lost(attempt(0, 1), LONG, "404"),
    StopTrackingRequested(RESULT, LONG, 1),
    ReleaseRequested(RESULT, LONG, 1),
    JobUnregistered(LONG, 1),
    LeaseExpired(LONG, 1),
)


def put(log: MemoryEventLog, fact: Fact) -> None:
    """Write a fact as a stranger would: as long as it is."""
    out = bytearray(codec._PREFIX)
    codec._write(out, Event("stranger.0", JOB, "", 0, "stranger", None, fact))
    assert codec.RECORD_BYTES_MAX - 200 < len(out) <= codec.RECORD_BYTES_MAX
    log.put_record(JOB, JOB, bytes(out))


@pytest.mark.parametrize("fact", STATED, ids=lambda fact: type(fact).__name__)
def test_a_long_text_stops_no_job(fact: Fact) -> None:
    """A master decides on a fact with a text that nearly fills a record, and so does the next
    one. Neither keeps all of the text in its snapshots."""
    log = MemoryEventLog(1)
    state_facts(log, *OPENING, AttemptStarted(attempt(1, 7), "host"), produced(0, 1))
    for by in ("first", "second"):
        with closing(opened(log)) as steps:
            put(log, fact)
            state_facts(log, produced(1, 8), by=by)
            drive(steps, log, OrderedStorage(log))
            state = last_state(drive(steps, log, OrderedStorage(log)))
        replay = audited(log)
        assert replay.state == state
        assert replay.decisions > 4
        assert 0 < sum(map(len, standing(log).values())) < 50_000
    with closing(opened(log)) as steps:
        state_facts(log, REGISTERED, by="later")
        assert 2 == last_state(drive(steps, log, OrderedStorage(log))).epoch


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_text_is_cut_in_one_place(body: Any) -> None:
    """An event of each kind may be given texts of any length: what is written, and what is read of
    a record that has more, is cut. Other fields stay."""
    names = {"reason", "evidence", "object", "label"} & {f.name for f in fields(body)}
    long = event(replace(body, **dict.fromkeys(names, WIDE)))
    short = codec.decode(codec.encode(long))
    shorter: Any = short.body
    for name in names:
        text = getattr(shorter, name)
        assert codec.TEXT_CHARS_MAX == len(text)
        assert text.startswith(WIDE[:1_000])
        assert text.endswith("…")
    kept = {name: getattr(body, name) for name in names}
    assert event(body) == replace(short, body=replace(shorter, **kept))


def test_the_largest_decisions_fit_a_record() -> None:
    """Decisions with the longest names, texts and lists that `decide` makes are written."""
    name = ResultId("r" * 100)
    many = [AttemptId(PartitionId(name, traits.PARTS_MAX), 2**31, 2**40 + n) for n in range(4_001)]
    attempts = max(in_parts(many), key=len)
    largest: tuple[Decision, ...] = (
        Superseded(attempts[0], WIDE),
        Reproduce(name, tuple(range(traits.PARTS_MAX)), WIDE),
        TrackingStopped(name, attempts, WIDE),
        Released(name, attempts, WIDE),
        JobFailed(WIDE),
    )
    assert {type(body) for body in largest} == {
        kind for kind in get_args(Decision) if "reason" in {f.name for f in fields(kind)}
    }
    for body in largest:
        ids = {"id": "i" * 1_000, "cause": "c" * 1_000, "by": "b" * 1_000}
        whole = replace(event(body), **ids)  # type: ignore[arg-type]
        assert type(body) is type(codec.decode(codec.encode(whole)).body)


@pytest.mark.parametrize("name", ["id", "cause", "by"])
def test_a_long_id_is_no_event(name: str) -> None:
    """An id that decisions would repeat in full is refused by writers, and skipped by readers."""
    wrong = replace(event(JobUnregistered("x")), **{name: "i" * 1_001})  # type: ignore[arg-type]
    assert_no_event(wrong)


def test_a_lease_is_not_longer_than_heartbeats_are_kept() -> None:
    """A driver of any engine is refused a lease for which its last heartbeat may be gone."""
    day_ms = 86_400_000
    assert codec.encode(event(JobRegistered("per-job", "0", "a", "", 2 * day_ms)))
    for lease_ms in (2 * day_ms + 1, 6 * day_ms, -1):
        assert_no_event(event(JobRegistered("per-job", "0", "a", "", lease_ms)))


def test_a_text_that_utf_8_cannot_write_is_spelled_out() -> None:
    """The error of a file with a broken name fails the attempt, and not the event."""
    failed = AttemptFailed(attempt(0, 1), "no such file: \udcff" + "ü" * 10)
    body = codec.decode(codec.encode(event(failed))).body
    assert replace(failed, reason="no such file: \\udcff" + "ü" * 10) == body
    many = replace(failed, reason="\udcff" * codec.TEXT_CHARS_MAX)
    short: Any = codec.decode(codec.encode(event(many))).body
    assert codec.TEXT_CHARS_MAX == len(short.reason)


def test_a_record_has_room_for_a_schema() -> None:
    """The schema of a result is not cut: readers need all of it."""
    schema = "s" * 400_000
    body = ResultRegistered(RESULT, 1, 1, schema, "label")
    assert event(body) == codec.decode(codec.encode(event(body)))
