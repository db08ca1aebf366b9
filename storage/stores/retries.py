"""When a request is tried again, and how long to wait before.

The policy reads the class of the error, never its text: `Retryable` is tried again, nothing else.
Three limits hold: tries and seconds per request, and a budget that all requests of one store share,
so that a store in trouble is not met by every thread's repetitions at once. A repetition takes one
token, a success gives a part of one back.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...control.clock import SYSTEM_CLOCK, Clock
from ...control.errors import Retryable, Throttled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    tries_max: int = 12
    limit_s: float = 120.0
    backoff_ms: int = 50
    backoff_ms_max: int = 5_000
    budget_tokens: float = 200.0
    refund_tokens: float = 0.1


class Retrier:
    """The retry budget of one store; safe to share between threads."""

    def __init__(self, settings: RetrySettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        self._lock = threading.Lock()
        self._tokens = settings.budget_tokens

    def run(self, key: str, request: Callable[[], T]) -> T:
        """The answer of the request, tried again while its errors are retryable."""
        tries: Tries | None = None
        while True:
            try:
                answer = request()
            except Retryable as error:
                tries = tries or Tries(self, key)
                if not tries.again(error):
                    raise
            else:
                self.refund()
                return answer

    def refund(self) -> None:
        """Tell of a success."""
        with self._lock:
            refilled = self._tokens + self.settings.refund_tokens
            self._tokens = min(self.settings.budget_tokens, refilled)

    def take(self) -> bool:
        """Ask for one repetition."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


class Tries:
    """The tries of one request; its seconds count from the first failure."""

    def __init__(self, retrier: Retrier, key: str) -> None:
        self._retrier = retrier
        self._key = key
        self._failed_first_s: float | None = None
        self.count = 1

    def again(self, error: Retryable | None) -> bool:
        """Wait before the next try; False at once when a limit forbids one."""
        settings, clock = self._retrier.settings, self._retrier.clock
        now_s = clock.monotonic_s()
        if self._failed_first_s is None:
            self._failed_first_s = now_s
        wait_s = backoff_s(settings, self._key, self.count)
        if isinstance(error, Throttled):
            wait_s = max(wait_s, min(error.retry_after_s, settings.backoff_ms_max / 1000))
        late = now_s + wait_s > self._failed_first_s + settings.limit_s
        if late or self.count >= settings.tries_max or not self._retrier.take():
            return False
        clock.sleep_s(wait_s)
        self.count += 1
        return True


def backoff_s(settings: RetrySettings, key: str, tries: int) -> float:
    """Doubles with every try; spread over its upper half by a hash, so that a run repeats."""
    ceiling_ms = min(float(settings.backoff_ms_max), settings.backoff_ms * 2.0 ** (tries - 1))
    spread = zlib.crc32(f"{key}#{tries}".encode()) / 2**32
    return ceiling_ms * (0.5 + 0.5 * spread) / 1000
