"""Decide when a master writes a snapshot, and which of its records are new.

A snapshot is due after a number of facts, but never after fewer facts than it would write attempts
again: so the work for each event is bounded, however large the results are. It is also due after a
time in which the log went on, so that its position is never older than what the log keeps. Then all
records are written again, because the state topic may have been lost. A master writes its first
snapshot at once, so that short-lived masters write some too, and another one as soon as a result is
to outlive its job.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ..contract import MasterSettings
from ..events.types import Promoted, Recorded, TrackingStopped
from ..log import StateRecord
from ..model.replay import Snapshot
from ..model.state import JobState
from . import records as snapshots
from .records import Standing

_LOG = logging.getLogger(__name__)
_STEP_BYTES_MAX = 64 << 20  # one transaction carries it, and must not be open for long


@dataclass(frozen=True, slots=True)
class _Kept:
    """The snapshot that the log has of a job."""

    standing: Standing
    position: int
    """The snapshot has all events before this offset."""
    at_ms: int
    """The time at which the snapshot was made."""


class SnapshotSchedule:
    """Decides when a snapshot of one job is due. Records returned by `records` or `end` count as
    stored only after `kept` is called, once their step has committed."""

    def __init__(
        self, settings: MasterSettings, log: str, standing: Standing, position: int, now_ms: int
    ) -> None:
        """`log` is the identity of the log."""
        self._settings = settings
        self._log = log
        self._kept = self._next = _Kept(standing, position, now_ms)
        self._whole_ms = now_ms
        self.unsaved: int | None = None  # the offset of the oldest event that no snapshot has
        self._facts = 0
        self._hurries = True
        self._too_large = False

    @property
    def position(self) -> int:
        """Return the position of the newest snapshot, even if it was too large to write. At first,
        return the position at which the log was taken up."""
        return self._kept.position

    def observe(self, recorded: Recorded) -> None:
        self._facts += recorded.event.basis is None
        self._hurries |= isinstance(recorded.event.body, Promoted | TrackingStopped)
        if self.unsaved is None:
            self.unsaved = recorded.offset

    def is_due(self, snapshot: Snapshot, now_ms: int) -> bool:
        state, kept = snapshot.state, self._kept
        if state.epoch == 0 or is_over(state) or kept.position == snapshot.position:
            return False
        if self._hurries and self.unsaved is not None:
            return True
        if abs(now_ms - kept.at_ms) >= self._settings.snapshot_ms:  # a clock may be set back
            return True
        if self._facts < self._settings.snapshot_events:
            return False
        changed = kept.standing.changed(state)
        return self._facts >= sum(len(state.results[name].production.attempts) for name in changed)

    def is_last_due(self, snapshot: Snapshot) -> bool:
        """Return True if the job has ended, and its last snapshot is not written."""
        return is_over(snapshot.state) and self.unsaved is not None and not snapshot.due

    def is_parting_due(self, snapshot: Snapshot) -> bool:
        """Return True if the job's only master is about to go, and has not written a snapshot of
        what stays: nobody else would write it before the log forgets."""
        unsaved = self.unsaved is not None and not self._too_large
        return is_left(snapshot.state) and unsaved and not snapshot.due

    @property
    def may_part(self) -> bool:
        """Return True if nothing is left to write, or the snapshot is too large to write."""
        return self.unsaved is None or self._too_large

    def records(self, snapshot: Snapshot, now_ms: int) -> tuple[StateRecord, ...]:
        """Return the records that a snapshot has to write; none if they are too large for a
        step."""
        snapshot, before = replace(snapshot, log=self._log), self._kept.standing
        records, standing = snapshots.write(snapshot, before)
        if abs(now_ms - self._whole_ms) >= self._settings.snapshot_ms:
            self._whole_ms = now_ms
            whole = snapshots.write(snapshot, Standing(before.keys))
            if _size_bytes(whole[0]) <= _STEP_BYTES_MAX:
                records, standing = whole
        size_bytes = _size_bytes(records)
        self._next = _Kept(standing, snapshot.position, now_ms)
        if size_bytes > _STEP_BYTES_MAX:
            self._say_too_large(snapshot.state, size_bytes)
            self._kept = _Kept(self._kept.standing, snapshot.position, now_ms)
            self._facts, self._hurries = 0, False
            return ()
        return records

    def end(self) -> tuple[StateRecord, ...]:
        """Return the records that remove everything of the job."""
        self._next = _Kept(Standing(), self._kept.position, self._kept.at_ms)
        return snapshots.end(self._kept.standing)

    def kept(self) -> None:
        """Take in that the records that were returned last are committed."""
        self._kept, self._facts, self.unsaved = self._next, 0, None
        self._hurries = False

    def _say_too_large(self, state: JobState, size_bytes: int) -> None:
        if not self._too_large:
            _LOG.warning(
                "a snapshot of job %s would write %d bytes, over the limit of %d: the next master "
                "reads more of its log",
                state.job,
                size_bytes,
                _STEP_BYTES_MAX,
            )
        self._too_large = True


def _size_bytes(records: tuple[StateRecord, ...]) -> int:
    return sum(len(record.body or b"") for record in records)


def is_over(state: JobState) -> bool:
    """Return True if the job is closed and none of its objects is left."""
    attempts = (result.production.attempts for result in state.results.values())
    return state.closed is not None and not any(attempts)


def is_left(state: JobState) -> bool:
    """Return True if the job is closed and all objects that were ordered to go are gone."""
    return state.closed is not None and not any(r.doomed for r in state.results.values())
