"""The ranges that a process requests, in the order in which its readers want them.

Guarantees: no thread waits for another process while it could request a range that nobody requests.
So processes that want the same ranges request different ones at the same time. Nobody waits longer
than ten seconds for a process that is stopped.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

from ...control.clock import SYSTEM_CLOCK, Clock, Deadline

_PATIENCE_S = 10.0
_POLL_S = 0.005
_LOOKS = 8  # of the ranges that others request, each poll looks for the first ones only

Get: TypeAlias = Callable[[bool], memoryview | None]


@dataclass(slots=True)
class _Request:
    number: int
    get: Get
    answer: Future[memoryview]
    patience: Deadline | None = None
    """The end of the wait for another process; None if none was needed yet."""
    again_s: float = 0.0
    """The time of the next look."""


class RangeRequests:
    def __init__(
        self,
        fetchers: Executor,
        clock: Clock = SYSTEM_CLOCK,
        future: Callable[[], Future[memoryview]] = Future,
    ) -> None:
        self._fetchers = fetchers
        self._clock = clock
        self._future = future
        self._lock = Lock()
        self._new: deque[_Request] = deque()
        self._busy: list[_Request] = []
        self._numbers = 0
        self._was_busy = False
        self._closed = False

    def add(self, get: Get) -> Future[memoryview]:
        """Return a future of the bytes that `get` returns. It is called with True, and returns None
        while another process requests them. It is called with False when that takes too long.

        Raises:
            RuntimeError: no requests are taken any more.
        """
        with self._lock:
            self._numbers += 1
            request = _Request(self._numbers, get, self._future())
            self._new.append(request)
        self._fetchers.submit(self._settle)
        return request.answer

    def close(self) -> None:
        """Cancel what waits for a thread or for another process."""
        self._closed = True
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = (*self._new, *self._busy)
            self._new.clear()
            self._busy.clear()
        for request in waiting:
            request.answer.cancel()

    def _settle(self) -> None:
        """Settle the first range that no other process requests."""
        while not self._closed:
            if (request := self._next()) is None:
                self._clock.sleep_s(_POLL_S)
                continue
            try:
                body = request.get(request.patience is None or not request.patience.passed)
            except BaseException as failure:
                return request.answer.set_exception(failure)
            if body is not None:
                return request.answer.set_result(body)
            self._put_back(request)

    def _next(self) -> _Request | None:
        """Take a range to look for: the first that another process requested a while ago, or a new
        one. Return None if there is neither. While there are both, take them in turn, because those
        that others request could be enough for all looks."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            looks = 0 if self._was_busy and self._new else _LOOKS
            self._was_busy = False
            for at, request in enumerate(self._busy[:looks]):
                if request.again_s <= now_s:
                    self._was_busy = True
                    return self._busy.pop(at)
            return self._new.popleft() if self._new else None

    def _put_back(self, request: _Request) -> None:
        """Look for a range again later."""
        request.patience = request.patience or Deadline.after(_PATIENCE_S, self._clock)
        request.again_s = self._clock.monotonic_s() + _POLL_S
        with self._lock:
            if not self._closed:
                return insort(self._busy, request, key=lambda each: each.number)
        request.answer.cancel()
