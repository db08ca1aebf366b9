"""The running master of one job: facts in, decisions out, each step one transaction.

Guarantees: a decision is announced to waiters only after its step is committed; objects are
deleted only after the order to delete them is, and again after a crash until the log says so.
Assumes one holder of the job's decisions: a later one fences this loop, which then stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import TypeVar

from .clock import SYSTEM_CLOCK, Clock, Deadline
from .contract import JobShuffleContext, MasterSettings, PartitionStorage
from .errors import Closed, HeadgateError, OutcomeUnknown, Retryable, Unavailable
from .events import Body, Decision, Deleted, Event, Fact, Released, Superseded
from .ids import AttemptId, JobId, ResultId
from .log import Decisions, EventLog, Follower
from .replay import Derived, Replay
from .state import JobState

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_PAUSE_S = 0.5

T = TypeVar("T")


class Author:
    """Gives the events of one speaker their envelope; ids do not repeat within a speaker."""

    def __init__(self, job: JobId, by: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._job = job
        self._by = by
        self._clock = clock
        self._numbers = count()

    def fact(self, body: Fact, cause: str = "") -> Event:
        return self._event(f"{self._by}.{next(self._numbers)}", cause, None, body)

    def decision(self, derived: Derived) -> Event:
        return self._event(derived.id, derived.cause, derived.basis, derived.decision)

    def _event(self, name: str, cause: str, basis: int | None, body: Body) -> Event:
        return Event(name, self._job, cause, self._clock.now_ms(), self._by, basis, body)


class JobLoop:
    def __init__(
        self,
        context: JobShuffleContext,
        log: EventLog,
        storage: PartitionStorage,
        settings: MasterSettings,
        author: Author,
    ) -> None:
        self._context = context
        self._log = log
        self._storage = storage
        self._settings = settings
        self._author = author
        self._changed = threading.Condition()
        self._state = JobState(context.job_id)
        self._asked: dict[str, Future[tuple[Decision, ...]]] = {}
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._deleting: set[AttemptId] = set()
        self._undeleted: set[ResultId] = set()
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="headgate-delete")
        self._thread = threading.Thread(target=self._run, name="headgate-master", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop deciding; whoever still waits gets `Closed`."""
        self._stopping.set()
        self._thread.join(self._settings.wait_ms / 1000)
        self._deleter.shutdown(wait=True, cancel_futures=True)
        self._fail(Closed("the master is closed"))

    @property
    def state(self) -> JobState:
        """What is committed."""
        with self._changed:
            return self._state

    def ask(self, body: Fact) -> Future[tuple[Decision, ...]]:
        """State a fact; the future holds what was decided on it, empty when nothing follows."""
        event = self._author.fact(body)
        answer: Future[tuple[Decision, ...]] = Future()
        with self._changed:
            if self._error is not None:
                raise self._error
            self._asked[event.id] = answer
        try:
            self._log.append(event).offset(self._deadline())
        except BaseException:
            self._asked.pop(event.id, None)
            raise
        return answer

    def wait_for(self, found: Callable[[JobState], T | None], what: str) -> T:
        """The first answer that is not None on the committed state.

        Raises:
            Unavailable: none came within the settings' wait, naming what was waited for.
        """
        deadline = self._deadline()
        with self._changed:
            while (answer := found(self._state)) is None:
                if self._error is not None:
                    raise self._error
                if deadline.passed:
                    raise Unavailable(
                        f"waited {self._settings.wait_ms} ms for {what} of job "
                        f"{self._context.job_id}"
                    )
                self._changed.wait(deadline.left_s)
        return answer

    def _deadline(self) -> Deadline:
        return Deadline.after(self._settings.wait_ms / 1000)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._lead()
            except (Retryable, OutcomeUnknown) as exc:
                _LOG.warning("master of %s starts over: %s", self._context.job_id, exc)
                self._stopping.wait(_PAUSE_S)
            except BaseException as exc:
                self._fail(exc)
                if not isinstance(exc, HeadgateError):
                    _LOG.exception("master of %s stopped", self._context.job_id)
                self._context.on_fatal_error(exc)
                return

    def _lead(self) -> None:
        """Fence the predecessor, replay what there is, write what it left undecided, go on."""
        job = self._context.job_id
        with (
            closing(self._log.open_decisions(job)) as decisions,
            closing(self._log.follow(job, None)) as follower,
        ):
            self._decide(decisions, follower, Replay(job))

    def _decide(self, decisions: Decisions, follower: Follower, replay: Replay) -> None:
        end = follower.end()
        answered: list[Derived] = []  # by a predecessor, or by a step of unknown outcome
        while follower.position() < end and not self._stopping.is_set():
            taken = self._take(follower, replay)
            answered += [one for one in taken if one.cause in self._asked]
        self._commit(decisions, follower, replay, tuple(replay.due))
        self._answer(tuple(answered))
        self._delete(replay.state, replay.state.results)
        while not self._stopping.is_set():
            self._commit(decisions, follower, replay, self._take(follower, replay))
            again, self._undeleted = self._undeleted, set()
            self._delete(replay.state, again)

    def _take(self, follower: Follower, replay: Replay) -> tuple[Derived, ...]:
        records = follower.poll(self._settings.step_events_max, _POLL_S)
        derived = tuple(d for record in records for d in replay.observe(record))
        for body in (r.event.body for r in records):
            if isinstance(body, Deleted):  # only the log ends a deletion, lest it is done twice
                self._deleting.difference_update(body.attempts)
        undecided = {r.event.id for r in records} & self._asked.keys()
        for name in undecided - {d.cause for d in derived}:
            self._asked.pop(name).set_result(())
        return derived

    def _commit(
        self,
        decisions: Decisions,
        follower: Follower,
        replay: Replay,
        derived: tuple[Derived, ...],
    ) -> None:
        if derived:
            decisions.begin()
            for one in derived:
                decisions.write(self._author.decision(one))
            decisions.commit(follower.position())
        with self._changed:
            self._state = replay.state
            self._changed.notify_all()
        self._answer(derived)
        ordered = [d.decision for d in derived if isinstance(d.decision, Superseded | Released)]
        self._delete(replay.state, {_result_of(decision) for decision in ordered})

    def _answer(self, derived: tuple[Derived, ...]) -> None:
        by_cause: dict[str, list[Decision]] = {}
        for one in derived:
            by_cause.setdefault(one.cause, []).append(one.decision)
        for cause, answers in by_cause.items():
            if cause in self._asked:
                self._asked.pop(cause).set_result(tuple(answers))

    def _delete(self, state: JobState, results: Iterable[ResultId]) -> None:
        for name in results:
            attempts = set(state.results[name].doomed) - self._deleting
            if attempts:
                self._deleting |= attempts
                self._deleter.submit(self._delete_attempts, state, name, tuple(sorted(attempts)))

    def _delete_attempts(
        self, state: JobState, name: ResultId, attempts: tuple[AttemptId, ...]
    ) -> None:
        try:
            objects = self._storage.delete(state.job, state.results[name], attempts)
            event = self._author.fact(Deleted(name, attempts, objects))
            self._log.append(event).offset(self._deadline())
        except Exception as exc:
            self._deleting.difference_update(attempts)
            if isinstance(exc, Retryable):
                self._undeleted |= {name}
                return
            unforeseen = None if isinstance(exc, HeadgateError) else exc
            _LOG.warning(
                "objects of %s stay until the next start: %s", name, exc, exc_info=unforeseen
            )

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            asked, self._asked = self._asked, {}
            self._changed.notify_all()
        for answer in asked.values():
            answer.set_exception(error)


def _result_of(decision: Superseded | Released) -> ResultId:
    return decision.result if isinstance(decision, Released) else decision.attempt.partition.result
