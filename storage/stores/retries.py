"""Retries of requests: the errors that allow one, their limits, and the wait before each.

The policy reads the class of an error, never its text: only a `Retryable` is tried again. Three
limits hold: tries per request, seconds per request, and a budget that all requests of one store
share, so that the retries of all threads do not overload a store in trouble. A retry takes one
token, a success gives a part of a token back. When the store asks for less, all requests of the
process to it wait, not only the one that was refused. The store does answer then, and may ask for
less for minutes: such tries take no token, and only the seconds limit them.
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
    """Tries of one request, the first one included, without those that the store has throttled."""
    limit_s: float = 120.0
    """The time for all tries of one request, from its first failure."""
    backoff_ms: int = 50
    """The longest wait before the second try; it doubles with every further try."""
    backoff_ms_max: int = 5_000
    budget_tokens: float = 200.0
    """The retries that the requests of one store can take before any success."""
    refund_tokens: float = 0.1
    """The part of a token that a success gives back."""


class Retrier:
    """The retry budget of one store. Threads may share it."""

    def __init__(self, settings: RetrySettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        self._lock = threading.Lock()
        self._tokens = settings.budget_tokens
        self._held_until_s = clock.monotonic_s()

    def run(self, key: str, request: Callable[[], T]) -> T:
        """Return the request's answer. Retry while its errors are retryable and limits allow."""
        tries: Tries | None = None
        self.wait()
        while True:
            try:
                answer = request()
            except Retryable as error:
                tries = tries or Tries(self, key)
                if not tries.again(error):
                    raise
            else:
                self.refund(tries is not None and tries.took_token)
                return answer

    def hold(self, wait_s: float) -> None:
        """Let all requests that begin wait for so long."""
        with self._lock:
            self._held_until_s = max(self._held_until_s, self.clock.monotonic_s() + wait_s)

    def wait(self) -> None:
        """Wait until requests may be sent."""
        left_s = self._held_until_s - self.clock.monotonic_s()
        if left_s > 0:
            self.clock.sleep_s(left_s)

    def refund(self, took_token: bool) -> None:
        """Give a token back after a success if its last try took one, else a part of a token."""
        with self._lock:
            refilled = self._tokens + (1.0 if took_token else self.settings.refund_tokens)
            self._tokens = min(self.settings.budget_tokens, refilled)

    def take(self) -> bool:
        """Take the token for one retry; return False if none is left."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


class Tries:
    """The tries of one request. Their time limit counts from the first failure."""

    def __init__(self, retrier: Retrier, key: str) -> None:
        self._retrier = retrier
        self._key = key
        self._failed_first_s: float | None = None
        self._throttled = 0
        self.count = 1
        self.took_token = False
        """True if the last try has taken a token."""

    def again(self, error: Retryable | None) -> bool:
        """Wait before the next try; return False at once if a limit forbids another try."""
        settings, clock = self._retrier.settings, self._retrier.clock
        now_s = clock.monotonic_s()
        if self._failed_first_s is None:
            self._failed_first_s = now_s
        wait_s = backoff_s(settings, self._key, self.count)
        if throttled := isinstance(error, Throttled):
            wait_s = max(wait_s, min(error.retry_after_s, settings.backoff_ms_max / 1000))
        if now_s + wait_s > self._failed_first_s + settings.limit_s:
            return False
        if throttled:
            self._retrier.hold(wait_s)
        elif self.count - self._throttled >= settings.tries_max or not self._retrier.take():
            return False
        self._throttled += throttled
        self.took_token = not throttled
        clock.sleep_s(wait_s)
        self.count += 1
        return True


def backoff_s(settings: RetrySettings, key: str, tries: int) -> float:
    """Return the wait before the next try. It doubles with every try. A hash, which is the same in
    every run, spreads it over the upper half of that time."""
    ceiling_ms = min(float(settings.backoff_ms_max), settings.backoff_ms * 2.0 ** (tries - 1))
    spread = zlib.crc32(f"{key}#{tries}".encode()) / 2**32
    return ceiling_ms * (0.5 + 0.5 * spread) / 1000
