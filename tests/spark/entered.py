"""Switch a session's actions between Headgate and Spark's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.connectors.spark.jvm.scheduler import await_listeners
from headgate.connectors.spark.queries.runner import FinishedQuery
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .conftest import setting

SQL = "spark.headgate.sql.enabled"


@contextmanager
def by_spark_alone(hg: Headgate) -> Iterator[None]:
    """Assert that no exchange is made in Headgate while Spark answers inside: a comparison of
    Headgate with itself would look very good."""
    before = hg._results._last
    yield
    assert before == hg._results._last, "Spark's side of a comparison ran through Headgate"


@contextmanager
def detached(hg: Headgate, spark: SparkSession) -> Iterator[None]:
    """Run the session's actions in Spark while the block runs; assert that they store nothing."""
    with hg.paused(), by_spark_alone(hg):
        yield


@contextmanager
def entered(hg: Headgate, spark: SparkSession) -> Iterator[None]:
    """Run the session's actions through its headgate while the block runs."""
    with setting(spark, {SQL: "true"}):
        yield


def finished(hg: Headgate, out: DataFrame) -> FinishedQuery:
    """Return the query that was run for a DataFrame of `offload`."""
    query = hg._results.rows_of(out)
    assert isinstance(query, FinishedQuery)
    return query


def counted(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, 500, 1, 3)
    return numbers.groupBy((F.col("id") % 7).alias("k")).agg(F.count("*").alias("n"))


def stored(hg: Headgate, act: Callable[[], Any]) -> int:
    """Run an action and return how many exchanges ran in Headgate; wait until all of them are
    released."""
    before = len(hg.results())
    act()
    wait_until(lambda: all(result.released for result in hg.results()[before:]))
    return len(hg.results()) - before


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true."""
    deadline = Deadline.after(20)
    while not done() and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.02)
    assert done()


def left(hg: Headgate, act: Callable[[], Any]) -> dict[str, int]:
    """Run an action and return the reasons why exchanges were left to Spark, each with its
    count."""
    before = hg.report().native
    act()
    after = hg.report().native
    return {why: n - before.get(why, 0) for why, n in after.items() if n > before.get(why, 0)}


def broadcasts(spark: SparkSession) -> int:
    """Return the number of broadcasts in Spark so far."""
    core = spark.sparkContext._jsc.sc()
    await_listeners(core)
    jobs = core.statusStore().jobsList(None)
    return len(
        {
            tag
            for at in range(jobs.size())
            for tag in jobs.apply(at).jobTags().mkString("\n").splitlines()
            if "broadcast exchange" in tag
        }
    )
