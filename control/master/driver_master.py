"""The shuffle master that a driver has: it decides for the driver's job, or follows the masters of
a session.

Guarantees: deletions run beside the steps, after the order to delete is committed; while something
waits for the time, the master publishes it. Assumes one holder of the job's decisions, and one
driver: a later one fences this master, which then stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from ..addresses import is_same_place
from ..clock import SYSTEM_CLOCK, Deadline
from ..contract import (
    SESSION,
    JobShuffleContext,
    MasterSettings,
    PartitionStorage,
    ShuffleDescriptor,
    TaskInputsOutputsDescriptor,
)
from ..errors import (
    Closed,
    Fenced,
    HeadgateError,
    Invalid,
    Lost,
    OutcomeUnknown,
    Retryable,
    Unavailable,
)
from ..events import types as ev
from ..ids import JobId, ResultId
from ..inquiry import questions
from ..log import EventLog
from ..model.decide import decide
from ..model.state import JobState, ResultState
from ..snapshots import records
from ..snapshots.resume import begin
from .announcer import Announcer
from .deletions import Clearing, Deleter, Deletion
from .heartbeats import HeartbeatThread
from .job_answers import JobAnswers
from .job_steps import JobSteps
from .silence import LogTime, minds_time, time_of

_LOG = logging.getLogger(__name__)
_ASK_S_MAX = 1.0
_ASK_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The author of a driver's events."""

    name: str
    """A name that no other driver has."""
    version: str
    """The version of Headgate that the driver runs."""
    store: str = ""
    """The place of the driver's objects."""
    numbers: Iterator[int] = field(default_factory=count)
    """The numbers of the driver's facts."""

    def announcer(self, job: JobId) -> Announcer:
        return Announcer(job, self.name, numbers=self.numbers)


