"""The thread that runs the master of one job, or follows the masters of a session, and its waiters.

Guarantees: those who ask or wait hear only of what is committed; deletions run beside the steps,
after the order to delete is committed; while something waits for the time, the master states it.
Assumes one holder of the job's decisions, and one driver: a later one fences this thread, which
then stops.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

from ..clock import Deadline
from ..contract import SESSION, JobShuffleContext, MasterSettings, PartitionStorage
from ..errors import Closed, Fenced, HeadgateError, Lost, OutcomeUnknown, Retryable, Unavailable
from ..events.types import Decision, Fact, Tick
from ..ids import JobId
from ..log import EventLog
from ..model.decide import decide
from ..model.state import JobState
from .announcer import Announcer
from .deletions import Deletion
from .job_steps import JobSteps, Outcome
from .silence import LogTime, minds_time, time_of
from .term import Term

_LOG = logging.getLogger(__name__)
_ASK_S_MAX = 1.0
_ASK_AGAIN_S = 60.0

T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    """A fact that was appended, and the future of its answer."""

    answer: Future[tuple[Decision, ...]]
    at: int
    """The offset of the fact; before the log has confirmed it, an offset at or before it."""


class JobMasterThread:
    def __init__(
        self,
        context: JobShuffleContext,
        log: EventLog,
        storage: PartitionStorage,
        settings: MasterSettings,
        announcer: Announcer,
    ) -> None:
        self._context = context
        self._log = log
        self._storage = storage
        self._settings = settings
        self._announcer = announcer
        self._term = Term(announcer.by)
        self._changed = threading.Condition()
        self._state = JobState(context.job_id)
        self._asked: dict[str, _Asked] = {}
        self._error: BaseException | None = None
        self._read = False
        self._undecided = 0
        self._store = ""
        self._may_part = False
        self._next_look = Deadline.after(0)
        self._time = LogTime(announcer.clock, settings.pace)
        self._stopping = threading.Event()
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="headgate-delete")
        self._deleting: weakref.WeakSet[Future[None]] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._run, name="headgate-master", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop deciding; everybody who still waits gets `Closed`."""
        self._stopping.set()
        self._thread.join(self._settings.wait_ms / 1000)
        self._deleter.shutdown(wait=True, cancel_futures=True)
        self._fail(Closed("the master is closed"))

    def give_up(self, error: BaseException) -> None:
        """Stop deciding, and give the error to everybody who waits.

        The context hears of it too, unless the driver was fenced before it was accepted: then the
        registration raises the error, and may be tried again.
        """
        self._stopping.set()
        self._fail(error)
        if self._term.epoch or not isinstance(error, Fenced):
            self._context.on_fatal_error(error)

    @property
    def state(self) -> JobState:
        """Return the committed state."""
        with self._changed:
            return self._state

    @property
    def store(self) -> str:
        """The address of the store that the job's newest driver has registered; '' before."""
        with self._changed:
            return self._store

    @property
    def is_over(self) -> bool:
        """Return True if a later driver speaks for the job, or this driver's lease has ended."""
        return self._term.is_over

    @property
    def works(self) -> bool:
        """Return True until the thread is closed or an error stops it, for example a successor."""
        with self._changed:
            return self._error is None

    def ask(self, *facts: Fact, deadline: Deadline | None = None) -> Future[tuple[Decision, ...]]:
        """State facts, one after the other. The future gets the decisions on the last one, none
        when nothing follows from it.

        Raises:
            Unavailable: the deadline had passed before the facts were stated.
        """
        deadline = deadline or self._settings.deadline()
        if deadline.passed:
            raise self.late(f"the time to state {type(facts[-1]).__name__}")
        events = [self._announcer.fact(fact) for fact in facts]
        answer: Future[tuple[Decision, ...]] = Future()
        asked, last = _Asked(answer, self._term.position or 0), events[-1].id
        with self._changed:
            if self._error is not None:
                raise self._error
            self._asked[last] = asked
        try:
            for receipt in [self._log.append(event) for event in events]:
                asked.at = receipt.offset(deadline)
        except BaseException:
            self._asked.pop(last, None)
            raise
        return answer

    def announce(self, body: Fact) -> None:
        """State a fact that nobody waits for. If the log does not take it, it is lost."""
        with suppress(HeadgateError):
            self._log.append(self._announcer.fact(body))

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
        waited = f"waited {self._settings.wait_ms} ms for {what} of job {self._context.job_id}"
        if self._settings.mode == SESSION and self._undecided:
            waited += f"; {self._undecided} of its facts wait, and no master has answered"
        return Unavailable(waited)

    def wait_until_read(self, what: str, deadline: Deadline | None = None) -> None:
        """Wait until the log was read to the end that it had, and nobody else decides. A fact that
        is stated earlier could go into a predecessor's snapshot, where its answer cannot be
        found."""
        before = f"the end of the log before {what}"
        self.wait_for(lambda _: self._read or None, before, deadline)

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

    def _if_left(self, state: JobState) -> JobState | None:
        ended = state.closed is None or self._may_part
        return state if ended and not _doomed(state) else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._lead()
            except BaseException as exc:
                if not self._goes_on(exc):
                    if not isinstance(exc, HeadgateError):
                        _LOG.exception("master of %s stopped", self._context.job_id)
                    self.give_up(exc)
                    return
                _LOG.warning("master of %s starts over: %s", self._context.job_id, exc)
                self._stopping.wait(self._settings.pace.retry_s)

    def _goes_on(self, exc: BaseException) -> bool:
        """Return True if the master should start over after an error. The log also fences a master
        that was only away: it starts over if nobody has come in its place."""
        if isinstance(exc, Fenced):
            return self._term.epoch > 0 and not self._term.is_over
        return isinstance(exc, Retryable | OutcomeUnknown | Lost)

    def _lead(self) -> None:
        for waiting in list(self._deleting):
            waiting.cancel()  # new steps hand out all deletions again
        with closing(self._open()) as steps:
            while not self._stopping.is_set():
                self._publish(steps.step(self._settings.pace.poll_s))
                self._look()

    def _open(self) -> JobSteps:
        if self._settings.mode == SESSION:
            return self._follow()
        return JobSteps.open(self._log, self._announcer, self._settings, self._term)

    def _follow(self) -> JobSteps:
        """Follow the masters of a session. A snapshot has no answers, so start early enough for the
        facts that wait for one."""
        with self._changed:
            waiting = dict(self._asked)
        asked_from = min(
            [question.at for question in waiting.values()], default=self._term.position
        )
        steps = JobSteps.follow(self._log, self._announcer, self._settings, self._term, asked_from)
        for event, question in waiting.items():
            if question.at < steps.answers_from:
                self._asked.pop(event, None)
                error = OutcomeUnknown("the log no longer has the decision")
                question.answer.set_exception(error)
        return steps

    def _look(self) -> None:
        """State the time at intervals while something waits for it. Nobody waits for that fact: if
        it is lost, it is stated again."""
        if self._settings.mode == SESSION or not self._next_look.passed:
            return
        self._next_look = Deadline.after(self._settings.look_ms / 1000)
        late = self._time.is_stale and minds_time(self._state)
        if self._read and (late or decide(self._state, Tick(self._time.now_ms()))):
            self._state_time()

    def _state_time(self) -> None:
        """State the time by the log's clock: ours may be days off, and what is deleted too early is
        lost. A step must not wait for long: if the log does not answer soon, it is asked again much
        later."""
        try:
            name = JobId(self._announcer.by.replace(" ", "-"))
            tick = Tick(time_of(self._log, name, Deadline.after(_ASK_S_MAX)))
        except Unavailable as exc:
            self._next_look = Deadline.after(_ASK_AGAIN_S)
            _LOG.warning(
                "could not check if a result of job %s has expired: %s", self._context.job_id, exc
            )
            return
        self._time.hear(tick.now_ms)
        if decide(self._state, tick):
            self._log.append(self._announcer.fact(tick))

    def _publish(self, outcome: Outcome) -> None:
        if outcome.state is None:
            return
        with self._changed:
            self._state, self._read = outcome.state, True
            self._undecided, self._store = outcome.undecided, outcome.store
            self._may_part = outcome.may_part
            self._changed.notify_all()
        for answer in outcome.answers:
            if (asked := self._asked.pop(answer.cause, None)) is not None:
                asked.answer.set_result(answer.decisions)
        results = outcome.state.results.items()
        again = {name: frozenset(result.reproduction.reproducing) for name, result in results}
        missing = {name: partitions for name, partitions in again.items() if partitions}
        if missing:
            self._context.reproduce(missing)
        for deletion in outcome.deletions:
            self._deleting.add(self._deleter.submit(self._delete, deletion))

    def _delete(self, deletion: Deletion) -> None:
        deletion.run(self._storage, self._log, self._settings.deadline())

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            asked, self._asked = self._asked, {}
            self._changed.notify_all()
        for question in asked.values():
            question.answer.set_exception(error)


def _doomed(state: JobState) -> int:
    return sum(len(result.doomed) for result in state.results.values())
