"""The clock port. Only this module reads the machine's clock."""

from __future__ import annotations

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
class Deadline:
    """A point in time that a wait must not pass."""

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
