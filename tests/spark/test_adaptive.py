"""Adaptive stages: skewed partitions in pieces, unions side by side, small stages left to Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.connectors.spark.exchanges import stored as stored_results
from headgate.connectors.spark.exchanges.placing import placed_now
from headgate.connectors.spark.queries import runner
from headgate.connectors.spark.queries.adaptive import parts_of
from headgate.connectors.spark.queries.exchange_nodes import BroadcastMark
from headgate.connectors.spark.queries.partition_ids import PartitionIds
from headgate.connectors.spark.queries.runner import QueryRunner
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Invalid

from .conftest import setting
from .entered import broadcasts, finished, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SKEW = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "4k",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8k",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
}


@pytest.fixture(scope="module")
def sides(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return two frames in which nearly all rows have the same key, and some keys are on one side
    only."""
    numbers = spark.range(0, 6_000, 1, 6)
    hot = F.when(F.col("id") % 20 > 0, 7).otherwise(F.col("id") % 97)
    left = numbers.select(hot.alias("k"), F.sha1(F.col("id").cast("string")).alias("x"))
    rare = F.when(F.col("id") % 40 > 0, F.col("id") % 89).otherwise(7)
    few = spark.range(0, 400, 1, 3).select((rare + 1).alias("k"), F.col("id").alias("y"))
    return left, few.union(spark.range(3).selectExpr("7L", "id"))


def told(df: DataFrame) -> list[str]:
    return sorted(str(tuple(row)) for row in df.collect())


@pytest.mark.parametrize(
    ("how", "hint", "cut"),
    [
        ("inner", "merge", True),
        ("inner", "shuffle_hash", True),
        ("left", "merge", True),
        ("left_semi", "merge", True),
        ("left_anti", "shuffle_hash", True),
        ("right", "merge", False),
        ("full", "merge", False),
    ],
)
def test_skewed_joins(
    spark: SparkSession,
    hg: Headgate,
    sides: tuple[DataFrame, DataFrame],
    how: str,
    hint: str,
    cut: bool,
) -> None:
    """The larger side is read in pieces where the join allows it, each beside the whole other side.
    The rows are Spark's, and the result does not claim to be hashed."""
    left, right = sides
    df = left.join(right.hint(hint), "k", how)
    with setting(spark, SKEW):
        out = hg.offload(df)
        assert told(df) == told(out)
        tasks = out.rdd.getNumPartitions()
        with setting(spark, {"spark.sql.adaptive.skewJoin.enabled": "false"}):
            whole = hg.offload(df)
        assert (tasks > whole.rdd.getNumPartitions()) == cut
        assert told(df.groupBy("k").count()) == told(out.groupBy("k").count())
    for frame in (out, whole):
        hg.release(frame)


@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("column", ["k", "j"])
def test_what_is_read_beside_pieces_is_not_hashed_either(
    spark: SparkSession,
    hg: Headgate,
    sides: tuple[DataFrame, DataFrame],
    how: str,
    column: str,
) -> None:
    """The side that is read once for each piece of the other side is not known as hashed by its
    key. Plans above the join see that in the same stage, above a result that is handed out, and
    above a cache."""
    left, right = sides
    right = right.withColumnRenamed("k", "j")
    df = left.join(right.hint("merge"), left.k == right.j, how)
    above: dict[str, Callable[[DataFrame], DataFrame]] = {
        "counted": lambda frame: frame.groupBy(column).count(),
        "numbered": lambda frame: frame.selectExpr(
            column, f"row_number() over (partition by {column} order by {column}) n"
        ),
        "distinct": lambda frame: frame.select(column).distinct(),
    }
    with setting(spark, SKEW):
        out = hg.offload(df)
        cached = hg.offload(df).cache()
        for name, ask in above.items():
            expected = told(ask(df))
            inside = hg.offload(ask(df))
            for how_asked, asked in (("above", ask(out)), ("cached", ask(cached)), ("", inside)):
                assert expected == told(asked), f"{name} {how_asked}"
            hg.release(inside)
        cached.unpersist()
    hg.release(out)


