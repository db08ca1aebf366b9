"""What runs in Spark's Python workers: map tasks that write a partition, reader tasks that read.

What a process needs (clients, connections, pools) is made at its first task and kept for the next.
Functions here travel by name, so that every worker runs the code that it has installed itself.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark import TaskContext
from pyspark.serializers import NoOpSerializer, SpecialLengths, read_int

from ....control.ids import AttemptId, JobId, PartitionId, ResultId
from ....control.kafka.log import KafkaEventLog
from ....control.kafka.settings import KafkaSettings
from ....storage.contract import (
    InputGateDeployment,
    ResultPartitionDeployment,
    ShuffleEnvironmentContext,
)
from ....storage.environment import ObjectStoreEnvironment
from ....storage.format.manifest import Manifest
from ....storage.format.manifest_shards import StoredManifest
from ....storage.limits import Limits
from ....storage.runtime import Runtime
from ....storage.services import StorageFactory
from ....storage.stores.open_store import open_store
from ....storage.writing.encoding import cut
from .interpreter import forget_zips, freeze_modules, keep_memory

SUBPARTITION = "headgate_subpartition"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """All that a worker needs to make its environment; those of one `key` share it."""

    key: str
    job: JobId
    kafka: KafkaSettings
    store: str
    root: str
    s3: tuple[tuple[str, str], ...]
    limits: Limits
    wait_s: float


@dataclass(frozen=True, slots=True)
class MapTask:
    """Writes one partition; the last column of what comes in is the subpartition."""

    settings: WorkerSettings
    result: ResultId
    epoch: int
    subpartitions: int
    schema: bytes
    codec: str
    ordered: bool

    def write_frames(self, index: int, frames: Iterable[pa.Buffer]) -> Iterator[int]:
        """Write the batches that the JVM sends as bytes."""
        schema = self._schema()
        carried = schema.append(pa.field(SUBPARTITION, pa.int32()))
        yield self._write(schema, (_batch(frame, carried) for frame in frames))

    def write_batches(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        """Write the batches of mapInArrow, and count the rows in one."""
        rows = self._write(self._schema(), batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def _schema(self) -> pa.Schema:
        return ipc.read_schema(pa.py_buffer(self.schema))

    def _write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
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
    """Buffers as they are: each a length and that many bytes, until the end mark.

    Raises:
        EOFError: the stream ends without the mark. So it does when what feeds the task fails: the
            rows are not all there, and must not be announced as if they were.
    """

    def load_stream(self, stream: Any) -> Iterator[pa.Buffer]:
        while (length := read_int(stream)) != SpecialLengths.END_OF_DATA_SECTION:  # type: ignore[no-untyped-call]
            # Arrow's allocator gives the same pages again; Python's goes to the system each time.
            frame = pa.allocate_buffer(length)
            if stream.readinto(memoryview(frame).cast("B")) != length:
                raise EOFError(f"a batch of {length} bytes was cut off")
            yield frame


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: neighbouring subpartitions, of all partitions or of some."""

    subpartitions: range
    partitions: range | None = None


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads subpartitions, each in a task of its own number, or the parts named."""

    settings: WorkerSettings
    manifest: Manifest | StoredManifest
    schema: bytes
    parts: tuple[Part, ...] = ()

    @property
    def count(self) -> int:
        """How many tasks it takes."""
        return len(self.parts) or self.manifest.count

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[pa.Buffer]:
        """The batches of one task, as the messages that the JVM loads."""
        return messages(nothing, self.batches_of(index))

    def batches(self, index: int, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of the tasks whose numbers come in as rows."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.batches_of(number)

    def batches_of(self, number: int) -> Iterator[pa.RecordBatch]:
        part = self.parts[number] if self.parts else Part(range(number, number + 1))
        schema = ipc.read_schema(pa.py_buffer(self.schema))
        task = _context().taskAttemptId()
        shuffle = environment(self.settings)
        left = part.subpartitions
        while left:
            manifest = shuffle.manifest_of(self.manifest, left.start)
            count = min(len(left), manifest.first + manifest.count - left.start)
            held = manifest if part.partitions is None else manifest.of(part.partitions)
            deployment = InputGateDeployment(held, schema, left.start, count, task)
            yield from shuffle.create_input_gate(deployment)
            left = left[count:]


def messages(nothing: Iterable[object], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """Yield what a task that reads hands to the JVM, which holds each message as a whole; rows of
    Spark's do not come in."""
    for _ in nothing:
        raise AssertionError("a reader task has no input")
    for batch in batches:
        for piece in cut(batch):
            yield piece.serialize()


_ENVIRONMENTS: OrderedDict[str, ObjectStoreEnvironment] = OrderedDict()
_ENVIRONMENTS_MAX = 4


def _batch(stream: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the only batch of a stream; its schema is known, and is not read again."""
    messages = ipc.MessageReader.open_stream(stream)
    messages.read_next_message()
    return ipc.read_record_batch(messages.read_next_message(), schema)


def environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """This process's environment for a job, made at its first task; that which was used longest ago
    makes room."""
    found = _ENVIRONMENTS.get(settings.key) or _make_environment(settings)
    _ENVIRONMENTS.move_to_end(settings.key)
    freeze_modules()
    forget_zips()
    return found


def _make_environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    keep_memory()
    factory = StorageFactory(
        partial(KafkaEventLog, settings.kafka),
        partial(open_store, settings.store, dict(settings.s3)),
        settings.limits,
        settings.store,
    )
    context = ShuffleEnvironmentContext(settings.job, Runtime(settings.wait_s))
    made = factory.create_shuffle_environment(context)
    _ENVIRONMENTS[settings.key] = made
    if len(_ENVIRONMENTS) > _ENVIRONMENTS_MAX:
        _ENVIRONMENTS.popitem(last=False)[1].close()
    return made


def _apart(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, np.ndarray]:
    """The rows as they were, and the subpartition of each."""
    columns = batch.columns
    rows = pa.RecordBatch.from_arrays(columns[:-1], schema=schema)
    return rows, np.from_dlpack(columns[-1])  # Arrow's own way to numpy imports pandas, a second


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    return context
