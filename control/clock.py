"""The clock port, and the lengths of waits. Only this module reads the machine's clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Return a time in seconds that never runs backwards."""

    def sleep_s(self, seconds: float) -> None:
        """Block the caller for a number of seconds."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Pace:
    """The lengths of the waits in loops."""

    poll_s: float = 0.2
    """One wait for events. Between two of them a loop checks whether it should end."""
    gather_s: float = 0.05
    """One wait for more facts that nobody needs yet, to handle them together."""
    pause_s: float = 0.1
    """The time between two looks for something that another process is about to do."""
    retry_s: float = 0.5
    """The time between a failure and the next try."""
    refresh_s: float = 300.0
    """The time for which an answer counts that hardly ever changes."""


PACE = Pace()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time that a wait must not pass, and the steps in which to wait for less."""

    at_s: float
    clock: Clock

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return cls(clock.monotonic_s() + seconds, clock)

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - self.clock.monotonic_s())

    @property
    def passed(self) -> bool:
        return self.left_s <= 0.0

    @property
    def poll_s(self) -> float:
        """Return the limit of one wait for events."""
        return min(PACE.poll_s, self.left_s)

    def progress(self) -> None:
        """Take in that the work goes on. A deadline stays where it is."""

    def pause(self, times: int = 1) -> None:
        """Wait before another look, `times` as long as usual, but not beyond the deadline."""
        self.clock.sleep_s(min(times * PACE.pause_s, self.left_s))


class ProgressDeadline(Deadline):
    """A limit of the time without progress, for work whose length nobody knows."""

    __slots__ = ("_limit_s", "_until_s")
    _limit_s: float
    _until_s: float

    def __init__(self, limit_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        Deadline.__init__(self, clock.monotonic_s() + limit_s, clock)
        object.__setattr__(self, "_limit_s", limit_s)
        self.progress()

    def end(self) -> None:
        """Let the time be over, whatever progress there is."""
        object.__setattr__(self, "_limit_s", -math.inf)
        self.progress()

    def progress(self) -> None:
        object.__setattr__(self, "_until_s", self.clock.monotonic_s() + self._limit_s)

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - self.clock.monotonic_s())
