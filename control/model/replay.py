"""Following a job's log: the state, what is still to be decided, whether the log explains itself.

A replay derives every decision again from the facts and holds it against the recorded one. The
running master, the auditor and a restarted master all follow the log through this one class.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from ..errors import Corrupt
from ..events.types import (
    Body,
    Decision,
    Deleted,
    Event,
    Fact,
    JobFailed,
    JobRegistered,
    Recorded,
    Released,
    Reproduce,
    Superseded,
    Tick,
    TrackingStopped,
)
from ..ids import JobId
from .decide import step
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a replay knows before `position`; what is due was recorded at or behind it. `first`
    is the offset of the job's first event, which may be gone from the log since; `position` itself
    where there is none before it. `mode` is that of its first registration, `registered` is its
    last, `heard_ms` the time of its newest event that is no master's. Where a session decides, no
    job of it needs what its partition has before `needed`. `log` is the identity of the log that
    these offsets are of."""

    state: JobState
    due: tuple[Derived, ...]
    position: int
    first: int
    mode: str | None = None
    registered: JobRegistered | None = None
    heard_ms: int = 0
    needed: int = 0
    log: str = ""


class Replay:
    """`facts` and `decisions` count what this replay has seen itself."""

    def __init__(self, job: JobId, start: Snapshot | None = None) -> None:
        self.state = JobState(job) if start is None else start.state
        self.due: deque[Derived] = deque(() if start is None else start.due)
        begun = None if start is None or start.first == start.position else start
        self.first = None if begun is None else begun.first
        self.mode = None if start is None else start.mode
        self.registered = None if start is None else start.registered
        self.heard_ms = 0 if start is None else start.heard_ms
        self.start = start
        self.facts = 0
        self.decisions = 0

    @classmethod
    def of(cls, oldest: Recorded, snapshot: Snapshot | None) -> Replay:
        """Of the whole log when `oldest` is the job's first event, else of what is behind its
        snapshot."""
        whole = snapshot is None or oldest.offset <= snapshot.first
        return cls(oldest.event.job, None if whole else snapshot)

    def knows(self, recorded: Recorded) -> bool:
        """Whether the snapshot that it began with has this event in it."""
        return self.start is not None and recorded.offset < self.start.position

    def snapshot(self, position: int) -> Snapshot:
        """What another replay may start with at `position`, behind all that was observed."""
        first = position if self.first is None else self.first
        due = tuple(self.due)
        return Snapshot(self.state, due, position, first, self.mode, self.registered, self.heard_ms)

    def observe(self, recorded: Recorded) -> tuple[Derived, ...]:
        """Take in the next event; what follows from it is due until the log shows it.

        Raises:
            Corrupt: the log holds another decision than the one that follows from its facts.
        """
        if self.first is None:
            self.first = recorded.offset
        if recorded.event.basis is not None:
            self._match(recorded)
            return ()
        body = recorded.event.body
        if not isinstance(body, (Tick, Deleted)):
            self.heard_ms = max(self.heard_ms, recorded.at_ms or recorded.event.time_ms)
        if not isinstance(body, Fact):
            raise Corrupt(
                f"the decision at offset {recorded.offset} has no basis: {body}",
                (recorded.offset,),
            )
        if isinstance(body, JobRegistered):
            self.mode = self.mode or body.mode
            self.registered = body
        self.facts += 1
        self.state, decisions = step(self.state, body)
        derived = tuple(
            [
                Derived(recorded.offset, ordinal, recorded.event.id, decision)
                for ordinal, decision in enumerate(decisions)
            ]
        )
        self.due.extend(derived)
        return derived

    def _match(self, recorded: Recorded) -> None:
        event = recorded.event
        expected = self.due[0] if self.due else None
        if expected is None or not _is_told(event, expected):
            raise Corrupt(
                f"the decision at offset {recorded.offset} is {_say(event)}, but what follows "
                f"from the facts is {_say_derived(expected)}",
                (recorded.offset,),
            )
        self.due.popleft()
        self.decisions += 1


def _is_told(event: Event, derived: Derived) -> bool:
    """Whether this decision is recorded; the words of its reason may be another version's."""
    if (event.id, event.cause, event.basis) != (derived.id, derived.cause, derived.basis):
        return False
    told, decision = event.body, derived.decision
    return told == decision or _without_reason(told) == _without_reason(decision)


def _without_reason(body: Body) -> Body:
    if isinstance(body, Superseded | Reproduce | TrackingStopped | Released | JobFailed):
        return replace(body, reason="")
    return body


def _say(event: Event) -> str:
    return f"{event.body} with id {event.id!r} on basis {event.basis}, caused by {event.cause!r}"


def _say_derived(derived: Derived | None) -> str:
    if derived is None:
        return "nothing"
    return (
        f"{derived.decision} with id {derived.id} on basis {derived.basis}, "
        f"caused by {derived.cause}"
    )