def test_a_result_is_placed_once(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of a result are read once, however many of its subpartitions are cut."""
    left = spark.range(0, 6_000, 1, 6).selectExpr("id % 3 k", "sha1(cast(id as string)) x")
    right = spark.range(0, 60, 1, 3).selectExpr("id k", "id y")
    placed, cut = list[Any](), set[int]()

    def counted(*given: Any) -> Any:
        placed.append(given)
        return placed_now(*given)

    def noting(sizes: Any, adapting: Any, cuts: Any) -> Any:
        cut.update(*cuts)
        return parts_of(sizes, adapting, cuts)

    monkeypatch.setattr(stored_results, "placed_now", counted)
    monkeypatch.setattr(runner, "parts_of", noting)
    with setting(spark, SKEW | {"spark.sql.shuffle.partitions": "50"}):
        out = hg.offload(left.join(right.hint("merge"), "k"))
    assert (3, 2) == (len(cut), len(placed))
    hg.release(out)


def test_the_other_side_is_cut(
    spark: SparkSession, hg: Headgate, sides: tuple[DataFrame, DataFrame]
) -> None:
    left, right = sides
    df = right.join(left, "k", "right")
    with setting(spark, SKEW):
        out = hg.offload(df)
        assert told(df) == told(out)
        assert out.rdd.getNumPartitions() > 4
    hg.release(out)


def test_what_relies_on_places_is_not_cut(
    spark: SparkSession, hg: Headgate, sides: tuple[DataFrame, DataFrame]
) -> None:
    """A join is not cut into pieces if an aggregate in its stage needs all rows of a key in one
    task."""
    left, right = sides
    df = left.join(right, "k").groupBy("k").agg(F.count("*"), F.max("x"))
    with setting(spark, SKEW):
        out = hg.offload(df)
        assert told(df) == told(out)
        assert out.rdd.getNumPartitions() <= 4
    hg.release(out)


def test_rows_that_are_sampled_are_not_planned_again(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sort samples a leaf, so that Spark adds no exchange below it: with three joined exchanges
    of TPC-DS's query 2, each read in four parts, it added three."""
    leaves: list[bool] = []
    bounds = PartitionIds._bounds

    def noting(self: PartitionIds, plan: Any, *given: Any) -> Any:
        leaves.append(plan.children().isEmpty())
        return bounds(self, plan, *given)

    monkeypatch.setattr(PartitionIds, "_bounds", noting)
    left = spark.range(0, 9_000, 1, 3).select("id", F.sha1(F.col("id").cast("string")).alias("x"))
    right = spark.range(0, 9_000, 1, 3).select(F.col("id").alias("j"), F.rand(1).alias("y"))
    df = left.join(right.hint("merge"), F.col("id") == F.col("j") - 53).orderBy("x")
    with setting(spark, SKEW):
        before = hg.report().native
        out = hg.offload(df)
        assert leaves == [True]
        assert hg.report().native == before
        assert list(df.collect()) == list(out.collect())
    hg.release(out)


def test_unions(spark: SparkSession, hg: Headgate) -> None:
    """Each branch of a union is read by tasks of its own, a small branch by one task, also beside a
    scan."""
    small = spark.range(0, 50, 1, 2).groupBy((F.col("id") % 5).alias("k")).count()
    df = small.union(spark.range(0, 9, 1, 3).selectExpr("id", "id"))
    out = hg.offload(df)
    assert told(df) == told(out)
    assert out.rdd.getNumPartitions() == 1 + 3
    hg.release(out)


def test_small_exchanges_stay(spark: SparkSession) -> None:
    """Exchanges below the configured size are left to Spark and counted with that reason, and so
    are all exchanges if the size says so. The size is the one that is known when the exchange
    begins."""
    counted = spark.range(0, 60_001, 1, 4).groupBy((F.col("id") % 20_000).alias("k")).count()
    df = counted.groupBy("count").agg(F.max("k").alias("k")).orderBy("k")
    for least, taken, left in ((100_000, 2, 1), (-1, 0, 3)):
        conf = {
            "spark.headgate.sql.from.bytes": str(least),
            "spark.headgate.job.id": f"{spark.sparkContext.applicationId}-from{least}",
        }
        with setting(spark, conf), attach(spark) as hg:
            reason = f"spark.headgate.sql.from.bytes = {least}"
            assert hg.explain(df).count(reason) >= (3 if least < 0 else 0)
            out = hg.offload(df)
            assert [str(row) for row in df.collect()] == [str(row) for row in out.collect()]
            assert len(hg.results()) == taken
            assert hg.report().native == {reason: left}
            hg.release(out)


SMALL_PARTS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "16KB",
}
BRANCHES = "(select k, v from large union all select k, v from little) o"
TWICE = [
    f"select count(*), sum(v) from {BRANCHES} where k in (select k from chosen)",
    f"select count(*), sum(v) from {BRANCHES} where k not in (select k from chosen)",
    f"select count(*), sum(v) from {BRANCHES} where exists"
    " (select 1 from chosen c where c.k = o.k)",
    f"select count(*), sum(v) from {BRANCHES} where not exists"
    " (select 1 from chosen c where c.k = o.k)",
    "select /*+ broadcast(b) */ count(*), sum(a.v + b.v) from large a join little b on a.k = b.k"
    " where a.k in (select k from chosen)",
    "select count(*), sum(a.v + b.v) from large a join little b on a.k = b.k"
    " where a.k in (select k from chosen)",
    "with both as (select k from large except select k from chosen) select count(*) from"
    " (select k from both union all select k from both where k < 500)",
]


