"""Check a log against itself: derive every decision again, fold the facts into states, and find the
facts from which nothing follows: late, repeated, or about things that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TypeAlias

from ..errors import Corrupt, Invalid
from ..events.codec import check_known
from ..events.traits import traits_of
from ..events.types import JobRegistered, Recorded
from ..ids import JobId
from ..model.decide import step
from ..model.replay import Replay, Snapshot
from ..model.state import JobState


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one job's log."""

    job: JobId
    facts: int
    decisions: int
    due: int
    """The number of decisions that follow from the facts and are not recorded."""
    whole: bool = True
    """False if the log has lost its head and there is no snapshot: then nothing can be derived."""
    violation: str = ""
    """The difference between a recorded decision and the one that follows; empty if there is
    none."""
    offset: int | None = None
    """The offset of that decision."""
    start: int | None = None
    """The offset of the snapshot at which the audit starts; None if it starts at the job's first
    event."""


Snapshots: TypeAlias = Mapping[JobId, Snapshot]
_NONE: Snapshots = MappingProxyType({})


def audit(records: Iterable[Recorded], snapshots: Snapshots = _NONE) -> tuple[Audit, ...]:
    """Derive every decision of every job again; a job is followed up to its first violation."""
    replays: dict[JobId, Replay] = {}
    ended: dict[JobId, Audit] = {}
    for recorded in records:
        job = recorded.event.job
        if job not in replays:
            replays[job] = Replay.of(recorded, snapshots.get(job))
            has_head = isinstance(recorded.event.body, JobRegistered)
            if replays[job].start is None and not has_head:
                ended[job] = Audit(job, 0, 0, 0, whole=False)
        replay = replays[job]
        if job in ended or replay.knows(recorded):
            continue
        try:
            replay.observe(recorded)
        except (Corrupt, Invalid) as exc:
            ended[job] = _audited(replay, str(exc), recorded.offset)
    return tuple(ended.get(job) or _audited(replay) for job, replay in replays.items())


def _audited(replay: Replay, violation: str = "", offset: int | None = None) -> Audit:
    return Audit(
        replay.state.job,
        replay.facts,
        replay.decisions,
        len(replay.due),
        violation=violation,
        offset=offset,
        start=None if replay.start is None else replay.start.position,
    )


def fold(records: Iterable[Recorded], snapshots: Snapshots = _NONE) -> tuple[JobState, ...]:
    """Return the state of every job after these records, by its facts alone. Where the log has lost
    a job's first facts, start at its snapshot.

    Raises:
        Invalid: a newer version has written an event or a snapshot.
    """
    if newer := next((snapshot.newer for snapshot in snapshots.values() if snapshot.newer), ""):
        raise Invalid(newer)
    states: dict[JobId, JobState] = {}
    replays: dict[JobId, Replay] = {}
    for recorded in records:
        job = recorded.event.job
        if job not in replays:
            replays[job] = Replay.of(recorded, snapshots.get(job))
            states[job] = replays[job].state
        if not replays[job].knows(recorded):
            states[job] = after(states[job], recorded)
    gone = {job: snapshot.state for job, snapshot in snapshots.items() if job not in states}
    return (*states.values(), *gone.values())


def after(state: JobState, recorded: Recorded) -> JobState:
    """Return the state of a job after its next event. A decision changes nothing: the fact that it
    follows from has done so."""
    event, body = recorded.event, recorded.event.body
    check_known(recorded)
    if event.basis is not None:
        return state
    return step(state, body, recorded.offset)[0]  # type: ignore[arg-type]


def refused(records: Iterable[Recorded], snapshots: Mapping[JobId, Snapshot]) -> Iterator[Recorded]:
    """Yield each job's facts, except ticks, that changed nothing and led to no decision. Follow a
    job up to the first decision that does not follow from its facts."""
    replays: dict[JobId, Replay] = {}
    broken: set[JobId] = set()
    for recorded in records:
        job = recorded.event.job
        if job not in replays:
            replays[job] = Replay.of(recorded, snapshots.get(job))
        replay = replays[job]
        if job in broken or replay.knows(recorded):
            continue
        before = replay.state
        try:
            derived = replay.observe(recorded)
        except (Corrupt, Invalid):
            broken.add(job)
            continue
        event = recorded.event
        refuses = event.basis is None and not traits_of(event.body).may_change_nothing
        if refuses and not derived and _is_same(before, replay.state):
            yield recorded


def _is_same(before: JobState, after: JobState) -> bool:
    """Return True if two states are the same, but for the time at which the driver was heard."""
    names = (part.name for part in fields(JobState) if part.name != "heard")
    return all(getattr(before, name) is getattr(after, name) for name in names)
