"""When a master writes a snapshot, and what of it is new.

A snapshot follows so many facts, but no fewer than the attempts that it would write again: so the
work for an event is bounded, however large the results are. It follows also a time in which the
log went on, so that its position is never older than what the log keeps.
"""

from __future__ import annotations

import logging

from . import snapshots
from .contract import MasterSettings
from .events import Recorded
from .log import StateRecord
from .replay import Snapshot
from .snapshots import Standing
from .state import JobState

_LOG = logging.getLogger(__name__)
_STEP_BYTES_MAX = 64 << 20  # one transaction carries it, and is open no longer than others


class Keeper:
    def __init__(
        self, settings: MasterSettings, standing: Standing, position: int, now_ms: int
    ) -> None:
        self._settings = settings
        self._standing = standing
        self._position = position
        self._at_ms = now_ms
        self._facts = 0
        self._too_large = False

    def observe(self, recorded: Recorded) -> None:
        self._facts += recorded.event.basis is None

    def records(self, snapshot: Snapshot, now_ms: int) -> tuple[StateRecord, ...]:
        """What a snapshot has to write, nothing when none is due; taken for written."""
        if not self._is_due(snapshot, now_ms):
            return ()
        self._position, self._at_ms, self._facts = snapshot.position, now_ms, 0
        records, standing = snapshots.write(snapshot, self._standing)
        size_bytes = sum(len(record.body or b"") for record in records)
        if size_bytes > _STEP_BYTES_MAX:
            self._say_too_large(snapshot.state, size_bytes)
            return ()
        self._standing = standing
        return records

    def end(self, state: JobState) -> tuple[StateRecord, ...]:
        """What leaves nothing of a job that has ended; taken for written."""
        if not is_over(state):
            return ()
        records = snapshots.end(self._standing)
        self._standing, self._facts = Standing(), 0
        return records

    def _say_too_large(self, state: JobState, size_bytes: int) -> None:
        if not self._too_large:
            _LOG.warning(
                "a snapshot of job %s would write %d bytes, over %d: a later master reads its log "
                "from further back",
                state.job,
                size_bytes,
                _STEP_BYTES_MAX,
            )
        self._too_large = True

    def _is_due(self, snapshot: Snapshot, now_ms: int) -> bool:
        state = snapshot.state
        if state.epoch == 0 or is_over(state) or self._position == snapshot.position:
            return False
        if now_ms - self._at_ms >= self._settings.snapshot_ms:
            return True
        if self._facts < self._settings.snapshot_events:
            return False
        changed = self._standing.changed(state)
        return self._facts >= sum(len(state.results[name].attempts) for name in changed)


def is_over(state: JobState) -> bool:
    """Nobody speaks for the job, and no object of it is left."""
    return state.closed is not None and not any(r.attempts for r in state.results.values())
