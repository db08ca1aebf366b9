"""Sorting of rows by subpartition, and their encoding as one segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from ...control.errors import Invalid
from ...control.ids import AttemptId
from ..format.batches import BATCH_BYTES, batch_bytes, split
from ..format.messages import kinds, pack
from ..format.segment import (
    ARROW,
    ENTRY,
    PACKED,
    TAIL,
    Longs,
    SegmentIndex,
    batches_start,
    ending,
    footer_metadata,
    packed_head,
)

_FRAMING_BYTES = 1 << 20
_MANY_COLUMNS = 128
_REFUSED = (  # a dictionary is not in each slice, and the others cannot be sorted or bounded
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_LISTS = (pa.ListType, pa.LargeListType, pa.MapType)


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
    form: int = ARROW


def check_kinds(schema: pa.Schema) -> None:
    """Check that rows of these columns can be sorted, and each slice of them read by itself.

    Raises:
        Invalid: a column has, or holds, another encoding of its type.
    """
    for kind in kinds(schema):
        if any(is_refused(kind) for is_refused in _REFUSED):
            raise Invalid(f"values of {kind} cannot be stored: cast them to their plain type")


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


def form_of(runs: list[Run]) -> int:
    """Return the format for a segment of these rows. Packed, if the framing of their batches takes
    more than half the bytes of the rows. Little framing may stay, because any Arrow reader opens
    the other format. So may more of it if there are few columns, for which packing takes twice the
    CPU time of Arrow's own messages."""
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    columns = len(kinds(runs[0].batch.schema))
    framing_bytes = int(np.count_nonzero(rows)) * (256 + 64 * columns)
    least_bytes = _FRAMING_BYTES if columns >= _MANY_COLUMNS else 48 * _FRAMING_BYTES
    rows_bytes = sum(batch_bytes(run.batch) for run in runs)
    return PACKED if framing_bytes > max(least_bytes, rows_bytes // 2) else ARROW


def encode(runs: list[Run], codec: str, attempt: AttemptId, form: int = ARROW) -> Segment:
    """Merge runs into one file, ordered by subpartition."""
    return (_pack if form == PACKED else _encode)(runs, codec, attempt)


def _pack(runs: list[Run], codec: str, attempt: AttemptId) -> Segment:
    room, head = BytesIO(), packed_head(runs[0].batch.schema)
    room.write(head)
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    index = SegmentIndex(len(head), rows, np.zeros_like(rows), np.zeros(len(rows), np.uint64))
    for subpartition, batches in _slices(runs, rows, PACKED):
        digest = xxhash.xxh3_64()
        for batch in batches:
            for part in pack(batch, codec):
                digest.update(part)
                index.sizes[subpartition] += room.write(part)
        index.checksums[subpartition] = digest.intdigest()
    room.write(ending(0, index, attempt, PACKED))
    return Segment(room.getbuffer(), index, PACKED)


def _encode(runs: list[Run], codec: str, attempt: AttemptId) -> Segment:
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    schema, filled = runs[0].batch.schema, int(np.count_nonzero(rows))
    metadata = footer_metadata(attempt, len(rows))
    options = ipc.IpcWriteOptions(compression=None if codec == "none" else codec, use_threads=False)
    room = pa.allocate_buffer(_bytes_max(runs, schema, filled))
    body = memoryview(room).cast("B")
    start = before = batches_start(schema)
    index = SegmentIndex(start, rows, np.zeros_like(rows), np.zeros(len(rows), np.uint64))
    with pa.FixedSizeBufferWriter(room) as sink:
        with ipc.new_file(sink, schema, options=options, metadata=metadata) as writer:
            for subpartition, batches in _slices(runs, rows, ARROW):
                for batch in batches:
                    writer.write_batch(batch)
                end = sink.tell()
                index.sizes[subpartition] = end - before
                index.checksums[subpartition] = xxhash.xxh3_64_intdigest(body[before:end])
                before = end
        end = sink.tell() - TAIL.size
    footer_bytes, _ = TAIL.unpack(body[end : end + TAIL.size])
    last = ending(footer_bytes, index, attempt, ARROW)
    body[end : end + len(last)] = last
    return Segment(body[: end + len(last)], index)


def _bytes_max(runs: list[Run], schema: pa.Schema, filled: int) -> int:
    """Return an upper limit for the file's size. Room costs nothing, because only written memory
    is ever touched, while a sink that grows by copying costs more than the compression."""
    raw = sum(batch_bytes(run.batch) + sum(map(_nulls_bytes, run.batch.columns)) for run in runs)
    # two neighbouring batches of a subpartition are larger than the limit of one
    batches = filled + 2 * (raw // BATCH_BYTES)
    head = 2 * int(schema.serialize().size)
    index_bytes = filled * ENTRY.itemsize
    return head + raw + raw // 64 + (batches + 2) * (1024 + 512 * len(kinds(schema))) + index_bytes


def _nulls_bytes(column: pa.Array) -> int:
    """Return the room for a column's null bitmaps. A column without nulls has no bitmap until it
    is joined with a run that has nulls, and the bytes of a struct do not count its bitmap."""
    inner: list[pa.Array] = []
    if isinstance(column, pa.StructArray):
        inner = [column.field(at) for at in range(column.type.num_fields)]
    elif isinstance(column, (pa.ListArray, pa.LargeListArray)):
        inner = [column.values]
    return len(column) // 8 + 1 + sum(map(_nulls_bytes, inner))


def _slices(
    runs: list[Run], rows: Longs, form: int
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each subpartition that is not empty, with its rows as batches of bounded size."""
    firsts = [(np.cumsum(run.rows) - run.rows).tolist() for run in runs]
    counts = [run.rows.tolist() for run in runs]
    # if all lists of a piece are empty, Arrow writes the offsets of the whole run for it
    copied = any(isinstance(kind, _LISTS) for kind in kinds(runs[0].batch.schema))
    for subpartition in np.flatnonzero(rows).tolist():
        pieces = [
            run.batch.slice(first[subpartition], count[subpartition])
            for run, first, count in zip(runs, firsts, counts, strict=True)
            if count[subpartition]
        ]
        # Arrow also writes up to 64 bytes of the texts behind a piece of a run, and only a copy
        # shows soon that the piece needs no cut
        joined = form == PACKED or len(pieces) > 1
        batches = split(pa.concat_batches(pieces) if joined else pieces[0])
        yield subpartition, (map(_copied, batches) if copied else batches)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch])
