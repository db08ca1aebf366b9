"""The traits of each kind of event, for all code that treats events alike.

Guarantees that every class of `Body` has a row. Assumes that fields of these names mean the same in
all events: `attempt` or `result` is the subject, `epoch` in a fact that of the driver that asks,
`reason` in a decision a text that another version may word otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, get_args

from ..ids import NAME_CHARS_MAX, AttemptId, ResultId, is_name
from . import types as ev

PARTS_MAX = 1 << 17  # partitions or subpartitions of a result
LEASE_MS_MAX = 2 * 24 * 60 * 60 * 1000  # so long the log keeps heartbeats, and no longer
COUNT_MAX = 1 << 56  # rows, bytes, requests or objects in one event

_known_names = lru_cache(4096)(is_name)


class Importance(IntEnum):
    PART = 0
    """An event of a task, or about parts of a result."""
    RESULT = 1
    """An event about a whole result: it has a line on level INFO."""
    JOB = 2
    """An event about a driver, a loss, a failure or a repair: the live page lists it, too."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The row of one kind of event."""

    importance: Importance
    by_masters: bool = False
    """True for a fact that masters publish by themselves. Every other fact is a sign of life of the
    driver, and keeps its lease from ending."""
    may_change_nothing: bool = False
    """True for a fact that is of use even if nothing follows; any other one is shown as refused."""
    orders_deletion: bool = False
    """True for a decision by which objects of its result are to be deleted."""
    keeps_result: bool = False
    """True for a decision after which a result may outlive its job."""
    beyond: Callable[[Any], str] = lambda body: ""
    """Return why a value of the event is out of bounds, or an empty text."""


def is_short_name(text: str) -> bool:
    return len(text) <= NAME_CHARS_MAX and _known_names(text)


def _beyond_result(body: ev.ResultRegistered) -> str:
    """Check a result. One of too many parts takes too much memory of every reader, and names go
    into keys and object names."""
    if not is_short_name(body.result):
        return f"{body.result[:NAME_CHARS_MAX]!r} cannot name a result"
    if not 0 <= body.partitions <= PARTS_MAX or not 0 <= body.subpartitions <= PARTS_MAX:
        return (
            f"{body.partitions} x {body.subpartitions} partitions: at most {PARTS_MAX} on each side"
        )
    return ""


def _beyond_lease(body: ev.JobRegistered) -> str:
    return "" if 0 <= body.lease_ms <= LEASE_MS_MAX else f"{body.lease_ms} ms is not a lease"


def _beyond_produced(body: ev.Produced) -> str:
    return _beyond_counts(
        body.throttled,
        body.plain_bytes,
        *(n for s in body.segments for n in (s.rows, s.size_bytes)),
    )


def _beyond_counts(*counts: int) -> str:
    """Return why a count is out of bounds for the sums of a job, or an empty text."""
    if min(counts) >= 0 and max(counts) <= COUNT_MAX:
        return ""
    return f"its numbers of rows, bytes, requests or objects are {min(counts)} to {max(counts)}"


_PART, _RESULT, _JOB = Importance
TRAITS: Mapping[type, Traits] = MappingProxyType(
    {
        # facts
        ev.JobRegistered: Traits(_JOB, beyond=_beyond_lease),
        ev.ResultRegistered: Traits(_RESULT, beyond=_beyond_result),
        ev.PartitionRegistered: Traits(_PART),
        ev.AttemptStarted: Traits(_PART),
        ev.AttemptFailed: Traits(_JOB),
        ev.SegmentProduced: Traits(
            _PART,
            beyond=lambda body: _beyond_counts(body.segment.rows, body.segment.size_bytes),
        ),
        ev.Produced: Traits(_PART, beyond=_beyond_produced),
        ev.WayChosen: Traits(_PART, beyond=lambda body: _beyond_counts(body.gets, body.ms)),
        ev.Consumed: Traits(
            _PART,
            beyond=lambda body: _beyond_counts(
                body.rows, body.read_bytes, body.requests, body.throttled
            ),
        ),
        ev.Lost: Traits(_JOB),
        ev.PromoteRequested: Traits(_PART),
        ev.StopTrackingRequested: Traits(_PART),
        ev.ReleaseRequested: Traits(_PART),
        ev.LeaseExpired: Traits(_JOB, by_masters=True),
        ev.Tick: Traits(_PART, by_masters=True, may_change_nothing=True),
        ev.Deleted: Traits(
            _RESULT, by_masters=True, beyond=lambda body: _beyond_counts(body.objects)
        ),
        ev.JobUnregistered: Traits(_JOB),
        # decisions
        ev.JobAccepted: Traits(_JOB),
        ev.PartitionAccepted: Traits(_PART),
        ev.Consumable: Traits(_PART),
        ev.Superseded: Traits(_JOB, orders_deletion=True),
        ev.ResultComplete: Traits(_RESULT),
        ev.Reproduce: Traits(_JOB),
        ev.TrackingStopped: Traits(_PART, keeps_result=True),
        ev.Promoted: Traits(_JOB, keeps_result=True),
        ev.Released: Traits(_RESULT, orders_deletion=True),
        ev.JobFailed: Traits(_JOB),
        # an event of a newer version
        ev.Newer: Traits(_PART),
    }
)
_ASKED_BY_DRIVERS = frozenset(
    kind for kind in get_args(ev.Fact) if "epoch" in {part.name for part in fields(kind)}
)


def traits_of(body: ev.Body | ev.Newer) -> Traits:
    return TRAITS[type(body)]


def is_sign_of_life(event: ev.Event) -> bool:
    """Return True if an event is a fact that shows that the job's driver lives."""
    return event.basis is None and not traits_of(event.body).by_masters


def asking_epoch(body: ev.Body) -> int:
    """Return the epoch of the driver whose request a fact is; 0 for any other event."""
    asked: Any = body
    return asked.epoch if type(body) in _ASKED_BY_DRIVERS else 0


def attempt_of(body: ev.Body | ev.Newer) -> AttemptId | None:
    """Return the attempt that an event is about, if it is about a single one."""
    return getattr(body, "attempt", None)


def result_of(body: ev.Body | ev.Newer) -> ResultId | None:
    """Return the result that an event is about, or None if the event is about a job."""
    attempt = attempt_of(body)
    return getattr(body, "result", None) if attempt is None else attempt.partition.result
