"""A partition's fingerprint is the same for the same rows in any order, and differs for other
rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.storage.writing.encoding import sort
from headgate.storage.writing.fingerprint import Fingerprint, row_hashes

from ..doubles.segments import SCHEMAS, Longs, Part, parts, reinterpret

SUBPARTITIONS = 3


def fingerprint(rows: pa.RecordBatch, targets: Longs, cut: int = 0) -> int | None:
    """Return the fingerprint of rows that are sorted in two runs."""
    made = Fingerprint(SUBPARTITIONS)
    for run in (slice(0, cut), slice(cut, len(targets))):
        if len(targets[run]):
            batch = rows.slice(run.start, run.stop - run.start)
            made.add(sort([batch], [targets[run]], SUBPARTITIONS))
    return made.digest()


def rows_of(schema: pa.Schema, part: Part) -> pa.RecordBatch:
    return reinterpret(part.rows, schema)


@given(SCHEMAS.flatmap(lambda s: st.tuples(st.just(s), parts(s, SUBPARTITIONS))), st.data())
def test_any_order_of_the_same_rows(sample: tuple[pa.Schema, Part], data: st.DataObject) -> None:
    """Rows have the same fingerprint however they are ordered and cut."""
    rows, targets = rows_of(*sample), sample[1].targets
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    order = rng.permutation(len(targets))
    cut = data.draw(st.integers(0, len(targets)))
    before = fingerprint(rows, targets)
    assert before is not None
    assert before == fingerprint(rows.take(pa.array(order)), targets[order], cut)


@given(SCHEMAS.flatmap(lambda s: st.tuples(st.just(s), parts(s, SUBPARTITIONS))), st.data())
def test_other_rows(sample: tuple[pa.Schema, Part], data: st.DataObject) -> None:
    """A row that is missing, repeated, replaced, or in another subpartition changes the
    fingerprint."""
    rows, targets = rows_of(*sample), sample[1].targets
    size = len(targets)
    assume(size)
    first = data.draw(st.integers(0, size - 1))
    second = data.draw(st.integers(0, size - 1))
    before = fingerprint(rows, targets)
    kept = np.delete(np.arange(size), first)
    twice = np.append(np.arange(size), first)
    swapped = np.where(np.arange(size) == first, second, np.arange(size))
    for order in (kept, twice):
        assert before != fingerprint(rows.take(pa.array(order)), targets[order])
    moved = targets.copy()
    moved[first] = (moved[first] + 1) % SUBPARTITIONS
    assert before != fingerprint(rows, moved)
    texts = [repr([column[at] for column in sample[1].rows.columns]) for at in (first, second)]
    after = fingerprint(rows.take(pa.array(swapped)), targets)
    hashes = row_hashes(rows)
    assert (before == after) == bool(hashes[first] == hashes[second])
    assert texts[0] != texts[1] or before == after


TEXTS = st.lists(st.none() | st.binary(max_size=20) | st.binary(min_size=120, max_size=140))


@given(TEXTS, TEXTS, st.integers(0, 5))
def test_a_hash_is_of_the_value_alone(left: list[bytes], right: list[bytes], skip: int) -> None:
    """Values have equal hashes exactly when they are equal, whatever their neighbours are."""
    both = pa.array([*left, *right], pa.binary())
    apart = [pa.array(half, pa.binary()) for half in (left, right)]
    whole = row_hashes(pa.record_batch({"a": both}).slice(skip)).tolist()
    pieces = [h for half in apart for h in row_hashes(pa.record_batch({"a": half})).tolist()]
    assert pieces[skip:] == whole
    values = both.to_pylist()[skip:]
    assert len(set(values)) == len(set(whole))


PAIRS = [
    (pa.int64(), [1, None], [None, 1]),
    (pa.int64(), [1, 2], [2, 1]),
    (pa.int64(), [-1 << 63, 1 << 62], [1 << 62, -1 << 63]),
    (pa.float64(), [0.0, 1.0], [-0.0, 1.0]),
    (pa.string(), ["ab", "c"], ["a", "bc"]),
    (pa.string(), ["", None], [None, ""]),
    (pa.string(), ["a\0", "b"], ["a", "b"]),
    (pa.list_(pa.int64()), [[1], [2]], [[1, 2], []]),
    (pa.list_(pa.int64()), [[1, 2], []], [[2, 1], []]),
    (pa.list_(pa.int64()), [[None], []], [[], [None]]),
    (pa.list_(pa.list_(pa.int64())), [[[1], [2]], []], [[[1, 2]], []]),
    (pa.bool_(), [True, False], [False, True]),
    (pa.map_(pa.int64(), pa.int64()), [[(1, 2), (3, 4)], []], [[(1, 4), (3, 2)], []]),
    (pa.decimal128(38, 0), [1, 1 << 64], [1 << 64, 1]),
]


@pytest.mark.parametrize(("kind", "left", "right"), PAIRS)
def test_rows_that_are_easily_mixed_up(
    kind: pa.DataType, left: list[object], right: list[object]
) -> None:
    """Rows differ if two columns swap values, cut them elsewhere, or swap an empty value for a
    null."""
    rows = [
        pa.record_batch([pa.array([value], kind) for value in row], names=["a", "b"])
        for row in (left, right)
    ]
    assert row_hashes(rows[0]) != row_hashes(rows[1])


def test_maps_have_no_order() -> None:
    """A map has the same hash with its entries in another order."""
    kind = pa.map_(pa.int64(), pa.string())
    maps = pa.array([[(1, "a"), (2, "b")], [(2, "b"), (1, "a")]], kind)
    first, second = row_hashes(pa.record_batch({"a": maps}))
    assert first == second


def test_what_has_no_hash_has_no_fingerprint() -> None:
    """Rows with a type that has no hash have no fingerprint, so that they are not compared in
    part."""
    kind = pa.dense_union([pa.field("a", pa.int64())])
    rows = pa.record_batch({"a": pa.array([None], pa.null())})
    union = pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])], ["a"]
    )
    assert union.type == kind
    assert fingerprint(rows, np.array([0])) is not None
    assert fingerprint(pa.record_batch({"a": union}), np.array([0])) is None
