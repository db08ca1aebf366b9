"""Find the jobs whose driver is gone, as far as log and heartbeats tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..contract import PER_JOB
from ..errors import Corrupt
from ..events.types import Recorded, Tick
from ..ids import JobId
from ..model.decide import decide
from ..model.replay import Replay, Snapshot
from ..model.state import JobState
from ..snapshots.schedule import is_over


@dataclass(frozen=True, slots=True)
class Neglected:
    """A job to look after at a time of the log's clock. `silent_ms` is how long its driver was not
    heard, 0 when it has said that it ends; `store` is where its objects are, empty when nobody
    said. One that is over, or has never begun, has nothing left but its last snapshot."""

    state: JobState
    mode: str
    store: str
    silent_ms: int
    now_ms: int

    @property
    def job(self) -> JobId:
        return self.state.job


@dataclass(slots=True)
class _Seen:
    replay: Replay
    position: int = 0
    broken: bool = False


def neglected(
    records: Iterable[Recorded],
    snapshots: Mapping[JobId, Snapshot],
    beats: Mapping[JobId, int],
    now_ms: int,
    oldest: Callable[[JobId], int],
) -> Iterator[Neglected]:
    """The jobs whose driver was silent for longer than their lease, and those that have ended and
    still have something that was ordered to go, or whose time is over, or whose log is gone: there
    `oldest` lies behind all of it, also where the driver was gone before it registered. A log that
    does not explain itself proves nothing: its job is left alone. `records` need not have what the
    snapshots know."""
    seen = {job: _Seen(Replay(job, one), one.position) for job, one in snapshots.items()}
    for recorded in records:
        job = recorded.event.job
        one = seen.setdefault(job, _Seen(Replay(job)))
        one.position = max(one.position, recorded.offset + 1)
        if one.broken or one.replay.knows(recorded):
            continue
        try:
            one.replay.observe(recorded)
        except Corrupt:
            one.broken = True
    for job, one in seen.items():
        if one.broken:
            continue
        state = one.replay.state
        if (is_over(state) or not state.epoch) and one.position > oldest(job):
            continue
        if (found := _judged(one.replay, beats.get(job, 0), now_ms)) is not None:
            yield found


def _judged(replay: Replay, beat_ms: int, now_ms: int) -> Neglected | None:
    state, said = replay.state, replay.registered
    if said is None:
        return None if state.epoch else Neglected(state, PER_JOB, "", 0, now_ms)
    silent_ms = now_ms - max(replay.heard_ms, beat_ms)
    mode = replay.mode or PER_JOB
    if is_over(state):
        return Neglected(state, mode, said.store, 0, now_ms) if mode == PER_JOB else None
    if state.closed is not None:
        doomed = any(result.doomed for result in state.results.values())
        late = bool(decide(state, Tick(now_ms)))
        return Neglected(state, mode, said.store, 0, now_ms) if doomed or late else None
    late = 0 < said.lease_ms < silent_ms
    return Neglected(state, mode, said.store, silent_ms, now_ms) if late else None
