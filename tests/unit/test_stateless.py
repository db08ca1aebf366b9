"""A function is taken to keep nothing only where that is certain."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.connectors.spark.stateless import is_stateless

FACTOR, KINDS, SCHEMA = 2, ("a", "b"), pa.schema([("n", pa.int64())])
NAME = re.compile("[ab]")
FILLED = np.zeros(1, np.int64)
LATER: Any = None
PAIR = (FACTOR, FILLED)
HERE = sys.modules[__name__]


def mean(table: pa.Table) -> pa.Table:
    """About the most usual of all."""
    return pa.table({"mean": [pc.mean(table["x"]).as_py()]})


def of_its_own(table: pa.Table) -> pa.Table:
    filled = np.zeros(1, np.int64)

    def fill(number: int) -> None:
        nonlocal filled
        filled = filled + number * FACTOR

    fill(table.num_rows)
    return pa.table({"n": filled}, schema=SCHEMA)


def importing(table: pa.Table) -> pa.Table:
    import pyarrow.compute as kernels

    return kernels.drop_null(table)


def calling(table: pa.Table) -> pa.Table:
    return mean(table) if NAME.match(KINDS[0]) and math.isfinite(FACTOR) else calling(table)


def bound(factor: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.table({"n": [table.num_rows * factor]})


KEEP_NOTHING = [mean, of_its_own, importing, calling, bound(3)]


@pytest.mark.parametrize("function", KEEP_NOTHING)
def test_keeps_nothing(function: Callable[..., Any]) -> None:
    assert is_stateless(function)


def of_a_global(table: pa.Table) -> pa.Table:
    FILLED[0] = table.num_rows
    return pa.table({"n": FILLED})


def setting_a_global(table: pa.Table) -> pa.Table:
    global LATER
    LATER = np.zeros(1)
    return pa.table({"n": LATER})


def of_a_default(table: pa.Table, filled: np.ndarray = FILLED) -> pa.Table:
    return pa.table({"n": filled})


def of_a_keyword(table: pa.Table, *, filled: np.ndarray = FILLED) -> pa.Table:
    return pa.table({"n": filled})


def of_itself(table: pa.Table) -> pa.Table:
    itself: Any = of_itself
    itself.filled = np.zeros(1)
    return table


def with_something() -> Callable[[pa.Table], pa.Table]:
    def function(table: pa.Table) -> pa.Table:
        return table

    marked: Any = function
    marked.filled = FILLED
    return function


def counting() -> Callable[[pa.Table], pa.Table]:
    filled: Any = None

    def function(table: pa.Table) -> pa.Table:
        nonlocal filled
        filled = np.zeros(1)
        return pa.table({"n": filled})

    return function


def unfilled() -> Callable[[pa.Table], pa.Table]:
    filled: Any

    def function(table: pa.Table) -> pa.Table:
        return pa.table({"n": filled})

    if not KINDS:
        filled = np.zeros(1)
    return function


def over(filled: np.ndarray) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.table({"n": filled})


def of_a_tuple(table: pa.Table) -> pa.Table:
    return pa.table({"n": PAIR[1]})


def of_a_module(table: pa.Table) -> pa.Table:
    return pa.table({"n": HERE.filled})


def of_a_class(table: pa.Table) -> pa.Table:
    return pa.table({"n": Held.filled})


def through_another(table: pa.Table) -> pa.Table:
    return of_a_global(table)


def inside(table: pa.Table) -> pa.Table:
    return next(of_a_global(table) for _ in KINDS)


def from_elsewhere(table: pa.Table) -> pa.Table:
    from tests.unit import log_doubles

    return table.slice(log_doubles.STEP_EVENTS_MAX)


def by_its_names(table: pa.Table) -> pa.Table:
    globals()["LATER"] = FACTOR
    return table


class Held:
    filled = FILLED

    def __call__(self, table: pa.Table) -> pa.Table:
        return table


MAY_KEEP = [
    *(of_a_global, setting_a_global, of_a_default, of_a_keyword, of_itself),
    *(with_something(), counting(), unfilled(), through_another, inside, from_elsewhere),
    *(over(FILLED), of_a_tuple, of_a_module, of_a_class, by_its_names),
    *(Held(), Held().__call__, functools.partial(mean), functools.cache(mean)),
]


@pytest.mark.parametrize("function", MAY_KEEP)
def test_may_keep(function: Callable[..., Any]) -> None:
    assert not is_stateless(function)
