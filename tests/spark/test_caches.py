"""Caches are filled through the session's headgate.

No query sees other rows, whatever Spark has planned before, and stored exchanges are released when
nothing can read them any more.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.connectors.spark.jvm.caches import Cache
from headgate.connectors.spark.queries.planner import Query
from headgate.connectors.spark.queries.runner import QueryRunner
from headgate.connectors.spark.queries.session_queries import SessionQueries
from headgate.control.clock import SYSTEM_CLOCK
from headgate.storage.stores.open_store import open_store

from .conftest import Place, build_session, setting
from .entered import counted, detached, left

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

_TURN_S = 0.5


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("warehouse"))
    session = build_session(place, "local[2]", **{"spark.sql.warehouse.dir": folder})
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


@pytest.fixture(params=["true", "false"])
def df(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[DataFrame]:
    """Return a query with one exchange that is not cached, with and without adaptive execution."""
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    yield counted(spark)
    spark.catalog.clearCache()
    spark.conf.unset("spark.sql.adaptive.enabled")


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def ran(hg: Headgate, act: Callable[[], Any]) -> int:
    """Run an action and return how many exchanges ran in Headgate; assert that none ran in
    Spark."""
    before = len(hg.results())
    assert {} == left(hg, act)
    return len(hg.results()) - before


def is_left(hg: Headgate, spark: SparkSession, since: int, turns: int = 10) -> bool:
    """Return True if a result is still stored after Python and the JVM have collected their garbage
    several times."""
    for _ in range(turns):
        gc.collect()
        SYSTEM_CLOCK.sleep_s(_TURN_S)
        assert spark._jvm is not None
        spark._jvm.System.gc()
        spark.range(1).collect()
        if all(result.released is not None for result in hg.results()[since:]):
            return False
    return True


COUNTS = [(k, 72 if k < 3 else 71) for k in range(7)]


@pytest.mark.parametrize("level", ["MEMORY_AND_DISK_DESER", "DISK_ONLY_2"])
def test_filled_here(hg: Headgate, df: DataFrame, level: str) -> None:
    """The first action that reads a cache fills it through Headgate, and later actions run no
    exchange."""
    assert 0 == ran(hg, lambda: df.persist(getattr(StorageLevel, level)))
    assert "hashpartitioning" in hg.explain(df)
    assert "runs in Headgate, for a cache" in hg.explain(df)
    assert 1 == ran(hg, lambda: rows(df))
    assert 0 == ran(hg, lambda: df.toPandas())
    assert COUNTS == rows(df)
    assert 7 == df.filter("n > 0").count()
    assert "for a cache" not in hg.explain(df)


def test_over_a_cache(hg: Headgate, df: DataFrame) -> None:
    """A save or a query over a cached table fills the cache through Headgate too."""
    df.createOrReplaceTempView("v")
    df.sparkSession.catalog.cacheTable("v")
    above = df.sparkSession.table("v").groupBy("n").count().orderBy("n")
    assert 3 == ran(hg, lambda: above.write.save(format="noop", mode="overwrite"))
    assert 2 == ran(hg, lambda: rows(above))
    assert [(71, 4), (72, 3)] == rows(above)


def test_what_reads_a_cache_is_made_of_it(hg: Headgate, df: DataFrame) -> None:
    """The log names a cache's result as the input of a result that reads the cache, so that both
    can be made again."""
    df.cache()
    rows(df)
    *_, filled = hg._results.state.results
    out = hg.repartition(df, 3, "n")
    *_, made = hg._results.state.results.values()
    assert (filled,) == made.registered.inputs
    assert COUNTS == rows(out)
    hg.release(out)


def test_read_again(hg: Headgate, df: DataFrame) -> None:
    """Cached blocks that Spark has lost are read from the store again, without a map stage."""
    df.cache()
    assert 1 == ran(hg, lambda: rows(df))
    kept = df.sparkSession.sparkContext._jsc.getPersistentRDDs()
    for number in list(kept):
        kept[number].unpersist(True)
    assert 0 == ran(hg, lambda: rows(df))
    assert COUNTS == rows(df)


def test_one_cache_over_another(hg: Headgate, df: DataFrame) -> None:
    """The first action that reads an upper cache fills the lower one too, also for a cache in a
    subquery."""
    df.cache()
    upper = df.groupBy("n").agg(F.sum("k").alias("k")).cache()
    assert 2 == ran(hg, lambda: rows(upper))
    assert [(71, 18), (72, 3)] == rows(upper)
    third = df.sparkSession.range(0, 70, 1, 3).groupBy((F.col("id") % 7).alias("k")).count()
    third.cache().createOrReplaceTempView("third")
    above = df.sparkSession.sql("select 1 where (select max(k) from third) = 6")
    assert ran(hg, above.collect) in (1, 2)
    assert "for a cache" not in hg.explain(third)
    assert 1 == len(above.collect())


def test_what_was_planned_before(hg: Headgate, df: DataFrame) -> None:
    """A query that Spark planned before the cache was filled still gets the partitioning that it
    relies on."""
    df.cache()
    other = df.sparkSession.range(0, 700, 1, 3).groupBy((F.col("id") % 7).alias("k")).count()
    early = df.groupBy("k").agg(F.sum("n").alias("n")).join(other.hint("merge"), "k")
    early._jdf.queryExecution().executedPlan()
    df.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
    assert 1 == ran(hg, lambda: rows(df))
    with detached(hg, df.sparkSession):
        assert [(k, n, 100) for k, n in COUNTS] == rows(early)
        assert 1 == early.filter("k = 3").count()


def test_other_partitions_than_planned(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    """Spark fills a cache that was planned under settings that have changed, and the reason is
    counted."""
    on = spark.conf.get("spark.sql.adaptive.enabled") == "true"
    df.cache()
    with setting(spark, {"spark.sql.shuffle.partitions": "3"}):
        reasons = left(hg, lambda: rows(df))
    relied = "Spark relies on how the cache was partitioned when it was asked for"
    assert ({} if on else {relied: 1}) == reasons
    assert COUNTS == rows(df)


def test_what_cannot_be_carried(hg: Headgate, spark: SparkSession) -> None:
    """A cache with a type that cannot be carried is left to Spark, and its reason is counted
    once."""
    spans = spark.range(0, 50, 1, 3).selectExpr("make_interval(0, 0, 0, int(id % 5)) as i")
    kept = spans.distinct().selectExpr("string(i) as i").cache()
    reasons = left(hg, lambda: rows(kept))
    kept.unpersist()
    assert [1] == list(reasons.values())
    assert "calendar interval" in next(iter(reasons))


def test_let_go(hg: Headgate, df: DataFrame) -> None:
    """Stored exchanges stay while a derived DataFrame can read them, and are released
    afterwards."""
    since = len(hg.results())
    df.cache()
    df._jdf.queryExecution().executedPlan()
    early = df.filter("k < 3")
    rows(early)
    derived = df.rdd.map(tuple)
    df.unpersist()
    assert COUNTS[:3] == rows(early)
    assert COUNTS == sorted(derived.collect())
    assert any(result.released is None for result in hg.results()[since:])
    del early, derived
    vars(df).pop("rdd")
    assert not is_left(hg, df.sparkSession, since)
    assert 1 == ran(hg, lambda: rows(df))
    assert COUNTS == rows(df)


KEEP: dict[str, Callable[[Headgate, DataFrame], Any]] = {
    "rdd": lambda _, df: df.rdd,
    "lazy checkpoint": lambda _, df: df.localCheckpoint(eager=False),
    "offload": lambda hg, df: hg.offload(df).filter("k is not null"),
}


@pytest.mark.parametrize("name", KEEP)
def test_what_outlives_an_action(hg: Headgate, df: DataFrame, name: str) -> None:
    """Results for RDDs, for later checkpoints and for `offload` stay while they can be read, and
    are released afterwards."""
    since = len(hg.results())
    kept: list[Any] = []
    assert 1 == ran(hg, lambda: kept.append(KEEP[name](hg, df)))
    assert is_left(hg, df.sparkSession, since, turns=3)
    assert COUNTS == sorted(map(tuple, kept[0].collect()))
    kept.clear()
    vars(df).pop("rdd", None)
    assert not is_left(hg, df.sparkSession, since)


def test_new_rows(hg: Headgate, spark: SparkSession, df: DataFrame) -> None:
    """A cache that Spark builds again, because its table has changed, is filled through Headgate
    again."""
    df.write.saveAsTable("numbers", mode="overwrite")
    kept = spark.table("numbers").groupBy("n").count().cache()
    assert [(71, 4), (72, 3)] == rows(kept)
    spark.sql("insert into numbers values (9, 71)")
    assert 1 == ran(hg, lambda: rows(kept))
    assert [(71, 5), (72, 3)] == rows(kept)
    assert 0 == ran(hg, lambda: rows(kept))


@pytest.mark.parametrize("gone", ["unpersisted", "dropped", "made anew"])
def test_answers_outlive_caches(
    hg: Headgate, spark: SparkSession, df: DataFrame, gone: str
) -> None:
    """A collected DataFrame gives the same rows again without running anything, whatever happened
    to the cache that it has read."""
    df.write.saveAsTable("numbers", mode="overwrite")
    kept = spark.table("numbers").cache()
    asked = kept.groupBy("n").count().withColumn("at", F.current_timestamp())
    answer = rows(asked)
    if gone == "made anew":
        spark.sql("insert into numbers values (9, 71)")
    else:
        kept.unpersist()
    if gone == "dropped":
        spark.sql("drop table numbers")
    assert 0 == ran(hg, lambda: rows(asked))
    assert answer == rows(asked)


def test_errors_are_the_users(hg: Headgate, df: DataFrame) -> None:
    """A map stage that fails for a cache raises Spark's error, and leaves nothing stored."""
    since = len(hg.results())
    kept = df.selectExpr("if(k = 6, raise_error('six'), k) as k").distinct().cache()
    with pytest.raises(PySparkException, match="six"):
        rows(kept)
    assert all(result.released is not None for result in hg.results()[since:])


