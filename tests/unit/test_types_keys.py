"""Which keys are taken by their place, and which Spark has to find."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import Column
from pyspark.sql.types import ArrayType, DataType, DateType, LongType, StringType, StructType

from headgate.connectors.spark.types import places


def schema(*names: str, **types: DataType) -> StructType:
    """Return a schema of columns with their types, and then of numbers."""
    made = StructType()
    for name, kind in (types | dict.fromkeys(names, LongType())).items():
        made.add(name, kind)
    return made


COLUMNS = schema(
    "a.b", "x y", k=LongType(), s=StringType(), day=DateType(), l=ArrayType(LongType())
)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["k"], [0]),
        (["day", "s", "s"], [2, 1, 1]),
        (["K"], None),
        (["none"], None),
        (["k", "l"], None),
        (["a.b"], None),
        (["`a.b`"], None),
        (["x y"], None),
        (["*"], None),
        (["k", cast(Column, object())], None),
    ],
)
def test_plain_names(keys: list[Any], expected: list[int] | None) -> None:
    """Only the exact name of a column of a simple type is taken."""
    assert expected == places(COLUMNS, keys)


@pytest.mark.parametrize("more", ["K", "\u212a", "\u017f"])
def test_names_that_others_may_mean(more: str) -> None:
    """A name that may mean another column too is left to Spark."""
    assert places(schema("k", "s", more), ["k"]) is None


def test_names_that_the_user_has_changed() -> None:
    """The names that a user has changed in a schema are not the names of its columns."""
    changed = schema("a", "k")
    changed.names.remove("a")
    assert [1] == places(changed, ["k"])