class DriverMaster:
    """Implements `ShuffleMaster` over an event log: a thread takes the steps of one job."""

    def __init__(
        self,
        log: EventLog,
        storage: PartitionStorage,
        settings: MasterSettings,
        me: DriverIdentity,
        task_bytes: Callable[[int, int], int] = lambda inputs, outputs: 0,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`task_bytes` tells how much memory so many gates and partitions of a task take, `close`
        gives back what the log and the storage were opened with."""
        self._task_bytes = task_bytes
        self._close = close
        self._log = log
        self._storage = storage
        self._settings = settings
        self._me = me
        self._epoch = 0
        self._answers: JobAnswers | None = None
        self._running = ExitStack()
        self._next_look = Deadline.after(0)
        self._time = LogTime(SYSTEM_CLOCK, settings.pace)

    def start(self) -> None:
        """Do nothing: the thread starts when a job is registered."""

    def close(self) -> None:
        self._stop()
        self._close()

    @property
    def answers(self) -> JobAnswers:
        """Return what is known of the job.

        Raises:
            Invalid: no job is registered, or it was unregistered.
        """
        if self._answers is None:
            raise Invalid("no job is registered with this master")
        return self._answers

    def state(self) -> JobState:
        """Return the committed state of the job."""
        return self.answers.state

    # The life of the job

    def register_job(self, context: JobShuffleContext) -> None:
        """Become the job's driver, and its master unless the session has one. Both fence the
        predecessor.

        A driver that was fenced before it was accepted begins again, until `wait_ms` are over or a
        later driver has registered.

        Raises:
            Fenced: a later driver speaks for the job, or every try was fenced.
            Invalid: objects of the job are in another store than this driver's.
        """
        self._stop()
        job, settings, deadline = context.job_id, self._settings, self._settings.deadline()
        begin(self._log, job, deadline, is_new=context.application == job)
        while (accepted := self._register(context, deadline)) is None:
            deadline.pause()
        assert isinstance(accepted, ev.JobAccepted), "a registered job is accepted"
        self._epoch = accepted.epoch
        if settings.lease_ms:
            answers = self.answers
            heart = HeartbeatThread(
                self._log, job, settings, lambda: answers.works, answers.give_up
            )
            self._running.callback(heart.stop)
            heart.start()

    def start_job(self, context: JobShuffleContext) -> JobAnswers:
        """Take the steps of a job from now on, but do not speak for it as its driver."""
        self._stop()
        announcer = self._me.announcer(context.job_id)
        self._answers = answers = JobAnswers(context, self._log, announcer, self._settings)
        deleter = Deleter(self._delete, 1)
        run = partial(self._run, answers, deleter)
        thread = threading.Thread(target=run, name="headgate-master", daemon=True)
        self._running.callback(answers.fail, Closed("the master is closed"))
        self._running.callback(deleter.close)
        self._running.callback(thread.join, self._settings.wait_ms / 1000)
        self._running.callback(answers.stopping.set)
        thread.start()
        return answers

    def unregister_job(self) -> None:
        """Release the job's results, wait until their objects are deleted, then sweep the job's
        prefix."""
        answers = self.answers
        answers.answer(ev.JobUnregistered("closed", self._epoch))
        closed = answers.wait_until_left()
        if closed.closed is not None:  # else a later driver speaks for the job
            self._storage.sweep(closed)
        self._stop()

    def _register(self, context: JobShuffleContext, deadline: Deadline) -> ev.Decision | None:
        """Return the answer to a registration, or None if it may be tried again: it was fenced, but
        by nobody who registered later."""
        settings, me = self._settings, self._me
        registered = ev.JobRegistered(
            settings.mode, me.version, context.application, me.store, settings.lease_ms
        )
        answers = self.start_job(context)
        try:
            answers.wait_until_read("JobRegistered", deadline)
            self._check_store(answers)
            return answers.answer(registered, deadline)[0]
        except BaseException as exc:
            self._stop()
            if not isinstance(exc, Fenced) or answers.term.is_over or deadline.passed:
                raise
            _LOG.warning("trying again to register job %s: %s", context.job_id, exc)
            return None

    def _check_store(self, answers: JobAnswers) -> None:
        results = answers.state.results.values()
        is_stored = any(result.production.attempts for result in results)
        if is_stored and not is_same_place(answers.store, self._me.store):
            raise Invalid(
                f"job {answers.state.job} has objects in {answers.store}, and this driver's store "
                f"is {self._me.store}: name the same buckets in the same order, or give the job "
                "another name"
            )

    def _stop(self) -> None:
        """Stop deciding; everybody who still waits gets `Closed`."""
        self._answers = None
        self._running.pop_all().close()  # in order, even if another thread stops it meanwhile

    # Results

    def register_partition_with_producer(
        self, registered: ev.ResultRegistered, broadcast: bool = False
    ) -> Future[ShuffleDescriptor]:
        """Register a result's partitions before the stage that produces them is launched."""
        if broadcast and registered.subpartitions != 1:
            raise Invalid(
                f"result {registered.result} is broadcast: it needs 1 subpartition, which all "
                f"consumers read, not {registered.subpartitions}"
            )
        produced_by = ev.PartitionRegistered(registered.result, 0, registered.partitions)
        answers = self.answers
        answer = answers.ask(registered, produced_by)
        described: Future[ShuffleDescriptor] = Future()
        describe = partial(_describe, described, answers.state.job, registered, broadcast)
        answer.add_done_callback(describe)
        return described

    def announce(self, fact: ev.Consumed | ev.WayChosen) -> None:
        self.answers.announce(fact)

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Release a result; its objects are deleted soon after."""
        self.answers.answer(ev.ReleaseRequested(descriptor.result, "asked for", self._epoch))

    def await_complete(self, descriptor: ShuffleDescriptor) -> ResultState:
        """Wait until every partition of a result is consumable."""
        return self.answers.wait_for(
            lambda state: _if_complete(state, descriptor.result),
            f"all partitions of result {descriptor.result} to be consumable",
        )

    def report_lost(self, lost: ev.Lost) -> None:
        self.answers.answer(lost)

    def compute_shuffle_memory_size_for_task(self, task: TaskInputsOutputsDescriptor) -> int:
        return self._task_bytes(task.inputs, task.outputs)

    def promote_partitions(self, descriptor: ShuffleDescriptor, expires_ms: int) -> None:
        if expires_ms and expires_ms <= SYSTEM_CLOCK.now_ms():
            raise Invalid(
                f"result {descriptor.result} would be deleted at once: {expires_ms} ms since 1970 "
                "is past. Name a time, not a length; 0 keeps the result for ever"
            )
        self._check_size(descriptor)
        request = ev.PromoteRequested(descriptor.result, expires_ms, self._epoch)
        if not self.answers.answer(request):
            raise Invalid(f"result {descriptor.result} is not complete, or was released")

    def stop_tracking_partitions(self, descriptor: ShuffleDescriptor, reason: str) -> None:
        self._check_size(descriptor)
        request = ev.StopTrackingRequested(descriptor.result, reason, self._epoch)
        if not self.answers.answer(request):
            raise Invalid(f"result {descriptor.result} was released, or is no longer tracked")

    def cluster_partitions(self) -> tuple[ResultId, ...]:
        return questions.cluster_partitions(self.state())

    def may_release_executor(self, host: str) -> bool:
        return not questions.running_on(self.state(), host)

    def is_available(self, result: ResultId, partition: int | None = None) -> bool:
        return questions.is_available(self.state(), result, partition)

    def remove_unused(self, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
        unused = questions.unused(self.state(), in_use)
        for result in unused:
            self.answers.answer(ev.ReleaseRequested(result, "unused", self._epoch))
        return unused

    def _check_size(self, descriptor: ShuffleDescriptor) -> None:
        """Refuse to let a result outlive its job if later drivers could not read what is known of
        such results."""
        results = self.state().results.items()
        kept = [r for name, r in results if r.kept or name == descriptor.result]
        if (size_bytes := sum(map(records.size_bytes, kept))) > records.KEPT_BYTES_MAX:
            raise Invalid(
                f"result {descriptor.result} cannot outlive its job: the log would have to keep "
                f"{size_bytes} bytes about {len(kept)} such results, over the limit of "
                f"{records.KEPT_BYTES_MAX}. Give it fewer partitions, or release others"
            )

    # The thread of the steps

    def _run(self, answers: JobAnswers, deleter: Deleter) -> None:
        job = answers.announcer.job
        while not answers.stopping.is_set():
            try:
                self._lead(answers, deleter)
            except BaseException as exc:
                if not _goes_on(answers, exc):
                    if not isinstance(exc, HeadgateError):
                        _LOG.exception("master of %s stopped", job)
                    answers.give_up(exc)
                    return
                _LOG.warning("master of %s starts over: %s", job, exc)
                answers.stopping.wait(self._settings.pace.retry_s)

    def _lead(self, answers: JobAnswers, deleter: Deleter) -> None:
        deleter.forget()  # new steps hand out all deletions again
        with closing(self._open(answers)) as steps:
            while not answers.stopping.is_set():
                outcome = steps.step(self._settings.pace.poll_s)
                if outcome.state is not None:
                    answers.publish(outcome, outcome.state)
                for deletion in outcome.deletions:
                    deleter.add(deletion)
                self._look(answers)

    def _open(self, answers: JobAnswers) -> JobSteps:
        """Open the steps. A driver that follows the masters of a session starts early enough for
        the facts that wait for an answer, because a snapshot has no answers."""
        parts = self._log, answers.announcer, self._settings, answers.term
        if self._settings.mode != SESSION:
            return JobSteps.open(*parts)
        waiting = answers.waiting()
        known = min(waiting.values(), default=answers.term.position)
        steps = JobSteps.follow(*parts, known)
        answers.lose(waiting, steps.answers_from)
        return steps

    def _delete(self, deletion: Deletion | Clearing) -> None:
        deletion.run(self._storage, self._log, self._settings.deadline())

    def _look(self, answers: JobAnswers) -> None:
        """Publish the time at intervals while something waits for it. Nobody waits for that fact:
        if it is lost, it is published again."""
        if self._settings.mode == SESSION or not self._next_look.passed:
            return
        self._next_look = Deadline.after(self._settings.look_ms / 1000)
        state = answers.state
        late = self._time.is_stale and minds_time(state)
        if answers.is_read and (late or decide(state, ev.Tick(self._time.now_ms()))):
            self._publish_time(answers)

    def _publish_time(self, answers: JobAnswers) -> None:
        """Publish the time by the log's clock: ours may be days off, and what is deleted too early
        is lost. A step must not wait for long: if the log does not answer soon, it is asked again
        much later."""
        job, name = answers.announcer.job, JobId(self._me.name.replace(" ", "-"))
        try:
            tick = ev.Tick(time_of(self._log, name, Deadline.after(_ASK_S_MAX)))
        except Unavailable as exc:
            self._next_look = Deadline.after(_ASK_AGAIN_S)
            _LOG.warning("could not check if a result of job %s has expired: %s", job, exc)
            return
        self._time.hear(tick.now_ms)
        if decide(answers.state, tick):
            self._log.append(answers.announcer.fact(tick))


def _goes_on(answers: JobAnswers, exc: BaseException) -> bool:
    """Return True if the master should start over after an error. The log also fences a master that
    was only away: it starts over if nobody has come in its place."""
    if isinstance(exc, Fenced):
        return answers.term.epoch > 0 and not answers.term.is_over
    return isinstance(exc, Retryable | OutcomeUnknown | Lost)


def _describe(
    described: Future[ShuffleDescriptor],
    job: JobId,
    registered: ev.ResultRegistered,
    broadcast: bool,
    done: Future[tuple[ev.Decision, ...]],
) -> None:
    error, name = done.exception(), registered.result
    if error is not None:
        described.set_exception(error)
    elif not done.result():
        described.set_exception(Invalid(f"the master refused the partitions of result {name}"))
    else:
        accepted = done.result()[0]
        assert isinstance(accepted, ev.PartitionAccepted), "only this follows from a registration"
        size = registered.partitions, registered.subpartitions
        described.set_result(ShuffleDescriptor(job, name, *size, accepted.epoch, broadcast))


def _if_complete(state: JobState, result: ResultId) -> ResultState | None:
    if state.failed is not None:
        raise Lost(f"the job has failed: {state.failed}")
    result_state = state.results.get(result)
    if result_state is not None and result_state.fate.released is not None:
        raise Invalid(f"result {result} was released: {result_state.fate.released}")
    return result_state if result_state is not None and result_state.complete else None
