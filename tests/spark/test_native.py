"""Exchanges that a session's headgate leaves to Spark work as they do without it.

They store nothing, and each is counted once, with a reason. Exchanges that run in Headgate are not
counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.feature import StringIndexer
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate, Unavailable
from headgate.connectors.spark.exchanges.run import ExchangeRun

from .conftest import build_session, real_place
from .entered import counted, left, stored

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NOOP: dict[str, Any] = {"format": "noop", "mode": "overwrite"}
Act = Callable[[DataFrame], Any]


def streamed(df: DataFrame) -> None:
    """Run a streaming query over a source with 3 rows until it has read them."""
    rows = df.sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
    stream = rows.option("numPartitions", 2).load()
    writer = stream.groupBy("value").count().writeStream.format("noop").outputMode("complete")
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


NATIVE: dict[str, tuple[Act, str]] = {
    "a command with parameters": (
        lambda df: df.sparkSession.sql("insert into there select k, n from v where n > ?", [1]),
        "Spark's own: sql",
    ),
    "MLlib": (
        lambda df: StringIndexer(inputCol="k", outputCol="at").fit(df.selectExpr("string(k)")),
        r"Spark's own: collect at StringIndexer.scala:\d+",
    ),
    "a stream": (streamed, "Spark's own: a streaming query"),
    "the JVM": (lambda df: df._jdf.collect(), "Spark's own: collect"),
    "an RDD": (
        lambda df: df.sparkSession.sparkContext.parallelize([(1, 2)]).reduceByKey(max).collect(),
        r"Spark's own: reduceByKey at .*test_native.py:\d+",
    ),
    "another session": (
        lambda df: counted(df.sparkSession.newSession()).toPandas(),
        r"Spark's own: toPandas at .*",
    ),
    "a cache that the JVM fills": (
        lambda df: df.cache()._jdf.collect(),
        "Spark's own: a cache is filled",
    ),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.warehouse.dir": str(folder), "spark.sql.streaming.checkpointLocation": ""}
    conf["spark.sql.streaming.checkpointLocation"] = str(Path(folder) / "streams")
    session = build_session(real_place(), "local[2]", **conf)
    session.conf.set("spark.headgate.sql.enabled", "true")
    session.sql("create table there(k bigint, n bigint) using parquet")
    yield session
    session.stop()


@pytest.fixture(params=["true", "false"])
def df(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[DataFrame]:
    """Return a query with one exchange, with and without adaptive execution."""
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    query = counted(spark)
    query.createOrReplaceTempView("v")
    yield query
    spark.catalog.clearCache()
    spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.mark.parametrize("name", NATIVE)
def test_native(hg: Headgate, df: DataFrame, name: str) -> None:
    """An exchange that is left to Spark stores nothing, and the report names the reason."""
    act, reason = NATIVE[name]
    reasons = left(hg, lambda: stored(hg, lambda: act(df)))
    assert 1 == len(reasons)
    ((why, times),) = reasons.items()
    assert re.fullmatch(reason, why)
    assert times == (3 if name == "MLlib" else 1)


def test_no_exchange(spark: SparkSession, hg: Headgate) -> None:
    """A query without an exchange is not counted."""
    assert {} == left(hg, lambda: stored(hg, spark.range(5).collect))
    assert {} == left(hg, lambda: stored(hg, lambda: spark.sql("create view w as select 1")))


def test_what_runs_here(hg: Headgate, df: DataFrame) -> None:
    """Exchanges that run in Headgate are not counted as Spark's."""
    assert {} == left(hg, lambda: stored(hg, lambda: df.select("*").collect()))
    assert {} == left(hg, lambda: df.write.save(**NOOP))


def test_counted_once(
    spark: SparkSession, hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused exchange, and a query that Spark runs in our place, are counted once, by their own
    reason."""
    spans = spark.range(0, 50, 1, 3).selectExpr("make_interval(0, 0, 0, int(id)) as i")
    refused = spans.distinct().selectExpr("string(i)")
    reasons = left(hg, lambda: stored(hg, refused.collect))
    assert [1] == list(reasons.values())
    assert "calendar interval" in next(iter(reasons))

    def away(*_: object) -> None:
        raise Unavailable("the broker is away")

    monkeypatch.setattr(ExchangeRun, "run", away)
    assert {"Unavailable: the broker is away": 1} == left(hg, df.toPandas)
    assert {"Unavailable: the broker is away": 1} == left(hg, lambda: df.write.save(**NOOP))
