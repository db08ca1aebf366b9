"""Columns that a function returned are copied only where the function may still change them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headgate.connectors.spark.tasks.grouped.column_copies import copied

from ..spark.keeping import FRAMES

NOT_COPIED = {"numbers", "lists of its own", "not copied", "of a dictionary", "categories"}


@pytest.mark.parametrize("name", FRAMES)
def test_a_copy_keeps_its_values(name: str) -> None:
    """A copied column keeps its values when the function changes the column that it returned."""
    make, memory = FRAMES[name][0], dict[str, Any]()
    made = make(memory, 5)
    columns = [made[label] for label in made]
    copies = [copied(column) for column in columns]
    assert [copy is None for copy in copies] == [name in NOT_COPIED] * len(copies)
    if name not in NOT_COPIED:
        before = [str(pd.Series(column).tolist()) for column in columns]
        make(memory, 14)
        assert before == [str(pd.Series(copy).tolist()) for copy in copies]
        assert before != [str(pd.Series(column).tolist()) for column in columns]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        *(ENDLESS, {1}, np.zeros((2, 2)), np.array(1), np.ma.MaskedArray([1]), memoryview(b"a")),
        *(dt.datetime(2020, 1, 1), dt.time(1), pd.Timestamp(0), object(), [object()], {"a": {1}}),
        *(np.zeros(1, "i4,i4"), np.array([object()])),
    ],
)
def test_what_may_be_anything_is_not_copied(value: Any) -> None:
    values = np.empty(1, object)
    values[0] = value
    assert copied(pd.Series(values, dtype=object)) is None
