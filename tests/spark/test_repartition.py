"""A hash exchange through Spark: the same rows in the same partitions, and the plans above it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid, attach
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.storage.format.layout import Layout

from .conftest import setting

pytestmark = pytest.mark.timeout(240)


def placed(df: DataFrame) -> list[str]:
    """Return every row with its partition."""
    rows = df.select(F.spark_partition_id(), "*").collect()
    return sorted(str(tuple(row)) for row in rows)


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 5000, 1, 4).select(
        (F.col("id") % 97).alias("k"),
        F.col("id").alias("v"),
        F.concat(F.lit("n"), F.col("id") % 13).alias("s"),
    )


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_rows_are_where_spark_puts_them(spark: SparkSession, hg: Headgate, n: int) -> None:
    """Every row comes back once, in the partition that Spark gives it, for any number of
    partitions."""
    df = orders(spark)
    out = hg.repartition(df, n, "k", "s")
    assert out.rdd.getNumPartitions() == n
    assert placed(df.repartition(n, "k", "s")) == placed(out)
    assert df.schema == out.schema


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("select id as K, id % 7 as v from range(50)", ["k"]),
        ("select id as `a.b`, id % 7 as v from range(50)", ["`a.b`"]),
        ("select id as `1`, id % 7 as `\u017f` from range(50)", ["1"]),
        ("select struct(id as x) as k, id % 7 as v from range(50)", ["k.x"]),
        ("select struct(id as x) as k, id % 7 as v from range(50)", ["k"]),
        ("select array(id) as k, id % 7 as v from range(50)", ["k", "v"]),
        ("select map(id % 7, id) as k, id % 7 as v from range(50)", ["v"]),
        ("select if(id % 3 = 0, null, date '2026-01-01') as k from range(50)", ["k"]),
        (
            "select cast(id as decimal(9, 2)) as k, cast('a' as binary) as b from range(9)",
            ["k", "b"],
        ),
        ("select explode(array(0.0d, -0.0d, double('nan'))) as k, true as b", ["b", "k", "k"]),
        ("select a.id % 3 as k, b.id as v from range(50) a join range(60) b on a.id = b.id", ["v"]),
        ("select explode(array('A' collate UTF8_LCASE, 'a' collate UTF8_LCASE)) as k", ["k"]),
        ("show functions like 'a*'", ["function"]),
    ],
)
def test_names_mean_what_they_mean_to_spark(
    spark: SparkSession, hg: Headgate, query: str, keys: list[str]
) -> None:
    """A key that is given by its name, plain or not, is the column that Spark takes."""
    df = spark.sql(query)
    assert placed(df.repartition(3, *keys)) == placed(hg.repartition(df, 3, *keys))


def test_names_that_differ_in_case(spark: SparkSession, hg: Headgate) -> None:
    """A name means one of two columns that differ in case only where Spark tells them apart.
    Elsewhere it is ambiguous."""
    df = spark.range(50).selectExpr("id as k", "id % 7 as K")
    with pytest.raises(AnalysisException, match="AMBIGUOUS"):
        hg.repartition(df, 3, "k")
    with setting(spark, {"spark.sql.caseSensitive": "true"}):
        assert placed(df.repartition(3, "K")) == placed(hg.repartition(df, 3, "K"))


def test_a_frame_that_is_analyzed_later(spark: SparkSession, hg: Headgate) -> None:
    """A frame that Spark analyzes again above goes in as it was analyzed."""
    df = spark.range(50).where(F.col("id").outer() > 30)
    assert placed(df.repartition(3, "id")) == placed(hg.repartition(df, 3, "id"))


@pytest.mark.parametrize("columns", [["k", "s"], ("k",)])
def test_columns_may_be_in_a_list(spark: SparkSession, hg: Headgate, columns: Any) -> None:
    """`repartition` takes a list of columns where PySpark does."""
    df = orders(spark)
    assert placed(df.repartition(3, columns)) == placed(hg.repartition(df, 3, columns))


@pytest.mark.parametrize("last", [True, False], ids=["map stage", "stage before"])
def test_interrupted(spark: SparkSession, hg: Headgate, last: bool) -> None:
    """Interrupting the driver ends the stages of an exchange, and releases its result."""

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        SYSTEM_CLOCK.sleep_s(30)
        return batches

    df = orders(spark)
    slow = df.mapInArrow(late, df.schema)
    asked = slow if last else slow.groupBy("k").count()
    running, before = spark.sparkContext.statusTracker(), len(hg.results())
    earlier = set(running.getActiveJobsIds())

    def interrupt_soon() -> None:
        deadline = Deadline.after(60)
        while len(hg.results()) < before + last or not set(running.getActiveJobsIds()) - earlier:
            assert not deadline.passed
            SYSTEM_CLOCK.sleep_s(0.01)
        SYSTEM_CLOCK.sleep_s(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as beside:
        interrupted = beside.submit(interrupt_soon)
        with pytest.raises(KeyboardInterrupt):
            hg.repartition(asked, 2, "k")
        interrupted.result()
    deadline = Deadline.after(10)
    while running.getActiveJobsIds() and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(deadline.poll_s)
    assert not running.getActiveJobsIds()
    assert [] == [result for result in hg.results()[before:] if result.released is None]


@pytest.mark.real
def test_two_thousand_partitions(spark: SparkSession, hg: Headgate) -> None:
    """An exchange of more partitions than rows, with a manifest in shards, loses and adds no row.
    The shards are deleted with the result."""
    df = spark.range(0, 3000, 1, 16).select(F.col("id").alias("v"), (F.col("id") % 9).alias("k"))
    out = hg.repartition(df, 2000, "v")
    rows = placed(out)
    place = F.pmod(F.hash("v"), F.lit(2000))  # what Spark's own repartition does, in 2,000 tasks
    assert rows == sorted(str(tuple(row)) for row in df.select(place, "*").collect())
    assert rows == placed(hg.read(hg.results()[-1].result))
    layout = Layout(hg._services.worker.root, hg.job)
    manifests = layout.manifests(hg.results()[-1].result)
    assert [] != list(hg._services.store.list(manifests))
    hg.release(out)
    deadline = Deadline.after(20)
    while list(hg._services.store.list(manifests)) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.1)
    assert [] == list(hg._services.store.list(manifests))


@pytest.mark.real
def test_a_large_map_task_stores_one_object(spark: SparkSession) -> None:
    """The rows of a map task are in one object, also where they are more than `segment.bytes`."""
    df = spark.range(0, 100_000, 1, 2).select("id", F.sha2(F.col("id").cast("string"), 256))
    small = {"spark.headgate.segment.bytes": "1048576", "spark.headgate.job.id": "large-tasks"}
    with setting(spark, small), attach(spark) as hg:
        out = hg.repartition(df, 70, "id")
        result = hg.results()[-1]
        assert (result.partitions, result.puts, result.rows) == (2, 2, 100_000)
        assert result.stored_bytes > 5 << 20
        assert out.exceptAll(df.repartition(70, "id")).isEmpty()


def test_no_exchange_above_a_group(spark: SparkSession, hg: Headgate) -> None:
    """Grouping by the key of an exchange plans no further Exchange."""
    out = hg.repartition(orders(spark), 4, "k")
    grouped = out.groupBy("k").agg(F.sum("v").alias("total"))
    assert exchanges(grouped) == 0
    expected = orders(spark).groupBy("k").agg(F.sum("v").alias("total"))
    assert sorted(map(tuple, expected.collect())) == sorted(map(tuple, grouped.collect()))


def test_no_exchange_below_a_join(spark: SparkSession, hg: Headgate) -> None:
    """Two sides with equal partitions and key types join without an Exchange; with one side, Spark
    adds one."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    left = hg.repartition(orders(spark), 4, "k")
    right = hg.repartition(orders(spark).select(F.col("k").alias("k2"), "s"), 4, "k2")
    both = left.join(right, F.col("k") == F.col("k2"))
    assert exchanges(both) == 0
    native = orders(spark).select(F.col("k").alias("k2"), "s")
    half = left.join(native, F.col("k") == F.col("k2"))
    assert exchanges(half) == 1
    assert half.count() == both.count()


