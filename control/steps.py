"""The steps of one job's master: facts in, decisions out, each step one transaction.

Driven from outside, with no thread, clock or randomness of its own: the same calls on the same log
give the same steps. Guarantees: nothing is answered, shown as state or ordered to be deleted
before it is committed. After any error but `Corrupt` and `Fenced`, steps opened anew go on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from .author import Author
from .deletion import Deletion, Orders
from .errors import Fenced
from .events import Recorded
from .ledger import Answer, Ledger
from .log import Decisions, EventLog, Follower
from .state import JobState


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought: the state, once the log was read to the end that it had at the start;
    answers to the author's own facts; and the deletions that are to be run now."""

    state: JobState | None
    answers: tuple[Answer, ...] = ()
    deletions: tuple[Deletion, ...] = ()


class JobSteps:
    def __init__(
        self, author: Author, decisions: Decisions, follower: Follower, step_events_max: int
    ) -> None:
        self._author = author
        self._decisions = decisions
        self._follower = follower
        self._step_events_max = step_events_max
        self._end = follower.end()
        self._recovered = False
        self._ledger = Ledger(author.job)
        self._orders = Orders(author)
        self._answers: list[Answer] = []

    @classmethod
    def open(cls, log: EventLog, author: Author, step_events_max: int) -> Self:
        """Fence the predecessor, then start from the oldest event.

        Raises:
            Unavailable: the log cannot be reached.
        """
        with ExitStack() as opening:
            decisions = log.open_decisions(author.job)
            opening.callback(decisions.close)
            follower = log.follow(author.job, None)
            opening.callback(follower.close)
            steps = cls(author, decisions, follower, step_events_max)
            opening.pop_all()
            return steps

    def step(self, timeout_s: float) -> Outcome:
        """Take the next events, waiting no longer than told, and commit what follows from them.

        While older events are read, decisions that are there already are compared; what a
        predecessor left undecided is committed when its end is reached.

        Raises:
            Fenced: somebody else decides for the job.
            Corrupt: the log holds another decision than the one that follows from its facts.
            Unavailable, OutcomeUnknown, Lost: open the steps anew.
        """
        for recorded in self._follower.poll(self._step_events_max, timeout_s):
            self._check_holder(recorded)
            self._ledger.observe(recorded)
            self._orders.observe(recorded)
        recovering = not self._recovered
        if recovering and self._follower.position() < self._end:
            self._settle()
            return Outcome(None)
        self._commit()
        self._recovered = True
        answers = self._settle()
        state = self._ledger.state
        ordered = self._orders.all(state) if recovering else self._orders.following(state, answers)
        own, self._answers = tuple(self._answers), []
        return Outcome(state, own, ordered)

    def close(self) -> None:
        """Give back connections; an open step is dropped."""
        self._follower.close()
        self._decisions.close()

    def _check_holder(self, recorded: Recorded) -> None:
        """A successor's decisions can be read before a commit of ours is refused."""
        event = recorded.event
        if self._recovered and event.basis is not None and event.by != self._author.by:
            raise Fenced(f"{event.by} decides for job {event.job} now", (recorded.offset,))

    def _commit(self) -> None:
        while derived := self._ledger.unwritten(self._step_events_max):
            self._decisions.begin()
            for one in derived:
                self._decisions.write(self._author.decision(one))
            self._decisions.commit(self._follower.position())
            self._ledger.wrote(len(derived))

    def _settle(self) -> tuple[Answer, ...]:
        answers = self._ledger.settle()
        self._answers += [one for one in answers if one.by == self._author.by]
        return answers
