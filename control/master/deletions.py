"""What follows a commit: the objects that a decision ordered to go.

Guarantees that only committed orders are handed out, each until the log says `Deleted`, and not
twice at once. Running one may be repeated, by this master and by any later one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..clock import Deadline
from ..contract import PartitionStorage
from ..errors import HeadgateError, OutcomeUnknown, Retryable
from ..events.types import Decision, Deleted, Recorded, Released, Superseded
from ..ids import AttemptId, ResultId, in_parts
from ..log import EventLog
from ..model.ledger import Decided
from ..model.state import JobState, ResultState
from .announcer import Announcer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Work that may run in any thread, also while the master goes on with its steps."""

    announcer: Announcer
    result: ResultState
    attempts: tuple[AttemptId, ...]
    orders: Orders

    @property
    def name(self) -> ResultId:
        return self.result.registered.result

    def run(self, storage: PartitionStorage, log: EventLog, deadline: Deadline) -> None:
        """Delete, then state that it is done; what failed for a while goes to `Orders.failed`."""
        try:
            objects = storage.delete(self.announcer.job, self.result, self.attempts)
            event = self.announcer.fact(Deleted(self.name, self.attempts, objects))
            log.append(event).offset(deadline)
        except (Retryable, OutcomeUnknown):
            self.orders.failed.append(self)
        except Exception as exc:
            unforeseen = None if isinstance(exc, HeadgateError) else exc
            _LOG.warning(
                "objects of %s of job %s stay until its next master starts: %s",
                self.name,
                self.announcer.job,
                exc,
                exc_info=unforeseen,
            )


@dataclass(slots=True)
class Clearing:
    """What is left under the prefix of a job that has ended without its driver. One that has run
    goes to `cleared`, `failed` when it should run again."""

    closed: JobState
    cleared: deque[Clearing]
    failed: bool = False

    def run(self, storage: PartitionStorage, log: EventLog, deadline: Deadline) -> None:
        """Delete it; what fails for good stays, and is said."""
        try:
            objects = storage.sweep(self.closed)
            _LOG.info("%d more objects of job %s are deleted", objects, self.closed.job)
        except Exception as exc:
            self.failed = isinstance(exc, Retryable | OutcomeUnknown)
            unforeseen = None if isinstance(exc, HeadgateError) else exc
            _LOG.warning("job %s is not swept: %s", self.closed.job, exc, exc_info=unforeseen)
        self.cleared.append(self)


class Orders:
    """One job's orders to delete. `failed` may be shared by many, and filled by any thread; all
    else belongs to the thread of the steps."""

    def __init__(self, announcer: Announcer, failed: deque[Deletion]) -> None:
        self.failed = failed
        self._announcer = announcer
        self._handed_out: set[AttemptId] = set()
        self._again: set[ResultId] = set()

    def observe(self, recorded: Recorded) -> None:
        """Only the log ends an order, lest it is carried out twice at once."""
        if isinstance(recorded.event.body, Deleted):
            self._handed_out.difference_update(recorded.event.body.attempts)

    def take_back(self, deletion: Deletion) -> None:
        """It failed for a while: it is handed out with what follows next."""
        self._handed_out.difference_update(deletion.attempts)
        self._again.add(deletion.name)

    def all(self, state: JobState) -> tuple[Deletion, ...]:
        """Whatever was ordered to go and is not known to be gone, for a master that starts."""
        return self._hand_out(state, state.results)

    def following(self, state: JobState, answers: Iterable[Decided]) -> tuple[Deletion, ...]:
        """What newly settled decisions order, and what was taken back."""
        results = {name for a in answers for d in a.decisions for name in _ordered(d)}
        results |= self._again
        self._again.clear()
        return self._hand_out(state, sorted(results))

    def _hand_out(self, state: JobState, results: Iterable[ResultId]) -> tuple[Deletion, ...]:
        found: list[Deletion] = []
        for name in results:
            result = state.results.get(name)
            if result is None:  # all of it is gone, and forgotten by now
                continue
            attempts = [a for a in result.doomed if a not in self._handed_out]
            self._handed_out.update(attempts)
            parts = in_parts(attempts)
            found += [Deletion(self._announcer, result, part, self) for part in parts]
        return tuple(found)


def _ordered(decision: Decision) -> tuple[ResultId, ...]:
    """The result of whose objects a decision orders some to go."""
    match decision:
        case Superseded():
            return (decision.attempt.partition.result,)
        case Released():
            return (decision.result,)
        case _:
            return ()