def test_two_threads(hg: Headgate, df: DataFrame) -> None:
    """One of several actions that start together fills the cache."""
    df.cache()
    with ThreadPoolExecutor(4) as pool:
        before = len(hg.results())
        assert [COUNTS] * 4 == list(pool.map(lambda _: rows(df), range(4)))
    assert 1 == len(hg.results()) - before


def test_caches_are_filled_side_by_side(
    hg: Headgate, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query that fills a cache does not wait for one that fills another cache."""
    both = Barrier(2, timeout=20)
    run = SessionQueries._run

    def meeting(queries: SessionQueries, query: QueryRunner, asked: Query) -> Any:
        if isinstance(asked, Cache):
            both.wait()
        return run(queries, query, asked)

    monkeypatch.setattr(SessionQueries, "_run", meeting)
    other = df.sparkSession.range(0, 700, 1, 3).groupBy((F.col("id") % 7).alias("k")).count()
    with ThreadPoolExecutor(2) as pool:
        before = len(hg.results())
        answers = list(pool.map(rows, (df.cache(), other.cache())))
    assert [COUNTS, [(k, 100) for k in range(7)]] == answers
    assert not both.broken
    assert 2 == len(hg.results()) - before


def test_close(spark: SparkSession, df: DataFrame) -> None:
    """Spark fills a cache again by itself when the job that had filled it is closed."""
    spark.conf.set("spark.headgate.job.id", f"test-caches-{os.urandom(4).hex()}")
    with attach(spark) as own:
        df.cache()
        assert 1 == ran(own, lambda: rows(df))
        again = df.groupBy("n").count().cache()
        assert 2 == len(rows(again))
    spark.conf.unset("spark.headgate.job.id")
    assert COUNTS == rows(df)
    assert 2 == len(rows(again))
    assert [(3, 71)] == rows(df.filter("k = 3"))
    df.unpersist()


def test_close_behind_spark(spark: SparkSession) -> None:
    """Closing a headgate after its session was stopped leaves nothing stored. This test stops the
    session, so it is the last of this file."""
    spark.conf.set("spark.headgate.job.id", f"test-caches-{os.urandom(4).hex()}")
    own = attach(spark)
    df = counted(spark).cache()
    assert 1 == ran(own, lambda: rows(df))
    worker = own._services.worker
    spark.stop()
    own.close()
    with closing(open_store(worker.store, dict(worker.s3))[0]) as store:
        assert [] == list(store.list(f"{worker.root}/{own.job}/"))
