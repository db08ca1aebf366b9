"""Functions for cogrouped frames: their arguments, their results and their errors are PySpark's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, window
from pyspark.sql.functions import sum as sum_of

from headgate import Headgate

from .conftest import setting
from .grouped import IN_A_ZONE, ROWS, same, same_error

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
CONF = {**IN_A_ZONE, "spark.sql.shuffle.partitions": "2"}

Function = Callable[..., Any]
Key = tuple[Any, ...]

BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
PART = "spark.sql.execution.arrow.maxRecordsPerBatch"
PART_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture(scope="module")
def wide(spark: SparkSession) -> DataFrame:
    """Return rows with every type; three columns also have nulls in some groups of `k`."""
    nulls = [f"if(v % 22 = 0, null, {name}) {name}_null" for name in ("v", "t", "day")]
    return spark.sql(f"select {ROWS} from range(0, 60, 1, 3)").selectExpr("*", *nulls)


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    """Return the left side, whose groups 0 and 1 are not on the right."""
    return spark.sql("select id % 5 k, id v, string(id % 2) s from range(0, 60, 1, 3)")


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    """Return the right side, whose groups 5 and 6 are not on the left."""
    return spark.sql("select id * 10 w, id % 5 + 2 k, string(id % 2) s from range(0, 40, 1, 2)")


def together(queries: list[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.union, queries)


def of_both(left: DataFrame, right: DataFrame, keys: list[Any], way: str, *what: Any) -> DataFrame:
    """Apply a function to cogrouped sides; `way` is `pandas` or `arrow`."""
    groups = left.groupBy(*keys).cogroup(right.groupBy(*keys))
    return groups.applyInPandas(*what) if way == "pandas" else groups.applyInArrow(*what)


def told_frames(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return the row labels of each side, and the type and values of each column."""
    lines = [str(left.index), str(right.index)]
    for frame in (left, right):
        lines += [f"{name} {column.dtype} {list(column)!r}" for name, column in frame.items()]
    return pd.DataFrame({"said": lines})


