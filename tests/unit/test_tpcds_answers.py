"""The changes to the texts of TPC-DS, and the comparison of their answers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from ..bench.answers import differs_in_order, near
from ..bench.tpcds_data import in_spark, queries, totally_ordered

SINGLE_ROWS = {9, 13, 28, 32, 38, 48, 87, 88, 97}
ROWS: list[tuple[Any, ...]] = [(1, "x"), (1, "y"), (2, None)]


def test_there_are_ninety_nine() -> None:
    """All 99 queries are there by number, and all but those of one row have an order."""
    texts = queries()
    assert list(range(1, 100)) == list(texts)
    ordered = re.compile(r", 1(, \d+)*(\s+LIMIT \d+)?$")
    assert SINGLE_ROWS == {n for n, text in texts.items() if not ordered.search(text)}


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        (
            "select a, b from t order by a\nlimit 3;\n",
            "select a, b from t order by a, 1, 2\nlimit 3",
        ),
        ("select a, b from t ORDER  BY (a) desc", "select a, b from t ORDER  BY (a) desc, 1, 2"),
        ("select a, b from (select * from t order by a) limit 3 ;", None),
        ("select a, rank() over (order by a) b from t", None),
    ],
)
def test_orders_become_total(text: str, ordered: str | None) -> None:
    """Only the order of the whole query is extended, and its limit stays at the end."""
    assert (ordered or text.rstrip(" ;")) == totally_ordered(text, 2)


def test_names_are_quoted_as_in_spark() -> None:
    """A name in double quotes gets back-ticks, because Spark would read a string."""
    assert "select 1 `30 days`" == in_spark('select 1 "30 days"')


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        (ROWS[:2], "2 rows, not 3"),
        ([ROWS[1], ROWS[0], ROWS[2]], "row 0 is (1, 'y'), not (1, 'x')"),
        ([*ROWS[:2], (2, "z")], "row 2 is (2, 'z'), not (2, None)"),
        ([(1,), *ROWS[1:]], "1 columns, not 2"),
        (ROWS, ""),
    ],
)
def test_orders_are_compared(given: list[tuple[Any, ...]], difference: str) -> None:
    """A missing row, a misplaced row, another row and a row of another width are all reported."""
    assert difference == differs_in_order(ROWS, given)


@pytest.mark.parametrize(
    ("spark", "duckdb", "alike"),
    [
        (Decimal("33.306667"), 33.306666666666665, True),
        (Decimal("33.306667"), 33.3069, False),
        (Decimal("0.787939"), 0.7879383239908079, True),
        (Decimal("33.31"), Decimal("33.31"), True),
        (Decimal("33.31"), Decimal("33.32"), False),
        (0.1 + 0.2, 0.3, True),
        (0.3, 0.3001, False),
        (None, 0.0, False),
        (Decimal("0.00"), None, False),
    ],
)
def test_averages_of_decimals_are_rounded(spark: Any, duckdb: Any, alike: bool) -> None:
    """Only a double of DuckDB may differ from Spark's decimal, and only by its last digits."""
    assert alike == near((duckdb,), (spark,))
