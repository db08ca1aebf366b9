"""Random rows, keys and functions for groups give the same rows in Headgate as in Spark."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate

from .grouped import IN_A_ZONE, ZONE, same
from .keeping import WAYS, again, spoiling

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
CONF = {**IN_A_ZONE, ZONE: "UTC"}  # a function can return Arrow timestamps in UTC only

DAYS = st.dates(dt.date(1582, 1, 1), dt.date(2200, 1, 1))
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**40), 2**40),
    "smallint": st.integers(-2, 2),
    "string": st.text("aé\U0001f600 ", max_size=2),
    "binary": st.binary(max_size=2).map(bytearray),
    "double": st.sampled_from([math.nan, math.inf, -1.5, 0.0, 2.0]),
    "boolean": st.booleans(),
    "date": DAYS,
    "timestamp": TIMES,
    "timestamp_ntz": TIMES,
    "decimal(10,2)": st.decimals(-99, 99, places=2, allow_nan=False),
    "decimal(30,5)": st.decimals(-99, 99, places=5, allow_nan=False),
    "interval day to second": st.integers(-(10**9), 10**9).map(lambda s: dt.timedelta(seconds=s)),
}
KEYS |= {
    "struct<a:bigint,b:string>": st.tuples(
        st.none() | st.integers(0, 2), st.text("ab", max_size=1)
    ),
    "array<struct<a:double>>": st.lists(st.none() | st.tuples(KEYS["double"]), max_size=2),
    "struct<a:array<smallint>>": st.tuples(st.none() | st.lists(st.none() | KEYS["smallint"])),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **KEYS,
    "float": st.sampled_from([math.nan, -0.0, 0.5]),
    "array<int>": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "array<string>": st.lists(st.none() | st.text("ab", max_size=2), max_size=3),
    "struct<a:bigint,b:boolean>": st.tuples(st.none() | st.integers(0, 9), st.booleans()),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of random types. The first columns are keys, and the last column is the row's number."""

    kinds: tuple[str, ...]
    keys: int
    values: tuple[tuple[Any, ...], ...]

    @property
    def schema(self) -> str:
        return ", ".join([*(f"c{at} {kind}" for at, kind in enumerate(self.kinds)), "v bigint"])

    def frame(self, spark: SparkSession) -> DataFrame:
        numbered = [(*row, at) for at, row in enumerate(self.values)]
        return spark.createDataFrame(numbered, self.schema)


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Draw rows with few values in each column, so that groups have several rows."""
    keys = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2))
    others = draw(st.lists(st.sampled_from(list(VALUES)), max_size=3))
    kinds = (*keys, *others)
    columns = [draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=3)) for kind in kinds]
    row = st.tuples(*map(st.sampled_from, columns))
    return Rows(kinds, len(keys), tuple(draw(st.lists(row, max_size=40))))


@dataclass(frozen=True, slots=True)
class Taking:
    """A function's behaviour: it takes every `step`-th of the first `most` rows, `times` times.

    `way` names where the function keeps memory that its results share, if it does.
    """

    step: int
    times: int
    most: int
    way: str | None


def function(kind: str, taking: Taking) -> Callable[..., Any]:
    """Return a function of one kind; PySpark tells kinds by arguments and annotations."""
    step, times, most = taking.step, taking.times, taking.most
    recall = WAYS[taking.way] if taking.way else None

    def of_table(table: pa.Table) -> pa.Table:
        places = pa.array(range(0, min(len(table), most), step), pa.int64())
        return pa.concat_tables([table.sort_by("v").take(places)] * times)

    def of_frame(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([frame.sort_values("v")[:most:step]] * times)

    def kept(table: pa.Table) -> pa.Table:
        return again(recall(), table) if recall else table

    def spoiled(frame: pd.DataFrame) -> pd.DataFrame:
        return spoiling(recall(), frame) if recall else frame

    def table(given: pa.Table) -> pa.Table:
        return kept(of_table(given))

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield from kept(of_table(pa.Table.from_batches([batch]))).to_batches()

    def batches_with_key(key: Any, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not isinstance(key[0], pa.Scalar):  # an assertion would import pytest
            raise TypeError(key)
        return batches(given)

    def frame(key: Any, given: pd.DataFrame) -> pd.DataFrame:
        return spoiled(of_frame(given))

    def frames(given: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return (spoiled(of_frame(piece)) for piece in given)

    def tables(left: pa.Table, right: pa.Table) -> pa.Table:
        return kept(pa.concat_tables([of_table(left), right.sort_by("v")]))

    def two_frames(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return spoiled(pd.concat([left.sort_values("v"), of_frame(right)]))

    return locals()[kind]  # type: ignore[no-any-return]


KINDS = ["table", "batches", "batches_with_key", "frame", "frames", "tables", "two_frames"]


def takings() -> st.SearchStrategy[Taking]:
    numbers = st.integers(1, 3), st.integers(1, 2), st.integers(0, 9)
    return st.builds(Taking, *numbers, st.none() | st.sampled_from(list(WAYS)))


def query(given: DataFrame, keys: list[str], kind: str, taking: Taking) -> DataFrame:
    groups: Any = given.groupBy(*keys)
    if kind in ("tables", "two_frames"):
        groups = groups.cogroup(given.filter("v % 3 > 0").groupBy(*keys))
    apply = groups.applyInPandas if "frame" in kind else groups.applyInArrow
    made: DataFrame = apply(function(kind, taking), given.schema)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_random(spark: SparkSession, hg: Headgate, kind: str) -> None:
    @settings(max_examples=settings().max_examples // 8, suppress_health_check=list(HealthCheck))
    @given(rows(), takings())
    def held_against_spark(rows: Rows, taking: Taking) -> None:
        keys = [f"c{at}" for at in range(rows.keys)]
        same(hg, query(rows.frame(spark), keys, kind, taking))

    held_against_spark()
