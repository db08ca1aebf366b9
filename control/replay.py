"""Following a job's log: the state, what is still to be decided, whether the log explains itself.

A replay derives every decision again from the facts and holds it against the recorded one. The
running master, the auditor and a restarted master all follow the log through this one class.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .errors import Corrupt
from .events import Decision, Event, Recorded
from .ids import JobId
from .lifecycle import JobState, step


@dataclass(frozen=True, slots=True)
class Derived:
    """A decision and the fact it follows from; `ordinal` counts those of one basis."""

    basis: int
    ordinal: int
    cause: str
    decision: Decision

    @property
    def id(self) -> str:
        return f"{self.basis}.{self.ordinal}"


class Replay:
    def __init__(self, job: JobId) -> None:
        self.state = JobState(job)
        self.due: deque[Derived] = deque()
        self.facts = 0
        self.decisions = 0

    def observe(self, recorded: Recorded) -> tuple[Derived, ...]:
        """Take in the next event; what follows from it is due until the log shows it.

        Raises:
            Corrupt: the log holds another decision than the one that follows from its facts.
        """
        if recorded.event.basis is not None:
            self._match(recorded)
            return ()
        self.facts += 1
        self.state, decisions = step(self.state, recorded.event.body)  # type: ignore[arg-type]
        derived = tuple(
            Derived(recorded.offset, ordinal, recorded.event.id, decision)
            for ordinal, decision in enumerate(decisions)
        )
        self.due.extend(derived)
        return derived

    def _match(self, recorded: Recorded) -> None:
        event = recorded.event
        expected = self.due[0] if self.due else None
        if expected is None or (event.basis, event.body) != (expected.basis, expected.decision):
            raise Corrupt(
                f"the decision at offset {recorded.offset} is {_say(event)}, but what follows "
                f"from the facts is {_say_derived(expected)}",
                (recorded.offset,),
            )
        self.due.popleft()
        self.decisions += 1


def _say(event: Event) -> str:
    return f"{event.body} on basis {event.basis}"


def _say_derived(derived: Derived | None) -> str:
    return "nothing" if derived is None else f"{derived.decision} on basis {derived.basis}"
