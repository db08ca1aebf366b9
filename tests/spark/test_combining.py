"""Exchanges whose objects are combined before they are read."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.combining import CombineStage, combined_parts
from headgate.connectors.spark.exchanges.rerun import Reruns
from headgate.connectors.spark.exchanges.stored import StoredResult
from headgate.connectors.spark.jvm.scheduler import task_slots
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Lost
from headgate.control.events.types import Lost as LostFact
from headgate.control.ids import ResultId
from headgate.control.master.announcer import Announcer
from headgate.control.model.state import ResultState
from headgate.storage.limits import Limits
from headgate.storage.reading.ways import DIRECT, ExchangeSize, Prediction, Way, predict
from headgate.storage.stores.costs import StoreCosts

from .cluster import audited, findings, kinds, recorded, result_objects, segments

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CONF = {
    "spark.headgate.combine": "true",
    "spark.headgate.cache.bytes": "262144",  # so readers would send many requests
}
PARTITIONS, SUBPARTITIONS, ROWS = 40, 64, 20_000
LATE_S = 3.0


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, ROWS, 1, PARTITIONS)
    text = F.col("id").cast("string").alias("t")
    return numbers.select("id", (F.col("id") * 7 % 1009).alias("k"), text)


def stored(hg: Headgate) -> set[str]:
    return set(result_objects(hg))


def placed(df: DataFrame) -> list[Any]:
    """Return the rows, each with the number of its partition."""
    return sorted(map(tuple, df.select("*", F.spark_partition_id()).collect()))


def assert_is_clean(hg: Headgate) -> None:
    """Assert that the job soon has no object left, and that its log explains why."""
    deadline = Deadline.after(20)
    while stored(hg) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(deadline.poll_s)
    assert not stored(hg)
    audited(recorded(hg))
    assert not findings(hg._services, recorded(hg)).found


@pytest.fixture(params=[Way(1, 1), Way(3, 4), Way(40, 1)], ids=str)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Let exchanges be combined in this way."""
    chosen: Way = request.param
    monkeypatch.setattr(run, "choose", partial(_chosen, chosen))
    return chosen


def _chosen(way: Way, size: ExchangeSize, limits: Limits, costs: StoreCosts) -> Prediction:
    return predict(size, way, limits, costs)


def test_objects_are_combined(hg: Headgate, df: DataFrame, way: Way) -> None:
    """Readers find the rows of many map tasks in few objects, where Spark expects them. The objects
    of the map tasks are deleted before anything is read."""
    out = hg.repartition(df, SUBPARTITIONS, "k")
    first, combined = hg.results()[-2:]
    assert (first.partitions, first.released is None) == (PARTITIONS, False)
    assert (combined.subpartitions, combined.rows) == (SUBPARTITIONS, ROWS)
    assert combined.puts == combined.partitions == way.bundles * way.ranges
    assert re.match(
        rf"combined {way.bundles} x {way.ranges}: test_combining.py:\d+: repartition\(",
        combined.label,
    )
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    first, combined = hg.results()[-2:]
    assert first.gets == first.predicted_gets == PARTITIONS * way.ranges
    assert (first.way, combined.way) == (str(way), "direct")
    assert min(combined.predicted_gets, combined.predicted_ms) > 0
    hg.release(out)
    assert_is_clean(hg)


