"""Segments of rows with different widths: the room for a file, and the size of its batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.storage.format.segment import decode
from headgate.storage.writing.encoding import BATCH_BYTES, Segment, encode, sort

ATTEMPT = AttemptId(PartitionId(ResultId("r1"), 0), 1, 0)
MANY = 100_000

_LEAVES = st.sampled_from(
    [pa.struct([]), pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.string()]
)
_KINDS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.struct([("a", kind)])),
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.int8(), kind)),
    ),
    max_leaves=4,
)
BYTE = pa.struct([("a", pa.int8())])


def segment(columns: list[pa.Array], codec: str = "none", subpartitions: int = 1) -> Segment:
    """Encode a segment with one run for each of these columns."""
    batches = [pa.record_batch([column], ["c"]) for column in columns]
    runs = [
        sort([batch], [np.arange(len(batch)) % subpartitions], subpartitions) for batch in batches
    ]
    return encode(runs, codec, ATTEMPT)


def read(made: Segment, kind: pa.DataType) -> list[pa.RecordBatch]:
    """Return the batches of the first subpartition."""
    schema, start = pa.schema([("c", kind)]), made.index.start
    part = made.body[start : start + int(made.index.sizes[0])]
    return list(decode(part, schema.serialize().to_pybytes(), int(made.index.rows[0])))


def filled(kind: pa.DataType, rows: int) -> pa.Array:
    """Return values without any null, as far as the type has such values."""
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if isinstance(kind, pa.StructType):
        if not kind.num_fields:
            return pa.array([{}] * rows, kind)
        return pa.StructArray.from_arrays([filled(kind.field(0).type, rows)], fields=list(kind))
    if isinstance(kind, pa.MapType):
        keys, items = filled(kind.key_type, rows), filled(kind.item_type, rows)
        return pa.MapArray.from_arrays(np.arange(rows + 1, dtype=np.int32), keys, items, kind)
    if isinstance(kind, pa.ListType):
        inner = filled(kind.value_type, rows)
        return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), inner, kind)
    return pa.array(np.zeros(rows, np.int8)).cast(kind)


@given(_KINDS, st.lists(st.booleans(), min_size=1, max_size=3), st.sampled_from(["none", "lz4"]))
@example(pa.struct([]), [True], "none")
@example(pa.int8(), [False, True], "none")
@example(pa.bool_(), [True, False], "none")
@example(pa.list_(pa.int8()), [False, True], "none")
@example(pa.struct([("a", BYTE)]), [False, True], "none")
@example(pa.map_(pa.int8(), pa.int8()), [False, True], "none")
def test_there_is_room_for_what_tells_nulls(
    kind: pa.DataType, nulls: list[bool], codec: str
) -> None:
    """A segment has room for validity bitmaps, also in structs, and in runs without nulls beside a
    run with nulls."""
    columns = []
    for is_null in nulls:
        column = filled(kind, MANY)
        if is_null:
            inner = column.take(pa.array([0, None], pa.int32()))
            column = pa.concat_arrays([column, inner, pa.nulls(MANY, kind)])
        columns.append(column)
    values = pa.chunked_array([batch["c"] for batch in read(segment(columns, codec), kind)], kind)
    assert values.equals(pa.chunked_array(columns, kind))


@pytest.mark.parametrize("columns", [3_000])
def test_there_is_room_for_many_columns(columns: int) -> None:
    """A segment has room for a schema of thousands of columns, which takes more bytes than its
    rows."""
    names = [f"c{at}" for at in range(columns)]
    rows = pa.record_batch([pa.array([at, None], pa.int32()) for at in range(columns)], names)
    made = encode([sort([rows], [np.array([0, 1])], 2)], "none", ATTEMPT)
    start, sizes = made.index.start, made.index.sizes
    schema = rows.schema.serialize().to_pybytes()
    (batch,) = decode(made.body[start : start + int(sizes[0])], schema, 1)
    assert rows.slice(0, 1) == batch


WIDTHS = [[8 << 20, *[1] * MANY], [*[1] * MANY, *[1 << 20] * 20], [0, 5 << 20, 0, 3 << 20, 1 << 20]]


@pytest.mark.parametrize("widths", WIDTHS, ids=["wide first", "wide last", "mixed"])
@pytest.mark.parametrize("runs", [1, 2])
def test_batches_are_cut_by_their_own_bytes(widths: list[int], runs: int) -> None:
    """Batches are neither too large nor too many, whatever rows come first, and a row is never
    cut."""
    rows = pa.array(["x" * width for width in widths])
    columns = [rows] if runs == 1 else [rows.slice(0, 1), rows.slice(1)]
    batches = read(segment(columns), pa.string())
    assert widths == [len(row) for batch in batches for row in batch["c"].to_pylist()]
    sizes = [batch.nbytes for batch in batches]
    assert all(batch.nbytes <= BATCH_BYTES or batch.num_rows == 1 for batch in batches)
    assert all(first + second > BATCH_BYTES for first, second in pairwise(sizes))


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("value", ["abc", [1]], ids=str)
def test_empty_lists_take_no_room(codec: str, value: object) -> None:
    """A subpartition whose lists are all empty is stored without the values of other
    subpartitions."""
    subpartitions = 1_000
    lists = pa.array([[value] if at % subpartitions < 100 else [] for at in range(MANY)])
    rows = pa.record_batch([lists], ["c"])
    run = sort([rows], [np.arange(MANY) % subpartitions], subpartitions)
    sizes = encode([run], codec, ATTEMPT).index.sizes
    assert max(sizes[100:]) < 1_000
