"""The contract between an engine and the control plane, after FLIP-31 and FLIP-184.

Nothing here depends on the format of stored data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, Self

from .clock import PACE, SYSTEM_CLOCK, Clock, Deadline, Pace
from .events.types import Consumed, Lost, ResultRegistered, WayChosen
from .ids import AttemptId, JobId, PartitionId, ResultId
from .model.state import JobState, ResultState

PER_JOB = "per-job"
SESSION = "session"


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """The limits and intervals of a master."""

    wait_ms: int = 60_000
    """The limit of every wait for a decision."""
    step_events_max: int = 500
    """The largest number of events that a step reads or that one of its transactions writes."""
    mode: str = PER_JOB
    """`PER_JOB`: the driver decides for its jobs. `SESSION`: the group of masters does."""
    snapshot_events: int = 10_000
    """A snapshot is due after this many facts."""
    snapshot_ms: int = 3_600_000
    """A snapshot is also due after this time if the log has new events."""
    snapshot_step_bytes: int = 1 << 20
    """A snapshot of more bytes is written in several steps: one transaction must not be open for
    long, also where the broker takes little more than this in a second."""
    lease_ms: int = 0
    """A driver that is silent for this long may be taken for dead; 0 means never. At most the time
    for which the log keeps a heartbeat."""
    look_ms: int = 5_000
    """The interval at which a master checks for expired results and silent drivers."""
    pace: Pace = PACE
    """The waits of the master's loops."""

    def deadline(self, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the end of a wait for a decision that begins now."""
        return Deadline.after(self.wait_ms / 1000, clock)

    def within(self, retention_ms: int) -> Self:
        """Return settings that suit the log's retention, which is endless if negative.

        A snapshot is due at least four times before the log deletes an event, so that the log
        forgets nothing that no snapshot has.
        """
        if retention_ms < 0:
            return self
        return replace(self, snapshot_ms=min(self.snapshot_ms, retention_ms // 4))


def beat_ms(lease_ms: int, pace: Pace = PACE) -> float:
    """Return the time between two heartbeats of a driver with this lease."""
    return min(lease_ms / 3, 1000 * pace.refresh_s)


@dataclass(frozen=True, slots=True)
class ShuffleDescriptor:
    """The values with which a producer writes a result's partitions and a consumer finds them."""

    job: JobId
    result: ResultId
    partitions: int
    subpartitions: int
    epoch: int
    broadcast: bool = False
    """True if every consumer reads subpartition 0, which is the whole result."""


@dataclass(frozen=True, slots=True)
class UnknownShuffleDescriptor:
    """A partition that is not whole yet. Its readers wait; they never take it for an empty one."""

    job: JobId
    partition: PartitionId
    subpartitions: int
    pipelined: bool = False
    """True if readers read the segments that are already there while they wait."""


@dataclass(frozen=True, slots=True)
class TaskInputsOutputsDescriptor:
    """The inputs and outputs of a task, from which its memory is computed."""

    inputs: int
    """The number of gates that the task reads at once."""
    outputs: int
    """The number of partitions that the task writes."""


@dataclass(frozen=True, slots=True)
class ShuffleMasterContext:
    """The values from which a factory makes a master."""

    settings: MasterSettings
    me: str
    """The name of the master, which no other master has."""
    version: str


class JobShuffleContext(Protocol):
    """The callbacks of a job's driver, which its master calls after a fatal error and for lost
    partitions."""

    job_id: JobId
    application: str

    def on_fatal_error(self, error: BaseException) -> None:
        """Learn that the master has stopped. Every caller that waits for it gets the same error."""

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Start producing lost partitions again, and return at once.

        The master repeats the call until these partitions are consumable.
        """


class ShuffleMaster(Protocol):
    """Registers, tracks and releases the results of one job."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def register_job(self, context: JobShuffleContext) -> None: ...

    def unregister_job(self) -> None: ...

    def register_partition_with_producer(
        self, registered: ResultRegistered, broadcast: bool = False
    ) -> Future[ShuffleDescriptor]:
        """Register a result that is about to be produced, with all of its partitions. If the result
        is broadcast, every consumer reads the whole of it.

        Raises:
            Invalid: a broadcast result does not have exactly one subpartition.
        """

    def announce(self, fact: Consumed | WayChosen) -> None:
        """Publish by which way a complete result is read, or that the driver has read it. Nobody
        waits for that. Wait for nothing, and let no failure of the log fail the exchange."""

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None: ...

    def compute_shuffle_memory_size_for_task(self, task: TaskInputsOutputsDescriptor) -> int:
        """Return the bytes that a task needs for its gates and partitions, whatever they hold."""

    def promote_partitions(self, descriptor: ShuffleDescriptor, expires_ms: int) -> None:
        """Keep a complete result beyond its job until `expires_ms`; 0 means for ever.

        Raises:
            Invalid: the result is not complete, or was released, or the time is past.
        """

    def stop_tracking_partitions(self, descriptor: ShuffleDescriptor, reason: str) -> None:
        """Leave a result to another owner: it outlives its job until that owner releases it.

        Raises:
            Invalid: the result was released, or was left to another owner before.
        """

    def cluster_partitions(self) -> tuple[ResultId, ...]:
        """Return the results that outlive the job."""

    def may_release_executor(self, host: str) -> bool:
        """Return True if no attempt that still counts runs on the host."""

    def is_available(self, result: ResultId, partition: int | None = None) -> bool:
        """Return True if a result, or one partition of it, can be read completely now."""

    def remove_unused(self, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
        """Release the complete results that nobody needs, and return the ids of these results.

        A result is needed if it, or a result made from it, is in use, is incomplete or outlives
        the job.
        """

    def state(self) -> JobState:
        """Return the committed state of the job."""

    def await_complete(self, descriptor: ShuffleDescriptor) -> ResultState:
        """Wait until every partition of a result may be read; return the result.

        Raises:
            Invalid: it was released.
            Lost: the job has failed.
            Unavailable: the master did not say so in time.
        """

    def report_lost(self, lost: Lost) -> None:
        """Publish that an object is lost. Return when the master has decided."""


class PartitionStorage(Protocol):
    """Deletes objects for the master: the only side effect of its decisions."""

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        """Delete the segments of these attempts, and return the number of objects.

        If the result is released, delete its manifest shards too. The call may be repeated.
        """

    def sweep(self, closed: JobState) -> int:
        """Delete the objects that a closed job has left, and return their number.

        A later driver of the job may be at work meanwhile. Its objects stay, and so do the results
        that outlive the job.
        """
