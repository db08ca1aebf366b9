"""Functions for pandas groups, or for parts of groups: arguments, results and errors are
PySpark's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

from headgate import Headgate

from ..doubles.pandas_groups import together
from .conftest import setting
from .grouped import IN_A_ZONE, ROWS, ZONE, same, same_error

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
CONF = {**IN_A_ZONE, "spark.sql.shuffle.partitions": "2"}

Function = Callable[..., Any]
Key = tuple[Any, ...]

PART = "spark.sql.execution.arrow.maxRecordsPerBatch"
BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
SAFELY = "spark.sql.execution.pandas.convertToArrowArraySafely"
DECIMALS = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"


@pytest.fixture(scope="module")
def wide(spark: SparkSession) -> DataFrame:
    """Return rows with every type and nulls.

    In some groups of `k` a few values are null, in one group all of them. The hours of `clock`
    include a change from summer time.
    """
    more = "tinyint(id) i1, smallint(id) i2, timestamp_seconds(1604206800 + id * 600) clock"
    rows = spark.sql(f"select {ROWS}, {more} from range(0, 60, 1, 3)")
    nulls = (f"if(v % 22 = 0 or k = 3, null, {name}) {name}_null" for name in rows.columns)
    return rows.selectExpr("*", *nulls)


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.sql("select id v, id % 7 k, string(id % 3) s from range(0, 60, 1, 3)")


def told(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the labels of the rows, and the type and values of each column."""
    lines = [f"{name} {column.dtype} {list(column)!r}" for name, column in frame.items()]
    return pd.DataFrame({"said": [str(frame.index), *lines]})


def told_key(key: Key, frame: pd.DataFrame) -> pd.DataFrame:
    kinds = [(type(value).__name__, repr(value)) for value in key]
    return pd.DataFrame({"said": [f"{type(key)} {kinds} {sorted(frame['v'])}"]})


