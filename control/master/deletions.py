"""Delete the objects that committed decisions have ordered to go.

Guarantees that only committed orders are handed out, and that an order is not handed out again
before the log says `Deleted` or its deletion has failed. A deletion may run more than once, in this
master and in any later one.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from ..clock import Clock, Deadline
from ..contract import PartitionStorage
from ..errors import Closed, Fenced, HeadgateError, OutcomeUnknown, Retryable
from ..events.traits import result_of, traits_of
from ..events.types import Deleted, Recorded
from ..ids import AttemptId, JobId, ResultId, in_parts
from ..log import EventLog
from ..model.ledger import Decided
from ..model.state import JobState, ResultState
from .announcer import Announcer

_LOG = logging.getLogger(__name__)
THREADS_MAX, JOB_THREADS_MAX = 16, 4  # of the deletions of many jobs, and of each job
_NAMED_MAX = 10  # jobs whose deletions are refused; a store that refuses one may refuse all


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion of objects of one result. `run` may be called in any thread while the master goes
    on with its steps."""

    announcer: Announcer
    result: ResultState
    attempts: tuple[AttemptId, ...]
    orders: Orders

    @property
    def name(self) -> ResultId:
        return self.result.registered.result

    @property
    def job(self) -> JobId:
        return self.announcer.job

    def run(self, storage: PartitionStorage, log: EventLog, deadline: Deadline) -> None:
        """Delete the objects, then append `Deleted`.

        After an error the deletion goes to `Orders.failed`, unless the master or its log is at its
        end.
        """
        try:
            objects = storage.delete(self.announcer.job, self.result, self.attempts)
            event = self.announcer.fact(Deleted(self.name, self.attempts, objects))
            log.append(event).offset(deadline)
        except (Closed, Fenced) as exc:
            _LOG.warning("%s, its next master will: %s", self, exc)
        except (Retryable, OutcomeUnknown):
            self.orders.failed.add(self)
        except Exception as exc:
            self.orders.failed.add(self, exc)

    def __str__(self) -> str:
        return f"could not delete objects of {self.name} of job {self.announcer.job}"


