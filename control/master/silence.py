"""Measure for how long drivers were silent, as far as log and heartbeats tell."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock import Clock, Deadline, Pace
from ..errors import Unavailable
from ..events.types import LeaseExpired
from ..ids import JobId
from ..log import EventLog
from ..model.state import JobState

# A heartbeat under this name has the time of the log's clock. No job has this name.
MASTERS = JobId("masters")


class LogTime:
    """Estimates the time of the log's clock, because this machine's clock may be days off: the
    log's last answer plus the time that has passed since. Before the first answer it is this
    machine's time. An answer counts for `refresh_s`."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace
        self._ahead_ms: float | None = None
        self._trusted = Deadline.after(0.0, clock)

    def hear(self, at_ms: int) -> None:
        self._ahead_ms = at_ms - 1000 * self._clock.monotonic_s()
        self._trusted = Deadline.after(self._pace.refresh_s, self._clock)

    def now_ms(self) -> int:
        if self._ahead_ms is None:
            return self._clock.now_ms()
        return round(self._ahead_ms + 1000 * self._clock.monotonic_s())

    @property
    def is_stale(self) -> bool:
        """Return True if the log should be asked for the time again."""
        return self._trusted.passed


@dataclass(slots=True)
class SilenceTimer:
    """Measures the silence of one driver. A driver that was silent for its lease has half a lease
    more: perhaps the log could not be reached."""

    _heard_ms: int = 0
    _late_ms: int = 0
    """The time at which the silence was first found longer than the lease; 0 before."""

    def hear(self, at_ms: int) -> None:
        if at_ms > self._heard_ms:
            self._heard_ms, self._late_ms = at_ms, 0

    def is_due(self, lease_ms: int, now_ms: int) -> bool:
        """Return True if it is time to read the driver's last heartbeat."""
        since_ms = self._late_ms + lease_ms // 2 if self._late_ms else self._heard_ms + lease_ms
        return lease_ms > 0 and since_ms < now_ms

    def silent_ms(self, lease_ms: int, now_ms: int) -> int:
        """Return the driver's silence once its lease and half a lease more are over, else 0. The
        first call that finds the lease over starts the half."""
        silent_ms = now_ms - self._heard_ms
        if not 0 < lease_ms < silent_ms:
            return 0
        self._late_ms = self._late_ms or now_ms
        return silent_ms if now_ms - self._late_ms > lease_ms // 2 else 0


def time_of(log: EventLog, name: JobId, deadline: Deadline) -> int:
    """Return the time by the log's clock, which also stamps heartbeats; the caller's own clock may
    be wrong. `name` must be used by no one else.

    Raises:
        Unavailable: the log did not say the time within the deadline.
    """
    log.beat(name)
    while name not in (beats := log.read_beats(name, deadline)):
        if deadline.passed:
            raise Unavailable("the log did not tell its time")
        deadline.pause()
    return beats[name]


def lease_expired(state: JobState, silent_ms: int) -> LeaseExpired:
    """Return the fact that ends the lease of a driver, unless the log has a sign of life of the
    driver that is not in `state`."""
    reason = f"its driver was silent for {silent_ms // 1000} s"
    return LeaseExpired(reason, state.epoch, state.heard)


def minds_time(state: JobState) -> bool:
    """Return True if a job has a promoted result that expires."""
    fates = (result.fate for result in state.results.values())
    return any(fate.expires_ms and not fate.released for fate in fates)
