"""A session is prepared for its first query, and nobody but the workers notices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate import Headgate, attach
from headgate.connectors.spark import warm_up
from headgate.connectors.spark.jvm.scheduler import end_jobs, ended_jobs, native_jobs

from .cluster import recorded, result_objects
from .conftest import setting

pytestmark = pytest.mark.timeout(240)

CONF = {"spark.headgate.warm.up": "true", "spark.sql.shuffle.partitions": "2"}


def ended(hg: Headgate) -> None:
    assert hg._warm_up is not None
    hg._warm_up._thread.join(60)
    assert not hg._warm_up._thread.is_alive()


def known_jobs(number: int, rows: Iterable[Any]) -> Iterator[str]:
    """Yield the keys of the environments that this worker has."""
    from headgate.connectors.spark.tasks.worker import _ENVIRONMENTS

    yield from _ENVIRONMENTS


def test_workers_have_their_clients(spark: SparkSession, hg: Headgate) -> None:
    """In the end every worker has made the environment of the job, and neither log nor store has
    anything of it."""
    ended(hg)
    known = spark.sparkContext.parallelize([], 2).mapPartitionsWithIndex(known_jobs).collect()
    assert known.count(hg._services.worker.key) == 2
    assert {record.event.kind for record in recorded(hg)} <= {"JobRegistered", "JobAccepted"}
    assert not result_objects(hg)
    assert not hg.results()


def test_it_is_no_shuffle(spark: SparkSession) -> None:
    """No page shows rows that it has written, and nobody takes it for a shuffle of Spark's."""
    known = {job.jobId() for job in ended_jobs(spark)}
    with setting(spark, {"spark.headgate.job.id": "no-shuffle"}), attach(spark) as hg:
        ended(hg)
    jobs = list(native_jobs(spark, known))
    assert jobs
    assert not any(job.shuffles for job in jobs)


@pytest.mark.parametrize("asks", [True, False])
def test_a_user_in_a_hurry(spark: SparkSession, asks: bool) -> None:
    """A query beside the job is answered, and a headgate that is closed at once leaves no job
    behind."""
    rows = spark.range(1_000).selectExpr("id % 7 k").groupBy("k").count()
    with setting(spark, {"spark.headgate.job.id": "at-once"}), attach(spark) as hg:
        if asks:
            assert sorted(hg.offload(rows).collect()) == sorted(rows.collect())
    assert hg._warm_up is not None
    assert not hg._warm_up._thread.is_alive()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_a_session_that_was_stopped_before() -> None:
    """To end the jobs of a context that was stopped is no error: they have ended with it."""
    stopped = SparkContext.__new__(SparkContext)
    stopped._jsc = None
    end_jobs(stopped, "tag")


def test_a_job_that_fails_is_no_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first query runs all the same, and the log names the error."""

    def fail(*given: object) -> None:
        raise ValueError("no plan today")

    monkeypatch.setattr(warm_up, "Planner", fail)
    caplog.set_level(logging.INFO, "headgate")
    with setting(spark, {"spark.headgate.job.id": "unprepared"}), attach(spark) as hg:
        ended(hg)
        assert "no plan today" in caplog.text
        assert hg.offload(spark.range(10).repartition(2, "id")).count() == 10