def exchanges(df: DataFrame) -> int:
    return explained(df).count("Exchange ")


def explained(df: DataFrame) -> str:
    jdf = df._jdf
    return str(jdf.queryExecution().executedPlan().toString())


def test_read_again(spark: SparkSession, hg: Headgate) -> None:
    """Two actions and a self-join read the rows again after all readers have reported."""
    df = orders(spark)
    out = hg.repartition(df, 4, "k")
    assert out.count() == out.count() == 5000
    joined = out.alias("a").join(out.alias("b"), F.expr("a.v = b.v"))
    assert joined.count() == 5000
    assert all(result.consumed == 4 for result in hg.results()[-1:])


def test_a_later_checkpoint_is_made_by_the_map_stage(spark: SparkSession, hg: Headgate) -> None:
    """A checkpoint that waits for the first job is made by ours, as by any action of Spark's."""
    rows = spark.sparkContext.parallelize([(1,), (2,)], 2)
    rows.localCheckpoint()
    out = hg.repartition(spark.createDataFrame(rows, "v int"), 2, "v")
    assert rows.isCheckpointed()
    assert [1, 2] == sorted(row[0] for row in out.collect())


def test_columns_as_expressions(spark: SparkSession, hg: Headgate) -> None:
    """Keys may be expressions, as in `df.repartition`, and the original columns can still be
    used."""
    df = orders(spark)
    out = hg.repartition(df, 5, F.col("v") % 3, df["s"])
    assert placed(df.repartition(5, F.col("v") % 3, df["s"])) == placed(out)
    assert out.where(df["v"] >= 0).count() == 5000