def told_frames_with_key(key: Key, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    kinds = [(type(value).__name__, repr(value)) for value in key]
    line = f"{type(key)} {kinds} {left.values.tolist()} {right.values.tolist()}"
    return pd.DataFrame({"said": [line]})


def told_tables(left: pa.Table, right: pa.Table) -> pa.Table:
    lines = [str(value) for table in (left, right) for value in (table.schema, table.to_pydict())]
    return pa.table({"said": lines})


def told_tables_with_key(key: Key, left: pa.Table, right: pa.Table) -> pa.Table:
    kinds = [(str(value.type), str(value)) for value in key]
    return pa.table({"said": [f"{type(key)} {kinds} {left.to_pydict()} {right.to_pydict()}"]})


TOLD = [
    ("pandas", told_frames),
    ("pandas", told_frames_with_key),
    ("arrow", told_tables),
    ("arrow", told_tables_with_key),
]


def told(left: DataFrame, right: DataFrame, *keys: Any) -> DataFrame:
    """Return the arguments of functions of each kind, as text."""
    return together([of_both(left, right, [*keys], *pair, "said string") for pair in TOLD])


def told_with_keys(left: DataFrame, right: DataFrame, *keys: Any) -> DataFrame:
    return together([of_both(left, right, [*keys], *pair, "said string") for pair in TOLD[1::2]])


def test_keys_of_one_side(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    """A group that only one side has gets the other side's columns without rows."""
    same(hg, told(left, right, "k"))


@pytest.mark.parametrize("emptied", ["the left", "the right", "both"])
def test_no_rows(hg: Headgate, left: DataFrame, right: DataFrame, emptied: str) -> None:
    first = left.filter("v < 0") if emptied != "the right" else left
    second = right.filter("w < 0") if emptied != "the left" else right
    same(hg, told_with_keys(first, second, "k"))


def test_the_same_frame_twice(hg: Headgate, left: DataFrame) -> None:
    """A frame can be cogrouped with itself, also if the key is written in other letters, and the
    result can be joined with itself."""
    same(hg, told_with_keys(left, left, "K"))
    counts = of_both(left, left, ["k"], "pandas", counted, COUNTED)
    same(hg, counts.join(counts.withColumnRenamed("n", "m"), "k").orderBy("k"))


KEYS = ["n,i,e", "s,t", "x,f", "d,w,b", "day,at,z", "q,y"]


def test_keys(hg: Headgate, wide: DataFrame) -> None:
    """Nulls and NaN of both sides meet, in Spark's order. Keys are never 0.0 on one side and -0.0
    on the other, because Spark fails then."""
    rows = wide.withColumn("x", wide.x + 0.0)
    halves = rows.filter("v % 4 < 3"), rows.filter("v % 4 > 1")
    queries = []
    for keys in (names.split(",") for names in KEYS):
        first, second = (half.select("v", *keys) for half in halves)
        queries.append(told_with_keys(first, second, *keys))
    same(hg, together(queries))


def test_keys_of_other_types(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    """Keys of different types are left to Spark, which meets their rows only where their hashes
    fall into the same partition."""
    narrow = right.withColumn("k", right.k.cast("int"))
    same(hg, told_with_keys(left, narrow, "k"), here=False)


def test_other_names(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    """Keys of both sides are matched by position, and may be expressions."""
    groups = left.groupBy("k", "s", left.v % 3 == 0).cogroup(
        right.toDF("w", "key", "text").groupBy("key", "text", col("w") % 20 == 0)
    )
    in_arrow = groups.applyInArrow(told_tables_with_key, "said string")
    same(hg, together([groups.applyInPandas(told_frames_with_key, "said string"), in_arrow]))


def test_windows_for_keys(hg: Headgate, wide: DataFrame) -> None:
    rows = wide.select("v", "at")
    hours = [window("at", "2 hours")]
    query = of_both(rows, rows, hours, "pandas", told_frames_with_key, "said string")
    same(hg, query)


def test_one_group_of_all(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    same(hg, told_with_keys(left, right))


def test_sides_that_lie_ready(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    """A side whose rows a window has already brought together, in its own order of keys, is grouped
    right."""
    summed = right.withColumn("sum", sum_of("w").over(Window.partitionBy("s", "k")))
    same(hg, told_with_keys(left, summed, "k", "s"))


def test_what_a_function_is_given(hg: Headgate, wide: DataFrame) -> None:
    """A function gets every type right, also in columns without rows."""
    same(hg, told(wide.filter("k < 5"), wide.filter("k > 3"), "k"))


@pytest.mark.parametrize("conf", [{PART: "3"}, {PART: "-1", PART_BYTES: "64"}])
def test_parts(
    hg: Headgate, spark: SparkSession, left: DataFrame, right: DataFrame, conf: dict[str, str]
) -> None:
    """A function gets a whole group at once, whatever the size of batches."""
    with setting(spark, conf):
        same(hg, told(left, right, "k"))


COUNTED = "k long, n long"


def counted(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(left) - len(right)], "k": pd.concat([left, right])["k"].max()})


def changing(key: Key, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Change both sides in place; a change of one side must not show on the other."""
    left["k"].to_numpy()[:] = 0
    left["v"] = left.pop("k")
    right.sort_values("k", inplace=True)
    return pd.DataFrame({"k": right["k"] + key[0], "n": left["v"].sum()})


def merged(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return left.merge(right, on=["k"]).rename(columns={"v": "n"})[["n", "k"]]


def labelled(key: Key, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with column names for some groups, and with positions for others."""
    return pd.DataFrame([[key[0], len(left)]], columns=["k", "n"] if key[0] % 2 else [0, 1])


class Counts:
    def of(self, left: Any, *right: Any) -> Any:
        return counted(left, *right)


def counted_tables(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"n": [left.num_rows - right.num_rows], "k": [right.num_columns]})


def some_tables(key: Key, left: pa.Table, right: pa.Table) -> pa.Table:
    return counted_tables(left, right) if key[0].as_py() % 2 else pa.table({})


FUNCTIONS: dict[str, tuple[str, Function]] = {
    "by name": ("pandas", counted),
    "in place": ("pandas", changing),
    "larger": ("pandas", merged),
    "by name or by position": ("pandas", labelled),
    "a bound method": ("pandas", Counts().of),
    "not a function": (
        "pandas",
        functools.partial(lambda by, left, right: counted(left, right), 7),
    ),
    "other arguments": ("pandas", lambda left, right, *rest, by=3, **more: counted(left, right)),
    "no rows": ("pandas", lambda left, right: counted(left, right)[:0]),
    "no columns": ("pandas", lambda key, left, right: pd.DataFrame()),
    "tables": ("arrow", counted_tables),
    "tables without columns": ("arrow", some_tables),
    "tables of parts": (
        "arrow",
        lambda left, right: pa.concat_tables([counted_tables(left, right)] * 3),
    ),
}


def test_functions(hg: Headgate, left: DataFrame, right: DataFrame) -> None:
    queries = [of_both(left, right, ["k"], *pair, "k long, n long") for pair in FUNCTIONS.values()]
    same(hg, together(queries))


def test_by_position(hg: Headgate, spark: SparkSession, left: DataFrame, right: DataFrame) -> None:
    in_pandas = of_both(left, right, ["k"], "pandas", counted, "a long, b double")
    in_arrow = of_both(left, right, ["k"], "arrow", counted_tables, "a long, b long")
    with setting(spark, {BY_NAME: "false"}):
        same(hg, in_pandas.union(in_arrow))


def raising(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    raise ValueError("the user's own")


def stopping(left: pa.Table, right: pa.Table) -> pa.Table:
    raise StopIteration("the user's own")


WRONG: dict[str, tuple[str, Function, str]] = {
    "an error": ("pandas", raising, "k long"),
    "the end of an iterator": ("arrow", stopping, "k long"),
    "no frame": ("pandas", lambda key, left, right: key, "k long"),
    "a frame's other names": ("pandas", counted, "k long, m long"),
    "a table's other types": ("arrow", counted_tables, "k int, n string"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(hg: Headgate, left: DataFrame, right: DataFrame, name: str) -> None:
    """Errors are PySpark's own, with the user's traceback."""
    query = of_both(left, right, ["k"], *WRONG[name])
    same_error(hg, query, "raising" if name == "an error" else "")