@pytest.mark.parametrize("skew", [{}, SKEW], ids=["even", "skew"])
@pytest.mark.parametrize("query", TWICE)
@pytest.mark.usefixtures("unequal")
def test_one_exchange_at_several_places(
    spark: SparkSession, hg: Headgate, query: str, skew: dict[str, str]
) -> None:
    """An exchange that Spark's optimizer copied to several places is cut alike at all of them."""
    with setting(spark, SMALL_PARTS | skew):
        df = spark.sql(query)
        out = hg.offload(df)
        assert told(df) == told(out)
        assert " Exchange " not in finished(hg, out).plan
    hg.release(out)


SENT_TWICE = """
    select /*+ merge(a) */ a.v, a.n, b.n from
      (select l.v, count(*) n from large g join little l on g.k = l.k group by l.v) a join
      (select l.v, sum(g.v) n from large g join little l on g.k = l.k group by l.v) b on a.v = b.v
"""


def test_rows_are_broadcast_once(spark: SparkSession, hg: Headgate, unequal: None) -> None:
    """A stage that needs the same rows as an earlier one does not broadcast them again."""
    with setting(spark, {"spark.sql.autoBroadcastJoinThreshold": "2000"}):
        df = spark.sql(SENT_TWICE)
        expected, before = sorted(df.collect()), broadcasts(spark)
        out = hg.offload(df)
        assert expected == sorted(out.collect())
    assert 1 == broadcasts(spark) - before
    hg.release(out)


def test_rows_are_broadcast_while_exchanges_run(
    spark: SparkSession, hg: Headgate, tmp_path: Path
) -> None:
    """Rows that a later stage needs broadcast are made while the exchanges run that it waits
    for."""
    df = broadcast_beside(spark, tmp_path)
    out = hg.offload(df)
    assert sorted(df.collect()) == sorted(out.collect())
    hg.release(out)


