"""A session that has run more jobs than Spark remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate import attach
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from ..doubles.loads import HOURS, SPARKS, steady
from .conftest import build_session, real_place


def work(spark: SparkSession) -> None:
    with attach(spark) as hg:
        for number in range(6):
            pairs = spark.sparkContext.parallelize([(number, 1)], 2)
            assert [(number, 1)] == pairs.reduceByKey(int.__add__).collect()
        assert hg.report().native


@pytest.mark.real
@pytest.mark.timeout(300)
def test_what_spark_has_forgotten() -> None:
    """The report, and a later headgate, skip jobs whose stages Spark has already dropped. A
    headgate that is closed leaves nothing in driver and JVM."""
    few = {"spark.ui.retainedStages": "2", "spark.headgate.sql.enabled": "true"}
    spark = build_session(real_place(), "local[2]", **few)
    try:
        work(spark)
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        with steady(more=HOURS), steady(lambda: {"JVM": jvm}, SPARKS):
            for _ in range(2):
                work(spark)
    finally:
        spark.stop()


@pytest.mark.real
@pytest.mark.timeout(300)
def test_spark_forgets_the_jobs_of_queries() -> None:
    """A query that has ended, well or not, leaves no job with its RDDs in the scheduler of Spark
    4.3."""
    spark = build_session(real_place(), "local[2]", **{"spark.headgate.sql.enabled": "true"})
    try:
        scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        with attach(spark) as hg:
            numbers = spark.range(9).selectExpr("id % 3 k")
            numbers.groupBy("k").count().collect()
            hg.offload(numbers.repartition(2, "k"))
            with pytest.raises(SparkRuntimeException):
                numbers.groupBy("k").agg(F.raise_error(F.lit("no"))).collect()
            assert len(hg.results()) == 3
        deadline = Deadline.after(10)
        while not scheduler.activeQueryToJobs().isEmpty() and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(deadline.poll_s)
        assert scheduler.activeQueryToJobs().isEmpty()
    finally:
        spark.stop()


class StuckListener:
    """A listener of Spark's that waits for a while when a task has ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self._wait if name == "onTaskEnd" else lambda *_: None

    def _wait(self, event: object) -> None:
        self.ended.wait(60)

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_listener_that_is_stuck() -> None:
    """A slow listener of the user's stops nobody from attaching, from queries and from reports."""
    conf = {"spark.headgate.sql.enabled": "true"}
    spark, listener = build_session(real_place(), "local[2]", **conf), StuckListener()
    try:
        context = spark.sparkContext
        import_module("pyspark.java_gateway").ensure_callback_server_started(context._gateway)
        context._jsc.sc().addSparkListener(listener)
        context.parallelize(range(2), 2).count()
        with attach(spark) as hg:
            assert len(spark.range(9).selectExpr("id % 3 k").groupBy("k").count().collect()) == 3
            assert len(hg.report().results) == 1
    finally:
        listener.ended.set()
        spark.stop()
