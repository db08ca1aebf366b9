"""Functions for groups of rows: rows, order and errors are those of PySpark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.connectors.spark.tasks import partial_aggregates
from headgate.connectors.spark.tasks.partial_aggregates import Merging

from .conftest import setting
from .grouped import IN_A_ZONE, ROWS, same, same_error

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
CONF = IN_A_ZONE

Function = Callable[..., pa.Table]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.sql(f"select {ROWS} from range(0, 600, 1, 3)")


@pytest.fixture(autouse=True)
def few_rows_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregates, "_LEAST_ROWS", 0)


def counted(table: pa.Table) -> pa.Table:
    first, last = table["v"][0].as_py(), table["v"][-1].as_py()
    return pa.table({"first": [first], "last": [last], "n": [table.num_rows]})


COUNTED = "first long, last long, n long"


KEYS = ["k", "n", "s", "b", "x", "d", "w", "t", "day", "at", "z", "f", "i", "e", "n,s", "x,t,k"]
NESTED = ["q", "y", "named_struct('x', x, 's', s)", "array(n, k)", "array(array(x), null)"]


@pytest.mark.parametrize("keys", KEYS)
def test_keys(hg: Headgate, df: DataFrame, keys: str) -> None:
    """Groups are Spark's, in Spark's order: nulls first, NaN last, -0.0 with 0.0."""
    same(hg, df.groupBy(*keys.split(",")).applyInArrow(counted, COUNTED))


@pytest.mark.parametrize("key", NESTED)
def test_nested_keys(hg: Headgate, df: DataFrame, key: str) -> None:
    """Nested keys are ordered by the first value that differs, and a prefix comes first."""
    same(hg, df.groupBy(F.expr(key)).applyInArrow(counted, COUNTED))


def test_keys_by_a_collation(hg: Headgate, df: DataFrame) -> None:
    """Spark groups by keys with a collation, which Headgate cannot compare."""
    alike = F.collate("s", "UTF8_LCASE")
    for key in (alike, F.struct(alike), F.array(alike)):
        same(hg, df.groupBy(key).applyInArrow(counted, COUNTED), here=False)


def test_what_spark_encrypts_is_called_there(
    spark: SparkSession, hg: Headgate, df: DataFrame
) -> None:
    """Spark calls the function when its files must be encrypted, because our spill files are
    not."""
    may_be_set = {"spark.sql.legacy.setCommandRejectsSparkCoreConfs": "false"}
    encrypted = {"spark.io.encryption.enabled": " TRUE"}
    with setting(spark, may_be_set), setting(spark, encrypted):
        same(hg, df.groupBy("k").applyInArrow(counted, COUNTED), here=False)


@pytest.mark.parametrize(
    "key",
    [
        "execution.pyspark.udf.hideTraceback.enabled",
        "execution.pyspark.udf.killOnIdleTimeout",
        "pyspark.worker.logging.enabled",
    ],
)
def test_what_spark_does_around_a_function_is_done_there(
    spark: SparkSession, hg: Headgate, df: DataFrame, key: str
) -> None:
    """Spark calls the function when it is to collect what the function logs, to hide the traceback
    of its errors, or to end it when it takes too long."""
    with setting(spark, {f"spark.sql.{key}": "true"}):
        same(hg, df.groupBy("k").applyInArrow(counted, COUNTED), here=False)


def test_keys_are_stored_once(hg: Headgate, df: DataFrame) -> None:
    """A key that Spark's plan has twice, as a key and as a column, is stored once."""
    for keys in (["k"], ["q", "k"]):
        query = df.select("v", "k", "q").groupBy(*keys).applyInArrow(counted, COUNTED)
        (shuffle,) = hg._queries.query().plan(query).shuffles
        assert len(shuffle.node.columns) == 3 + len(keys)
        assert sorted(shuffle.node.rows.names) == ["k", "q", "v"]


def test_rows_that_are_sorted(hg: Headgate, df: DataFrame) -> None:
    """Spark calls the function for rows that the user has sorted within groups."""
    sorted_rows = df.repartition(4, "k").sortWithinPartitions("k", -df.v)
    same(hg, sorted_rows.groupBy("k").applyInArrow(counted, COUNTED), here=False)


