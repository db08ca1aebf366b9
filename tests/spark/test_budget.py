"""Exchanges over a budget: they are refused before they cost, and leave nothing."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid
from headgate.connectors.spark.exchanges.budget import NO_LIMIT, Cost

from .cluster import kinds, recorded
from .conftest import setting
from .entered import wait_until

ROWS = 20_000
BUDGET, BUDGET_JOB = "spark.headgate.budget", "spark.headgate.budget.job"


@pytest.fixture(autouse=True)
def unlimited(spark: SparkSession) -> Iterator[None]:
    with setting(spark, {BUDGET: "", BUDGET_JOB: ""}):
        yield


def limited(spark: SparkSession, exchange: Cost, job: Cost) -> None:
    """Let the exchanges of a session have these limits from now on."""
    spark.conf.set(BUDGET, str(exchange))
    spark.conf.set(BUDGET_JOB, str(job))


def test_an_exchange_is_refused_before_its_first_task(spark: SparkSession, hg: Headgate) -> None:
    """Spark knows the size of a range, so the exchange is not even registered."""
    limited(spark, Cost(inf, inf, 1_000), NO_LIMIT)
    before = kinds(recorded(hg))
    with pytest.raises(Invalid, match=r"over spark\.headgate\.budget = 1,000 bytes"):
        hg.repartition(spark.range(ROWS), 4, "id")
    assert kinds(recorded(hg)) == before


def test_a_refusal_shows_nothing_that_spark_hides(spark: SparkSession, hg: Headgate) -> None:
    """The error names the exchange as the log does."""
    limited(spark, Cost(inf, inf, 1_000), NO_LIMIT)
    df = spark.range(ROWS).withColumnRenamed("id", "password1234")
    with (
        setting(spark, {"spark.sql.redaction.string.regex": "password[0-9]+"}),
        pytest.raises(Invalid, match=r"over spark\.headgate\.budget") as caught,
    ):
        hg.repartition(df, 4, "password1234")
    assert "password1234" not in str(caught.value)


def test_an_exchange_is_refused_before_it_is_read(spark: SparkSession, hg: Headgate) -> None:
    """If Spark's estimate is too small, the size counts once it is known. Nothing stays."""
    limited(spark, Cost(inf, inf, 20 * ROWS), NO_LIMIT)
    df = spark.range(ROWS).selectExpr("id", "sha2(string(id), 512) s")
    with pytest.raises(Invalid, match=r"over spark\.headgate\.budget"):
        hg.repartition(df, 4, "id")
    assert all(result.released is not None for result in hg.results())


def test_the_exchanges_of_a_job_add_up(spark: SparkSession, hg: Headgate) -> None:
    df = spark.range(ROWS)
    out = hg.repartition(df, 4, "id")
    assert out.count() == ROWS
    wait_until(lambda: hg.results()[-1].gets > 0)  # the log's news of the reads may be under way
    last = hg.results()[-1]
    assert last.predicted_gets == last.gets
    report = hg.report()
    sent = report.puts + report.gets
    limited(spark, NO_LIMIT, Cost(inf, sent + last.puts + last.gets, inf))
    assert hg.repartition(df, 4, "id").count() == ROWS
    with pytest.raises(Invalid, match=r"over spark\.headgate\.budget\.job"):
        hg.repartition(df, 4, "id")


def test_what_is_not_read_yet_counts(spark: SparkSession, hg: Headgate) -> None:
    """The exchanges of a job may all be written before the first one is read. Their readers keep
    to the limit."""
    df = spark.range(ROWS)
    hg.repartition(df, 4, "id").count()
    wait_until(lambda: hg.results()[-1].gets > 0)
    last, before = hg.results()[-1], hg.report()
    limit = before.puts + before.gets + 2 * (last.puts + last.gets)
    limited(spark, NO_LIMIT, Cost(inf, limit, inf))
    outs = [hg.repartition(df, 4, "id") for _ in range(2)]
    with pytest.raises(Invalid, match=r"over spark\.headgate\.budget\.job"):
        hg.repartition(df, 4, "id")
    assert [ROWS] * 2 == [out.count() for out in outs]


def test_a_join_is_not_refused_for_the_product_of_its_sides(
    spark: SparkSession, hg: Headgate
) -> None:
    """Spark takes the size of a join for the product of its sides: 60 billion bytes here."""
    limited(spark, Cost(inf, inf, 2_000_000), NO_LIMIT)
    left, right = (spark.range(ROWS).selectExpr("id k", f"id {name}") for name in "vw")
    joined = left.join(F.broadcast(right), "k")
    assert ROWS == hg.repartition(joined, 4, "k").count()
    assert ROWS == hg.offload(joined.repartition(4, "k")).count()
    assert {2 * ROWS} == {hg.offload(joined.union(joined).repartition(4, "k")).count()}