def test_a_failed_query_ends_its_broadcasts(
    spark: SparkSession, hg: Headgate, tmp_path: Path
) -> None:
    """No broadcast goes on after the exchange has failed whose rows it was to be joined with."""
    df, query = broadcast_beside(spark, tmp_path, fails=True), hg._queries.query()
    with pytest.raises(PySparkException, match="not today"):
        hg._queries._run(query, df)
    assert query._plans.begun.sent
    wait_until(lambda: all(sent.is_over() for sent in query._plans.begun.sent.values()))
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.mark.parametrize("others", [0, 12])
def test_no_broadcast_begins_after_a_failure(
    spark: SparkSession,
    hg: Headgate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: int,
) -> None:
    """A broadcast that had no job yet when the query failed is ended, and exchanges that still wait
    for a thread are not waited for."""

    def fail(*_: object) -> None:
        SYSTEM_CLOCK.sleep_s(others / 20)
        raise Invalid("not today")

    monkeypatch.setattr(QueryRunner, "_exchange", fail)
    df, query = broadcast_beside(spark, tmp_path, fails=True), hg._queries.query()
    more = (
        spark.range(9).groupBy((F.col("id") % (2 + n)).alias("k")).count() for n in range(others)
    )
    with pytest.raises(Invalid, match="not today"):
        hg._queries._run(query, reduce(DataFrame.union, more, df))
    assert query._plans.begun.sent
    wait_until(lambda: all(sent.is_over() for sent in query._plans.begun.sent.values()))


