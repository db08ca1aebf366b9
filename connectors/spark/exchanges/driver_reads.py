"""The driver reads small results itself. Tasks then take their rows without a Python worker and
without a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from ....control.errors import HeadgateError
from ....control.events.types import BY_DRIVER, Consumed
from ....storage.format.manifest import Manifest
from ....storage.format.segment import Longs
from ....storage.reading.at_once import filled, read_at_once
from ..tasks.exchange_tasks import Part, ReaderTask, ReadTask
from ..tasks.frames import VOLUME
from ..types import least_bytes
from .job_context import JobContext

_LOG = logging.getLogger("headgate")
_OBJECTS_MAX = 64
_ROWS_TIMES = 4  # rows without compression may take so many times as much as they do in the store
_WAIT_S = 5.0


def read_by_driver(context: JobContext, task: ReaderTask) -> list[bytes] | None:
    """Return for each task its rows as a message, and the volume behind them; of a task without
    rows only the volume. Return None if the tasks themselves are to read: the result is not small,
    or cannot be read now. They wait for what is made again."""
    if not isinstance(task, ReadTask) or not isinstance(task.manifest, Manifest):
        return None
    manifest, sizes = task.manifest, task.manifest.sizes
    stored_bytes, rows = int(sizes.sum()), int(manifest.rows.sum())
    stored_max, objects = context.settings.driver_read_bytes, len(filled(manifest))
    rows_max = _ROWS_TIMES * stored_max
    is_small = stored_bytes <= stored_max and rows * max(1, least_bytes(task.schema)) <= rows_max
    is_whole = all(part.partitions is None for part in task.parts)
    if not stored_max or not is_small or not is_whole or objects > _OBJECTS_MAX:
        return None
    read: list[list[pa.RecordBatch]] = [[] for _ in range(manifest.count)]
    try:
        batches = read_at_once(manifest, task.schema, context.store, _WAIT_S)
        for subpartition, batch in batches:
            read[subpartition].append(batch)
            if (rows_max := rows_max - batch.nbytes) < 0:
                return None
    except (HeadgateError, RuntimeError, MemoryError) as exc:  # for example, no thread is left
        _LOG.info("tasks read result %s, which the driver cannot read: %s", manifest.result, exc)
        return None
    parts = task.parts or [Part(range(at, at + 1)) for at in range(manifest.count)]
    messages = [_message(read, part.subpartitions, sizes) for part in parts]
    context.master.announce(
        context.worker.job,
        Consumed(manifest.result, 0, manifest.count, BY_DRIVER, rows, stored_bytes, objects),
    )
    return messages


def _message(read: Sequence[Sequence[pa.RecordBatch]], subpartitions: range, sizes: Longs) -> bytes:
    batches = [batch for at in subpartitions for batch in read[at]]
    rows = sum(batch.num_rows for batch in batches)
    volume = VOLUME.pack(rows, int(sizes[subpartitions.start : subpartitions.stop].sum()))
    return pa.concat_batches(batches).serialize().to_pybytes() + volume if rows else volume
