"""Which jobs nobody speaks for any more, as far as log and heartbeats tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .contract import PER_JOB
from .errors import Corrupt
from .events import Recorded
from .ids import JobId
from .keeping import is_over
from .replay import Replay, Snapshot
from .state import JobState


@dataclass(frozen=True, slots=True)
class Neglected:
    """A job to look after. `silent_ms` is how long its driver was not heard, 0 when it has said
    that it ends; `store` is where its objects are, empty when nobody said."""

    state: JobState
    mode: str
    store: str
    silent_ms: int

    @property
    def job(self) -> JobId:
        return self.state.job


@dataclass(slots=True)
class _Seen:
    replay: Replay
    at_ms: int = 0
    broken: bool = field(default=False)


def neglected(
    records: Iterable[Recorded],
    snapshots: Mapping[JobId, Snapshot],
    beats: Mapping[JobId, int],
    now_ms: int,
) -> Iterator[Neglected]:
    """The jobs whose driver was silent for longer than their lease, and those that have ended and
    still have something that was ordered to go. A log that does not explain itself proves nothing:
    its job is left alone."""
    seen = {job: _Seen(Replay(job, snapshot)) for job, snapshot in snapshots.items()}
    for recorded in records:
        job = recorded.event.job
        one = seen.setdefault(job, _Seen(Replay(job)))
        one.at_ms = max(one.at_ms, recorded.event.time_ms)
        if one.broken or one.replay.knows(recorded):
            continue
        try:
            one.replay.observe(recorded)
        except Corrupt:
            one.broken = True
    for job, one in seen.items():
        heard_ms = max(one.at_ms, beats.get(job, 0))
        if not one.broken and (found := _judged(one.replay, now_ms - heard_ms)) is not None:
            yield found


def _judged(replay: Replay, silent_ms: int) -> Neglected | None:
    state, said = replay.state, replay.registered
    if said is None or is_over(state):
        return None
    mode = replay.mode or PER_JOB
    if state.closed is not None:
        doomed = any(result.doomed for result in state.results.values())
        return Neglected(state, mode, said.store, 0) if doomed else None
    late = 0 < said.lease_ms < silent_ms
    return Neglected(state, mode, said.store, silent_ms) if late else None
