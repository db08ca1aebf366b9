"""The steps of a session master: the jobs of every partition that it holds, a transaction a step.

Driven from outside like `JobSteps`, with no thread, clock or randomness of its own. Guarantees: it
decides only for jobs whose first registration says `session`, and only in partitions that it holds
and has read to their end; a partition that is revoked is forgotten at once. What a refused step did
not commit is due again in the next one. A job whose log does not explain itself is left alone, the
others go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from types import MappingProxyType

from .author import Author
from .clock import Clock
from .contract import SESSION
from .deletion import Deletion, Orders
from .errors import Corrupt, Fenced, Invalid, Unavailable
from .events import JobRegistered, Recorded
from .ids import JobId
from .ledger import Ledger
from .log import EventLog, Placed
from .replay import Derived
from .state import JobState

_LOG = logging.getLogger(__name__)


class _Case:
    """One session job."""

    def __init__(self, author: Author, failed: deque[Deletion], store: str) -> None:
        self.author = author
        self.ledger = Ledger(author.job)
        self.orders = Orders(author, failed)
        self.broken = False
        self._store = store
        self._elsewhere = False
        self._fresh = True

    def observe(self, recorded: Recorded) -> None:
        if self.broken:
            return
        if isinstance(recorded.event.body, JobRegistered):
            self._check_store(recorded.event.body.store)
        try:
            self.ledger.observe(recorded)
            self.orders.observe(recorded)
        except Corrupt as exc:
            self.give_up(exc)

    def _check_store(self, store: str) -> None:
        """What is said to be deleted must not have been looked for in another store."""
        self._elsewhere = store.rstrip("/") not in ("", self._store.rstrip("/"))
        if self._elsewhere:
            _LOG.error(
                "objects of job %s are in %s and stay: this master deletes in %s",
                self.author.job,
                store,
                self._store,
            )

    def give_up(self, error: Exception) -> None:
        self.broken = True
        _LOG.error("job %s is left alone from now on: %s", self.author.job, error)

    def unwritten(self, limit: int) -> tuple[Derived, ...]:
        return () if self.broken else self.ledger.unwritten(limit)

    def settle(self) -> tuple[Deletion, ...]:
        """What is to be deleted now; at first, also what was ordered before."""
        answers, state = self.ledger.settle(), self.ledger.state
        if self._elsewhere:
            return ()
        fresh, self._fresh = self._fresh, False
        return self.orders.all(state) if fresh else self.orders.following(state, answers)


@dataclass(slots=True)
class _Held:
    """A partition: its session jobs, the jobs that are others', and those with something to do,
    none before it is recovered."""

    jobs: dict[JobId, _Case] = field(default_factory=dict)
    ignored: set[JobId] = field(default_factory=set)
    touched: dict[JobId, _Case] = field(default_factory=dict)
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class Speaking:
    """In whose name a master speaks: its slot, a name that no other start of it has, and where it
    can delete objects."""

    slot: str
    name: str
    clock: Clock
    store: str
    numbers: Iterator[int] = field(default_factory=count)


class SessionSteps:
    def __init__(self, log: EventLog, speaking: Speaking, step_events_max: int) -> None:
        """Join the group of masters.

        Raises:
            Unavailable: the log cannot be reached.
        """
        self._speaking = speaking
        self._step_events_max = step_events_max
        self._held: dict[int, _Held] = {}
        self._failed: deque[Deletion] = deque()
        self._membership = log.join(speaking.slot, self)

    def granted(self, partition: int) -> None:
        self._held[partition] = _Held()
        _LOG.info("slot %s holds partition %d", self._speaking.slot, partition)

    def revoked(self, partition: int) -> None:
        del self._held[partition]
        _LOG.info("slot %s holds partition %d no longer", self._speaking.slot, partition)

    @property
    def states(self) -> Mapping[JobId, JobState]:
        """The session jobs of the partitions that are held, as far as they are committed."""
        cases = (case for held in self._held.values() for case in held.jobs.values())
        return MappingProxyType({case.author.job: case.ledger.state for case in cases})

    def step(self, timeout_s: float) -> tuple[Deletion, ...]:
        """Take the next events, waiting no longer than told, commit what follows from them, and
        hand out the deletions that are to be run now.

        Raises:
            Conflict: another master has joined under the same slot.
            Fenced, Unavailable, OutcomeUnknown, Lost: join again.
        """
        for placed in self._membership.poll(self._step_events_max, timeout_s):
            self._observe(placed)
        self._take_back()
        for number, held in self._held.items():
            if not held.recovered:
                self._recover(number, held)
        self._commit()
        return tuple(d for held in self._held.values() for d in self._settle(held))

    def close(self) -> None:
        """Leave the group; an open step is dropped."""
        self._membership.close()

    def _observe(self, placed: Placed) -> None:
        held, event = self._held[placed.partition], placed.recorded.event
        case = held.jobs.get(event.job)
        if case is None:
            if event.job in held.ignored or not isinstance(event.body, JobRegistered):
                return
            if event.body.mode != SESSION:
                held.ignored.add(event.job)
                return
            author = self._author(event.job)
            case = held.jobs[event.job] = _Case(author, self._failed, self._speaking.store)
        case.observe(placed.recorded)
        held.touched[event.job] = case

    def _author(self, job: JobId) -> Author:
        speaking = self._speaking
        return Author(job, speaking.name, speaking.clock, speaking.numbers)

    def _take_back(self) -> None:
        for _ in range(len(self._failed)):
            failed = self._failed.popleft()
            failed.orders.take_back(failed)
            for held in self._held.values():
                case = held.jobs.get(failed.author.job)
                if case is not None and case.orders is failed.orders:
                    held.touched[failed.author.job] = case

    def _recover(self, number: int, held: _Held) -> None:
        """Once its end is reached, whatever a former holder left undecided is due."""
        end = self._membership.end(number)
        if end is None or self._membership.position(number) < end:
            for case in held.touched.values():
                case.ledger.settle()
            held.touched.clear()
            return
        held.recovered = True
        held.touched = dict(held.jobs)
        _LOG.info("slot %s decides for partition %d now", self._speaking.slot, number)

    def _commit(self) -> None:
        try:
            while due := tuple(islice(self._due(), self._step_events_max)):
                self._write(due)
        except (Fenced, Unavailable) as exc:
            self._membership.abort()
            said = "was fenced" if isinstance(exc, Fenced) else "dropped a step"
            _LOG.warning("slot %s %s: %s", self._speaking.slot, said, exc)

    def _due(self) -> Iterator[tuple[int, _Case, Derived]]:
        for number, held in self._held.items():
            for case in held.touched.values():
                yield from ((number, case, one) for one in case.unwritten(self._step_events_max))

    def _write(self, due: tuple[tuple[int, _Case, Derived], ...]) -> None:
        """One transaction; a job with a decision that no log takes is given up, the rest is due
        again."""
        self._membership.begin()
        for _, case, derived in due:
            try:
                self._membership.write(case.author.decision(derived))
            except Invalid as exc:
                case.give_up(exc)
                self._membership.abort()
                return
        self._membership.commit({number: self._membership.position(number) for number, *_ in due})
        for _, case, _ in due:
            case.ledger.wrote(1)

    def _settle(self, held: _Held) -> list[Deletion]:
        found = [deletion for case in held.touched.values() for deletion in case.settle()]
        held.touched = {job: case for job, case in held.touched.items() if case.unwritten(1)}
        return found
