"""Merging in the reading tasks gives the same groups as a plain loop over all rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.spark.tasks import partial_aggregates
from headgate.connectors.spark.tasks.partial_aggregates import Merging, merged

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("d", pa.decimal128(20, 2)),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.int32()),
        ("max", pa.string()),
    ]
)
HOW = Merging(2, ("sum", "sum", "min", "max"))
TENTHS = st.none() | st.integers(-5, 5)
LARGE = st.sampled_from([2**62, -(2**62), 2**63 - 1, 2.0**53, 0.1, -0.0, math.inf, math.nan])
ROW = st.tuples(
    st.none() | st.sampled_from(["", "a", "é"]),
    st.none() | st.sampled_from([0, 1]),
    st.integers(-9, 9),
    TENTHS.map(lambda value: None if value is None else float(value)),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.sampled_from(["", "a", "Z"]),
)


@pytest.fixture(autouse=True)
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregates, "_ROWS_AT_ONCE", 6)
    monkeypatch.setattr(partial_aggregates, "_HELD_BYTES_MAX", 300)


def batches(rows: list[Any]) -> list[pa.RecordBatch]:
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )
    return table.to_batches(max_chunksize=4)  # type: ignore[no-any-return]


def merge(rows: list[Any]) -> dict[Any, tuple[Any, ...]]:
    """Merge rows as Spark does: nulls are skipped."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row[:2]].append(row[2:])
    made = {}
    for key, own in groups.items():
        columns = [
            [value for value in column if value is not None] for column in zip(*own, strict=True)
        ]
        apply: list[Callable[[list[Any]], Any]] = [sum, sum, min, max]
        pairs = zip(apply, columns, strict=True)
        made[key] = tuple(function(column) if column else None for function, column in pairs)
    return made


def rows_of(given_batches: list[pa.RecordBatch]) -> list[Any]:
    return [tuple(row.values()) for batch in given_batches for row in batch.to_pylist()]


@given(st.lists(ROW, max_size=60))
def test_merged(rows: list[Any]) -> None:
    given_batches = batches(rows)
    merged_batches = list(merged(given_batches, HOW))
    assert all(batch.schema.equals(SCHEMA) for batch in merged_batches)
    assert merge(rows_of(given_batches)) == merge(rows_of(merged_batches))


@given(st.lists(st.tuples(st.just("a"), st.just(1), st.integers(0, 1)), min_size=13, max_size=40))
def test_many_become_few(rows: list[Any]) -> None:
    few = rows_of(list(merged(batches([(*row, None, None, None) for row in rows]), HOW)))
    assert len(few) == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [(2, 2**62), (2, -(2**62)), (3, 2.0**52), (3, 0.1), (3, math.inf), (3, math.nan)],
)
def test_what_would_not_be_exact(column: int, value: float) -> None:
    """Rows whose sums could overflow or be rounded are left to Spark."""
    row: list[Any] = ["a", 1, 1, 1.0, 1, "a"]
    row[column] = value
    given_batches = batches([tuple(row)] * 20)
    assert list(merged(given_batches, HOW)) == given_batches


def test_what_gains_nothing() -> None:
    given_batches = batches([(str(at), 1, 1, 1.0, 1, "a") for at in range(40)])
    assert sum(map(len, merged(given_batches, HOW))) == 40


def test_wide_rows_are_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are held until they are merged are bounded by their bytes too."""
    monkeypatch.setattr(partial_aggregates, "_ROWS_AT_ONCE", 1_000)
    given_batches = batches([(str(at) * 100, 1, 1, 1.0, 1, "a") for at in range(40)])
    waiting = iter(given_batches)
    next(merged(waiting, HOW))
    taken = len(given_batches) - len(list(waiting))
    assert sum(batch.nbytes for batch in given_batches[: taken - 1]) <= 300


def test_partitions_that_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are not merged where only the rows of one or two partitions come together."""
    monkeypatch.setattr(partial_aggregates, "_LEAST_ROWS", 20)
    window = partial_aggregates._ROWS_AT_ONCE
    assert partial_aggregates.may_gain(rows=4 * window, tasks=4, partitions=3)
    assert not partial_aggregates.may_gain(rows=19, tasks=4, partitions=3)
    assert not partial_aggregates.may_gain(rows=4 * window, tasks=4, partitions=2)
    assert not partial_aggregates.may_gain(rows=8 * window, tasks=4, partitions=5)
