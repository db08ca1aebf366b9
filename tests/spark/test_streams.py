"""Streams of an attached session: what `foreachBatch` does runs in Headgate, batch by batch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headgate import Headgate

from .conftest import build_session, real_place
from .entered import left, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

Batch = Callable[[DataFrame, int], Any]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("warehouse"))
    session = build_session(real_place(), "local[2]", **{"spark.sql.warehouse.dir": folder})
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of four batches of 50 rows."""
    for batch in range(4):
        rows = spark.range(50 * batch, 50 * (batch + 1), 1, 2)
        rows.selectExpr("id", "id % 5 k").write.mode("append").parquet(str(tmp_path / str(batch)))
    reader = spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 2)
    return reader.parquet(str(tmp_path / "*"))


def run(numbers: DataFrame, each: Batch, **options: str) -> None:
    writer = numbers.writeStream.options(**options).foreachBatch(each)
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def released(hg: Headgate) -> bool:
    return all(result.released for result in hg.results())


def swept(spark: SparkSession) -> bool:
    """Let Python and the JVM forget what nobody uses, and run a query, which then releases it."""
    gc.collect()
    assert spark._jvm is not None
    spark._jvm.System.gc()
    return spark.range(1).collect() == [(0,)]


def test_what_a_batch_does(hg: Headgate, spark: SparkSession, numbers: DataFrame) -> None:
    """The queries, saves and commands of a batch have Spark's answers, and run in Headgate."""
    spark.sql("create table totals (k long, n long) using parquet")
    counts, firsts = [], []

    def each(batch: DataFrame, _: int) -> None:
        counts.append(
            {
                row["k"]: row["n"]
                for row in batch.groupBy("k").agg(F.count("*").alias("n")).collect()
            }
        )
        ranked = batch.withColumn("at", F.row_number().over(Window.partitionBy("k").orderBy("id")))
        firsts.append(ranked.where("at = 1").count())
        batch.createOrReplaceTempView("batch")
        batch.sparkSession.sql("insert into totals select k, count(*) from batch group by k")
        batch.groupBy("k").count().write.mode("append").saveAsTable("counts")

    before = len(hg.results())
    assert left(hg, lambda: run(numbers, each)) == {}
    assert len(hg.results()) == before + 5 * len(counts)
    assert counts == [dict.fromkeys(range(5), 10)] * 4
    assert firsts == [5] * 4
    assert spark.table("totals").groupBy().sum("n").collect() == [(200,)]
    assert spark.table("counts").count() == 20
    wait_until(lambda: released(hg))


def test_a_batch_that_fails(hg: Headgate, numbers: DataFrame) -> None:
    """The stream ends with the error, and nothing stays stored."""

    def each(batch: DataFrame, number: int) -> None:
        assert batch.distinct().count() == 50
        raise ValueError("on purpose")

    with pytest.raises(StreamingQueryException, match="on purpose"):
        run(numbers, each)
    wait_until(lambda: released(hg))


def test_a_batch_that_is_kept(hg: Headgate, numbers: DataFrame) -> None:
    """A cache of a batch serves several queries, and its rows go with it."""
    sums = []

    def each(batch: DataFrame, _: int) -> None:
        counted = batch.groupBy("k").count().persist()
        before = len(hg.results())
        sums.append(counted.groupBy().sum("count").collect()[0][0])
        assert counted.where("k = 1").collect() == [(1, 10)]
        assert len(hg.results()) == before + 1
        counted.unpersist()

    assert left(hg, lambda: run(numbers, each)) == {}
    assert sums == [50] * 4
    wait_until(lambda: swept(numbers.sparkSession) and released(hg))


def test_state_stays_with_spark(hg: Headgate, numbers: DataFrame) -> None:
    """The exchange of a stream's own aggregate is Spark's, and is counted; what the function does
    with its rows runs in Headgate."""
    totals: dict[int, int] = {}

    def each(batch: DataFrame, _: int) -> None:
        totals.update(
            {
                row["k"]: row["n"]
                for row in batch.groupBy("k").agg(F.max("count").alias("n")).collect()
            }
        )

    def act() -> None:
        query = numbers.groupBy("k").count().writeStream.outputMode("update").foreachBatch(each)
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(120)

    before = len(hg.results())
    assert list(left(hg, act)) == ["Spark's own: a streaming query"]
    assert totals == dict.fromkeys(range(5), 40)
    assert len(hg.results()) > before
    wait_until(lambda: released(hg))


def test_a_stream_that_is_stopped(hg: Headgate, spark: SparkSession) -> None:
    """A stream that is stopped inside a batch leaves nothing behind, and later ones run in
    Headgate."""
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    begun = []

    def each(batch: DataFrame, number: int) -> None:
        begun.append(number)
        batch.groupBy("value").count().collect()

    query = rates.writeStream.foreachBatch(each).start()
    wait_until(lambda: len(begun) > 1)
    query.stop()
    wait_until(lambda: released(hg))


def test_a_stream_of_a_session_that_was_left(hg: Headgate, numbers: DataFrame) -> None:
    """When the headgate is detached, later batches of a stream are left to Spark."""
    before = len(hg.results())
    sums = []

    def each(batch: DataFrame, number: int) -> None:
        if number == 1:
            hg.detach()
        sums.append(batch.groupBy("k").count().count())

    run(numbers, each)
    hg._queries.enter()
    assert sums == [5] * 4
    assert len(hg.results()) == before + 4
    wait_until(lambda: released(hg))