def test_a_failed_query_does_not_wait_for_ever(
    spark: SparkSession, hg: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some broadcasts cannot be ended, such as one that lists files: the query's error comes all
    the same."""

    def fail(*_: object) -> None:
        raise Invalid("not today")

    monkeypatch.setattr(QueryRunner, "_exchange", fail)
    monkeypatch.setattr(BroadcastMark, "is_over", lambda _: False)
    with pytest.raises(Invalid, match="not today"):
        hg.offload(broadcast_beside(spark, tmp_path, fails=True))
    assert "headgate-needless" in [thread.name for thread in threading.enumerate()]


def test_a_broadcast_that_waits_for_another(spark: SparkSession, hg: Headgate) -> None:
    """Rows that are broadcast to a broadcast may take long: `spark.sql.broadcastTimeout` begins
    only when a stage needs them."""

    def later(k: int) -> int:
        SYSTEM_CLOCK.sleep_s(2)
        return k % 5

    slow = F.udf(lambda k: later(k), "long")
    exchanged = spark.range(0, 8, 1, 8).select(slow("id").alias("k")).groupBy("k").count()
    sent = spark.range(0, 5, 1, 1).select(F.col("id").alias("k"))
    for _ in range(3):
        sent = spark.range(0, 5, 1, 1).select(F.col("id").alias("k")).join(F.broadcast(sent), "k")
    with setting(spark, {"spark.sql.broadcastTimeout": "3"}):
        rows = hg.offload(exchanged.join(F.broadcast(sent), "k")).collect()
    assert [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)] == sorted(rows)


def broadcast_beside(spark: SparkSession, folder: Path, fails: bool = False) -> DataFrame:
    """Return a join of an exchange, whose tasks wait until the other side is being broadcast, and
    of that side, which takes long if the exchange fails."""
    begun = folder / "begun"

    def until(done: Callable[[], bool]) -> None:
        deadline = Deadline.after(20)
        while not done() and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.1)

    def small(k: int) -> int:
        begun.touch()
        until(lambda: not fails)
        return k

    def large(k: int) -> int:
        until(begun.exists)
        if fails or not begun.exists():
            raise ValueError("not today" if begun.exists() else "nothing is broadcast")
        return k

    larger, smaller = F.udf(lambda k: large(k), "long"), F.udf(lambda k: small(k), "long")
    exchanged = spark.range(0, 100, 1, 1).select(larger(F.col("id") % 9).alias("k"))
    sent = spark.range(0, 5, 1, 1).select(smaller("id").alias("k"))
    return exchanged.groupBy("k").count().join(F.broadcast(sent), "k")


@pytest.mark.parametrize("reuse", ["true", "false"])
def test_early_broadcasts_are_used(
    spark: SparkSession, hg: Headgate, tmp_path: Path, reuse: str
) -> None:
    """A stage finds the rows that were broadcast for it before, or for a subquery that prunes what
    it scans. What it would not find is not broadcast before."""
    path = str(tmp_path / "pruned")
    spark.range(400).selectExpr("id % 9 k", "id % 20 p").write.partitionBy("p").parquet(path)
    few = spark.range(0, 20, 1, 1).selectExpr("id p", "id % 3 w").where("w = 1")
    pruned = spark.read.parquet(path).join(F.broadcast(few), "p")
    counted = spark.range(1000).groupBy((F.col("id") % 9).alias("k")).count()
    df = counted.join(F.broadcast(pruned), "k")
    with setting(spark, {"spark.sql.exchange.reuse": reuse}):
        before = broadcasts(spark)
        expected = sorted(df.collect())
        between = broadcasts(spark)
        out = hg.offload(df)
        assert expected == sorted(out.collect())
        assert broadcasts(spark) - between <= between - before
    hg.release(out)


FEW = {"spark.sql.autoBroadcastJoinThreshold": "100000"}
SOME = "(select distinct k from large)"
OTHERS = "(select distinct id % 9 j from range(3000000))"
CHOSEN = f"(select l.k, l.v from large l join {SOME} c on l.k = c.k where c.k % 7 = 0)"
COUNTS = "(select id % 5000 g, count(*) n from range(1000000) group by id % 5000)"
LISTS = "(select explode(vs) j from (select collect_list(v) vs from large group by k % 10))"
MANY = "range(4000000)"


@pytest.mark.parametrize(
    ("query", "stored", "reused"),
    [
        (f"select v from {SOME} a join large l on a.k + 1 = l.k", 1, 0),
        (f"select v from {SOME} a join large l on a.k + 1 = l.k join {OTHERS} on j + 1 = v", 2, 0),
        (f"select n from {SOME} a join {MANY} on k + 1 = id join {COUNTS} on n = id", 3, 0),
        (f"select v from {LISTS} a join large l on a.j = l.v", 3, 0),
        (f"select a.k, b.v from {CHOSEN} a join {CHOSEN} b on a.v = b.v", 4, 2),
        (
            f"select v from large a join {MANY} on a.k = id"
            f" union all select v from large a join {SOME} s on a.k = s.k",
            3,
            1,
        ),
    ],
    ids=["few", "few of two", "few at last", "long lists", "wanted twice", "wanted again"],
)
def test_few_rows_are_broadcast_instead_of_exchanged(
    spark: SparkSession, hg: Headgate, unequal: None, query: str, stored: int, reused: int
) -> None:
    """Rows that are to be exchanged for a join are broadcast instead as soon as what they are made
    of is small, also if it was being written when the rest was planned again. What grows on the way
    is not: lists are long. The larger side is exchanged only if it is wanted again: it would else
    be made again."""
    with setting(spark, FEW):
        df = spark.sql(query)
        out = hg.offload(df)
        done = finished(hg, out)
        assert sorted(df.collect()) == sorted(out.collect())
    assert (stored, reused) == (len(done.exchanges), done.reused), hg.explain(out)
    hg.release(out)


@pytest.mark.parametrize("evens", ["true", "false"])
def test_a_hot_partition_of_a_rebalance_is_cut(
    spark: SparkSession, hg: Headgate, sides: tuple[DataFrame, DataFrame], evens: str
) -> None:
    """A partition of a rebalance that is larger than a part should be is read in pieces, so that no
    file of a write is huge."""
    df = sides[0].hint("rebalance", "k")
    key = "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled"
    with setting(spark, SKEW | {key: evens}):
        out = hg.offload(df)
        assert told(df) == told(out)
        sizes = [rows for _, rows in out.groupBy(F.spark_partition_id()).count().collect()]
    assert (max(sizes) < 3_000) == (evens == "true")
    hg.release(out)
