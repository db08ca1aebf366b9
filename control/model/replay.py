"""Follow a job's log: derive its state and decisions, and compare them with what the log holds.

A replay derives every decision from the facts, and compares it with the recorded one. The running
master, the auditor and a restarted master all follow the log through this one class.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Corrupt, Invalid
from ..events import types as ev
from ..events.codec import check_known
from ..events.traits import is_sign_of_life
from ..ids import JobId
from .decide import step
from .state import JobState


@dataclass(frozen=True, slots=True)
class Derived:
    """A decision and the fact that it follows from."""

    basis: int
    """The offset of the fact."""
    ordinal: int
    """The number of the decision among those of its basis."""
    cause: str
    """The id of the fact."""
    decision: ev.Decision

    @property
    def id(self) -> str:
        return f"{self.basis}.{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a replay knows of a job before a position of its log."""

    state: JobState
    due: tuple[Derived, ...]
    """Decisions that follow from the events before `position`, and are not recorded before it."""
    position: int
    """The snapshot has all events before this offset."""
    first: int
    """The offset of the job's first event, which the log may have lost; `position` if there is
    none."""
    mode: str | None = None
    """The mode of the job's first registration."""
    registered: ev.JobRegistered | None = None
    """The job's newest registration."""
    heard_ms: int = 0
    """The time of the newest fact that is a sign of life, and not `BY_HAND`."""
    began_ms: int = 0
    """The time of the job's first event; 0 if it is unknown."""
    needed: int = 0
    """No session job of the partition needs an event before this offset."""
    log: str = ""
    """The identity of the log that these offsets belong to."""
    newer: str = ""
    """The error for everybody who needs the snapshot, if a newer version has written it: then
    nothing else is known. Never stored."""


class Replay:
    """Replays one job. `facts` and `decisions` count what this replay has observed itself."""

    def __init__(self, job: JobId, start: Snapshot | None = None) -> None:
        begun = start or Snapshot(JobState(job), (), 0, 0)
        self.state = begun.state
        self.due = deque(begun.due)
        self.first = None if begun.first == begun.position else begun.first
        self.mode = begun.mode
        self.registered = begun.registered
        self.heard_ms = begun.heard_ms
        self.began_ms = begun.began_ms
        self.start = start
        self.facts = 0
        self.decisions = 0

    @classmethod
    def of(cls, oldest: ev.Recorded, snapshot: Snapshot | None) -> Replay:
        """Return a replay of the whole log if `oldest` is the job's first event or there is no
        snapshot, else one that starts at the snapshot."""
        from_start = snapshot is None or oldest.offset <= snapshot.first
        return cls(oldest.event.job, None if from_start else snapshot)

    def knows(self, recorded: ev.Recorded) -> bool:
        """Return True if the event is in the snapshot that the replay started at."""
        return self.start is not None and recorded.offset < self.start.position

    def snapshot(self, position: int) -> Snapshot:
        """Return a snapshot at `position`, after all that was observed, at which another replay
        may start."""
        first = position if self.first is None else self.first
        return Snapshot(
            self.state,
            tuple(self.due),
            position,
            first,
            self.mode,
            self.registered,
            self.heard_ms,
            self.began_ms,
        )

    def observe(self, recorded: ev.Recorded) -> tuple[Derived, ...]:
        """Take in the next event, and return the decisions that follow from it. Each is due until
        the log shows it.

        Raises:
            Corrupt: the log holds another decision than the one that follows from its facts.
            Invalid: the event, or the snapshot, is of a newer version.
        """
        body = recorded.event.body
        check_known(recorded)
        if self.start is not None and self.start.newer:
            raise Invalid(self.start.newer)
        if self.first is None:
            self.first = recorded.offset
            self.began_ms = recorded.at_ms or recorded.event.time_ms
        if recorded.event.basis is not None:
            self._match(recorded)
            return ()
        by_hand = recorded.event.by.startswith(ev.BY_HAND)
        if is_sign_of_life(recorded.event) and not by_hand:
            self.heard_ms = max(self.heard_ms, recorded.at_ms or recorded.event.time_ms)
        if not isinstance(body, ev.Fact):
            raise Corrupt(
                f"the decision at offset {recorded.offset} has no basis: {body}", (recorded.offset,)
            )
        if isinstance(body, ev.JobRegistered):
            self.mode = self.mode or body.mode
            self.registered = body
        self.facts += 1
        self.state, decisions = step(self.state, body, recorded.offset)
        at, cause = recorded.offset, recorded.event.id
        derived = [Derived(at, number, cause, each) for number, each in enumerate(decisions)]
        self.due.extend(derived)
        return tuple(derived)

    def _match(self, recorded: ev.Recorded) -> None:
        event = recorded.event
        expected = self.due[0] if self.due else None
        if expected is None or not _is_told(event, expected):
            follows = "nothing"
            if expected is not None:
                follows = _say(expected.decision, expected.id, expected.basis, expected.cause)
            recorded_as = _say(event.body, event.id, event.basis, event.cause)
            raise Corrupt(
                f"the decision at offset {recorded.offset} is {recorded_as}, but what follows "
                f"from the facts is {follows}",
                (recorded.offset,),
            )
        self.due.popleft()
        self.decisions += 1


def _is_told(event: ev.Event, derived: Derived) -> bool:
    """Return True if the event records this decision. The text of its reason may be another
    version's."""
    if (event.id, event.cause, event.basis) != (derived.id, derived.cause, derived.basis):
        return False
    body, decision = event.body, derived.decision
    return body == decision or _without_reason(body) == _without_reason(decision)


def _without_reason(body: ev.Body | ev.Newer) -> ev.Body | ev.Newer:
    worded: Any = body
    return replace(worded, reason="") if hasattr(worded, "reason") else body


def _say(body: ev.Body | ev.Newer, name: str, basis: int | None, cause: str) -> str:
    return f"{body} with id {name!r} on basis {basis}, caused by {cause!r}"
