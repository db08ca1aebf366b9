"""Actions that run through their session's headgate: each entry point, and the way back to
Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException, SparkRuntimeException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as Classic

from headgate import Headgate, Unavailable, attach
from headgate.connectors.spark.exchanges.run import ExchangeRun
from headgate.connectors.spark.patches import actions, writers
from headgate.control.master.driver_master import DriverMaster

from . import pairs
from .cluster import findings, recorded
from .conftest import build_session, real_place, setting
from .entered import counted, detached, left, stored, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

OFFLOADED: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda df: sorted(df.collect()),
    "take": lambda df: df.orderBy("k").groupBy("n").count().orderBy("n").take(2),
    "first": lambda df: df.join(df.agg(F.max("k").alias("k")), "k").groupBy("k").count().first(),
    "head": lambda df: df.groupBy("n").count().orderBy("n").head(3),
    "tail": lambda df: df.orderBy("k").tail(2),
    "count": lambda df: df.count(),
    "isEmpty": lambda df: df.isEmpty(),
    "toPandas": lambda df: str(df.orderBy("k").toPandas()),
    "toArrow": lambda df: df.orderBy("k").toArrow().to_pylist(),
    "toLocalIterator": lambda df: list(df.orderBy("k").toLocalIterator()),
    "foreach": lambda df: df.foreach(lambda row: None),
    "foreachPartition": lambda df: df.foreachPartition(lambda rows: None),
    "rdd": lambda df: sorted(df.rdd.map(tuple).collect()),
    "checkpoint": lambda df: sorted(df.checkpoint().collect()),
    "localCheckpoint": lambda df: sorted(df.localCheckpoint().collect()),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("warehouse"))
    session = build_session(real_place(), "local[2]", **{"spark.sql.warehouse.dir": folder})
    session.conf.set("spark.headgate.sql.enabled", "true")
    session.sparkContext.setCheckpointDir(str(Path(folder) / "checkpoints"))
    yield session
    session.stop()


@pytest.mark.parametrize("name", OFFLOADED)
def test_offloaded(spark: SparkSession, hg: Headgate, name: str) -> None:
    """An action gives Spark's own answer, and its exchanges run in Headgate. They are released at
    once, except the exchanges of an `rdd`, which may be read again."""
    act, before = OFFLOADED[name], len(hg.results())
    with detached(hg, spark):
        expected = act(counted(spark))
    assert expected == act(counted(spark))
    results = [result.result for result in hg.results()[before:]]
    assert results != []
    stay = results if name == "rdd" else []
    wait_until(
        lambda: stay == [result.result for result in hg.results()[before:] if not result.released]
    )
    assert bool(stay) == (name == "rdd")


def test_another_analyzer(
    spark: SparkSession, hg: Headgate, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries run in Spark when its analyzer takes no rows of an RDD, which is how it gets ours."""
    with setting(spark, {"spark.sql.analyzer.singlePassResolver.enabled": "true"}):
        reasons = left(hg, counted(spark).orderBy("k").show)
    assert "|  0| 72|" in capsys.readouterr().out
    assert 1 == len(reasons)
    assert "singlePassResolver.enabled=true takes no rows of an RDD" in next(iter(reasons))


def test_actions_under_settings(spark: SparkSession, hg: Headgate, tmp_path: Path) -> None:
    """A few of the runs of `make queries ARGS=--pairs` give Spark's rows and Spark's errors."""
    pairs.prepare(spark, tmp_path)
    drawn = list(islice(pairs.runs(pairs.VALUES, os.getpid()), 2))
    wrong = {str(run): pairs.compare(spark, hg, run, tmp_path) for run in drawn}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("most", [5, 2**31 - 1])
def test_show(
    spark: SparkSession, hg: Headgate, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    """`show` prints the same page as Spark, with its line about further rows."""
    df = counted(spark).orderBy("k")
    df.show(most, False)
    ours = capsys.readouterr().out
    assert ("only showing top 5 rows" in ours) == (most == 5)
    with detached(hg, spark):
        df.show(most, False)
    assert ours == capsys.readouterr().out


@pytest.mark.parametrize("act", ["collect", "toArrow", "localCheckpoint"])
def test_a_limit(spark: SparkSession, hg: Headgate, act: str) -> None:
    """The exchange of a limit runs in Headgate too, unless the driver collects the rows itself."""
    df = spark.range(0, 500, 1, 3).orderBy("id").limit(7)
    before = len(hg.results())
    assert {} == left(hg, getattr(df, act))
    assert len(hg.results()[before:]) == (act != "collect")


SPREAD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "by number": lambda df: df.repartition(20),
    "by column": lambda df: df.repartition("k").select("n", (F.col("k") + 1).alias("more")),
    "rebalanced": lambda df: df.hint("rebalance"),
    "twice": lambda df: df.repartition(7).withColumn("x", F.col("k") * 2).repartition(3),
}


