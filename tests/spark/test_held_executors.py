"""Dynamic allocation without a shuffle service: executors go, and results stay."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.connectors.spark.jvm.scheduler import task_slots
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .cluster import executors, kinds, recorded
from .conftest import Place, build_session

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

IDLE_S, LONG_S = 3, 30
DYNAMIC = "spark.dynamicAllocation."
TIMEOUTS = {
    "native shuffle": "shuffleTracking.timeout",
    "cached partition": "cachedExecutorIdleTimeout",
}


@pytest.fixture(scope="module")
def spark(place: Place) -> Iterator[SparkSession]:
    conf = {
        "spark.executor.memory": "1g",
        f"{DYNAMIC}enabled": "true",
        f"{DYNAMIC}initialExecutors": "2",
        f"{DYNAMIC}executorIdleTimeout": f"{IDLE_S}s",
    }
    session = build_session(place, "local-cluster[2,1,1024]", **conf)
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def logged() -> Iterator[list[str]]:
    """Return the warnings of Headgate's logger."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("headgate").addHandler(handler)
    yield lines
    logging.getLogger("headgate").removeHandler(handler)


@pytest.fixture(scope="module")
def hg(spark: SparkSession, logged: list[str]) -> Iterator[Headgate]:
    with attach(spark) as attached:
        yield attached


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, 1, 4).select((F.col("id") % 10).alias("k"), "id")


def all_gone(spark: SparkSession, within_s: float) -> bool:
    """Let both sides collect their garbage until all executors have ended, at most for so long."""
    deadline = Deadline.after(within_s)
    while executors(spark) and not deadline.passed:
        gc.collect()
        spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
        SYSTEM_CLOCK.sleep_s(0.5)
    return not executors(spark)


def test_no_executor_is_needed_between_map_stage_and_read(
    spark: SparkSession, hg: Headgate, logged: list[str]
) -> None:
    """Executors go to zero after a map stage and after a query. The rows are then read, and nothing
    is made again. What could have held executors was logged, and the report has none of it."""
    out = hg.repartition(orders(spark), 8, "k")
    query = orders(spark).groupBy("k").count().orderBy("k")
    assert [(k, 100) for k in range(10)] == query.collect()
    assert executors(spark)
    assert task_slots(spark.sparkContext) in {(1, 1), (2, 2)}
    assert () == hg.report().holds
    assert all_gone(spark, LONG_S)
    assert 1000 == len({row.id for row in out.collect()})
    assert [(k, 100) for k in range(10)] == query.collect()
    seen = kinds(recorded(hg))
    made = sum(result.partitions for result in hg.results())
    assert (made, made, 0) == (seen["AttemptStarted"], seen["Produced"], seen["Reproduce"])
    (line,) = (line for line in logged if "dynamic allocation" in line)
    assert all(DYNAMIC + setting in line for setting in TIMEOUTS.values())


def held(hg: Headgate) -> dict[str, int]:
    """Return the number of things that hold executors; nothing bounds them."""
    holds = hg.report().holds
    assert all(hold.after_s is None for hold in holds)
    assert all(DYNAMIC + TIMEOUTS[hold.what] == hold.setting for hold in holds)
    return {hold.what: hold.number for hold in holds}


def test_what_holds_executors(spark: SparkSession, hg: Headgate) -> None:
    """The report names what holds executors, as long as it does: a shuffle of Spark's own until
    Spark has deleted it, cached partitions until they are dropped."""
    summed = spark.sparkContext.parallelize([(1, 2)] * 4, 2).reduceByKey(max)
    assert [(1, 2)] == summed.collect()
    cached = spark.range(0, 100, 1, 3).cache()
    assert 100 == cached.count()
    assert {"native shuffle": 1, "cached partition": 3} == held(hg)
    assert not all_gone(spark, 2 * IDLE_S)
    cached.unpersist(blocking=True)
    assert {"native shuffle": 1} == held(hg)
    assert not all_gone(spark, 2 * IDLE_S)
    del summed
    assert all_gone(spark, LONG_S)
    assert {} == held(hg)
