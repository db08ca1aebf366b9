"""The contract between engine and control plane, after FLIP-31 and FLIP-184. Knows no bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, Self

from .errors import Invalid
from .ids import AttemptId, JobId, PartitionId, ResultId
from .model.state import JobState, ResultState

PER_JOB = "per-job"
SESSION = "session"


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """`wait_ms` bounds every wait for a decision; `step_events_max` bounds one transaction; `mode`
    says who decides for a driver's jobs: the driver, or the group of session masters. A snapshot
    follows `snapshot_events` facts, and `snapshot_ms` in which the log went on. A
    driver that is silent for `lease_ms` may be taken for dead, with 0 never. Every `look_ms` a
    master looks whether something waits for time."""

    wait_ms: int = 60_000
    step_events_max: int = 500
    mode: str = PER_JOB
    snapshot_events: int = 10_000
    snapshot_ms: int = 3_600_000
    lease_ms: int = 0
    look_ms: int = 5_000

    def within(self, retention_ms: int) -> Self:
        """Return these for a log that keeps events for so long, below 0 for ever: its jobs are in
        snapshots before it forgets."""
        if retention_ms < 0:
            return self
        return replace(self, snapshot_ms=min(self.snapshot_ms, retention_ms // 4))


@dataclass(frozen=True, slots=True)
class PartitionDescriptor:
    """A result about to be produced, with all of its partitions; the rest as `ResultRegistered`
    tells it. Every consumer of a `broadcast` one reads all of it: it has one subpartition, which is
    written once, however many they are. Those that are registered with it among their `inputs` hold
    it until they are complete.

    Raises:
        Invalid: a broadcast result has more than one subpartition.
    """

    result: ResultId
    partitions: int
    subpartitions: int
    schema: str
    label: str
    inputs: tuple[ResultId, ...] = ()
    deterministic: bool = True
    pipelined: bool = False
    broadcast: bool = False

    def __post_init__(self) -> None:
        if self.broadcast and self.subpartitions != 1:
            raise Invalid(
                f"result {self.result} is broadcast: it needs 1 subpartition, which all consumers "
                f"read, not {self.subpartitions}"
            )


@dataclass(frozen=True, slots=True)
class ProducerDescriptor:
    """Which of the result's partitions one stage produces."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ShuffleDescriptor:
    """What a producer needs to write a result's partitions and a consumer to find them; of a
    `broadcast` one each consumer reads subpartition 0."""

    job: JobId
    result: ResultId
    partitions: int
    subpartitions: int
    epoch: int
    broadcast: bool = False


@dataclass(frozen=True, slots=True)
class UnknownShuffleDescriptor:
    """A partition that is not whole yet: its readers wait for it, for it is not empty. Of a
    pipelined one they read what is there meanwhile."""

    job: JobId
    partition: PartitionId
    subpartitions: int
    pipelined: bool = False


@dataclass(frozen=True, slots=True)
class TaskInputsOutputsDescriptor:
    """How many gates a task reads at once, and how many partitions it writes."""

    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class ShuffleMasterContext:
    """What a factory makes a master from: `me` is a name that no other master has."""

    settings: MasterSettings
    me: str
    version: str


class JobShuffleContext(Protocol):
    """What the master may ask of a job."""

    job_id: JobId
    application: str

    def on_fatal_error(self, error: BaseException) -> None:
        """The master cannot go on; whoever waits for it gets this error."""

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """These partitions were consumable and are to be made again. Said whenever something has
        changed until they are there; must return at once."""


class ShuffleMaster(Protocol):
    """Decides; cluster level, so that many jobs can share one."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def register_job(self, context: JobShuffleContext) -> None: ...

    def unregister_job(self, job_id: JobId) -> None: ...

    def register_partition_with_producer(
        self, job_id: JobId, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> Future[ShuffleDescriptor]: ...

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None: ...

    def compute_shuffle_memory_size_for_task(self, task: TaskInputsOutputsDescriptor) -> int:
        """The bytes that a task needs for its gates and its partitions, whatever they hold."""

    def promote_partitions(self, descriptor: ShuffleDescriptor, expires_ms: int) -> None:
        """Make a complete result outlive its job until a point in time, 0 for ever.

        Raises:
            Invalid: it is not complete, or not there any more.
        """

    def stop_tracking_partitions(self, descriptor: ShuffleDescriptor, reason: str) -> None:
        """Leave a result to somebody else: it outlives its job, and is deleted when they say so.

        Raises:
            Invalid: it is not there, or was left before.
        """

    def cluster_partitions(self, job_id: JobId) -> tuple[ResultId, ...]:
        """The results that outlive their job."""

    def may_release_executor(self, job_id: JobId, host: str) -> bool:
        """Whether a job loses nothing with an executor."""

    def is_available(self, job_id: JobId, result: ResultId, partition: int | None = None) -> bool:
        """Whether a result, or one partition of it, can be read whole now."""

    def remove_unused(self, job_id: JobId, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
        """Release the complete results of a job that nobody needs, and return which these are."""

    def state(self, job_id: JobId) -> JobState:
        """Return what is committed of a job."""

    def await_complete(self, descriptor: ShuffleDescriptor) -> ResultState:
        """Wait until every partition of a result may be read; return the result.

        Raises:
            Invalid: it is not there, or was released.
            Lost: what was consumable is gone, and cannot be made again.
            Unavailable: the master did not say so in time.
        """


class PartitionStorage(Protocol):
    """How the master has objects deleted: the only side effect of its decisions."""

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        """Delete what attempts at a result wrote, and all that belongs to a released one; returns
        how many objects that were. May be repeated."""

    def sweep(self, closed: JobState) -> int:
        """Delete whatever a job that has ended left behind, and return how many objects. A later
        driver of the job may be at work meanwhile: what it writes, and what outlives the job, is
        left alone."""
