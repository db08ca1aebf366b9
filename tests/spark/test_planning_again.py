"""The rules of Spark's adaptive execution, one by one: a query is planned again by what its
exchanges and broadcasts turn out to be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.connectors.spark.queries import runner
from headgate.connectors.spark.queries.exchange_nodes import BroadcastMark
from headgate.connectors.spark.queries.runner import FinishedQuery
from headgate.control.clock import SYSTEM_CLOCK

from .conftest import setting
from .entered import broadcasts, detached, entered, finished, left, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ADAPTIVE = "spark.sql.adaptive."
LIMIT = "spark.sql.autoBroadcastJoinThreshold"
LARGE = "(select id k, id % 7 v, id * 3 x from range(0, 20000, 1, 4))"
GROUPED = "(select id % 400 k, count(*) n from range(0, 4000, 1, 4) group by 1)"
NONE = "(select * from a where v > 90)"
STAR = f"select f.v, sum(f.x) from {LARGE} f join a using (k) join b using (k) join c using (k)"
END = "group by f.v"
MOST = f"select max(n) from (select v, count(*) n from a join {NONE} e using (k) group by a.v)"


@pytest.fixture(scope="module", autouse=True)
def sides(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make views of files. Spark's statistics do not see through their filters."""
    folder = tmp_path_factory.mktemp("sides")
    for name in "abc":
        rows = spark.range(0, 3000, 1, 1).selectExpr("id k", "id % 31 v", f"id % 97 {name}")
        rows.write.parquet(str(folder / name))
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    yield
    for name in "abc":
        spark.catalog.dropTempView(name)


def done(hg: Headgate, df: DataFrame) -> FinishedQuery:
    """Run a query here, compare its rows with Spark's, and return what is known of it."""
    out = hg.offload(df)
    assert sorted(map(str, df.collect())) == sorted(map(str, out.collect()))
    done = finished(hg, out)
    hg.release(out)
    return done


@pytest.mark.parametrize(
    ("query", "exchanges"),
    [
        (f"{STAR} {END}", 1),
        (f"{STAR} join (select k from a where v * 2 = 1) using (k) {END}", 0),
        (f"select f.v, e.v from {LARGE} f left join {NONE} e using (k)", 0),
        (f"select distinct v from {LARGE} left anti join {NONE} using (k)", 1),
        (f"select v, count(*) from {LARGE} left semi join {NONE} using (k) group by v", 0),
        (f"select id from range(9) where id > coalesce(({MOST.replace('v,', 'a.v,')}), 5)", 1),
    ],
    ids=["none empty", "star", "left", "anti", "semi", "subquery"],
)
def test_an_empty_broadcast_cuts_its_branch(
    spark: SparkSession, hg: Headgate, query: str, exchanges: int
) -> None:
    """`AQEPropagateEmptyRelation`: where a side turns out empty no exchange above it runs."""
    finished = done(hg, spark.sql(query))
    assert exchanges == len(finished.exchanges), finished.plan


@pytest.mark.parametrize("nulls", ["cast(null as long)", "k"], ids=["nulls", "keys"])
def test_a_not_in_of_nulls_gives_no_rows(spark: SparkSession, hg: Headgate, nulls: str) -> None:
    """`AQEPropagateEmptyRelation`: nothing is `not in` rows of which one key is null."""
    query = f"select v, count(*) from {LARGE} where k not in (select {nulls} from b) group by v"
    assert (0 if "null" in nulls else 1) == len(done(hg, spark.sql(query)).exchanges)


def test_the_rules_are_those_of_the_session(spark: SparkSession, hg: Headgate) -> None:
    """`spark.sql.adaptive.optimizer.excludedRules` is obeyed."""
    rule = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    query = spark.sql(f"{STAR} join (select k from a where v * 2 = 1) using (k) {END}")
    with setting(spark, {f"{ADAPTIVE}optimizer.excludedRules": rule}):
        assert 1 == len(done(hg, query).exchanges)


def test_adaptive_execution_may_be_off(spark: SparkSession, hg: Headgate) -> None:
    query = spark.sql(f"{STAR} join (select k from a where v * 2 = 1) using (k) {END}")
    with setting(spark, {f"{ADAPTIVE}enabled": "false"}):
        assert 1 == len(done(hg, query).exchanges)


