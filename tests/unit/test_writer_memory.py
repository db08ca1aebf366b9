"""The memory of a writer: it counts what the rows that it holds keep from being freed."""

from __future__ import annotations

import io
import struct

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.spark.tasks.frames import RunFrames
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.contract import ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore

from ..doubles.segments import JOB, attempt_of

pytestmark = pytest.mark.usefixtures("no_thread_stays")

SCHEMA = pa.schema([("c", pa.int8())])
ROWS, RUNS, SUBPARTITIONS = 128 * 1024, 24, 8
LIMITS = Limits(segment_bytes=1 << 20)


def test_narrow_rows_that_come_in_runs() -> None:
    """A run is in one piece of memory with the numbers of its subpartitions, which may be larger
    than its columns. The writer ends a segment before such runs exceed its limit."""
    frames = RunFrames(SCHEMA.append(pa.field("to", pa.int32())), "14")
    targets = np.repeat(np.arange(SUBPARTITIONS, dtype=np.int32), ROWS // SUBPARTITIONS)
    sent = struct.pack("<5q", ROWS, 0, 0, 0, 0) + bytes(ROWS) + targets.tobytes()
    stream = io.BytesIO((struct.pack("!i", len(sent)) + sent) * RUNS + struct.pack("!i", -1))
    store = MemoryBlobStore({})
    environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", LIMITS)
    deployment = ResultPartitionDeployment(attempt_of(0), SUBPARTITIONS, SCHEMA, "lz4")
    writer = environment.create_result_partition_writer(deployment)
    before, largest = pa.total_allocated_bytes(), 0
    for batch in frames.load_stream(stream):
        rows = batch.select([0])
        numbers: np.ndarray = np.from_dlpack(batch.column(1))
        writer.write(rows, numbers)
        del batch, rows, numbers
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert RUNS * ROWS == writer.finish().rows
    environment.close()
    assert largest <= 3 * LIMITS.segment_bytes