@pytest.mark.parametrize("name", SPREAD)
def test_a_limit_needs_no_repartition(spark: SparkSession, hg: Headgate, name: str) -> None:
    """The rows that a limit takes are not spread first, and only as many are read as it needs."""
    read = spark.sparkContext.accumulator(0)

    def seen(row: Any) -> Any:
        read.add(1)
        return row

    rows = spark.range(0, 4_000, 1, 40).select("id", (F.col("id") % 7).alias("n"))
    many = spark.createDataFrame(rows.rdd.map(seen), "k long, n long")
    df, before = SPREAD[name](many), len(hg.results())
    assert {} == left(hg, lambda: df.take(3))
    assert before == len(hg.results())
    assert read.value <= 200
    with detached(hg, spark):
        stated = df.limit(4).collect()
    ours = df.limit(4).collect()
    assert (len(stated), stated[0].__fields__) == (len(ours), ours[0].__fields__)
    assert {tuple(row) for row in ours} <= {tuple(row) for row in df.collect()}
    assert 50 == len(df.offset(50).take(50))


def test_a_limit_that_needs_a_repartition(spark: SparkSession, hg: Headgate) -> None:
    """A repartition runs if something besides its rows can be seen, if others read it, or if its
    rows are to be kept."""
    df = spark.range(0, 500, 1, 3)
    numbered = df.repartition(20, "id").select(F.spark_partition_id().alias("at"))
    assert 1 == stored(hg, lambda: numbered.take(3))
    top = df.repartitionByRange(500, F.desc("id"))
    assert [499, 498, 497] == [row[0] for row in top.take(3)]
    assert 1 == stored(hg, lambda: df.repartition(20, "id").filter(F.rand(1) < 0.9).take(3))
    assert 1 <= stored(hg, lambda: df.repartition(20).limit(3).toArrow())
    assert 3 == df.repartition(20).limit(3).count()
    before = len(hg.results())
    out = hg.offload(df.repartition(20).limit(3))
    assert 1 == len(hg.results()) - before
    assert out.collect() == out.collect()
    hg.release(out)


@pytest.mark.parametrize("chars", ["10", "2147483632"])
@pytest.mark.parametrize("above", [False, True])
def test_what_is_observed(spark: SparkSession, hg: Headgate, above: bool, chars: str) -> None:
    """A query with observed metrics is left to Spark and counted, even if Spark shows little of its
    plan."""
    with setting(spark, {"spark.sql.maxPlanStringLength": chars}):
        _observe(spark, hg, above)


def _observe(spark: SparkSession, hg: Headgate, above: bool) -> None:
    seen = Observation("seen")
    rows = spark.range(0, 500, 1, 3)
    df = rows if above else rows.observe(seen, F.count(F.lit(1)).alias("rows"))
    df = df.groupBy((F.col("id") % 7).alias("k")).count()
    df = df.observe(seen, F.count(F.lit(1)).alias("rows")) if above else df
    reasons = left(hg, lambda: stored(hg, df.collect))
    assert ["observes" in why for why in reasons] == [True]
    assert {"rows": 7 if above else 500} == seen.get
    out = hg.offload(df)
    assert 7 == out.count()
    assert "observes" in hg.explain(out)
    hg.release(out)


def test_a_cache_that_is_observed(spark: SparkSession, hg: Headgate) -> None:
    """A query over a cache gives the metrics of the query that fills the cache."""
    seen = Observation("filled")
    rows = spark.range(0, 500, 1, 3).observe(seen, F.count(F.lit(1)).alias("rows")).cache()
    assert 7 == rows.groupBy(F.col("id") % 7).count().count()
    assert {"rows": 500} == seen.get
    rows.unpersist()


