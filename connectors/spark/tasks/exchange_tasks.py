"""The tasks that write and read an exchange. The driver makes them, and they travel to executors.

Guarantees that to import this module and to make and pickle tasks loads no client of Kafka or of an
object store: a task that runs imports `worker.py`, which does. Functions of tasks are pickled by
name, so every worker runs the code that is installed there.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from ....control.ids import AttemptId, JobId, PartitionId, ResultId
from ....control.kafka.settings import KafkaSettings
from ....storage.contract import InputGateDeployment, ResultPartitionDeployment
from ....storage.format.batches import split
from ....storage.format.manifest import Manifest
from ....storage.format.manifest_shards import StoredManifest
from ....storage.limits import Limits
from .frames import Volume

if TYPE_CHECKING:
    from ....storage.environment import ObjectStoreEnvironment
    from ....storage.writing.writer import SegmentWriter

SUBPARTITION = "headgate_subpartition"


class Meter:
    """Counts the stored rows that a task reads."""

    def __init__(self) -> None:
        self._rows = self._stored_bytes = 0

    def add(self, rows: int, stored_bytes: int) -> None:
        self._rows += rows
        self._stored_bytes += stored_bytes

    def take(self) -> Volume:
        """Return the volume since the last call."""
        volume = Volume(self._rows, self._stored_bytes)
        self._rows = self._stored_bytes = 0
        return volume


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings from which a worker process makes its environment."""

    key: str
    """Tasks with the same key share an environment."""
    job: JobId
    kafka: KafkaSettings
    store: str
    """URL of the store."""
    root: str
    """Prefix of all object names in the store."""
    s3: tuple[tuple[str, str], ...]
    """Options of the object store."""
    limits: Limits
    wait_s: float
    """Longest wait for a decision or a confirmation."""
    markers: tuple[str, ...] = ()
    """The objects by which a process knows the driver's root; their content is `key`."""


def environment_of(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """Return this process's environment for a job. A task that runs calls this."""
    from .worker import environment

    return environment(settings)


@dataclass(frozen=True, slots=True)
class MapTask:
    """Writes one partition."""

    settings: WorkerSettings
    result: ResultId
    epoch: int
    subpartitions: int
    schema: pa.Schema
    """The columns of the rows."""
    codec: str
    ordered: bool
    """True if another attempt would give the rows in the same order."""

    def write(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Volume]:
        """Write batches whose last column is the subpartition, and yield the volume."""
        with self.writing() as writer:
            for batch in batches:
                *columns, subpartitions = batch.columns
                rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                # Arrow's own conversion to numpy imports pandas, which takes a second
                numbers: np.ndarray = np.from_dlpack(subpartitions)
                writer.write(rows, numbers)
            produced = writer.finish()
        yield Volume(produced.rows, produced.size_bytes)

    @contextmanager
    def writing(self) -> Iterator[SegmentWriter]:
        """Return the writer of this task's partition, for a body that calls `finish`. If the body
        fails, the attempt is given up."""
        task = TaskContext.get()
        assert task is not None, "runs inside a task"
        partition = PartitionId(self.result, task.partitionId())
        attempt = AttemptId(partition, self.epoch, task.taskAttemptId())
        deployment = ResultPartitionDeployment(
            attempt, self.subpartitions, self.schema, self.codec, ordered=self.ordered
        )
        shuffle = environment_of(self.settings)
        writer = shuffle.create_result_partition_writer(deployment, socket.gethostname())
        try:
            yield writer
        except BaseException as exc:
            writer.abort(type(exc).__name__)
            raise


@dataclass(frozen=True, slots=True)
class Part:
    """The slices that one task reads."""

    subpartitions: range
    partitions: range | None = None
    """The partitions that are read; None for all."""


class ReaderTask(ABC):
    """Tasks that read one exchange, or several side by side."""

    __slots__ = ()

    @property
    @abstractmethod
    def count(self) -> int:
        """Return the number of tasks."""

    @abstractmethod
    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task. The meter counts the stored rows that were read for
        them."""

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[tuple[pa.Buffer, Volume]]:
        """Yield the batches of one task as messages for the JVM, each with the volume that was read
        for it. They are cut into small pieces because the JVM holds each message as a whole.
        `nothing` is the empty input of the task."""
        for _ in nothing:
            raise AssertionError("a reader task has no input")
        meter = Meter()
        for batch in self.batches_of(index, meter):
            for piece in split(batch):
                yield piece.serialize(), meter.take()

    def batches(self, index: int, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the tasks whose numbers come in as rows."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.batches_of(number, Meter())


@dataclass(frozen=True, slots=True)
class ReadTask(ReaderTask):
    """Reads the rows of an exchange."""

    settings: WorkerSettings
    manifest: Manifest | StoredManifest
    schema: pa.Schema
    """The columns of the rows."""
    parts: tuple[Part, ...] = ()
    """The part that each task reads; empty when task i reads subpartition i."""
    executors: int = 1
    """The number of executors that run the tasks, or of task slots if these share nothing."""

    @property
    def count(self) -> int:
        return len(self.parts) or self.manifest.count

    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        part = self.parts[number] if self.parts else Part(range(number, number + 1))
        task = TaskContext.get()
        assert task is not None, "runs inside a task"
        consumer, shuffle = task.taskAttemptId(), environment_of(self.settings)
        left = part.subpartitions
        while left:
            manifest = shuffle.manifest_of(self.manifest, left.start, consumer)
            count = min(len(left), manifest.first + manifest.count - left.start)
            selected = manifest if part.partitions is None else manifest.of(part.partitions)
            deployment = InputGateDeployment(
                selected, self.schema, left.start, count, consumer, executors=self.executors
            )
            gate = shuffle.create_input_gate(deployment)
            for batch in gate:
                meter.add(*gate.take_volume())
                yield batch
            left = left[count:]
