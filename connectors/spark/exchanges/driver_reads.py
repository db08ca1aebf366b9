"""The driver reads small results itself. Tasks then take their rows without a Python worker and
without a request, which takes less than half as long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from ....control.errors import HeadgateError
from ....control.events.types import BY_DRIVER, Consumed
from ....storage.format.manifest import Manifest
from ....storage.format.segment import Longs
from ....storage.reading.at_once import read_at_once
from ..tasks.exchange_tasks import Part, ReaderTask, ReadTask
from ..tasks.frames import VOLUME
from .job_context import JobContext

_LOG = logging.getLogger("headgate")
_OBJECTS_MAX = 64
_ROWS_BYTES_MAX = 1 << 20  # without compression, and as the tasks of all partitions get them


def read_by_driver(context: JobContext, task: ReaderTask) -> list[bytes] | None:
    """Return for each task its rows as a message, and the volume behind them; of a task without
    rows only the volume. Return None if the tasks themselves are to read: the result is not small,
    or cannot be read now. They wait for what is made again."""
    if not isinstance(task, ReadTask) or not isinstance(task.manifest, Manifest):
        return None
    manifest, limit = task.manifest, context.settings.driver_read_bytes
    sizes, objects = manifest.sizes, len(manifest.sources)
    is_small = 0 < limit >= int(sizes.sum()) and objects <= _OBJECTS_MAX
    if not is_small or any(part.partitions is not None for part in task.parts):
        return None
    read: list[list[pa.RecordBatch]] = [[] for _ in range(manifest.count)]
    left = _ROWS_BYTES_MAX
    try:
        for subpartition, batch in read_at_once(manifest, task.schema, context.store):
            read[subpartition].append(batch)
            if (left := left - batch.nbytes) < 0:
                return None
    except HeadgateError as exc:
        _LOG.info("tasks read result %s, which the driver cannot read: %s", manifest.result, exc)
        return None
    rows, stored_bytes = int(manifest.rows.sum()), int(sizes.sum())
    context.master.announce(
        context.worker.job,
        Consumed(manifest.result, 0, manifest.count, BY_DRIVER, rows, stored_bytes, objects),
    )
    parts = task.parts or [Part(range(at, at + 1)) for at in range(manifest.count)]
    return [_message(read, part.subpartitions, sizes) for part in parts]


def _message(read: Sequence[Sequence[pa.RecordBatch]], subpartitions: range, sizes: Longs) -> bytes:
    batches = [batch for at in subpartitions for batch in read[at]]
    rows = sum(batch.num_rows for batch in batches)
    volume = VOLUME.pack(rows, int(sizes[subpartitions.start : subpartitions.stop].sum()))
    return pa.concat_batches(batches).serialize().to_pybytes() + volume if rows else volume
