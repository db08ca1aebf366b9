"""Groups come whole and in order, however little memory there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.spark.tasks.grouped import external_groups
from headgate.connectors.spark.tasks.grouped.external_groups import Groups, Side, gathered
from headgate.control.errors import Invalid

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.int64())])
Rows = Sequence[tuple[int | None, str]]
ROW_BYTES = 30
KEYS = st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["", "a", "b"]))


@pytest.fixture(autouse=True, params=[1, 60, 1 << 20])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_groups, "_PIECE_BYTES", request.param)


def side(keys: Rows, batch_rows: int) -> Side:
    rows = [{"k": k, "s": s, "v": at} for at, (k, s) in enumerate(keys)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    return Side(SCHEMA, (0, 1), table.to_batches(max_chunksize=batch_rows))


def place(key: tuple[int | None, str]) -> tuple[Any, ...]:
    return (key[0] is not None, key[0] or 0, key[1])


def told(groups: Iterator[Groups]) -> list[tuple[Any, list[list[int]]]]:
    """Return the key of each group, and its rows on each side."""
    pairs = []
    for batch in groups:
        keys = list(zip(*(key.to_pylist() for key in batch.keys), strict=True))
        for at, key in enumerate(keys):
            sides = []
            for block in batch.sides:
                start, end = block.starts[at : at + 2]
                sides.append(block.rows["v"][start:end].to_pylist())
            pairs.append((key, sides))
        for more in batch.more:
            assert len(batch.sides) == 1
            pairs[-1][1][0] += more["v"].to_pylist()
    return pairs


def expected(sides: Sequence[Rows]) -> list[tuple[Any, list[list[int]]]]:
    keys = sorted({key for rows in sides for key in rows}, key=place)
    return [
        (key, [[at for at, own in enumerate(rows) if own == key] for rows in sides]) for key in keys
    ]


@pytest.mark.slow
@given(st.lists(st.lists(KEYS, max_size=40), min_size=1, max_size=2), st.integers(1, 9))
def test_what_does_not_fit_is_merged(sides: list[Rows], batch_rows: int) -> None:
    """Groups that do not fit are merged from files in order, and no more is held than one group
    needs."""
    for most_bytes in (0, 100, 400, 1 << 20):
        given_sides = [side(rows, batch_rows) for rows in sides]
        largest = max((len(rows) for _, each in expected(sides) for rows in each), default=0)
        try:
            groups = told(gathered(given_sides, most_bytes, streams=False))
        except Invalid:
            assert largest * ROW_BYTES * len(sides) > most_bytes
        else:
            assert expected(sides) == groups


@pytest.mark.slow
@given(st.lists(KEYS, max_size=60), st.integers(1, 9), st.sampled_from([0, 50, 100, 400]))
def test_a_group_that_does_not_fit_is_streamed(
    rows: Rows, batch_rows: int, most_bytes: int
) -> None:
    groups = told(gathered([side(rows, batch_rows)], most_bytes, streams=True))
    assert expected([rows]) == groups


def test_one_group_that_does_not_fit() -> None:
    """A group that does not fit is an error that names the group and the limit."""
    rows: Rows = [(1, "a")] * 100 + [(0, "b")]
    with pytest.raises(Invalid, match=r"the group of \(1, a\) takes more than 500 bytes"):
        told(gathered([side(rows, 10)], 500, streams=False))


def test_rows_without_keys() -> None:
    keyless = Side(SCHEMA, (), side([(1, "a"), (0, "b")], 1).batches)
    (groups,) = gathered([keyless], 1 << 20, streams=False)
    assert groups.keys == []
    assert [(0, 2)] == list(pairwise(groups.sides[0].starts.tolist()))


@pytest.mark.slow
def test_pieces_on_disk_are_bounded_by_their_bytes() -> None:
    """Wide rows behind narrow ones are read from disk a few at a time."""
    rows = side([(at // 500, "x" * (1 if at < 4_500 else 5_000)) for at in range(5_000)], 5_000)
    batches = list(rows.batches)
    with ExitStack() as files:
        (run,) = external_groups._written([rows], [batches], files)
        sizes = [(piece.nbytes, len(piece)) for piece in run.waiting]
    assert 5_000 == sum(count for _, count in sizes)
    assert all(size <= external_groups._PIECE_BYTES or count == 1 for size, count in sizes)


def test_pieces_go_to_the_first_folder_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk of Spark's that is gone fails no task."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'gone'},{tmp_path}")
    rows = side([(1, "a")], 1)
    with ExitStack() as files:
        (run,) = external_groups._written([rows], [list(rows.batches)], files)
        assert 1 == sum(len(piece) for piece in run.waiting)
