"""Sorting of rows by subpartition, and their encoding as one segment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from ...control.errors import Invalid
from ...control.ids import AttemptId
from ..format.segment import (
    ENTRY,
    TAIL,
    Longs,
    SegmentIndex,
    batches_start,
    ending,
    footer_metadata,
)

BATCH_BYTES = 4 << 20
ROOM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ordered by subpartition."""

    batch: pa.RecordBatch
    rows: Longs
    """The number of rows of each subpartition."""


@dataclass(frozen=True, slots=True)
class Segment:
    body: memoryview
    index: SegmentIndex


def sort(batches: list[pa.RecordBatch], targets: list[Longs], subpartitions: int) -> Run:
    """Order rows by subpartition. Rows of one subpartition keep their order."""
    wide = np.concatenate(targets)
    low, high = int(wide.min()), int(wide.max())
    if low < 0 or high >= subpartitions:
        raise Invalid(f"a row is for subpartition {low if low < 0 else high} of {subpartitions}")
    where = wide.astype(np.min_scalar_type(subpartitions - 1))  # small numbers sort by digits
    rows = np.bincount(where, minlength=subpartitions).astype(np.int64)
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if in_order(where):
        return Run(batch, rows)
    order = np.argsort(where, kind="stable").astype(np.uint32)
    taken = pa.Array.from_buffers(pa.uint32(), len(order), [None, pa.py_buffer(order)])
    return Run(batch.take(taken), rows)


def in_order(subpartitions: npt.NDArray[np.integer[Any]]) -> bool:
    """Return True if rows of these subpartitions are ordered by subpartition."""
    return bool(np.all(subpartitions[1:] >= subpartitions[:-1]))


def pieces(runs: list[Run], segment_bytes: int) -> Iterator[list[Run]]:
    """Yield the runs of neighbouring subpartitions that are encoded together: all of them, unless
    they would ask for far more room than the rows take. Each of many columns takes some room for
    each subpartition, however few rows it has."""
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    filled = np.flatnonzero(rows)
    room_bytes = _bytes_max(runs, runs[0].batch.schema, len(filled))
    count = min(len(filled), -(-room_bytes // max(ROOM_BYTES, 4 * segment_bytes)))
    firsts = [0, *(int(filled[len(filled) * at // count]) for at in range(1, count)), len(rows)]
    for first, end in pairwise(firsts):
        yield [part for run in runs if (part := _part(run, first, end)).batch.num_rows]


def _part(run: Run, first: int, end: int) -> Run:
    """Return the rows of neighbouring subpartitions, without copying them."""
    rows = np.zeros_like(run.rows)
    rows[first:end] = run.rows[first:end]
    return Run(run.batch.slice(int(run.rows[:first].sum()), int(rows.sum())), rows)


def encode(runs: list[Run], codec: str, attempt: AttemptId) -> Segment:
    """Merge runs into one file, ordered by subpartition."""
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    schema, filled = runs[0].batch.schema, int(np.count_nonzero(rows))
    metadata = footer_metadata(attempt, len(rows))
    options = ipc.IpcWriteOptions(compression=None if codec == "none" else codec, use_threads=False)
    room = pa.allocate_buffer(_bytes_max(runs, schema, filled))
    body = memoryview(room).cast("B")
    with pa.FixedSizeBufferWriter(room) as sink:
        with ipc.new_file(sink, schema, options=options, metadata=metadata) as writer:
            index = _write_batches(writer, sink, body, runs, rows)
        end = sink.tell() - TAIL.size
    footer_bytes, _ = TAIL.unpack(body[end : end + TAIL.size])
    last = ending(footer_bytes, index, attempt)
    body[end : end + len(last)] = last
    return Segment(body[: end + len(last)], index)


def _bytes_max(runs: list[Run], schema: pa.Schema, filled: int) -> int:
    """Return an upper limit for the file's size. Room costs nothing, because only written memory
    is ever touched, while a sink that grows by copying costs more than the compression."""
    raw = sum(_batch_bytes(run.batch) + sum(map(_nulls_bytes, run.batch.columns)) for run in runs)
    # two neighbouring batches of a subpartition are larger than the limit of one
    batches = filled + 2 * (raw // BATCH_BYTES)
    fields = sum(1 + _inner_fields(field.type) for field in schema)
    head = 2 * int(schema.serialize().size)
    index_bytes = filled * ENTRY.itemsize
    return head + raw + raw // 64 + (batches + 2) * (1024 + 512 * fields) + index_bytes


def _inner_fields(kind: pa.DataType) -> int:
    return sum(1 + _inner_fields(kind.field(at).type) for at in range(kind.num_fields))


def _nulls_bytes(column: pa.Array) -> int:
    """Return the room for a column's null bitmaps. A column without nulls has no bitmap until it
    is joined with a run that has nulls, and the bytes of a struct do not count its bitmap."""
    inner: list[pa.Array] = []
    if isinstance(column, pa.StructArray):
        inner = [column.field(at) for at in range(column.type.num_fields)]
    elif isinstance(column, (pa.ListArray, pa.LargeListArray)):
        inner = [column.values]
    return len(column) // 8 + 1 + sum(map(_nulls_bytes, inner))


def _batch_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of rows in memory, at least one for each: a row may have no column."""
    return max(int(rows.nbytes), int(rows.num_rows))


def _has_lists(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return isinstance(kind, (pa.ListType, pa.LargeListType, pa.MapType)) or any(
        map(_has_lists, inner)
    )


def _write_batches(
    writer: ipc.RecordBatchFileWriter,
    sink: pa.NativeFile,
    body: memoryview,
    runs: list[Run],
    rows: Longs,
) -> SegmentIndex:
    """Write each subpartition as batches of bounded size, and return the index. What the writer
    gives to the sink is then in the body."""
    firsts = [(np.cumsum(run.rows) - run.rows).tolist() for run in runs]
    counts = [run.rows.tolist() for run in runs]
    schema = runs[0].batch.schema
    start = end = batches_start(schema)
    sizes, sums = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint64)
    # if all lists of a piece are empty, Arrow writes the offsets of the whole run for it
    copied = any(_has_lists(field.type) for field in schema)
    for subpartition in np.flatnonzero(rows).tolist():
        pieces = [
            run.batch.slice(first[subpartition], count[subpartition])
            for run, first, count in zip(runs, firsts, counts, strict=True)
            if count[subpartition]
        ]
        merged = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        for batch in cut(merged):
            writer.write_batch(pa.concat_batches([batch]) if copied else batch)
        before, end = end, sink.tell()
        sizes[subpartition] = end - before
        sums[subpartition] = xxhash.xxh3_64_intdigest(body[before:end])
    return SegmentIndex(start, rows, sizes, sums)


def cut(rows: pa.RecordBatch, bytes_max: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield batches of as many rows as fit into `bytes_max`, and of one row if that does not."""
    while rows.num_rows > 1 and _batch_bytes(rows) > bytes_max:
        counts = range(1, rows.num_rows)
        fit = bisect_right(counts, bytes_max, key=lambda n: _batch_bytes(rows.slice(0, n)))
        yield rows.slice(0, max(1, fit))
        rows = rows.slice(max(1, fit))
    yield rows