def told_parts(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return map(told, parts)


def told_key_of_parts(key: Key, parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (told_key(key, part) for part in parts)


def told_batches(key: Key, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = [str(value) for value in (key, batch.schema, batch.to_pydict())]
        yield pa.RecordBatch.from_pydict({"said": lines})


KEYS = ["k_null", "x_null", "at_null", "d_null", "s_null", "day,z,t_null", "b,w,f", "i,e,n,i1,i2"]
KEYS += ["q_null", "y_null", "td,ta", "struct(n_null) nn", "array(n_null) an"]


def test_keys(hg: Headgate, wide: DataFrame) -> None:
    """A function gets its key as a tuple of the first row's pandas values. Rows are compared
    without their order, which Spark does not keep if a single key column has nulls."""
    groups = []
    for given in (wide.selectExpr("v", *names.split(",")) for names in KEYS):
        groups.append(given.groupBy(*given.columns[1:]))
    same(hg, together([group.applyInPandas(told_key, "said string") for group in groups]))


def test_expressions_for_keys(hg: Headgate, df: DataFrame) -> None:
    groups = df.groupBy(df.v % 2 == 0, (df.v / 7).cast("int").alias("seven"), "S")
    queries = [
        groups.applyInPandas(function, "said string") for function in (told, told_key_of_parts)
    ]
    same(hg, together([*queries, groups.applyInArrow(told_batches, "said string")]))


def test_windows_for_keys(hg: Headgate, wide: DataFrame) -> None:
    groups = wide.select("v", "clock").groupBy(window("clock", "2 hours"))
    same(hg, groups.applyInPandas(told_key, "said string"))


def test_one_group_of_all(hg: Headgate, df: DataFrame) -> None:
    same(hg, df.groupBy().applyInPandas(told_key, "said string"))


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_what_it_is_given(hg: Headgate, spark: SparkSession, wide: DataFrame, zone: str) -> None:
    """The types of a frame are those of the group's rows, not those of all rows."""
    with setting(spark, {ZONE: zone}):
        same(hg, wide.groupBy("k").applyInPandas(told, "said string"))


NESTED = [
    "if(k = 3, array(v, null), array(v, v)) a",
    "named_struct('a', if(k = 4, null, v)) s",
    "map(v, if(k = 5, null, v)) m",
]


def test_what_it_is_given_beside_nulls(hg: Headgate, wide: DataFrame) -> None:
    """Nulls in another group, or inside values, do not change a column's type."""
    inner = "array", "map", "struct"
    flat = [name for name, kind in wide.dtypes if not kind.startswith(inner)]
    queries = [wide.select(*flat), *(wide.selectExpr("k", expression) for expression in NESTED)]
    told_of = [query.groupBy("k").applyInPandas(told, "said string") for query in queries]
    same(hg, together(told_of))


@pytest.mark.parametrize("rows", ["4", "-1"])
def test_parts(hg: Headgate, spark: SparkSession, wide: DataFrame, rows: str) -> None:
    """The types of a part are those of the part's rows, not those of the group's."""
    groups = wide.select("v", "k", "n", "t_null", "day_null", "y_null", "td_null").groupBy("k")
    functions = told, told_parts, told_key_of_parts
    queries = [groups.applyInPandas(function, "said string") for function in functions]
    with setting(spark, {PART: rows}):
        same(hg, together([*queries, groups.applyInArrow(told_batches, "said string")]))


def test_what_comes_back(hg: Headgate, wide: DataFrame) -> None:
    same(hg, wide.groupBy("k").applyInPandas(lambda frame: frame, wide.schema))


NIGHT = pd.Timestamp("2020-11-01 00:10")
CASTS: dict[str, list[Function]] = {
    "long": [lambda v: v.astype("Int64").where(v % 2 == 0), lambda v: v.astype("int64[pyarrow]")],
    "bigint": [lambda v: v.astype("int8"), lambda v: 7],
    "int": [lambda v: v.where(v % 2 == 0), lambda v: v.astype("category")],
    "byte": [lambda v: v.astype("uint16"), lambda v: v.astype(str)],
    "double": [lambda v: v, lambda v: v.where(v > 30).astype(object)],
    "float": [lambda v: v.astype("float16")],
    "boolean": [lambda v: v, lambda v: (v % 2 == 0).astype(object).where(v > 9, None)],
    "string": [lambda v: v.astype(str).astype("category"), lambda v: v.map(lambda value: b"text")],
    "binary": [lambda v: v.map(lambda value: bytearray([value])), lambda v: v.astype(str)],
    "decimal(10, 2)": [lambda v: v.map(Decimal), lambda v: v / 4],
    "decimal(10, 0)": [lambda v: v.astype("int8")],
    "date": [
        lambda v: v.map(lambda value: NIGHT.date()),
        lambda v: NIGHT + pd.to_timedelta(v, "D"),
    ],
    "timestamp": [
        lambda v: NIGHT + pd.to_timedelta(v * 10, "min"),
        lambda v: (NIGHT + pd.to_timedelta(v, "h")).astype(object),
        lambda v: (NIGHT + pd.to_timedelta(v, "h")).dt.tz_localize("Asia/Tokyo"),
    ],
    "timestamp_ntz": [lambda v: NIGHT + pd.to_timedelta(v, "h")],
    "interval day to second": [lambda v: v.map(lambda value: timedelta(value)).astype(object)],
    "array<long>": [lambda v: v.map(lambda value: [value, None]), lambda v: v.map(np.arange)],
    "map<string, long>": [lambda v: v.map(lambda value: {"one": value, "none": None})],
    "struct<a long, b string>": [lambda v: v.map(lambda value: (value, "text"))],
    "array<struct<t timestamp>>": [lambda v: v.map(lambda value: [{"t": NIGHT}])],
    "void": [lambda v: None],
}
LARGE: dict[str, list[Function]] = {"tinyint": [lambda v: v * 100], "integer": [lambda v: v + 0.5]}


def cast(casts: dict[str, list[Function]], df: DataFrame) -> DataFrame:
    wanted = [(kind, make) for kind, makers in casts.items() for make in makers]

    def function(frame: pd.DataFrame) -> pd.DataFrame:
        made = {f"c{at}": make(frame["v"]) for at, (_, make) in enumerate(wanted)}
        return pd.DataFrame(made, index=frame.index)

    schema = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(wanted))
    return df.groupBy("k").applyInPandas(function, schema)


def test_casts(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    """Values of another type are cast to the schema's type exactly as far as PySpark does it."""
    with setting(spark, {SAFELY: "false"}):
        same(hg, cast(CASTS | LARGE, df))
    with setting(spark, {SAFELY: " True", DECIMALS: "TRUE"}):
        same(hg, cast(CASTS | {"decimal(9, 2)": [lambda v: v]}, df))
        same_error(hg, cast(LARGE, df))


def total(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(frame)], "k": frame["v"].sum()})


class Totals:
    def of(self, *groups: Any) -> Any:
        return total(*groups)


def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    frame["n"] = frame.pop("v")
    frame["n"].to_numpy()[:] *= 2
    frame.sort_values("n", ascending=False, inplace=True)
    frame.loc[frame.index[0], "k"] = -1
    return frame[["k", "n"]]


SAME = pd.DataFrame({"k": [0], "n": [0]})


def same_again(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one frame for all groups, changed for each of them."""
    SAME.loc[0, "n"] = int(frame["v"].sum())
    return SAME


def labelled(key: Key, frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([[key[0], len(frame)]], columns=["k", "n"] if key[0] % 2 else [0, 1])


def iterated(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    first = next(parts)
    yield pd.DataFrame()
    yield from (total(first) for _ in range(3))


def listed(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return [total(pd.concat(parts))]  # type: ignore[return-value]


FUNCTIONS: dict[str, Function] = {
    "by name": total,
    "a lambda": lambda key, frame: total(frame).assign(k=key[0]),
    "a bound method": Totals().of,
    "something that is not a function": functools.partial(lambda more, frame: total(frame), 7),
    "other arguments": lambda frame, *rest, by=3, **more: total(frame * by),
    "an argument with a default": lambda first, second=None: total(second),
    "in place": doubled,
    "the same frame again": same_again,
    "by name or by position": labelled,
    "by numbers in disorder": lambda frame: pd.DataFrame({1: frame["v"], 0: frame["k"]}),
    "labels that were kept": lambda frame: frame[frame["v"] > 30].rename(columns={"v": "n"})[
        ["n", "k"]
    ],
    "labels that were reset": lambda frame: frame.groupby("k")["v"].size().reset_index(name="n"),
    "larger": lambda frame: pd.concat([total(frame)] * 40),
    "no rows": lambda frame: total(frame)[:0],
    "no columns": lambda key, frame: total(frame) if key[0] % 2 else pd.DataFrame(),
    "rows without columns": lambda frame: pd.DataFrame(index=[1, 2, 3]),
    "a name that is there twice": lambda frame: pd.DataFrame([[1, 2, 3]], columns=["k", "n", "n"]),
    "some of the parts": iterated,
    "a list of parts": listed,
}


@pytest.mark.parametrize("names", [list(FUNCTIONS)[at::3] for at in range(3)])
def test_functions(hg: Headgate, df: DataFrame, names: list[str]) -> None:
    groups = df.select("k", "v").groupBy("k")
    queries = [groups.applyInPandas(FUNCTIONS[name], "k long, n long") for name in names]
    same(hg, together(queries))


def test_by_position(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    with setting(spark, {BY_NAME: "false"}):
        same(hg, df.groupBy("k").applyInPandas(total, "a long, b double"))
        same_error(hg, df.groupBy("k").applyInPandas(total, "a long"))


@pytest.mark.parametrize("on", ["True", "TRUE", " true "])
def test_by_name(hg: Headgate, spark: SparkSession, df: DataFrame, on: str) -> None:
    """Every spelling of true that Spark accepts in the setting counts as true."""
    with setting(spark, {BY_NAME: on}):
        same(hg, df.groupBy("k").applyInPandas(total, "k double, n long"))


def test_no_rows(hg: Headgate, df: DataFrame) -> None:
    none = df.filter("v < 0").groupBy("k")
    queries = [none.applyInPandas(function, "said string") for function in (told, told_parts)]
    same(hg, together([*queries, none.applyInArrow(told_batches, "said string")]))


def raising(frame: pd.DataFrame) -> pd.DataFrame:
    raise ValueError("the user's own")


def stopping(frame: pd.DataFrame) -> pd.DataFrame:
    raise StopIteration("the user's own")


def raising_late(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from map(total, parts)
    raise ValueError("the user's own")


def exhausting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        yield next(batches).select(["k"])


WRONG: dict[str, tuple[Function, str]] = {
    "an error": (raising, "k long"),
    "an error behind the last part": (raising_late, "k long, n long"),
    "the end of an iterator": (stopping, "k long"),
    "no frame": (lambda key, frame: key, "k long"),
    "a column too few, and one too many": (total, "k long, m long"),
    "batches beyond the last": (exhausting, "k long"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(hg: Headgate, df: DataFrame, name: str) -> None:
    """Errors are PySpark's own, with the user's traceback."""
    groups = df.select("k", "v").groupBy("k")
    apply = groups.applyInArrow if name.startswith("batches") else groups.applyInPandas
    function, schema = WRONG[name]
    named = function.__name__ if name.startswith("an error") else ""
    same_error(hg, apply(function, schema), named)