def test_empty_and_duplicate_names(spark: SparkSession, hg: Headgate) -> None:
    """A frame without rows, one without partitions, and one with equal column names come back as
    they were."""
    none = orders(spark).where("v < 0")
    assert hg.repartition(none, 3, "k").collect() == []
    nothing = spark.createDataFrame([], "k int, v string")
    assert hg.repartition(nothing, 3, "k").collect() == []
    twice = orders(spark).select("k", F.col("v").alias("x"), F.col("s").alias("x"))
    out = hg.repartition(twice, 3, "k")
    assert out.columns == ["k", "x", "x"]
    assert sorted(map(str, twice.collect())) == sorted(map(str, out.collect()))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda hg, df: hg.repartition(df, 0, "k"), "n of 1 or more"),
        (lambda hg, df: hg.repartition(df, cast(int, 3.0), "k"), "n of 1 or more"),
        (lambda hg, df: hg.repartition(df, cast(int, "3"), "k"), "n of 1 or more"),
        (lambda hg, df: hg.repartition(df, 3), "a column"),
        (lambda hg, df: hg.repartition(df, 3, "k", F.rand(1)), "add it as a column first"),
        (lambda hg, df: hg.repartition(df.select("k"), 3, "v"), "the DataFrame's own columns"),
        (
            lambda hg, df: hg.repartition(
                df.select("k", F.expr("make_interval(1)").alias("i")), 3, "k"
            ),
            "column 'i' holds a calendar interval",
        ),
        (
            lambda hg, df: hg.repartition(
                df.select("k", F.expr("struct(k as a, v as a)").alias("d")), 3, "k"
            ),
            "column 'd' holds",
        ),
        (lambda hg, df: hg.read("9-9999"), "has no result '9-9999'; its complete results are: "),
        (
            lambda hg, df: hg.release(df),
            "this takes a DataFrame that repartition, read or offload",
        ),
    ],
)
def test_refused_before_a_task_runs(
    spark: SparkSession,
    hg: Headgate,
    call: Callable[[Headgate, DataFrame], object],
    text: str,
) -> None:
    """Input that cannot be used is refused in one sentence, and nothing is registered."""
    before = len(hg.results())
    with pytest.raises(Invalid, match=text):
        call(hg, orders(spark))
    assert before == len(hg.results())


def test_unknown_column_is_sparks_own_error(spark: SparkSession, hg: Headgate) -> None:
    """A misspelt column gives Spark's own error."""
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        hg.repartition(orders(spark), 3, "kk")


def test_failure_of_users_code_is_theirs(spark: SparkSession, hg: Headgate) -> None:
    """An error in the rows' own computation is raised as Spark's, and leaves nothing stored."""
    broken = orders(spark).select("k", F.raise_error(F.lit("mine")).alias("boom"))
    with pytest.raises(Exception, match="mine"):
        hg.repartition(broken, 3, "k")
    assert hg.results()[-1].released is not None


def test_release(spark: SparkSession, hg: Headgate) -> None:
    """A released result cannot be read or released again, and the errors say so."""
    out = hg.repartition(orders(spark), 2, "k")
    hg.release(out)
    assert hg.results()[-1].released == "asked for"
    with pytest.raises(Invalid, match="not released"):
        hg.release(out)
    released = hg.results()[-1].result
    with pytest.raises(Invalid, match=f"{released} was released: asked for"):
        hg.read(released)


def test_a_whole_query(spark: SparkSession, hg: Headgate) -> None:
    """Each exchange of a query runs in Headgate, and the query's order is kept."""
    df = orders(spark).groupBy("s").agg(F.sum("v").alias("v")).orderBy(F.desc("v"))
    out = hg.offload(df)
    assert df.collect() == out.collect()
    assert df.schema == out.schema
    assert [result.subpartitions for result in hg.results()[-2:]] == [4, 4]
    hg.release(out)
