"""Following a job's log: the state, what is still to be decided, whether the log explains itself.

A replay derives every decision again from the facts and holds it against the recorded one. The
running master, the auditor and a restarted master all follow the log through this one class.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .errors import Corrupt
from .events import Decision, Event, Fact, Recorded
from .ids import JobId
from .lifecycle import step
from .state import JobState


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
        body = recorded.event.body
        if not isinstance(body, Fact):
            raise Corrupt(
                f"the decision at offset {recorded.offset} has no basis: {body}",
                (recorded.offset,),
            )
        self.facts += 1
        self.state, decisions = step(self.state, body)
        derived = tuple(
            Derived(recorded.offset, ordinal, recorded.event.id, decision)
            for ordinal, decision in enumerate(decisions)
        )
        self.due.extend(derived)
        return derived

    def _match(self, recorded: Recorded) -> None:
        event = recorded.event
        expected = self.due[0] if self.due else None
        if expected is None or _told(event) != _derived(expected):
            raise Corrupt(
                f"the decision at offset {recorded.offset} is {_say(event)}, but what follows "
                f"from the facts is {_say_derived(expected)}",
                (recorded.offset,),
            )
        self.due.popleft()
        self.decisions += 1


def _told(event: Event) -> tuple[object, ...]:
    return event.id, event.cause, event.basis, event.body


def _derived(derived: Derived) -> tuple[object, ...]:
    return derived.id, derived.cause, derived.basis, derived.decision


def _say(event: Event) -> str:
    return f"{event.body} with id {event.id} on basis {event.basis}, caused by {event.cause}"


def _say_derived(derived: Derived | None) -> str:
    if derived is None:
        return "nothing"
    return (
        f"{derived.decision} with id {derived.id} on basis {derived.basis}, "
        f"caused by {derived.cause}"
    )
