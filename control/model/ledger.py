"""Keep the settled decisions of a job's log, and those that are still to be committed.

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
    """The decisions on a settled fact; none when nothing follows from it."""

    cause: str
    """The id of the fact."""
    by: str
    """The author of the fact."""
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class _Unsettled:
    answer: Decided
    state: JobState
    decisions: int
    """The number of decisions that must be committed, from the first of the replay on."""


class Ledger:
    def __init__(self, job: JobId, start: Snapshot | None = None) -> None:
        self._replay = Replay(job, start)
        self.state = self._replay.state
        self._written = 0  # the first decisions of what is due: committed, not read back yet
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
        answer = Decided(event.id, event.by, tuple([entry.decision for entry in derived]))
        needed = replay.decisions + len(replay.due)
        self._unsettled.append(_Unsettled(answer, replay.state, needed))

    def unwritten(self, limit: int) -> tuple[Derived, ...]:
        """Return the next decisions to commit, at most `limit`, in the order of the log."""
        return tuple(islice(self._replay.due, self._written, self._written + limit))

    def wrote(self, decisions: int) -> None:
        """Take in that the first `decisions` of the unwritten ones are committed."""
        self._written += decisions
        assert self._written <= len(self._replay.due), "only what is due can be committed"

    @property
    def newest(self) -> JobState:
        """Return the state after all that was observed, committed or not."""
        return self._replay.state

    @property
    def unsettled(self) -> int:
        """Return the number of facts that wait for a commit."""
        return len(self._unsettled)

    @property
    def registered(self) -> JobRegistered | None:
        """Return the newest registration."""
        return self._replay.registered

    @property
    def heard_ms(self) -> int:
        """Return the time of the newest fact that is a sign of life, and not `BY_HAND`,
        by the log's clock if it is known."""
        return self._replay.heard_ms

    def snapshot(self, position: int) -> Snapshot:
        """Return the snapshot of all that was observed before `position`. Assumes that nothing is
        unwritten."""
        assert self._written == len(self._replay.due), "what is due stands in the log"
        return self._replay.snapshot(position)

    def settle(self) -> tuple[Decided, ...]:
        """Bring the state up to the last settled fact, and return the new answers."""
        committed = self._replay.decisions + self._written
        answers: list[Decided] = []
        while self._unsettled and self._unsettled[0].decisions <= committed:
            fact = self._unsettled.popleft()
            self.state = fact.state
            answers.append(fact.answer)
        return tuple(answers)
