"""The shuffle master that a driver has: it decides itself, or follows the masters of a session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count

from ..addresses import is_same_place
from ..clock import SYSTEM_CLOCK, Deadline
from ..contract import (
    JobShuffleContext,
    MasterSettings,
    PartitionDescriptor,
    PartitionStorage,
    ProducerDescriptor,
    ShuffleDescriptor,
    TaskInputsOutputsDescriptor,
)
from ..errors import Fenced, Invalid, Lost
from ..events import types as ev
from ..ids import JobId, ResultId
from ..inquiry import questions
from ..log import EventLog
from ..model.state import JobState, ResultState
from ..snapshots import records
from ..snapshots.resume import begin
from .announcer import Announcer
from .heartbeats import HeartbeatThread
from .thread import JobMasterThread

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The author of a driver's events."""

    name: str
    """A name that no other driver has."""
    version: str
    """The version of Headgate that the driver runs."""
    store: str = ""
    """The place of the driver's objects."""


class DriverMaster:
    """Implements `ShuffleMaster` over an event log."""

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
        self._numbers = count()
        self._threads: dict[JobId, JobMasterThread] = {}
        self._epochs: dict[JobId, int] = {}
        self._hearts: dict[JobId, HeartbeatThread] = {}

    def start(self) -> None:
        """Do nothing: threads start when a job is registered."""

    def close(self) -> None:
        for job in list(self._threads):
            self._drop(job)
        self._close()

    def register_job(self, context: JobShuffleContext) -> None:
        """Become the job's driver, and its master unless the session has one. Both fence the
        predecessor.

        A driver that was fenced before it was accepted begins again, until `wait_ms` are over or a
        later driver has registered.

        Raises:
            Fenced: a later driver speaks for the job, or every try was fenced.
            Invalid: objects of the job are in another store than this driver's.
        """
        job = context.job_id
        self._drop(job)
        deadline = self._settings.deadline()
        begin(self._log, job, deadline, is_new=context.application == job)
        while (accepted := self._register(context, deadline)) is None:
            deadline.pause()
        assert isinstance(accepted, ev.JobAccepted), "a registered job is accepted"
        self._epochs[job] = accepted.epoch
        if self._settings.lease_ms:
            loop, settings = self._threads[job], self._settings
            heart = HeartbeatThread(self._log, job, settings, lambda: loop.works, loop.give_up)
            self._hearts[job] = heart
            heart.start()

    def unregister_job(self, job_id: JobId) -> None:
        """Release the job's results, wait until their objects are deleted, then sweep the job's
        prefix."""
        self._answer(job_id, ev.JobUnregistered("closed", self._epoch(job_id)))
        closed = self._loop(job_id).wait_until_left()
        if closed.closed is not None:  # else a later driver speaks for the job
            self._storage.sweep(closed)
        self._drop(job_id)

    def register_partition_with_producer(
        self, job_id: JobId, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> Future[ShuffleDescriptor]:
        """Register a result's partitions before the stage that produces them is launched."""
        result = partition.result
        registered = ev.ResultRegistered(
            result,
            partition.partitions,
            partition.subpartitions,
            partition.schema,
            partition.label,
            partition.inputs,
            partition.deterministic,
            partition.pipelined,
        )
        produced_by = ev.PartitionRegistered(result, producer.first, producer.count)
        answer = self._loop(job_id).ask(registered, produced_by)
        described: Future[ShuffleDescriptor] = Future()
        answer.add_done_callback(lambda done: _describe(done, described, job_id, partition))
        return described

    def announce(self, job_id: JobId, fact: ev.Consumed | ev.WayChosen) -> None:
        self._loop(job_id).announce(fact)

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Release a result; its objects are deleted soon after."""
        epoch = self._epoch(descriptor.job)
        self._answer(descriptor.job, ev.ReleaseRequested(descriptor.result, "asked for", epoch))

    def await_complete(self, descriptor: ShuffleDescriptor) -> ResultState:
        """Wait until every partition of a result is consumable."""
        return self._loop(descriptor.job).wait_for(
            lambda state: _if_complete(state, descriptor.result),
            f"all partitions of result {descriptor.result} to be consumable",
        )

    def report_lost(self, job_id: JobId, lost: ev.Lost) -> None:
        self._answer(job_id, lost)

    def compute_shuffle_memory_size_for_task(self, task: TaskInputsOutputsDescriptor) -> int:
        return self._task_bytes(task.inputs, task.outputs)

    def promote_partitions(self, descriptor: ShuffleDescriptor, expires_ms: int) -> None:
        if expires_ms and expires_ms <= SYSTEM_CLOCK.now_ms():
            raise Invalid(
                f"result {descriptor.result} would be deleted at once: {expires_ms} ms since 1970 "
                "is past. Name a time, not a length; 0 keeps the result for ever"
            )
        self._check_size(descriptor)
        request = ev.PromoteRequested(descriptor.result, expires_ms, self._epoch(descriptor.job))
        if not self._answer(descriptor.job, request):
            raise Invalid(f"result {descriptor.result} is not complete, or was released")

    def stop_tracking_partitions(self, descriptor: ShuffleDescriptor, reason: str) -> None:
        self._check_size(descriptor)
        request = ev.StopTrackingRequested(descriptor.result, reason, self._epoch(descriptor.job))
        if not self._answer(descriptor.job, request):
            raise Invalid(f"result {descriptor.result} was released, or is no longer tracked")

    def cluster_partitions(self, job_id: JobId) -> tuple[ResultId, ...]:
        return questions.cluster_partitions(self.state(job_id))

    def may_release_executor(self, job_id: JobId, host: str) -> bool:
        return not questions.running_on(self.state(job_id), host)

    def is_available(self, job_id: JobId, result: ResultId, partition: int | None = None) -> bool:
        return questions.is_available(self.state(job_id), result, partition)

    def remove_unused(self, job_id: JobId, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
        unused = questions.unused(self.state(job_id), in_use)
        for result in unused:
            self._answer(job_id, ev.ReleaseRequested(result, "unused", self._epoch(job_id)))
        return unused

    def state(self, job_id: JobId) -> JobState:
        """Return the committed state of a job."""
        return self._loop(job_id).state

    def _register(self, context: JobShuffleContext, deadline: Deadline) -> ev.Decision | None:
        """Return the answer to a registration, or None if it may be tried again: it was fenced, but
        by nobody who registered later."""
        job, settings, me = context.job_id, self._settings, self._me
        announcer = Announcer(job, me.name, numbers=self._numbers)
        loop = self._threads[job] = JobMasterThread(
            context, self._log, self._storage, settings, announcer
        )
        loop.start()
        registered = ev.JobRegistered(
            settings.mode, me.version, context.application, me.store, settings.lease_ms
        )
        try:
            loop.wait_until_read("JobRegistered", deadline)
            self._check_store(job, loop)
            return self._answer(job, registered, deadline)[0]
        except BaseException as exc:
            self._drop(job)
            if not isinstance(exc, Fenced) or loop.is_over or deadline.passed:
                raise
            _LOG.warning("trying again to register job %s: %s", job, exc)
            return None

    def _check_store(self, job_id: JobId, loop: JobMasterThread) -> None:
        results = loop.state.results.values()
        is_stored = any(result.production.attempts for result in results)
        if is_stored and not is_same_place(loop.store, self._me.store):
            raise Invalid(
                f"job {job_id} has objects in {loop.store}, and this driver's store is "
                f"{self._me.store}: name the same buckets in the same order, or give the job "
                "another name"
            )

    def _check_size(self, descriptor: ShuffleDescriptor) -> None:
        """Refuse to let a result outlive its job if later drivers could not read what is known of
        such results."""
        results = self.state(descriptor.job).results.items()
        kept = [r for name, r in results if r.kept or name == descriptor.result]
        if (size_bytes := sum(map(records.size_bytes, kept))) > records.KEPT_BYTES_MAX:
            raise Invalid(
                f"result {descriptor.result} cannot outlive its job: the log would have to keep "
                f"{size_bytes} bytes about {len(kept)} such results, over the limit of "
                f"{records.KEPT_BYTES_MAX}. Give it fewer partitions, or release others"
            )

    def _epoch(self, job_id: JobId) -> int:
        """Return the epoch of this driver. A request with an older epoch than the job's has no
        effect."""
        self._loop(job_id)
        return self._epochs[job_id]

    def _loop(self, job_id: JobId) -> JobMasterThread:
        loop = self._threads.get(job_id)
        if loop is None:
            raise Invalid(f"job {job_id} is not registered with this master")
        return loop

    def _drop(self, job_id: JobId) -> None:
        if job_id in self._hearts:
            self._hearts.pop(job_id).stop()
        if job_id in self._threads:
            self._threads.pop(job_id).close()

    def _answer(
        self, job_id: JobId, fact: ev.Fact, deadline: Deadline | None = None
    ) -> tuple[ev.Decision, ...]:
        loop = self._loop(job_id)
        try:
            asked = loop.ask(fact, deadline=deadline)
            return asked.result((deadline or self._settings.deadline()).left_s)
        except TimeoutError as exc:
            raise loop.late(f"the decision on {type(fact).__name__}") from exc


def _describe(
    done: Future[tuple[ev.Decision, ...]],
    described: Future[ShuffleDescriptor],
    job: JobId,
    partition: PartitionDescriptor,
) -> None:
    error = done.exception()
    if error is not None:
        described.set_exception(error)
    elif not done.result():
        described.set_exception(
            Invalid(f"the master refused the partitions of result {partition.result}")
        )
    else:
        accepted = done.result()[0]
        assert isinstance(accepted, ev.PartitionAccepted), "only this follows from a registration"
        described.set_result(
            ShuffleDescriptor(
                job,
                partition.result,
                partition.partitions,
                partition.subpartitions,
                accepted.epoch,
                partition.broadcast,
            )
        )


def _if_complete(state: JobState, result: ResultId) -> ResultState | None:
    if state.failed is not None:
        raise Lost(f"the job has failed: {state.failed}")
    result_state = state.results.get(result)
    if result_state is not None and result_state.fate.released is not None:
        raise Invalid(f"result {result} was released: {result_state.fate.released}")
    return result_state if result_state is not None and result_state.complete else None