def test_slots_are_counted_when_the_way_is_chosen(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dynamic allocation, there may be other executors than when the session was attached."""
    sizes: list[ExchangeSize] = []

    def noting(size: ExchangeSize, limits: Limits, costs: StoreCosts) -> Prediction:
        sizes.append(size)
        return predict(size, DIRECT, limits, costs)

    assert (2, 1) == task_slots(df.sparkSession.sparkContext)
    monkeypatch.setattr(run, "choose", noting)
    monkeypatch.setattr(run, "task_slots", lambda context: (80, 10))
    out = hg.repartition(df, SUBPARTITIONS, "k")
    assert (80, 10) == (sizes[0].readers.slots, sizes[0].readers.executors)
    made = hg._results.rows_of(out)
    assert isinstance(made, StoredResult)
    assert 10 == made.read.executors
    hg.release(out)


def test_a_combined_object_that_is_lost_is_made_again(
    hg: Headgate, df: DataFrame, way: Way
) -> None:
    """The map stage runs again, its rows are combined again, and nothing of it stays."""
    out = hg.repartition(df, SUBPARTITIONS, "k")
    reproduced = kinds(recorded(hg))["Reproduce"]
    hg._services.store.delete(segments(hg)[:1])
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    assert kinds(recorded(hg))["Reproduce"] == reproduced + 1
    hg.release(out)
    assert_is_clean(hg)


def lose_before_combining(hg: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete an object when the tasks that combine are planned."""

    def losing(*given: Any) -> Any:
        hg._services.store.delete(segments(hg)[:1])
        return combined_parts(*given)

    monkeypatch.setattr(run, "combined_parts", losing)


def test_an_object_that_is_lost_before_it_is_combined(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that combines waits until the object is made again, as any other reader."""
    lose_before_combining(hg, monkeypatch)
    out = hg.repartition(df, SUBPARTITIONS, "k")
    assert hg.results()[-1].result.endswith("-combined")
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    hg.release(out)
    assert_is_clean(hg)


def test_an_index_that_is_lost_before_it_is_combined(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is too large for its event is in the object only. If that is lost, the task
    that combines states so, and waits for the partition that is made again."""
    monkeypatch.setattr(run, "choose", partial(_chosen, Way(1, 2)))
    lose_before_combining(hg, monkeypatch)
    rows, wide = 100_000, 50_000
    out = hg.repartition(spark.range(0, rows, 1, 2), wide, "id")
    combined = hg.results()[-1]
    assert (combined.label[:8], combined.rows) == ("combined", rows)
    hg.release(out)
    assert_is_clean(hg)


def test_rows_that_nobody_combined_are_not_missing(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the combined rows are not all rows, readers read what the map stage has written."""

    def too_few(*given: Any) -> Any:
        part, *others = combined_parts(*given)
        assert part.partitions is not None
        return replace(part, partitions=part.partitions[1:]), *others

    monkeypatch.setattr(run, "combined_parts", too_few)
    out = hg.repartition(df, SUBPARTITIONS, "k")
    assert hg.results()[-2].released is None
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    hg.release(out)
    assert_is_clean(hg)


def test_a_partition_that_is_made_again_when_combining_fails(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If combining fails while a partition is made again, the exchange waits until the rows can be
    read as the map stage wrote them."""

    def first() -> ResultState:
        results = hg._results.state.results
        return [results[name] for name in results if not name.endswith("-combined")][-1]

    def losing(stage: CombineStage) -> list[int]:
        attempt = first().production.winners[0]
        lost = Announcer(hg.job, "operator").fact(LostFact(attempt, str(attempt), "404"))
        deadline = Deadline.after(20)
        hg._services.log.append(lost).offset(deadline)
        while first().complete and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(deadline.poll_s)
        raise Lost("all attempts have failed")

    def late(reruns: Reruns, missing: Mapping[ResultId, frozenset[int]]) -> None:
        threading.Timer(LATE_S, reproduce, (reruns, missing)).start()

    reproduce = Reruns.reproduce
    monkeypatch.setattr(Reruns, "reproduce", late)
    monkeypatch.setattr(run, "choose", partial(_chosen, Way(1, 1)))
    monkeypatch.setattr(CombineStage, "run", losing)
    out = hg.repartition(df, SUBPARTITIONS, "k")
    assert kinds(recorded(hg))["Reproduce"]
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    hg.release(out)
    assert_is_clean(hg)


@pytest.mark.parametrize("error", [Lost("all attempts have failed"), MemoryError("a worker died")])
def test_rows_that_cannot_be_combined_are_read_as_they_are(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """If combining fails, what the map stage has written is read, and what was combined is gone."""

    def failing(stage: CombineStage) -> list[int]:
        stage.stage.run_again([0])  # some objects are written
        raise error

    monkeypatch.setattr(CombineStage, "run", failing)
    out = hg.repartition(df, SUBPARTITIONS, "k")
    first, combined = hg.results()[-2:]
    assert (first.released, combined.released is None) == (None, False)
    assert placed(out) == placed(df.repartition(SUBPARTITIONS, "k"))
    hg.release(out)
    assert_is_clean(hg)


def test_a_cancellation_while_rows_are_combined(
    hg: Headgate, df: DataFrame, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query ends with Spark's error, and nothing of it stays."""
    context, group = df.sparkSession.sparkContext, f"ended-{way}"

    def cancelled(*given: Any) -> Any:
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        return combined_parts(*given)

    monkeypatch.setattr(run, "combined_parts", cancelled)
    context.setJobGroup(group, "of a test")
    try:
        with pytest.raises(Py4JJavaError, match="SPARK_JOB_CANCELLED"):
            hg.repartition(df, SUBPARTITIONS, "k")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    first, combined = hg.results()[-2:]
    assert (first.released is None, combined.released is None) == (False, False)
    assert_is_clean(hg)


def test_a_query_whose_combining_has_failed(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Spark's SQL page the query has not failed, although one of its jobs has."""
    context: Any = df.sparkSession.sparkContext

    def failing(_: CombineStage) -> list[int]:
        context.parallelize([0], 1).foreach(lambda zero: 1 // zero)
        raise AssertionError("has not failed")

    monkeypatch.setattr(CombineStage, "run", failing)
    monkeypatch.setattr(run, "choose", partial(_chosen, Way(1, 1)))
    hg.release(hg.repartition(df, SUBPARTITIONS, "k"))
    context._jsc.sc().listenerBus().waitUntilEmpty()
    shown = df.sparkSession._jsparkSession.sharedState().statusStore().executionsList().last()
    assert "FAILED" in shown.jobs().mkString()
    assert "COMPLETED" == shown.executionStatus()
