"""Tell why a partition was made, and made again, in the order of the log.

Pure: from a job's records alone. A record that explains another one comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..events import types as ev
from ..ids import AttemptId, PartitionId

READ = "is the one that readers read"
"""The outcome of the attempt that is the partition."""


@dataclass(frozen=True, slots=True)
class Made:
    """One attempt and its story."""

    attempt: AttemptId
    reason: str
    """The reason for which the attempt was started."""
    outcome: str
    """The last thing that is known of the attempt."""
    offsets: tuple[int, ...]
    """The offsets of the events that say so."""


@dataclass(slots=True)
class _Attempt:
    reason: str
    offsets: list[int]
    outcome: str = "has not ended"


@dataclass(slots=True)
class _Story:
    partition: PartitionId
    facts: dict[int, ev.Event] = field(default_factory=dict)
    """The losses that may be the basis of a later order."""
    made: dict[AttemptId, _Attempt] = field(default_factory=dict)
    cause: tuple[str, list[int]] = ("its map stage was run", [])
    """The reason for which the next attempt starts, and the offsets that say so."""
    open: AttemptId | None = None
    """The attempt that the next one replaces."""

    def observe(self, recorded: ev.Recorded) -> None:
        offset, body = recorded.offset, recorded.event.body
        match body:
            case ev.JobAccepted() if body.epoch > 1:
                self.cause = (f"driver {body.epoch} of the job attached", [offset])
                self.open = None
            case ev.PartitionAccepted() if self._accepted(body):
                self.cause = ("its map stage was run", [offset])
            case ev.AttemptStarted() if body.attempt.partition == self.partition:
                self._start(body.attempt, offset)
            case ev.Reproduce() if body.result == self.partition.result:
                if self.partition.index in body.partitions:
                    self._order(recorded, body)
            case ev.Lost():
                self.facts[offset] = recorded.event
            case ev.Produced():
                self._note(body.attempt, "has produced", offset)
            case ev.AttemptFailed():
                self._note(body.attempt, f"failed: {body.reason}", offset)
            case ev.Consumable():
                self._note(body.attempt, READ, offset)
            case ev.Superseded():
                self._note(body.attempt, f"was superseded: {body.reason}", offset)
            case ev.Released() if body.result == self.partition.result:
                for attempt in body.attempts:
                    self._note(attempt, f"released: {body.reason}", offset)

    def _accepted(self, body: ev.PartitionAccepted) -> bool:
        within = body.first <= self.partition.index < body.first + body.count
        return body.result == self.partition.result and within and not self.made

    def _start(self, attempt: AttemptId, offset: int) -> None:
        if attempt in self.made:
            return
        reason, offsets = self.cause
        if self.open is not None:
            former = self.made[self.open]
            reason = f"attempt {self.open.epoch}-{self.open.task} {former.outcome}"
            offsets = former.offsets[-1:]
        self.made[attempt] = _Attempt(reason, [*offsets, offset])
        self.open = attempt

    def _order(self, recorded: ev.Recorded, body: ev.Reproduce) -> None:
        basis = recorded.event.basis
        fact = self.facts.get(basis if basis is not None else -1)
        by = f", announced by {fact.by}" if fact is not None else ""
        offsets = [recorded.offset] if basis is None else [basis, recorded.offset]
        self.cause, self.open = (f"it was ordered again: {body.reason}{by}", offsets), None

    def _note(self, attempt: AttemptId, outcome: str, offset: int) -> None:
        """Add an event to the story of an attempt; attempts at other partitions have none."""
        if (entry := self.made.get(attempt)) is not None:
            entry.outcome = outcome
            entry.offsets.append(offset)


def why(records: Iterable[ev.Recorded], partition: PartitionId) -> tuple[Made, ...]:
    """Return every attempt at a partition that is in the records."""
    story = _Story(partition)
    for recorded in records:
        story.observe(recorded)
    return tuple(
        Made(attempt, entry.reason, entry.outcome, tuple(entry.offsets))
        for attempt, entry in story.made.items()
    )