@pytest.mark.parametrize("ratio", ["0.9", "0.1"])
def test_a_side_of_empty_partitions_is_not_broadcast(
    spark: SparkSession, hg: Headgate, ratio: str
) -> None:
    """`DemoteBroadcastHashJoin`: a small side of mostly empty subpartitions is not broadcast."""
    few = f"(select k, max(x) m from {LARGE} where k in (3, 4) group by k)"
    query = spark.sql(f"select l.x, m from {LARGE} l join {few} using (k)")
    conf = {LIMIT: "10000", f"{ADAPTIVE}nonEmptyPartitionRatioForBroadcastJoin": ratio}
    with setting(spark, conf):
        assert (ratio == "0.1") == ("BroadcastHashJoin" in done(hg, query).plan)


@pytest.mark.parametrize(("limit", "joins"), [("10MB", "BroadcastHash"), ("100", "SortMerge")])
def test_two_small_sides_are_joined_by_a_broadcast(
    spark: SparkSession,
    hg: Headgate,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    joins: str,
) -> None:
    """`spark.sql.adaptive.autoBroadcastJoinThreshold` holds where it is higher than the limit for
    sides that are not there yet, also when both exchanges are done."""
    monkeypatch.setattr(runner, "wait", lambda runs, *_: wait(runs))
    sides = [f"(select {k} j, max({v}) m from a group by {k})" for k, v in ("kv", "vk")]
    query = spark.sql(f"select l.m, r.m n from {sides[0]} l join {sides[1]} r using (j)")
    with setting(spark, {LIMIT: "-1", f"{ADAPTIVE}autoBroadcastJoinThreshold": limit}):
        finished = done(hg, query)
    assert (2, True) == (len(finished.exchanges), f"{joins}Join" in finished.plan)


@pytest.mark.parametrize(("few", "exchanges"), [(2000, 1), (300, 2)])
def test_a_limit_of_more_rows_than_there_are(
    spark: SparkSession, hg: Headgate, few: int, exchanges: int
) -> None:
    """`EliminateLimits`: such a limit needs no exchange to one partition."""
    limited = f"select count(*) n from {GROUPED} g group by g.k limit {few}"
    df = spark.sql(f"select n from ({limited}) union all select id from range(5)")
    assert exchanges == len(done(hg, df).exchanges)


def test_a_plan_with_more_exchanges_is_not_taken(spark: SparkSession, hg: Headgate) -> None:
    """The cost evaluator: behind a limit to one partition, groups need no exchange."""
    limited = f"(select k from {GROUPED} limit 2000)"
    df = spark.sql(f"select k % 3, count(*) from {limited} where k >= 0 group by k % 3")
    assert 2 == len(done(hg, df).exchanges)


def test_one_row_is_not_sorted(spark: SparkSession, hg: Headgate) -> None:
    """`OptimizeOneRowPlan`: one row needs no exchange by ranges."""
    query = f"select v, count(*) n from {LARGE} where k in ({{}}) group by v order by v"
    for keys, exchanges in (("7", 1), ("7, 8", 2)):
        assert exchanges == len(done(hg, spark.sql(query.format(keys))).exchanges)


@pytest.mark.parametrize(("every", "exchanges"), [(500, 1), (1, 2)])
def test_a_broadcast_changes_the_join_above(
    spark: SparkSession, hg: Headgate, every: int, exchanges: int
) -> None:
    """A side that is made of a broadcast of few rows is broadcast, too. One of many rows is
    exchanged."""
    few = f"(select id from range(1000) where id % {every} = 0)"
    side = (
        f"(select /*+ broadcast(b) */ a.id k, b.id i from range(100) a join {few} b on a.id < b.id)"
    )
    df = spark.sql(f"select l.x, s.i from {LARGE} l join {side} s using (k)")
    with setting(spark, {LIMIT: "60000"}):
        assert exchanges == len(done(hg, df).exchanges)


def slowly(k: int, pause_s: float = 4.0) -> int:
    SYSTEM_CLOCK.sleep_s(pause_s)
    return k


