"""What follows a commit: the objects that a decision ordered to go.

Guarantees that only committed orders are handed out, each until the log says `Deleted`, and not
twice at once. Running one may be repeated, by this master and by any later one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from .author import Author
from .clock import Deadline
from .contract import PartitionStorage
from .errors import HeadgateError, Retryable
from .events import Decision, Deleted, Recorded, Released, Superseded
from .ids import AttemptId, ResultId
from .ledger import Answer
from .log import EventLog
from .state import JobState, ResultState

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Work that may run in any thread, also while the master goes on with its steps."""

    author: Author
    result: ResultState
    attempts: tuple[AttemptId, ...]
    orders: Orders

    @property
    def name(self) -> ResultId:
        return self.result.registered.result

    def run(self, storage: PartitionStorage, log: EventLog, deadline: Deadline) -> None:
        """Delete, then state that it is done; what failed for a while is handed out again."""
        try:
            objects = storage.delete(self.author.job, self.result, self.attempts)
            event = self.author.fact(Deleted(self.name, self.attempts, objects))
            log.append(event).offset(deadline)
        except Retryable:
            self.orders.hand_out_again(self)
        except Exception as exc:
            unforeseen = None if isinstance(exc, HeadgateError) else exc
            _LOG.warning(
                "objects of %s of job %s stay until its next master starts: %s",
                self.name,
                self.author.job,
                exc,
                exc_info=unforeseen,
            )


class Orders:
    """One job's orders to delete. All but `hand_out_again` belong to the thread of the steps."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self._handed_out: set[AttemptId] = set()
        self._failed: deque[Deletion] = deque()

    def observe(self, recorded: Recorded) -> None:
        """Only the log ends an order, lest it is carried out twice at once."""
        if isinstance(recorded.event.body, Deleted):
            self._handed_out.difference_update(recorded.event.body.attempts)

    def hand_out_again(self, deletion: Deletion) -> None:
        self._failed.append(deletion)

    def all(self, state: JobState) -> tuple[Deletion, ...]:
        """Whatever was ordered to go and is not known to be gone, for a master that starts."""
        return self._hand_out(state, state.results)

    def following(self, state: JobState, answers: Iterable[Answer]) -> tuple[Deletion, ...]:
        """What newly settled decisions order, and what failed since the last time."""
        results = {name for a in answers for d in a.decisions for name in _ordered(d)}
        for _ in range(len(self._failed)):
            failed = self._failed.popleft()
            self._handed_out.difference_update(failed.attempts)
            results.add(failed.name)
        return self._hand_out(state, sorted(results))

    def _hand_out(self, state: JobState, results: Iterable[ResultId]) -> tuple[Deletion, ...]:
        found: list[Deletion] = []
        for name in results:
            result = state.results[name]
            attempts = tuple(a for a in result.doomed if a not in self._handed_out)
            if attempts:
                self._handed_out.update(attempts)
                found.append(Deletion(self._author, result, attempts, self))
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