class DeletionRetrier:
    """Holds deletions that are to run again. Several jobs and threads may share it.

    An error that may pass has taken its time. A refusal, such as that of a token that has expired,
    comes at once: after one, no deletion of the job runs again for a while.
    """

    def __init__(self, clock: Clock, pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._lock = Lock()
        self._waiting: dict[JobId, list[Deletion]] = {}
        self._resumes: dict[JobId, Deadline] = {}

    def add(self, deletion: Deletion, refusal: Exception | None = None) -> None:
        job = deletion.job
        with self._lock:
            self._waiting.setdefault(job, []).append(deletion)
            pauses = refusal is not None and job not in self._resumes
            if pauses:
                self._resumes[job] = Deadline.after(self._pause_s, self._clock)
            is_named = pauses and len(self._resumes) <= _NAMED_MAX
        if is_named:
            unforeseen = None if isinstance(refusal, HeadgateError) else refusal
            _LOG.warning("%s yet: %s", deletion, refusal, exc_info=unforeseen)

    def take(self) -> list[Deletion]:
        """Return the deletions that may run again now."""
        with self._lock:
            self._resumes = {job: at for job, at in self._resumes.items() if not at.passed}
            ready = self._waiting.keys() - self._resumes.keys()
            return [deletion for job in sorted(ready) for deletion in self._waiting.pop(job)]


@dataclass(slots=True)
class Clearing:
    """The deletion of everything that is left under the prefix of a job whose driver is gone."""

    closed: JobState
    """The state of the closed job."""
    cleared: deque[Clearing]
    """Receives this clearing after its run."""
    failed: bool = False
    """True if the clearing should run again."""

    @property
    def job(self) -> JobId:
        return self.closed.job

    def run(self, storage: PartitionStorage, log: EventLog, deadline: Deadline) -> None:
        """Sweep the job's prefix, then add this clearing to `cleared`. An error is logged, and sets
        `failed`."""
        try:
            objects = storage.sweep(self.closed)
            _LOG.info("deleted %d more objects of job %s", objects, self.closed.job)
        except Exception as exc:
            self.failed = True
            unforeseen = None if isinstance(exc, HeadgateError) else exc
            _LOG.warning("could not sweep job %s: %s", self.closed.job, exc, exc_info=unforeseen)
        self.cleared.append(self)


class Deleter:
    """Runs the deletions of many jobs. No job waits for another one's store: a job has a few of the
    threads at most, and jobs take turns for the threads that are free."""

    def __init__(
        self, run: Callable[[Deletion | Clearing], None], threads: int = THREADS_MAX
    ) -> None:
        self._run = run
        self._threads_max = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="headgate-delete")
        self._lock = Lock()
        # The deletions that wait, by job; the job with the next turn comes first.
        self._waiting: dict[JobId, deque[Deletion | Clearing]] = {}
        self._running: Counter[JobId] = Counter()

    def add(self, deletion: Deletion | Clearing) -> None:
        with self._lock:
            self._waiting.setdefault(deletion.job, deque()).append(deletion)
            self._start()

    def forget(self) -> None:
        """Forget the deletions that wait; those that run come to their end."""
        with self._lock:
            self._waiting.clear()

    def close(self) -> None:
        """Forget the deletions that wait, and wait for those that run."""
        self.forget()
        self._threads.shutdown(wait=True)

    def _start(self) -> None:
        """Give the free threads to the jobs whose turn it is."""
        while self._running.total() < self._threads_max:
            job = next((j for j in self._waiting if self._running[j] < JOB_THREADS_MAX), None)
            if job is None:
                return
            deletions = self._waiting.pop(job)
            self._running[job] += 1
            self._threads.submit(self._take_turn, deletions.popleft())
            if deletions:
                self._waiting[job] = deletions

    def _take_turn(self, deletion: Deletion | Clearing) -> None:
        try:
            self._run(deletion)
        finally:
            with self._lock:
                self._running[deletion.job] -= 1
                if not self._running[deletion.job]:
                    del self._running[deletion.job]
                self._start()


class Orders:
    """Hands out the deletions of one job; the first ones include those that were ordered earlier.

    Any thread may add to `failed`, and several jobs may share it. All else belongs to the thread
    of the steps.
    """

    def __init__(self, announcer: Announcer, failed: DeletionRetrier) -> None:
        self.failed = failed
        self._announcer = announcer
        self._handed_out: set[AttemptId] = set()
        self._again: set[ResultId] = set()
        self._fresh = True

    def observe(self, recorded: Recorded) -> None:
        """Take in an event of the log. Only `Deleted` ends an order: otherwise its deletion could
        run twice at once."""
        if isinstance(recorded.event.body, Deleted):
            self._handed_out.difference_update(recorded.event.body.attempts)

    def take_back(self, deletion: Deletion) -> None:
        """Take in that a deletion has failed: the next call of `following` hands it out again."""
        self._handed_out.difference_update(deletion.attempts)
        self._again.add(deletion.name)

    def following(self, state: JobState, answers: Iterable[Decided]) -> tuple[Deletion, ...]:
        """Return the deletions that newly settled decisions order, and those that were taken
        back."""
        if self._fresh:
            self._fresh = False
            return self._hand_out(state, state.results)
        decisions = (decision for answer in answers for decision in answer.decisions)
        ordered = (result_of(it) for it in decisions if traits_of(it).orders_deletion)
        results = {name for name in ordered if name is not None} | self._again
        self._again.clear()
        return self._hand_out(state, sorted(results))

    def _hand_out(self, state: JobState, results: Iterable[ResultId]) -> tuple[Deletion, ...]:
        deletions: list[Deletion] = []
        for name in results:
            result = state.results.get(name)
            if result is None:  # its objects are deleted, and it is forgotten
                continue
            attempts = [a for a in result.doomed if a not in self._handed_out]
            self._handed_out.update(attempts)
            parts = in_parts(attempts)
            deletions += [Deletion(self._announcer, result, part, self) for part in parts]
        return tuple(deletions)
