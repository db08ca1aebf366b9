"""One job as its log tells it: what is settled, and what is still to be committed.

A fact is settled when everything that follows from it, and from the facts before it, is committed.
Guarantees that state and answers show settled facts only, in the order of the log. Pure: no clock,
no thread, no I/O.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from ..events.types import Decision, JobRegistered, Recorded
from ..ids import JobId
from .replay import Derived, Replay, Snapshot
from .state import JobState


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided on a settled fact: nothing, when nothing follows from it."""

    cause: str
    by: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class _Unsettled:
    answer: Decided
    state: JobState
    decisions: int  # how many must be committed, from the first of the log on


class Ledger:
    def __init__(self, job: JobId, start: Snapshot | None = None) -> None:
        self._replay = Replay(job, start)
        self.state = self._replay.state
        self._written = 0  # committed here and not read back yet: the first of what is due
        self._unsettled: deque[_Unsettled] = deque()

    def observe(self, recorded: Recorded) -> None:
        """Take in the next event of the job.

        Raises:
            Corrupt: the log holds another decision than the one that follows from its facts.
        """
        event, replay = recorded.event, self._replay
        derived = replay.observe(recorded)
        if event.basis is not None:
            self._written = max(0, self._written - 1)
            return
        answer = Decided(event.id, event.by, tuple([one.decision for one in derived]))
        needed = replay.decisions + len(replay.due)
        self._unsettled.append(_Unsettled(answer, replay.state, needed))

    def unwritten(self, limit: int) -> tuple[Derived, ...]:
        """What is to be committed next, in the order of the log."""
        return tuple(islice(self._replay.due, self._written, self._written + limit))

    def wrote(self, decisions: int) -> None:
        """So many of what was unwritten are committed now."""
        self._written += decisions
        assert self._written <= len(self._replay.due), "only what is due can be committed"

    @property
    def unsettled(self) -> int:
        """How many facts wait for a commit."""
        return len(self._unsettled)

    @property
    def registered(self) -> JobRegistered | None:
        """The newest registration."""
        return self._replay.registered

    @property
    def heard_ms(self) -> int:
        """When the newest event was written, by its author's clock."""
        return self._replay.heard_ms

    def snapshot(self, position: int) -> Snapshot:
        """All that was observed before `position`; assumes that nothing is unwritten."""
        assert self._written == len(self._replay.due), "what is due stands in the log"
        return self._replay.snapshot(position)

    def settle(self) -> tuple[Decided, ...]:
        """Bring the state up to the last settled fact; the answers that are new."""
        committed = self._replay.decisions + self._written
        answers: list[Decided] = []
        while self._unsettled and self._unsettled[0].decisions <= committed:
            fact = self._unsettled.popleft()
            self.state = fact.state
            answers.append(fact.answer)
        return tuple(answers)
