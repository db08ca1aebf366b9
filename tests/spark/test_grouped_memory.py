"""A function may change its former results at its next call: rows are those of the moment of
return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate

from ..doubles.pandas_groups import together
from .grouped import IN_A_ZONE, same
from .keeping import FRAMES, TABLE, WAYS, Memory, Recall, count, every_type

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
CONF = {**IN_A_ZONE, "spark.sql.shuffle.partitions": "2"}

Make = Callable[[Memory, int], Any]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    """Return groups of one to five rows whose sums differ."""
    return spark.sql("select id v, int(sqrt(id)) k from range(0, 20, 1, 2)")


def on_tables(make: Make, recall: Recall) -> Callable[..., Any]:
    return lambda rows: make(recall(), sum(rows["v"].to_pylist()))


def on_batches(make: Make, recall: Recall) -> Callable[..., Any]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for v in batch["v"].to_pylist():
                yield from make(recall(), v).to_batches()

    return function


def on_two_tables(make: Make, recall: Recall) -> Callable[..., Any]:
    return lambda left, right: make(recall(), sum(left["v"].to_pylist()) + right.num_rows)


def on_frames(make: Make, recall: Recall) -> Callable[..., Any]:
    return lambda rows: make(recall(), int(rows["v"].sum()))


def on_parts(make: Make, recall: Recall) -> Callable[..., Any]:
    def function(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            for v in part["v"].tolist():
                yield make(recall(), v)

    return function


def on_two_frames(make: Make, recall: Recall) -> Callable[..., Any]:
    return lambda left, right: make(recall(), int(left["v"].sum()) + len(right))


IN_ARROW = {"tables": on_tables, "batches": on_batches, "two tables": on_two_tables}
IN_PANDAS = {"frames": on_frames, "parts": on_parts, "two frames": on_two_frames}


def query(df: DataFrame, kind: str, make: Make, way: str, schema: str) -> DataFrame:
    groups: Any = df.groupBy("k")
    if kind.startswith("two"):
        groups = groups.cogroup(df.filter("v % 3 > 0").groupBy("k"))
    makes = IN_ARROW.get(kind) or IN_PANDAS[kind]
    apply = groups.applyInArrow if kind in IN_ARROW else groups.applyInPandas
    recall, name = WAYS[way], make.__name__
    rows: DataFrame = apply(makes(make, lambda: recall().setdefault(name, {})), schema)
    return rows.select(F.struct("*").cast("string").alias("row"))


@pytest.mark.parametrize("kind", IN_ARROW)
def test_tables(hg: Headgate, df: DataFrame, kind: str) -> None:
    schema = ", ".join(f"{name} {sql_type}" for name, sql_type in TABLE.items())
    same(hg, together([query(df, kind, every_type, way, schema) for way in WAYS]))


@pytest.mark.parametrize("kind", [*IN_ARROW, *IN_PANDAS])
def test_ways(hg: Headgate, df: DataFrame, kind: str) -> None:
    """Rows are right wherever a function keeps its memory."""
    make, schema = (count, "n double") if kind in IN_ARROW else FRAMES["block"]
    same(hg, together([query(df, kind, make, way, schema) for way in WAYS]))


@pytest.mark.parametrize("name", FRAMES)
def test_frames(hg: Headgate, df: DataFrame, name: str) -> None:
    """Rows are right whatever a frame's columns are made of."""
    make, schema = FRAMES[name]
    same(hg, together([query(df, kind, make, "in_numpy", schema) for kind in IN_PANDAS]))
