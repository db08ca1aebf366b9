"""A session that has run more jobs than Spark remembers."""

from __future__ import annotations

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F

from headgate import attach
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .conftest import build_session, real_place


@pytest.mark.real
@pytest.mark.timeout(300)
def test_what_spark_has_forgotten() -> None:
    """The report, and a later headgate, skip jobs whose stages Spark has already dropped."""
    few = {"spark.ui.retainedStages": "2", "spark.headgate.sql.enabled": "true"}
    spark = build_session(real_place(), "local[2]", **few)
    try:
        for _ in range(2):
            with attach(spark) as hg:
                for number in range(6):
                    pairs = spark.sparkContext.parallelize([(number, 1)], 2)
                    assert [(number, 1)] == pairs.reduceByKey(int.__add__).collect()
                assert hg.report().native
    finally:
        spark.stop()


@pytest.mark.real
@pytest.mark.timeout(300)
def test_spark_forgets_the_jobs_of_queries() -> None:
    """A query that has ended, well or not, leaves no job with its RDDs in Spark's scheduler."""
    spark = build_session(real_place(), "local[2]", **{"spark.headgate.sql.enabled": "true"})
    try:
        scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        fields = [field.getName() for field in scheduler.getClass().getDeclaredFields()]
        if "activeQueryToJobs" not in fields:
            pytest.skip("this Spark keeps no jobs by query")
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
