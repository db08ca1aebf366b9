"""Give events their envelope: id, job, cause, time, author and basis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ..clock import SYSTEM_CLOCK, Clock
from ..events.types import Body, Event, Fact
from ..ids import JobId
from ..model.replay import Derived


class Announcer:
    """Gives the events of one author their envelope.

    The id of a fact is the author's name and a number. Announcers with the same `by` must share
    `numbers`, so that no id repeats.
    """

    def __init__(
        self,
        job: JobId,
        by: str,
        clock: Clock = SYSTEM_CLOCK,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.job = job
        self.by = by
        self.clock = clock
        self._numbers = numbers or count()

    def fact(self, body: Fact, cause: str = "") -> Event:
        return self._event(f"{self.by}.{next(self._numbers)}", cause, None, body)

    def decision(self, derived: Derived) -> Event:
        return self._event(derived.id, derived.cause, derived.basis, derived.decision)

    def _event(self, name: str, cause: str, basis: int | None, body: Body) -> Event:
        return Event(name, self.job, cause, self.clock.now_ms(), self.by, basis, body)
