"""What runs in Spark's Python workers: map tasks that write a partition, reader tasks that read.

What a process needs (clients, connections, pools) is made at its first task and kept for the next.
Functions here travel by name, so that every worker runs the code that it has installed itself.
"""

from __future__ import annotations

import gc
import socket
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark import TaskContext

from ...control.contract import ShuffleDescriptor
from ...control.ids import AttemptId, JobId, PartitionId
from ...control.kafka import KafkaEventLog, KafkaSettings
from ...storage.contract import InputGateDeployment, Limits, ResultPartitionDeployment
from ...storage.environment import ObjectStoreEnvironment
from ...storage.manifest import Manifest
from ...storage.stores import open_store


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
    """Writes one partition from the JVM's Arrow batches; the last column is the subpartition."""

    settings: WorkerSettings
    descriptor: ShuffleDescriptor
    schema: bytes
    codec: str

    def __call__(self, index: int, batches: Iterator[bytes]) -> Iterator[int]:
        carried = ipc.read_schema(pa.py_buffer(self.schema))
        schema = pa.schema(list(carried)[:-1])
        attempt = AttemptId(
            PartitionId(self.descriptor.result, index), self.descriptor.epoch, _task()
        )
        deployment = ResultPartitionDeployment(self.descriptor, attempt, schema, self.codec)
        writer = environment(self.settings).create_result_partition_writer(
            deployment, socket.gethostname()
        )
        try:
            for body in batches:
                batch = ipc.read_record_batch(pa.py_buffer(body), carried)
                writer.write(*_apart(batch, schema))
            yield writer.finish().rows
        except BaseException as exc:
            writer.abort(type(exc).__name__)
            raise


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads the subpartitions whose numbers come in as rows."""

    settings: WorkerSettings
    manifest: Manifest
    schema: bytes

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = ipc.read_schema(pa.py_buffer(self.schema))
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                deployment = InputGateDeployment(self.manifest, schema, number, 1, _task())
                yield from environment(self.settings).create_input_gate(deployment)


_ENVIRONMENTS: OrderedDict[str, ObjectStoreEnvironment] = OrderedDict()
_ENVIRONMENTS_MAX = 4


def environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """This process's environment for a job, made at its first task."""
    found = _ENVIRONMENTS.get(settings.key)
    return found if found is not None else _make_environment(settings)


def _make_environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """Freezing what is loaded by now keeps the collection that PySpark runs after every task short."""
    store, root = open_store(settings.store, dict(settings.s3))
    log = KafkaEventLog(settings.kafka)
    made = ObjectStoreEnvironment(settings.job, log, store, root, settings.limits, settings.wait_s)
    _ENVIRONMENTS[settings.key] = made
    if len(_ENVIRONMENTS) > _ENVIRONMENTS_MAX:
        _ENVIRONMENTS.popitem(last=False)[1].close()
    gc.collect()
    gc.freeze()
    return made


def _apart(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, np.ndarray]:
    """The rows as they were, and the subpartition of each."""
    columns = batch.columns
    rows = pa.RecordBatch.from_arrays(columns[:-1], schema=schema)
    return rows, columns[-1].to_numpy(zero_copy_only=False)


def _task() -> int:
    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    return context.taskAttemptId()
