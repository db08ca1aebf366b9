"""The comparison of two answers to a query of TPC-H."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from ..bench.answers import differs
from ..bench.tpch import queries

ROWS = [Row(a=1, b="x"), Row(a=1, b="y"), Row(a=2, b="z")]
BY_A = "select a, b from t order by a"


def test_there_are_twenty_two() -> None:
    """All 22 queries of the specification are there by number."""
    assert list(range(1, 23)) == list(queries())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (ROWS, BY_A),
        ([ROWS[1], ROWS[0], ROWS[2]], BY_A),
        (ROWS[::-1], "select a, b from t"),
        ([ROWS[0], ROWS[1], Row(a=2, b="other")], BY_A + "\nlimit 3"),
    ],
)
def test_the_same(given: list[Row], text: str) -> None:
    """Answers are the same if tied rows change places, or if a limit cuts through tied rows."""
    assert "" == differs(ROWS, given, text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (ROWS[:2], BY_A),
        ([ROWS[0], ROWS[2], ROWS[1]], BY_A),
        ([ROWS[0], ROWS[0], ROWS[2]], BY_A),
        ([ROWS[0], ROWS[1], Row(a=2, b="other")], BY_A),
        ([ROWS[0], ROWS[1], Row(a=3, b="z")], BY_A + "\nlimit 3"),
        ([ROWS[0], ROWS[0], ROWS[2]], "select a, b from t"),
    ],
)
def test_not_the_same(given: list[Row], text: str) -> None:
    """A missing row, a misplaced row, a repeated row and another row are all differences."""
    assert "" != differs(ROWS, given, text)


def test_floats_may_differ_in_their_last_digits() -> None:
    """Floats may differ in their last digits, because sums are made in another order."""
    assert "" == differs([Row(a=0.1 + 0.2)], [Row(a=0.3)], "select a from t")
    assert "" != differs([Row(a=0.3)], [Row(a=0.3001)], "select a from t")
