"""The tasks that write and read an exchange. The driver makes them, and they travel to executors.

Guarantees that to import this module and to make and pickle tasks loads no client of Kafka or of an
object store: a task that runs imports `worker.py`, which does. Functions of tasks are pickled by
name, so every worker runs the code that is installed there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark import TaskContext
from pyspark.serializers import NoOpSerializer, SpecialLengths, read_int

from ....control.ids import AttemptId, JobId, PartitionId, ResultId
from ....control.kafka.settings import KafkaSettings
from ....storage.contract import InputGateDeployment, ResultPartitionDeployment
from ....storage.format.manifest import Manifest
from ....storage.format.manifest_shards import StoredManifest
from ....storage.limits import Limits
from ....storage.writing.encoding import cut

SUBPARTITION = "headgate_subpartition"


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


@dataclass(frozen=True, slots=True)
class MapTask:
    """Writes one partition. The last column of the incoming batches is the subpartition."""

    settings: WorkerSettings
    result: ResultId
    epoch: int
    subpartitions: int
    schema: bytes
    codec: str
    ordered: bool
    """True if another attempt would give the rows in the same order."""

    def write_frames(self, index: int, frames: Iterable[pa.Buffer]) -> Iterator[int]:
        """Write the batches that the JVM sends as bytes, and yield the number of rows."""
        schema = self._schema()
        carried = schema.append(pa.field(SUBPARTITION, pa.int32()))
        yield self._write(schema, (_batch(frame, carried) for frame in frames))

    def write_batches(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        """Write the batches of mapInArrow, and yield a batch with the number of rows."""
        rows = self._write(self._schema(), batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def _schema(self) -> pa.Schema:
        return ipc.read_schema(pa.py_buffer(self.schema))

    def _write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        from .worker import environment

        context = _context()
        partition = PartitionId(self.result, context.partitionId())
        attempt = AttemptId(partition, self.epoch, context.taskAttemptId())
        deployment = ResultPartitionDeployment(
            attempt, self.subpartitions, schema, self.codec, ordered=self.ordered
        )
        shuffle = environment(self.settings)
        writer = shuffle.create_result_partition_writer(deployment, socket.gethostname())
        try:
            for batch in batches:
                writer.write(*_apart(batch, schema))
            return writer.finish().rows
        except BaseException as exc:
            writer.abort(type(exc).__name__)
            raise


class Frames(NoOpSerializer):
    """Reads buffers from a stream: each is a length and that many bytes, and an end mark follows.

    Raises:
        EOFError: the stream ends without the mark, as it does when the JVM side of the task fails.
            Rows are missing then, and the partition must not be announced.
    """

    def load_stream(self, stream: Any) -> Iterator[pa.Buffer]:
        while (length := read_int(stream)) != SpecialLengths.END_OF_DATA_SECTION:  # type: ignore[no-untyped-call]
            # Arrow's allocator reuses pages; Python's asks the system for new ones each time.
            frame = pa.allocate_buffer(length)
            if stream.readinto(memoryview(frame).cast("B")) != length:
                raise EOFError(f"a batch of {length} bytes was cut off")
            yield frame


@dataclass(frozen=True, slots=True)
class Part:
    """The slices that one task reads."""

    subpartitions: range
    partitions: range | None = None
    """The partitions that are read; None for all."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads the rows of an exchange."""

    settings: WorkerSettings
    manifest: Manifest | StoredManifest
    schema: bytes
    """The serialized Arrow schema of the rows."""
    parts: tuple[Part, ...] = ()
    """The part that each task reads; empty when task i reads subpartition i."""

    @property
    def count(self) -> int:
        """Return the number of tasks."""
        return len(self.parts) or self.manifest.count

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[pa.Buffer]:
        """Yield the batches of one task, as the messages that the JVM loads."""
        return messages(nothing, self.batches_of(index))

    def batches(self, index: int, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the tasks whose numbers come in as rows."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.batches_of(number)

    def batches_of(self, number: int) -> Iterator[pa.RecordBatch]:
        from .worker import environment

        part = self.parts[number] if self.parts else Part(range(number, number + 1))
        schema = ipc.read_schema(pa.py_buffer(self.schema))
        task = _context().taskAttemptId()
        shuffle = environment(self.settings)
        left = part.subpartitions
        while left:
            manifest = shuffle.manifest_of(self.manifest, left.start)
            count = min(len(left), manifest.first + manifest.count - left.start)
            selected = manifest if part.partitions is None else manifest.of(part.partitions)
            deployment = InputGateDeployment(selected, schema, left.start, count, task)
            yield from shuffle.create_input_gate(deployment)
            left = left[count:]


def messages(nothing: Iterable[object], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """Yield batches as messages for the JVM, cut into small pieces because the JVM holds each
    message as a whole. `nothing` is the empty input of a reader task."""
    for _ in nothing:
        raise AssertionError("a reader task has no input")
    for batch in batches:
        for piece in cut(batch):
            yield piece.serialize()


def _batch(stream: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the only batch of a stream, and skip the schema message: the schema is known."""
    messages = ipc.MessageReader.open_stream(stream)
    messages.read_next_message()
    return ipc.read_record_batch(messages.read_next_message(), schema)


def _apart(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, np.ndarray]:
    """Split a batch into its rows and the subpartition of each row."""
    columns = batch.columns
    rows = pa.RecordBatch.from_arrays(columns[:-1], schema=schema)
    return rows, np.from_dlpack(columns[-1])  # Arrow's own conversion imports pandas: 1 s


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    return context