def test_expressions(hg: Headgate, df: DataFrame) -> None:
    same(hg, df.groupBy((df.v % 5).alias("five"), df.s).applyInArrow(counted, COUNTED))


def test_what_a_function_is_given(hg: Headgate, df: DataFrame) -> None:
    """A function gets every column under its name, with PySpark's type and values."""

    def told(table: pa.Table) -> pa.Table:
        rows = [str(row) for row in table.to_pylist()]
        return pa.table({"schema": [str(table.schema)] * len(rows), "row": rows})

    def told_with_key(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        line = f"{table.num_rows} {[(str(value.type), str(value)) for value in key]}"
        return pa.table({"schema": [str(table.schema)], "row": [line]})

    for function in (told, told_with_key):
        same(hg, df.groupBy("d", "at", "n").applyInArrow(function, "schema string, row string"))


def swapped(table: pa.Table) -> pa.Table:
    return pa.table({"n": [table.num_rows], "k": table["k"].slice(0, 1)})


def nothing(table: pa.Table) -> pa.Table:
    return pa.table({}) if table["k"][0].as_py() % 2 else swapped(table)


@pytest.mark.parametrize("function", [swapped, nothing])
def test_results(hg: Headgate, df: DataFrame, function: Function) -> None:
    """Columns of a result are taken by name, and a result may have no columns."""
    same(hg, df.groupBy("k").applyInArrow(function, "k long, n long"))
    same(hg, df.groupBy("k").applyInArrow(function, "k long not null, n long"))


def test_memory_that_is_used_again(hg: Headgate, df: DataFrame) -> None:
    """A numpy array that a function fills again for the next group is copied before, as Arrow does
    not copy it."""
    filled = np.zeros(1, np.int64)

    def count(table: pa.Table) -> pa.Table:
        filled[0] = table.num_rows
        return pa.table({"n": filled})

    def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            filled[0] = batch["v"][0].as_py()
            yield pa.record_batch({"n": filled})

    def counts_of_its_own(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = np.zeros(1, np.int64)
        for batch in batches:
            for own[0] in batch["v"].to_pylist():
                yield pa.record_batch({"n": own})

    for function in (count, counts, counts_of_its_own):
        same(hg, df.groupBy("k").applyInArrow(function, "n long"))


def test_by_position(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    by_name = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
    with setting(spark, {by_name: "false"}):
        same(hg, df.groupBy("k").applyInArrow(swapped, "a long, b long"))


def test_no_rows(hg: Headgate, df: DataFrame) -> None:
    same(hg, df.filter("v < 0").groupBy("k").applyInArrow(counted, COUNTED))


def raising(table: pa.Table) -> pa.Table:
    raise ValueError("the user's own")


WRONG: dict[str, tuple[Function, str]] = {
    "an error": (raising, "k long"),
    "another type": (lambda table: pa.table({"k": ["text"]}), "k long"),
    "a column too few": (lambda table: table.select(["k"]), "k long, n long"),
    "a column too many": (lambda table: table.select(["k", "n"]), "k long"),
    "no table": (lambda table: 7, "k long"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(hg: Headgate, df: DataFrame, name: str) -> None:
    """Errors are PySpark's own, with the user's traceback."""
    query = df.groupBy("k").applyInArrow(*WRONG[name])
    same_error(hg, query, "raising" if name == "an error" else "")


def test_a_query_around_it(hg: Headgate, df: DataFrame) -> None:
    """A query around a grouped function uses its rows as any others."""
    means = df.groupBy("k").applyInArrow(
        lambda table: pa.table({"k": table["k"][:1], "mean": [pc.mean(table["v"]).as_py()]}),
        "k long, mean double",
    )
    same(hg, df.join(means, "k").groupBy("s").agg({"mean": "max"}).orderBy("s"))


def test_adaptive(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    """Functions are called as usual in stages that read several partitions at once and are planned
    again."""
    counts = df.groupBy("k", "s").applyInArrow(counted, COUNTED)
    query = (
        counts.join(df.select("v", "d"), counts["first"] == df.v)
        .groupBy("d")
        .agg({"n": "sum", "last": "max"})
    )
    with setting(spark, {"spark.sql.adaptive.enabled": "true"}):
        out = hg.offload(query)
        assert sorted(query.collect()) == sorted(out.collect())
    assert "FlatMapGroups" not in hg.explain(out)
    hg.release(out)


def test_more_rows_than_fit(spark: SparkSession) -> None:
    """Rows beyond the memory limit wait in files. A group must fit into the limit, unless its
    function takes it batch by batch."""
    df = spark.range(0, 300_000, 1, 4).selectExpr("id % 1000 k", "0 one", "id v", "string(id) s")

    def summed(table: pa.Table) -> pa.Table:
        return pa.table({"k": table["k"][:1], "v": [pc.sum(table["v"]).as_py()]})

    def parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def frames(given: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"rows": [sum(map(len, given))]})

    small = {"spark.headgate.group.bytes": str(1 << 20), "spark.headgate.job.id": "test-small"}
    with setting(spark, small), attach(spark) as hg:
        same(hg, df.groupBy("k").applyInArrow(summed, "k long, v long"))
        same(hg, df.groupBy("one").applyInArrow(parts, "rows long"))
        same(hg, df.groupBy("one").applyInPandas(frames, "rows long"))
        with pytest.raises(PythonException, match=r"the group of \(0\) takes more than 1048576"):
            hg.group_by(df, "one").applyInArrow(summed, "k long, v long").collect()


def test_explained(hg: Headgate, df: DataFrame) -> None:
    called = "its readers call the function"
    assert called in hg.explain(df.groupBy("k").applyInArrow(counted, COUNTED))
    assert called not in hg.explain(df.groupBy("k").count())


def test_group_by(hg: Headgate, df: DataFrame) -> None:
    """`Headgate.group_by` gives the same rows as PySpark's."""
    expected: list[Any] = df.groupBy("k").applyInArrow(counted, COUNTED).collect()
    assert expected == hg.group_by(df, "k").applyInArrow(counted, COUNTED).collect()


def merging(hg: Headgate, query: DataFrame) -> list[Merging | None]:
    planner = hg._queries.query()._plans
    return [planner.merging([shuffle]) for shuffle in planner.plan(query).shuffles]


MERGED = "count(*), sum(v), avg(n), min(day), max(s), min(d), max(w), sum(n)"


@pytest.mark.parametrize("keys", ["k", "n", "s, b", "x, d", "t, day, at", "w, i, z, f", "q"])
def test_aggregates(hg: Headgate, df: DataFrame, keys: str) -> None:
    """Rows that are merged before they reach the JVM give the same aggregates."""
    df.createOrReplaceTempView("given")
    query = df.sparkSession.sql(f"select {MERGED} from given group by {keys}")
    assert (merging(hg, query) == [None]) == (keys == "q")
    names = keys.split(", ")
    out = hg.group_by(df, *names).agg(*map(F.expr, MERGED.split(", "))).drop(*names)
    assert sorted(map(str, query.collect())) == sorted(map(str, out.collect()))


@pytest.mark.parametrize("left", ["sum(d)", "max(x)", "first(v)", "max(y)", "max(e)"])
def test_what_is_not_merged(hg: Headgate, df: DataFrame, left: str) -> None:
    query = df.groupBy("k").agg(F.expr(left), F.count("*"))
    assert merging(hg, query) == [None]


def test_duplicates(hg: Headgate, df: DataFrame) -> None:
    query = df.select("k", "s").distinct()
    assert sorted(query.collect()) == sorted(hg.offload(query).collect())
    counts = df.groupBy("k").agg(F.countDistinct("s"), F.sum("v"))
    assert all(merging(hg, counts))
    assert sorted(counts.collect()) == sorted(hg.offload(counts).collect())


def test_a_sum_that_overflows(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    """A sum that overflows raises Spark's error, or wraps around without ANSI mode."""
    query = df.groupBy("k").agg(F.expr(f"sum(v + {2**62})"))
    with pytest.raises(ArithmeticException):
        hg.offload(query).collect()
    with setting(spark, {"spark.sql.ansi.enabled": "false"}):
        same(hg, df.groupBy("k").agg(F.expr(f"sum(v + {2**62})")))