def test_a_dataframe_is_planned_once(spark: SparkSession, hg: Headgate) -> None:
    """A second action on a DataFrame has the first one's time and runs no map stage, as in Spark.
    Its stored results are released with the DataFrame."""
    df = counted(spark).withColumn("now", F.current_timestamp())
    before = len(hg.results())
    first = sorted(df.collect())
    made = len(hg.results())
    assert first == sorted(df.collect()) == sorted(df.toLocalIterator())
    assert df.toArrow().equals(df.toArrow())
    assert made == len(hg.results()) > before
    hg.remove_unused()
    assert first == sorted(df.collect())
    del df
    wait_until(lambda: all(result.released for result in hg.results()[before:]))


def _methods() -> dict[tuple[type, str], Any]:
    kinds = (Classic, *writers.SAVES)
    return {(kind, name): method for kind in kinds for name, method in vars(kind).items()}


def test_the_way_back(spark: SparkSession, hg: Headgate) -> None:
    """Other sessions of the process are not affected. When the last session has left, every method
    is the original object again."""
    inside, before = _methods(), hg.results()
    assert 7 == len(counted(spark.newSession()).collect())
    assert before == hg.results()
    hg.detach()
    outside = _methods()
    assert 7 == len(counted(spark).collect())
    hg._queries.enter()
    again = _methods()
    changed = {name for name in outside if outside[name] is not again[name]}
    saves = {(kind, name) for kind, names in writers.SAVES.items() for name in names}
    acts = {"rdd", "count", "show", *actions.RUN, *actions.COLLECTED}
    assert {(Classic, name) for name in acts} | saves <= changed
    assert changed == {name for name in outside if outside[name] is not inside[name]}
    hg.detach()
    assert all(method is outside[name] for name, method in _methods().items())
    hg._queries.enter()


def test_two_in_one_session(spark: SparkSession, hg: Headgate) -> None:
    """The headgate that attached last has the session's actions; when it is closed, the former one
    has them."""
    with setting(spark, {"spark.headgate.job.id": f"{hg.job}-second"}), attach(spark) as second:
        assert 0 == stored(hg, lambda: stored(second, lambda: counted(spark).collect()))
        assert second.results() != ()
    assert 1 == stored(hg, lambda: counted(spark).collect())
    with setting(spark, {"spark.headgate.job.id": f"{hg.job}-third"}):
        third = attach(spark)
    with detached(hg, spark):
        assert 1 == stored(third, lambda: counted(spark).collect())
    third.close()


