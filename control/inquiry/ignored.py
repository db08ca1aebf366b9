"""Find the facts from which nothing follows: late, repeated, or about things that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields

from ..errors import Corrupt, Invalid
from ..events.traits import traits_of
from ..events.types import Recorded
from ..ids import JobId
from ..model.replay import Replay, Snapshot
from ..model.state import JobState


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
