"""Every job of Spark's that an application starts has the user's settings, tags, group and a
description, whoever starts the job and for whatever reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate, attach
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.jvm.features import look_up, open_door
from headgate.connectors.spark.jvm.scheduler import await_listeners
from headgate.storage.reading.ways import Way, predict

from .cluster import segments
from .conftest import READ_BY_TASKS, Place, build_session, setting

pytestmark = pytest.mark.timeout(300)

PARSED = "to_timestamp(min(txt), 'yyyy-MM-dd')"
SETTINGS = {
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
}
GROUP, OURS, MINE = "nightly", "tag-of-the-session", "tag-of-the-context"
LISTED = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "0"}
QUERIES = (
    f"select b.k, v, x from big b join (select k, {PARSED} x from small group by k) t using (k)",
    f"select * from (select k, {PARSED} x from small group by k) order by x, k",
    "select * from big where k >= (select count(to_timestamp(txt, 'yyyy-MM-dd')) - 30 from small)",
    f"select k, max(x) from big join (select k, {PARSED} x from small group by k) t using (k)"
    " group by k",
    "select * from days where d in (select k d from small where k < 3)",
    "select count(*) from days where d < 3",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[SparkSession]:
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.headgate.sql.enabled": "true",
        "spark.headgate.warm.up": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = build_session(Place("embedded", READ_BY_TASKS), "local[2]", **conf)
    session.range(2000).selectExpr("id % 40 k", "id v").createOrReplaceTempView("big")
    small = session.range(40).selectExpr("id k", "concat('2020-1-', id % 20 + 1, ' x') txt")
    small.createOrReplaceTempView("small")
    days = session.range(40).selectExpr("id v", "id % 8 d")
    days.write.partitionBy("d").format("parquet").saveAsTable("days")
    yield session
    session.stop()


def jobs(spark: SparkSession, folder: Path) -> list[Mapping[str, str]]:
    """Return the properties of all jobs so far, from the event log."""
    await_listeners(spark.sparkContext._jsc.sc())
    lines = [line for log in folder.rglob("events_*") for line in log.read_text().splitlines()]
    events = [json.loads(line) for line in lines if "SparkListenerJobStart" in line[:60]]
    return [event["Properties"] for event in events]


def lacks(job: Mapping[str, str]) -> list[str]:
    """Return what a job has not: settings, tags, the group, a description."""
    wanted = {**SETTINGS, "spark.jobGroup.id": GROUP}
    tags = job.get("spark.job.tags", "").split(",")
    return [
        *(key for key, value in wanted.items() if job.get(key) != value),
        *(tag for tag in (OURS, MINE, "spark-session-") if not any(tag in each for each in tags)),
        *([] if job.get("spark.job.description") else ["a description"]),
    ]


def act(spark: SparkSession, hg: Headgate, folder: Path) -> None:
    """Start every kind of job: of actions, commands, caches, our own calls, and reruns."""
    for adaptive in ("true", "false"):
        with setting(spark, {**LISTED, "spark.sql.adaptive.enabled": adaptive}):
            for query in QUERIES:
                spark.sql(query).collect()
    joined = spark.sql(QUERIES[0])
    joined.count(), joined.toPandas(), joined.show(), joined.isEmpty()
    joined.write.parquet(str(folder / "written"))
    joined.write.saveAsTable("saved")
    spark.sql(f"create table made as {QUERIES[0]}")
    spark.sql(f"create temp view named as {QUERIES[0]}")
    spark.table("named").groupBy("x").count().collect()
    spark.sql(f"cache table kept as {QUERIES[3]}")
    cached = spark.sql(QUERIES[3]).cache()
    cached.count(), cached.groupBy("k").count().collect()
    narrow = spark.table("small").where("k > 3").cache()
    narrow.join(spark.table("big"), "k").collect()
    hg.offload(joined).collect()
    sums = hg.group_by(joined, "k").applyInArrow(_first, "k long, v long")
    sums.collect()


def _first(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 1).select(["k", "v"])


def lose_and_read(hg: Headgate, df: DataFrame) -> None:
    """Read the rows of a repartition, of which an object is lost."""
    out = hg.repartition(df, 4, "k")
    hg._services.store.delete(segments(hg)[:1])
    assert out.count() == df.count()


def test_all_jobs_carry_what_the_user_has_set(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `attach` to `close` no job lacks a setting, a tag, the group or a description."""
    context, before = spark.sparkContext, len(jobs(spark, folder))
    context.setJobGroup(GROUP, "of the user")
    context.addJobTag(MINE)
    spark.addTag(OURS)
    with setting(spark, SETTINGS), attach(spark) as hg:
        assert hg._warm_up is not None
        hg._warm_up._thread.join()
        act(spark, hg, folder)
        lose_and_read(hg, spark.table("big"))
        monkeypatch.setattr(run, "choose", lambda size, *more: predict(size, Way(1, 2), *more))
        lose_and_read(hg, spark.table("big"))
    started = jobs(spark, folder)[before:]
    lacking = {f"{job.get('callSite.short')}: {lacks(job)}" for job in started if lacks(job)}
    assert not lacking, "\n".join(sorted(lacking))
    described = " ".join(job["spark.job.description"] for job in started)
    kinds = "headgate: prepare ", "headgate: write ", " again, [", "-combined", "headgate: check "
    assert [kind for kind in kinds if kind not in described] == []


def test_a_call_that_may_start_a_job_asks_for_settings(spark: SparkSession) -> None:
    """No plan is executed by a thread that carries no settings."""
    door = open_door(spark, look_up(spark))
    assert door is not None
    with pytest.raises(AssertionError, match="Spark's settings"):
        door.execute(spark.range(1)._jdf.queryExecution().executedPlan())
