"""The committed state of a driver's job, and the futures and waits of all who need decisions.

Guarantees that they hear only of what is committed. After an error everybody who waits gets it, and
everybody who asks later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ..clock import Deadline
from ..contract import SESSION, JobShuffleContext, MasterSettings
from ..errors import Fenced, HeadgateError, OutcomeUnknown, Unavailable
from ..events.types import Decision, Fact
from ..log import EventLog
from ..model.state import JobState
from .announcer import Announcer
from .job_steps import Outcome
from .term import Term

T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    """A fact that was appended, and the future of its answer."""

    answer: Future[tuple[Decision, ...]]
    at: int
    """The offset of the fact; before the log has confirmed it, an offset at or before it."""


class JobAnswers:
    """The answers of one start of a job's master: `term` is that of this start, and `stopping` is
    set when it is to end."""

    def __init__(
        self,
        context: JobShuffleContext,
        log: EventLog,
        announcer: Announcer,
        settings: MasterSettings,
    ) -> None:
        self.context = context
        self.announcer = announcer
        self.term = Term(announcer.by)
        self.stopping = threading.Event()
        self._log = log
        self._settings = settings
        self._changed = threading.Condition()
        self._state = JobState(announcer.job)
        self._known = Outcome(None)
        self._is_read = False
        self._asked: dict[str, _Asked] = {}
        self._error: BaseException | None = None

    @property
    def state(self) -> JobState:
        """Return the committed state."""
        with self._changed:
            return self._state

    @property
    def store(self) -> str:
        """Return the address of the store that the newest driver has registered; '' before."""
        with self._changed:
            return self._known.store

    @property
    def is_read(self) -> bool:
        """Return True once the log was read to the end that it had at the start."""
        with self._changed:
            return self._is_read

    @property
    def works(self) -> bool:
        """Return True until the master is closed or an error stops it, for example a successor."""
        with self._changed:
            return self._error is None

    def ask(self, *facts: Fact, deadline: Deadline | None = None) -> Future[tuple[Decision, ...]]:
        """Publish facts, one after the other. The future gets the decisions on the last one, none
        when nothing follows from it.

        Raises:
            Unavailable: the deadline had passed before the facts were published.
        """
        deadline = deadline or self._settings.deadline()
        if deadline.passed:
            raise self.late(f"the time to publish {type(facts[-1]).__name__}")
        events = [self.announcer.fact(fact) for fact in facts]
        answer: Future[tuple[Decision, ...]] = Future()
        asked, last = _Asked(answer, self.term.position or 0), events[-1].id
        with self._changed:
            if self._error is not None:
                raise self._error
            self._asked[last] = asked
        try:
            for receipt in [self._log.append(event) for event in events]:
                asked.at = receipt.offset(deadline)
        except BaseException:
            with self._changed:
                self._asked.pop(last, None)
            raise
        return answer

    def answer(self, fact: Fact, deadline: Deadline | None = None) -> tuple[Decision, ...]:
        """Publish a fact, and wait for the decisions on it.

        Raises:
            Unavailable: nobody has decided in time.
        """
        asked = self.ask(fact, deadline=deadline)
        try:
            return asked.result((deadline or self._settings.deadline()).left_s)
        except TimeoutError as exc:
            raise self.late(f"the decision on {type(fact).__name__}") from exc

    def announce(self, body: Fact) -> None:
        """Publish a fact that nobody waits for. If the log does not take it, it is lost."""
        with suppress(HeadgateError):
            self._log.append(self.announcer.fact(body))

    def wait_for(
        self,
        answer_of: Callable[[JobState], T | None],
        what: str,
        deadline: Deadline | None = None,
    ) -> T:
        """Wait for the first answer on the committed state that is not None, and return it.

        Raises:
            Unavailable: none came within the settings' wait; the message names `what`.
        """
        deadline = deadline or self._settings.deadline()
        with self._changed:
            while (answer := answer_of(self._state)) is None:
                if self._error is not None:
                    raise self._error
                if deadline.passed:
                    raise self.late(what)
                self._changed.wait(deadline.left_s)
        return answer

    def late(self, what: str) -> Unavailable:
        """Return the error for a wait that has taken too long."""
        waited = f"waited {self._settings.wait_ms} ms for {what} of job {self.announcer.job}"
        if self._settings.mode == SESSION and self._known.undecided:
            waited += f"; {self._known.undecided} of its facts wait, and no master has answered"
        return Unavailable(waited)

    def wait_until_read(self, what: str, deadline: Deadline | None = None) -> None:
        """Wait until the log was read to the end that it had, and nobody else decides. A fact that
        is published earlier could go into a predecessor's snapshot, where its answer cannot be
        found."""
        before = f"the end of the log before {what}"
        self.wait_for(lambda _: self._is_read or None, before, deadline)

    def wait_until_left(self) -> JobState:
        """Wait until all objects that were ordered to go are deleted, and until this master may
        stop. Go on waiting as long as fewer are left each time. A later driver may speak for the
        job by then."""
        left = _doomed(self.state)
        while True:
            try:
                return self.wait_for(self._if_left, "the deletion of every object")
            except Unavailable:
                before, left = left, _doomed(self.state)
                if left >= before:
                    raise

    def waiting(self) -> dict[str, int]:
        """Return the facts that have no answer yet, each with an offset at or before it."""
        with self._changed:
            return {name: asked.at for name, asked in self._asked.items()}

    def publish(self, outcome: Outcome, state: JobState) -> None:
        """Show the outcome of a step, answer the facts that it has settled, and let the driver make
        again what is lost."""
        with self._changed:
            self._state, self._known, self._is_read = state, outcome, True
            self._changed.notify_all()
        for answer in outcome.answers:
            if (asked := self._asked.pop(answer.cause, None)) is not None:
                asked.answer.set_result(answer.decisions)
        results = state.results.items()
        again = {name: frozenset(result.reproduction.reproducing) for name, result in results}
        missing = {name: partitions for name, partitions in again.items() if partitions}
        if missing:
            self.context.reproduce(missing)

    def lose(self, facts: Iterable[str], before: int) -> None:
        """Fail those of the questions that are before an offset: the log does not show their
        decisions any more."""
        with self._changed:
            asked = {name: self._asked[name] for name in facts if name in self._asked}
            lost = {name: it for name, it in asked.items() if it.at < before}
            self._asked = {name: it for name, it in self._asked.items() if name not in lost}
        for question in lost.values():
            question.answer.set_exception(OutcomeUnknown("the log no longer has the decision"))

    def fail(self, error: BaseException) -> None:
        """Give an error to everybody who waits, or asks from now on. The first one counts."""
        self.stopping.set()
        with self._changed:
            self._error = self._error or error
            asked, self._asked = self._asked, {}
            self._changed.notify_all()
        for question in asked.values():
            question.answer.set_exception(error)

    def give_up(self, error: BaseException) -> None:
        """Fail with an error that ends the master.

        The context hears of it too, unless the driver was fenced before it was accepted: then the
        registration raises the error, and may be tried again.
        """
        self.fail(error)
        if self.term.epoch or not isinstance(error, Fenced):
            self.context.on_fatal_error(error)

    def _if_left(self, state: JobState) -> JobState | None:
        ended = state.closed is None or self._known.may_part
        return state if ended and not _doomed(state) else None


def _doomed(state: JobState) -> int:
    return sum(len(result.doomed) for result in state.results.values())