def late(fails: bool) -> str:
    SYSTEM_CLOCK.sleep_s(30)
    assert not fails
    return "late"


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
@pytest.mark.parametrize("is_sent", [False, True], ids=["exchange", "broadcast"])
def test_a_stage_that_nobody_needs_is_ended(
    spark: SparkSession, hg: Headgate, is_sent: bool, fails: bool
) -> None:
    """While a side of a join is made, the other one turns out empty: the query does not wait for
    the first, has none of its errors, and releases what it has stored."""
    before = len(hg.results())
    slow = spark.range(0, 2, 1, 1).select("id", F.udf(lambda _: late(fails))("id").alias("t"))
    sides = slow.hint("broadcast") if is_sent else slow.groupBy("id").agg(F.max("t")).hint("merge")
    none = spark.sql(f"select k id, count(*) from {NONE} group by k")
    began_s = SYSTEM_CLOCK.monotonic_s()
    with setting(spark, {LIMIT: "-1"}):
        out = hg.offload(none.join(sides, "id"))
        assert [] == out.collect()
    assert SYSTEM_CLOCK.monotonic_s() - began_s < 25
    assert 1 == len(finished(hg, out).exchanges)
    hg.release(out)
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    wait_until(lambda: all(result.released for result in hg.results()[before:]))


@pytest.mark.parametrize("is_sent", [False, True], ids=["exchange", "broadcast"])
def test_a_subquery_outlives_a_stage_that_is_ended(
    spark: SparkSession, hg: Headgate, is_sent: bool
) -> None:
    """A subquery goes on when a stage is ended that has begun it: another stage has it, too."""

    spark.udf.register("late", slowly, "long")
    most = "(select max(late(id)) from range(0, 3, 1, 1))"
    hint = "broadcast(s)" if is_sent else "merge(s)"
    few = f"(select k, max(v) m from a where v > {most} group by k)"
    none = f"(select k, count(*) n from {NONE} group by k)"
    df = spark.sql(
        f"select /*+ {hint} */ n, m from {none} e join {few} s using (k)"
        f" union all select v, count(*) from b where v > {most} group by v"
    )
    with setting(spark, {LIMIT: "-1"}):
        assert 2 <= len(done(hg, df).exchanges)


def test_a_cache_outlives_a_broadcast_that_is_ended(spark: SparkSession, hg: Headgate) -> None:
    """A broadcast goes on that fills a cache, for another stage waits for the cache, too."""

    slow = spark.range(0, 1, 1, 1).select(F.udf(lambda k: slowly(k, 10.0), "long")("id"))
    interval = F.first(F.expr("make_interval(0, 0, 0, 1)"))  # which no exchange here carries
    rows = slow.toDF("id").groupBy("id").agg(F.count("*").alias("n"), interval.alias("i")).cache()
    none = spark.sql(f"select k id, count(*) from {NONE} group by k")
    sent = none.join(rows.hint("broadcast"), "id").select("id", "n")
    try:
        with setting(spark, {LIMIT: "-1"}):
            out = hg.offload(sent.union(rows.groupBy("n").count()))
        assert [(1, 1)] == out.collect()
        hg.release(out)
        assert 1 == rows.count()
    finally:
        rows.unpersist()