def test_spark_runs_what_we_cannot(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action gives its rows although Headgate fails, and the failure is counted."""

    def away(*_: object) -> None:
        raise Unavailable("the broker is away")

    monkeypatch.setattr(ExchangeRun, "run", away)
    assert 7 == len(counted(spark).collect())
    assert hg.report().native["Unavailable: the broker is away"] == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda _: _raise(KeyError("plan")), "KeyError: 'plan'"),
        (lambda spark: spark._jvm.java.lang.Math.unheard(), "Py4JError: "),
        (lambda spark: spark._jvm.java.util.ArrayList().get(7), "Py4JJavaError: java.lang.Index"),
        (lambda spark: spark._jvm.java.lang.Math.toIntExact(1 << 40), "ArithmeticException"),
        (lambda _: _raise(ValueError("x" * 1000 + "\nand more")), f"ValueError: {'x' * 100}"),
    ],
    ids=["python", "py4j", "java", "pyspark", "long"],
)
def test_spark_runs_what_we_cannot_plan(
    spark: SparkSession,
    hg: Headgate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[SparkSession], Any],
    reason: str,
) -> None:
    """Any error of our planning is logged in one line, and Spark runs the action."""

    def fails(*_: object) -> None:
        call(spark)

    with monkeypatch.context() as patched:
        patched.setattr(ExchangeRun, "run", fails)
        reasons = left(hg, lambda: (counted(spark).collect(), counted(spark).collect()))
    assert {2} == set(reasons.values())
    (why,) = reasons
    assert why.startswith(reason)
    assert len(why.splitlines()) == 1
    assert len(why) < 300
    assert f"Spark runs a query without Headgate: {why}" in caplog.text
    assert "Traceback" not in caplog.text


def _raise(error: Exception) -> None:
    raise error


FAILING: dict[str, tuple[Callable[[], Column], type[Exception]]] = {
    "python": (lambda: F.udf(lambda n: 1 // (n - n), "long")("n"), PythonException),
    "sql": (lambda: F.expr("assert_true(n < 0)"), SparkRuntimeException),
    "java": (lambda: F.expr("java_method('java.lang.Class', 'forName', string(n))"), Py4JJavaError),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_in_spark_is_not_run_again(spark: SparkSession, hg: Headgate, name: str) -> None:
    """An error in the user's own rows is raised as Spark raises it, and the query is not run
    again."""
    column, kind = FAILING[name]
    df = counted(spark).select(column().alias("c")).groupBy("c").count()
    tracker, group = spark.sparkContext.statusTracker(), f"fails-{name}"

    def act() -> None:
        spark.sparkContext.setJobGroup(group, name)
        with pytest.raises(kind):
            df.collect()

    assert {} == left(hg, act)
    assert 2 >= len(tracker.getJobIdsForGroup(group))


MANY_ROWS = "select k, sum(n) s from numbers group by k having s > (select k from numbers)"
FEW_ROWS = """select 1 / coalesce(b.s, 0) from values (1) t(k)
    left join (select k, sum(n) s from numbers where n < 0 group by k) b using (k)"""
DEEP = "with recursive r(n) as (select 1 union all select n + 1 from r) select distinct n from r"


@pytest.mark.parametrize("query", [MANY_ROWS, FEW_ROWS, DEEP], ids=["subquery", "few", "recursion"])
def test_what_fails_in_the_driver_is_not_run_again(
    spark: SparkSession, hg: Headgate, query: str
) -> None:
    """An error of a query that no task finds is raised as Spark raises it, and the query is not run
    again."""
    counted(spark).createOrReplaceTempView("numbers")

    def condition() -> str:
        with pytest.raises((Py4JJavaError, PySparkException)) as failed:
            spark.sql(query).collect()
        error = failed.value
        java = error.java_exception if isinstance(error, Py4JJavaError) else error
        return str(java.getCondition())

    with hg.paused():
        expected = condition()
    assert {} == left(hg, lambda: expected == condition() or pytest.fail("another error"))


def test_a_registration_that_nobody_answers(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration without an answer is reported, Spark runs the query, and nothing stays
    registered."""

    class Silent(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise TimeoutError

    register = DriverMaster.register_partition_with_producer

    def silent(*given: Any) -> Future[Any]:
        register(*given).result(30)
        return Silent()

    before = len(hg.results())
    with monkeypatch.context() as patched:
        patched.setattr(DriverMaster, "register_partition_with_producer", silent)
        reasons = left(hg, lambda: counted(spark).collect())
    assert [why.startswith("Unavailable: no master has answered") for why in reasons] == [True]
    wait_until(lambda: all(result.released for result in hg.results()[before:]))
    assert len(hg.results()) == before + 1


def test_rows_that_were_read_are_given(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action that has its rows succeeds although its results cannot be released."""

    def away(*_: object) -> None:
        raise Unavailable("the broker is away")

    before = len(hg.results())
    with monkeypatch.context() as patched:
        patched.setattr(DriverMaster, "release_partition_externally", away)
        assert 7 == len(counted(spark).collect())
    (stayed,) = hg.results()[before:]
    assert stayed.result in hg.remove_unused()


def test_what_is_read_is_not_unused(spark: SparkSession, hg: Headgate) -> None:
    """`remove_unused` leaves a result that an action still reads, and releases it afterwards."""
    df = counted(spark)
    for _ in range(2):
        before = len(hg.results())
        rows = df.toLocalIterator()
        received = [next(rows)]
        assert () == hg.remove_unused()
        received += rows
        assert 7 == len(received)
    assert before == len(hg.results())
    assert 1 == len(hg.remove_unused())


def test_nothing_of_an_action_stays(spark: SparkSession, hg: Headgate) -> None:
    """No object of an action stays, even if the action fails, except results that live until the
    JVM collects its garbage."""
    before = len(hg.results())
    df = counted(spark).where("assert_true(n < 0) is null").groupBy("n").count()
    with pytest.raises(Exception, match="is not true"):
        df.collect()
    counted(spark).collect()
    hg.remove_unused()
    mine = {result.result for result in hg.results()[before:]}
    assert len(mine) == 3

    def live() -> list[str]:
        names = [stat.name for stat in findings(hg._services, recorded(hg)).live]
        return [name for name in names if name.split("/")[3] in mine]

    wait_until(lambda: live() == [])
