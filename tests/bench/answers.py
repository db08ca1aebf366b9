"""Compare two answers to one query: the rows, their order, and their last digits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from pyspark.sql import Row

_ORDER = re.compile(r"order by ([^()]*?)(?:limit \d+)?$")
_EXACT = 1e-9
_ROUNDINGS = 10


def differs(expected: list[Row], given: list[Row], text: str) -> str:
    """Return how two answers differ, or an empty text. Rows that tie in the query's order may come
    in any order."""
    if len(expected) != len(given):
        return f"{len(given)} rows, not {len(expected)}"
    order = _ORDER.search(text)
    names = re.findall(r"(\w+)(?: desc)?(?:,|$)", order.group(1).strip()) if order else []
    end = 0
    for key, tied in groupby(expected, lambda row: tuple(row[name] for name in names)):
        start, end = end, end + len(list(tied))
        for row in given[start:end]:
            if not same(key, tuple(row[name] for name in names)):
                return f"{row} stands where {key} belongs"
        cut = "limit" in text and end == len(expected)
        ours, theirs = (sorted(rows[start:end], key=str) for rows in (given, expected))
        if not cut and not all(map(same, theirs, ours)):
            return f"other rows of {key}"
    return ""


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Compare two rows, their doubles in all digits but the last."""
    return all(
        math.isclose(a, b, rel_tol=_EXACT)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in zip(left, right, strict=True)
    )


def near(duckdb: Sequence[Any], spark: Sequence[Any]) -> bool:
    """Compare a row of DuckDB with a row of Spark, within the rounding of averages and quotients.

    DuckDB gives doubles for averages and quotients of decimals. Spark gives decimals that are
    rounded to their scale, and a sum of them is rounded many times.
    """
    return all(map(_near, duckdb, spark))


def _near(duckdb: Any, spark: Any) -> bool:
    if isinstance(duckdb, float) and isinstance(spark, Decimal):
        unit = 10.0 ** int(spark.as_tuple().exponent)
        return math.isclose(duckdb, spark, rel_tol=_EXACT, abs_tol=_ROUNDINGS * unit)
    return same((duckdb,), (spark,))


def differs_in_order(
    expected: Sequence[Sequence[Any]],
    given: Sequence[Sequence[Any]],
    alike: Callable[[Sequence[Any], Sequence[Any]], bool] = same,
) -> str:
    """Return how two answers to a query with a total order differ, or an empty text."""
    if len(expected) != len(given):
        return f"{len(given)} rows, not {len(expected)}"
    for at, (row, other) in enumerate(zip(expected, given, strict=True)):
        if len(row) != len(other):
            return f"{len(other)} columns, not {len(row)}"
        if not alike(row, other):
            return f"row {at} is {tuple(other)}, not {tuple(row)}"
    return ""