def test_nothing_waits_for_a_broadcast_that_cannot_be_ended(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a query are there while a broadcast that it does not need goes on."""
    slow = spark.range(0, 2, 1, 1).select("id", F.udf(lambda _: late(False))("id").alias("t"))
    none = spark.sql(f"select k id, count(*) from {NONE} group by k")
    monkeypatch.setattr(BroadcastMark, "is_over", lambda _: False)
    assert [] == hg.offload(none.join(slow.hint("broadcast"), "id")).collect()
    assert "headgate-needless" in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_broadcast_may_take_as_long_as_in_spark(
    spark: SparkSession, hg: Headgate, adaptive: str
) -> None:
    """`spark.sql.broadcastTimeout` ends a query without adaptive execution, and no other one."""

    slow = F.udf(lambda k: slowly(k), "long")
    sent = spark.range(0, 1, 1, 1).select(slow("id").alias("id"))
    df = spark.range(50).groupBy("id").count().join(sent.hint("broadcast"), "id")
    outcomes: list[tuple[object, bool]] = []
    with setting(spark, {"spark.sql.broadcastTimeout": "1", f"{ADAPTIVE}enabled": adaptive}):
        for run in (lambda df: df, hg.offload):
            try:
                outcomes.append((len(run(df.select("*")).collect()), False))
            except Exception as exc:
                outcomes.append((type(exc), "broadcast in 1 sec" in str(exc)))
    assert outcomes[0] == outcomes[1]
    assert (adaptive == "false", adaptive == "true") == (outcomes[0][1], outcomes[0][0] == 1)


def test_a_barrier_without_slots_fails_at_once(spark: SparkSession, hg: Headgate) -> None:
    """A map stage with a barrier that needs more slots than there are fails with Spark's error, and
    is not tried again for ten minutes."""
    barred = spark.range(0, 300, 1, 3).mapInArrow(lambda batches: batches, "id long", barrier=True)

    def failing() -> None:
        with pytest.raises(Py4JJavaError, match="SPARK-24819"):
            barred.groupBy("id").count().collect()

    failing()
    before = len(hg.results())
    with entered(hg, spark):
        assert {} == left(hg, failing)
    with pytest.raises(Py4JJavaError, match="SPARK-24819"):
        hg.repartition(barred, 2, "id")
    assert all(result.released for result in hg.results()[before:])


def test_a_repartition_below_an_rdd(spark: SparkSession, hg: Headgate) -> None:
    """`AdjustShuffleExchangePosition`: the RDD of an empty query has the partitions that the query
    asks for."""
    df = spark.sql(f"select /*+ repartition(3) */ f.v from {LARGE} f join {NONE} using (k)")
    partitions = []
    for inside in (detached, entered):
        with inside(hg, spark):
            rdd = df.select("*").rdd
            partitions.append((rdd.getNumPartitions(), rdd.collect()))
    assert partitions[0] == partitions[1] == (3, [])


def test_a_broadcast_is_made_once(spark: SparkSession, hg: Headgate) -> None:
    """Rows that were broadcast before the rest is planned again are used again."""
    query = f"{STAR} left join (select k, v w from a where v * 2 = 1) e using (k) {END}"
    between = []
    for run in (lambda df: df, hg.offload):
        before = broadcasts(spark)
        run(spark.sql(query)).collect()
        between.append(broadcasts(spark) - before)
    assert 4 == between[0] == between[1]


def test_a_broadcast_below_an_exchange_of_sparks_is_made_once(
    spark: SparkSession, hg: Headgate
) -> None:
    """A broadcast whose rows go through an exchange that is left to Spark receives what was
    broadcast to that exchange, and makes it no second time."""
    inner = "(select /*+ broadcast */ max(v) t, k from b group by k)"
    few = f"(select count(*) c from (select 1 from a join {inner} i on a.k = i.k limit 700))"
    before = broadcasts(spark)
    out = hg.offload(spark.sql(f"select /*+ broadcast(o) */ b.k from b join {few} o on b.k < c"))
    assert 700 == out.count()
    done = finished(hg, out)
    assert (1, 1) == (len(done.exchanges), len(done.refused))
    assert 2 == broadcasts(spark) - before
    hg.release(out)


def test_an_error_in_a_broadcast_is_sparks(spark: SparkSession, hg: Headgate) -> None:
    """An error of the user's expression keeps its type, condition and context."""
    side = "(select k from a where 1 / (v - v) > 0)"
    query = f"select f.v, count(*) from {LARGE} f join {side} using (k)"
    errors = []
    for run in (lambda df: df, hg.offload):
        with pytest.raises(PySparkException) as caught:
            run(spark.sql(f"{query} group by f.v")).collect()
        errors.append((type(caught.value), caught.value.getCondition(), caught.value.getSqlState()))
    assert errors[0] == errors[1]


def test_a_side_is_broadcast_by_its_bytes_in_memory(spark: SparkSession, hg: Headgate) -> None:
    """A side whose text takes little room in the store, and much in memory, is joined as Spark
    joins it: not by a broadcast."""
    wide = "select id % 50 k, repeat(cast(id % 7 as string), 400) t from range(0, 30000, 1, 4)"
    df = spark.sql(
        f"select a.id, b.t from range(0, 30000, 1, 4) a join ({wide} where id % 10 = 3) b"
        " on a.id = b.k"
    )
    with setting(spark, {"spark.sql.autoBroadcastJoinThreshold": "200k"}):
        out = hg.offload(df)
    plan = finished(hg, out).plan
    assert "Broadcast" not in plan
    assert df.count() == out.count()
    hg.release(out)
