"""Keep the events of one job, and tell the state of the job at each of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from ..errors import Invalid
from ..events.types import Recorded
from ..ids import JobId
from ..model.replay import Replay, Snapshot
from ..model.state import JobState
from .audit import after

_STRIDE = 128  # states are kept this many events apart: they share what has not changed


class JobHistory:
    """The events of a job that its log still has. Where the log has lost the first ones, the states
    start at the job's snapshot."""

    def __init__(self, job: JobId, snapshot: Snapshot | None = None) -> None:
        self.job = job
        self.records: list[Recorded] = []
        self._snapshot = snapshot
        self._start = Replay(job, snapshot)
        self._states: list[JobState] = []

    def observe(self, records: Iterable[Recorded]) -> None:
        """Add the next events, in the order of the log."""
        for recorded in records:
            if not self.records:
                self._start = Replay.of(recorded, self._snapshot)
                self._states = [self._start.state]
            elif len(self.records) % _STRIDE == 0:
                self._states.append(self._folded(len(self.records)))
            self.records.append(recorded)

    @property
    def start(self) -> Snapshot | None:
        """Return the snapshot at which the states start, None if they start at the first event."""
        return self._start.start

    def until(self, at: int | None) -> Sequence[Recorded]:
        """Return the events up to an offset, or all of them."""
        return self.records if at is None else self.records[: self._count(at)]

    def state(self, at: int | None = None) -> JobState:
        """Return the state at an offset, or now, by the facts up to there.

        Raises:
            Invalid: the log has lost the events from which that state follows.
        """
        start = self._start.start
        if at is not None and start is not None and at < start.position - 1:
            raise Invalid(
                f"the first events of job {self.job} are gone: its state is known from the "
                f"snapshot at offset {start.position} on, not at {at}"
            )
        return self._folded(len(self.records) if at is None else self._count(at))

    def _count(self, at: int) -> int:
        return bisect_right(self.records, at, key=lambda recorded: recorded.offset)

    def _folded(self, count: int) -> JobState:
        """Return the state after the first `count` events."""
        if not self.records:
            return self._start.state
        nearest = min(count // _STRIDE, len(self._states) - 1)
        state = self._states[nearest]
        for recorded in self.records[nearest * _STRIDE : count]:
            if not self._start.knows(recorded):
                state = after(state, recorded)
        return state
