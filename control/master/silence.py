"""Which jobs nobody speaks for any more, as far as log and heartbeats tell."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock import Clock, Deadline
from ..errors import Unavailable
from ..ids import JobId
from ..log import EventLog
from ..model.state import JobState

# Whoever beats under it tells how late it is by the log's clock. No job has this name.
MASTERS = JobId("masters")
_PAUSE_S = 0.1
_TRUSTED_S = 300.0  # for how long one's own clock is trusted to go on with the log's


class LogTime:
    """The log's clock, as its last answer and the time since then tell it: this machine's may be
    days off. Before the first answer it is this machine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms: float | None = None
        self._trusted = Deadline.after(0.0, clock)

    def hear(self, at_ms: int) -> None:
        self._ahead_ms = at_ms - 1000 * self._clock.monotonic_s()
        self._trusted = Deadline.after(_TRUSTED_S, self._clock)

    def now_ms(self) -> int:
        if self._ahead_ms is None:
            return self._clock.now_ms()
        return round(self._ahead_ms + 1000 * self._clock.monotonic_s())

    @property
    def is_stale(self) -> bool:
        """Return whether the log is to be asked again by whoever waits for a time."""
        return self._trusted.passed


@dataclass(slots=True)
class SilenceTimer:
    """A driver's silence. One that was silent for its lease is given another half, for it may be
    that nobody could be heard."""

    _heard_ms: int = 0
    _late_ms: int = 0

    def hear(self, at_ms: int) -> None:
        if at_ms > self._heard_ms:
            self._heard_ms, self._late_ms = at_ms, 0

    def is_due(self, lease_ms: int, now_ms: int) -> bool:
        """Whether it is time to ask when it was heard."""
        since_ms = self._late_ms + lease_ms // 2 if self._late_ms else self._heard_ms + lease_ms
        return lease_ms > 0 and since_ms < now_ms

    def silent_ms(self, lease_ms: int, now_ms: int) -> int:
        """How long it was not heard, 0 while it has time."""
        silent_ms = now_ms - self._heard_ms
        if not 0 < lease_ms < silent_ms:
            return 0
        self._late_ms = self._late_ms or now_ms
        return silent_ms if now_ms - self._late_ms > lease_ms // 2 else 0


def time_of(log: EventLog, name: JobId, deadline: Deadline) -> int:
    """What time it is by the log's clock, which tells when drivers were heard: the one of whoever
    asks may be wrong. `name` is one that nobody else asks or beats under.

    Raises:
        Unavailable: the log did not say so within the deadline.
    """
    log.beat(name)
    while name not in (beats := log.read_beats(name, deadline)):
        if deadline.passed:
            raise Unavailable("the log did not say what time it is")
        deadline.clock.sleep_s(_PAUSE_S)
    return beats[name]


def minds_time(state: JobState) -> bool:
    """Return whether a job has a promoted result that ends some day."""
    return any(one.expires_ms and not one.released for one in state.results.values())
