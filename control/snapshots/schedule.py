"""Decide when a master writes a snapshot, and which of its records are new.

A large snapshot is written in several steps, between which the master goes on. A snapshot is due
after a number of facts, but never after fewer facts than it would write attempts again: so the work
for each event is bounded, however large the results are. It is also due after a time in which the
log went on, so that its position is never older than what the log keeps. Then all records are
written again, because the state topic may have been lost. A master writes its first snapshot at
once, so that short-lived masters write some too, and another one as soon as a result is to outlive
its job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..contract import MasterSettings
from ..events.traits import traits_of
from ..events.types import Recorded
from ..log import StateRecord
from ..model.replay import Snapshot
from ..model.state import JobState, is_over
from . import records as snapshots
from .records import Ended, SnapshotSteps, Standing


@dataclass(frozen=True, slots=True)
class _Kept:
    """The snapshot that the log has of a job."""

    standing: Standing
    position: int
    """The snapshot has all events before this offset."""
    at_ms: int
    """The time at which the snapshot was made."""


class SnapshotSchedule:
    """Decides when a snapshot of one job is due. Records returned by `step` count as stored only
    after `kept` is called, once their step has committed."""

    def __init__(
        self, settings: MasterSettings, log: str, standing: Standing, position: int, now_ms: int
    ) -> None:
        """`log` is the identity of the log."""
        self._settings = settings
        self._log = log
        self._kept = _Kept(standing, position, now_ms)
        self._writing: SnapshotSteps | None = None
        self._standing = standing  # once the step that was returned last is committed
        self._at_ms = self._whole_ms = now_ms
        self._before: int | None = None  # the oldest event that the log has no snapshot of
        self._since: int | None = None  # the oldest event after the snapshot that is being written
        self._facts = 0
        self._hurries = True

    @property
    def position(self) -> int:
        """Return the position of the newest whole snapshot. At first, return the position at which
        the log was taken up."""
        return self._kept.position

    @property
    def ended(self) -> Ended | None:
        """Return the newest snapshot if it is that of a job that has ended."""
        return self._kept.standing.ended

    @property
    def unsaved(self) -> int | None:
        """Return the offset of the oldest event that no whole snapshot has."""
        return self._since if self._before is None else self._before

    @property
    def is_writing(self) -> bool:
        """Return True if a snapshot is begun, and has steps left."""
        return self._writing is not None

    def unsaved_then(self) -> int | None:
        """Return what `unsaved` is once the next step is committed."""
        return self._since if self._writing is not None and self._writing.is_last else self.unsaved

    def observe(self, recorded: Recorded) -> None:
        self._facts += recorded.event.basis is None
        self._hurries |= traits_of(recorded.event.body).keeps_result
        if self._since is None:
            self._since = recorded.offset

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
        results = state.results.items()
        changed = [result for name, result in results if not kept.standing.holds(name, result)]
        return self._facts >= sum(len(result.production.attempts) for result in changed)

    def is_last_due(self, snapshot: Snapshot) -> bool:
        """Return True if the job has ended, and its last snapshot is not written."""
        return is_over(snapshot.state) and self.unsaved is not None and not snapshot.due

    def is_parting_due(self, snapshot: Snapshot) -> bool:
        """Return True if the job's only master is about to go, and no snapshot has the results that
        stay: nobody else would write it before the log forgets."""
        return is_left(snapshot.state) and self.unsaved is not None and not snapshot.due

    def begin(self, snapshot: Snapshot, now_ms: int) -> None:
        """Begin to write a snapshot: `step` returns its records."""
        assert self._writing is None, "the former snapshot has steps left"
        is_whole = abs(now_ms - self._whole_ms) >= self._settings.snapshot_ms
        self._whole_ms = now_ms if is_whole else self._whole_ms
        limit, self._at_ms = self._settings.snapshot_step_bytes, now_ms
        snapshot = replace(snapshot, log=self._log)
        self._writing = SnapshotSteps(snapshot, self._kept.standing, limit, is_whole)
        self._before, self._since = self.unsaved, None
        self._facts, self._hurries = 0, False

    @property
    def parts(self) -> tuple[StateRecord, ...]:
        """Return the records of results that the next step writes."""
        assert self._writing is not None, "no snapshot is begun"
        return self._writing.parts

    def step(self, needed: int = 0) -> tuple[StateRecord, ...]:
        """Return the records of the next step. The last step says that the partition must be read
        from the offset `needed`."""
        assert self._writing is not None, "no snapshot is begun"
        if not self._writing.is_last:
            return self._writing.parts
        needed = min(needed, self._writing.snapshot.position)
        records, self._standing = self._writing.end(needed)
        return records

    def kept(self) -> None:
        """Take in that the records that `step` returned last are committed."""
        assert self._writing is not None, "no snapshot is begun"
        if not self._writing.is_last:
            self._writing.wrote()
            return
        position = self._writing.snapshot.position
        self._kept = _Kept(self._standing, position, self._at_ms)
        self._writing, self._before = None, None

    def nothing(self, snapshot: Snapshot) -> tuple[StateRecord, ...]:
        """Return the records of a snapshot in which nothing has happened."""
        return snapshots.write(replace(snapshot, log=self._log), self._kept.standing)[0]

    def end(self) -> tuple[StateRecord, ...]:
        """Return the records that remove everything of the job."""
        return snapshots.end(self._kept.standing)


def is_left(state: JobState) -> bool:
    """Return True if the job is closed and all objects that were ordered to go are gone."""
    return state.closed is not None and not any(r.doomed for r in state.results.values())
