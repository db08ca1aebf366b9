"""Segments of rows with different widths: the room for a file, and the size of its batches."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.storage.format import batches as bounded
from headgate.storage.format.batches import BATCH_BYTES, split
from headgate.storage.format.messages import decode
from headgate.storage.format.segment import ARROW, PACKED
from headgate.storage.writing.encoding import Run, Segment, encode, form_of, sort

from ..doubles.segments import CODECS

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


def spread(columns: int, rows: int, subpartitions: int) -> Run:
    """Return rows that no codec makes much smaller, as many for each subpartition: numbers, texts
    and numbers with nulls."""
    draw = np.random.default_rng(1)

    def column(at: int) -> pa.Array:
        longs = draw.integers(0, 1 << 62, rows)
        if at % 4 == 0:
            return pa.array([f"{long:x}" for long in longs.tolist()])
        return pa.array(longs, mask=draw.random(rows) < 0.2 if at % 4 == 1 else None)

    batch = pa.record_batch([*map(column, range(columns))], [*map(str, range(columns))])
    return sort([batch], [np.arange(rows) % subpartitions], subpartitions)


@pytest.mark.parametrize("form", [ARROW, PACKED])
def test_few_rows_are_not_counted_column_by_column(form: int) -> None:
    """To see that the few rows of a subpartition need no cut, their bytes are not added up for
    each column, which takes more time than all else."""
    run = spread(20, 200, 100)
    runs = [run] if form == PACKED else [run, run]
    with patch.object(bounded, "batch_bytes", wraps=bounded.batch_bytes) as counted:
        encode(runs, "lz4", ATTEMPT, form)
    assert 0 == counted.call_count


def test_rows_without_columns_are_cut_by_their_number() -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 25, pa.struct([])))
    assert [10, 10, 5] == [batch.num_rows for batch in split(rows, 10)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows_each", [1, 2])
def test_many_columns_of_few_rows_take_little_more_than_these(codec: str, rows_each: int) -> None:
    """One or two rows of 500 columns in a slice take at most 1.5 times their bytes, and each slice
    is read alone."""
    run = spread(500, 50 * rows_each, 50)
    made = encode([run], codec, ATTEMPT, form_of([run]))
    assert PACKED == made.form
    assert len(made.body) <= 1.5 * run.batch.nbytes
    part = made.body[made.index.starts[7] :][: made.index.sizes[7]]
    schema = run.batch.schema.serialize().to_pybytes()
    (read,) = decode(part, schema, rows_each)
    assert run.batch.slice(7 * rows_each, rows_each) == read


@pytest.mark.parametrize(
    ("columns", "rows", "subpartitions", "form"),
    [
        (5, 10_000, 10_000, ARROW),
        (50, 1_000, 1_000, ARROW),
        (200, 4_000, 200, ARROW),
        (200, 70, 70, ARROW),
        (200, 100, 100, PACKED),
        (5, 90_000, 90_000, PACKED),
    ],
)
def test_ordinary_segments_are_arrow_files(
    columns: int, rows: int, subpartitions: int, form: int
) -> None:
    """Only framing that takes more than half the rows' bytes, and many bytes, is packed."""
    assert form == form_of([spread(columns, rows, subpartitions)])
