"""Whole queries: rows, order and schema are Spark's own, and every exchange runs in Headgate."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.window import Window

from headgate import Headgate, Invalid
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.jvm import task_rdds
from headgate.connectors.spark.jvm.scheduler import ended_jobs
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .cluster import findings, recorded
from .conftest import setting
from .entered import finished

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

GROUP = "to be cancelled"
ODD = (
    "case id % 5 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D "
    "when 3 then double('-Infinity') end"
)
SORTED = [
    ("select k, sum(v) as s from orders group by k order by s desc, k", 2),
    ("select * from orders order by d desc nulls last, x, k", 1),
    ("select * from orders order by name, v limit 9", 0),
    ("select * from (select * from orders order by v desc limit 9) order by name, v", 1),
]
UNSORTED = [
    ("select k, count(*), avg(x), max(name) from orders group by k", 1),
    ("select a.k, b.name from orders a join orders b on a.v = b.v + 1 where b.k < 9", 2),
    ("select count(distinct k), sum(distinct v) from orders", 2),
    ("select v, row_number() over (partition by k order by x, v) from orders", 1),
    ("select k, name, sum(v) from orders group by cube(k, name)", 1),
    ("select * from orders where v > (select avg(v) from orders) and k in (select k from few)", 3),
    ("select k from orders union select k from few", 1),
    ("select count(*) from (select array(map(k % 3, v % 2)) m from orders) group by m", 1),
    ("select max(v) from orders group by named_struct('a', map(k % 3, array(v % 2)))", 1),
    ("select count(*) from orders group by map(array(k % 3), map(v % 2, name))", 1),
    ("select k, explode(array(k, k + 1)) as e from (select distinct k, name from orders)", 1),
    ("with t as (select k, sum(v) s from orders group by 1) select * from t join t u using (s)", 4),
    ("select * from orders where v < 0 order by v", 1),
]


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> Iterator[None]:
    numbers = spark.range(0, 3000, 1, 4)
    orders = numbers.select(
        (F.col("id") % 97).alias("k"),
        F.col("id").alias("v"),
        F.concat(F.lit("n"), F.col("id") % 13).alias("name"),
        F.when(F.col("id") % 11 > 0, (F.col("id") * 7 % 101).cast("double")).alias("d"),
        F.expr(
            "case id % 5 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D "
            "when 3 then double('-Infinity') end"
        ).alias("x"),
    )
    orders.createOrReplaceTempView("orders")
    spark.range(0, 40, 1, 2).select((F.col("id") % 17).alias("k")).createOrReplaceTempView("few")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def told(df: DataFrame) -> list[str]:
    return [str(tuple(row)) for row in df.collect()]


def runs(context: SparkContext, group: str) -> bool:
    tracker = context.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    return any(job is not None and job.status == "RUNNING" for job in jobs)


def exchanges(hg: Headgate, df: DataFrame) -> int:
    """Return the number of a query's exchanges; assert that none is left to Spark or added by
    Spark."""
    done = finished(hg, df)
    assert (done.refused, " Exchange " in done.plan) == ((), False)
    return len(done.results) + done.reused


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize(("query", "count"), SORTED)
def test_order_is_sparks(
    spark: SparkSession, hg: Headgate, views: None, query: str, count: int, adaptive: str
) -> None:
    """Rows of an ordered query come in that order, through exchanges by range, with adaptive
    execution and without it."""
    df = spark.sql(query)
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    out = hg.offload(df)
    spark.conf.unset("spark.sql.adaptive.enabled")
    assert told(df) == told(out)
    assert df.schema == out.schema
    assert count == exchanges(hg, out)
    hg.release(out)


@pytest.mark.parametrize(("query", "count"), UNSORTED)
def test_rows_are_sparks(
    spark: SparkSession, hg: Headgate, views: None, query: str, count: int
) -> None:
    """A query gives Spark's rows, whatever it is made of, and all exchanges of its plan are
    counted."""
    df = spark.sql(query)
    out = hg.offload(df)
    assert sorted(told(df)) == sorted(told(out))
    assert df.schema == out.schema
    assert count == exchanges(hg, out)
    hg.release(out)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("select a.v, b.d from orders a join orders b on a.v = b.k where b.v < 20", 1),
        ("select a.v from orders a join (select k from orders where v + 1 < 0) b using (k)", 1),
        ("select a.v, b.d from orders a left join orders b on a.v = b.v and b.v + 1 < 0", 1),
    ],
)
def test_planned_again(
    spark: SparkSession, hg: Headgate, views: None, query: str, count: int
) -> None:
    """A side that turns out small is broadcast, and a side that turns out empty cuts its branch:
    the other side of the join is not exchanged at all."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "2500")
    try:
        df = spark.sql(query)
        out = hg.offload(df)
        assert sorted(told(df)) == sorted(told(out))
        assert count == exchanges(hg, out)
        hg.release(out)
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")


def test_planned_again_in_the_middle(spark: SparkSession, hg: Headgate, views: None) -> None:
    """Spark's work above an exchange that has begun is kept when the rest is planned again: strings
    that are equal without being the same are made distinct behind a sort."""
    named = "select distinct if(v % 2 = 0, name, upper(name)) collate UTF8_LCASE c, k from orders"
    df = spark.sql(
        f"select lower(c), k, n from ({named}) full join (select k, count(*) n from few"
        " group by k) using (k)"
    )
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "2500")
    out = hg.offload(df)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    assert sorted(told(df)) == sorted(told(out))
    hg.release(out)


def test_equal_exchanges_over_equal_exchanges_run_once(
    spark: SparkSession, hg: Headgate, views: None
) -> None:
    """A subquery that stands twice in a query runs once, with all of its exchanges."""
    sums = "select k, name, sum(v) s from orders group by k, name"
    most = f"select name, max(s) m from ({sums}) group by name"
    df = spark.sql(f"select 1 x, * from ({most}) union all select 2, * from ({most})")
    out = hg.offload(df)
    assert sorted(told(df)) == sorted(told(out))
    done = finished(hg, out)
    assert (len(done.results), done.reused) == (2, 2)
    hg.release(out)


@pytest.mark.parametrize("end", ["", "order by n, k limit 5"])
def test_schema_is_sparks(spark: SparkSession, hg: Headgate, views: None, end: str) -> None:
    """The schema's nullability is the query's own, even where the optimizer has lost it."""
    counted = "select count(*) n from orders i where i.v = o.k"
    df = spark.sql(f"select o.k, x.n from few o, lateral ({counted}) x {end}")
    out = hg.offload(df)
    assert [True, False] == [field.nullable for field in df.schema]
    assert df.schema == out.schema
    hg.release(out)


@pytest.mark.parametrize("end", ["", "order by n, o.k limit 5"])
def test_a_repeated_column_keeps_its_names(
    spark: SparkSession, hg: Headgate, views: None, end: str
) -> None:
    """A column that the query names twice has both names, even where the optimizer has lost what
    the query says of its columns."""
    counted = "select count(*) n from orders i where i.v = o.k"
    df = spark.sql(f"select o.k, o.K, x.n from few o, lateral ({counted}) x {end}")
    out = hg.offload(df)
    assert ["k", "K", "n"] == out.columns
    assert df.schema == out.schema
    assert sorted(told(df)) == sorted(told(out))
    hg.release(out)


def test_what_is_said_of_a_column_is_sparks(spark: SparkSession, hg: Headgate, views: None) -> None:
    """The metadata of columns is Spark's own, even if Spark merges two subqueries and renames their
    columns."""
    two = "select (select max(k) from few) a, k, v from orders where v >= (select min(k) from few)"
    df = spark.sql(f"select a a, k, v from ({two}) order by a, k, v limit 5")
    out = hg.offload(df)
    assert df.schema.json() == out.schema.json()
    assert sorted(told(df)) == sorted(told(out))
    hg.release(out)


def test_neighbours_are_read_together(spark: SparkSession, hg: Headgate, views: None) -> None:
    """Small neighbours are read together. Both sides of a join are cut alike, Spark adds no
    exchange, and the result does not claim a hash partitioning that it does not have."""
    df = spark.sql("select a.k, count(*) c from orders a join orders b on a.v = b.v group by a.k")
    out = hg.offload(df)
    assert sorted(told(df)) == sorted(told(out))
    *_, join, grouped = hg.results()
    assert (join.partitions, grouped.partitions) == (4, 1)
    assert (out.rdd.getNumPartitions(), grouped.rows) == (1, 97)
    joined = out.join(spark.table("few").distinct(), "k")
    assert sorted(told(df.join(spark.table("few").distinct(), "k"))) == sorted(told(joined))
    hg.release(out)


def test_rows_that_nobody_asks_for_are_not_read(
    spark: SparkSession, hg: Headgate, views: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task reads a side of a join where the other side has no rows. A reader that had begun
    would be cut off, and its Python worker with it."""
    monkeypatch.setattr(run, "read_by_driver", lambda *task: None)
    df = spark.sql(
        "select /*+ merge(b) */ a.k, b.v from (select * from orders where v = 7) a "
        "join orders b on a.v = b.v"
    )
    with setting(spark, {"spark.sql.adaptive.enabled": "false"}):
        out = hg.offload(df)
        assert sorted(told(df)) == sorted(told(out))
    deadline = Deadline.after(20)
    while True:  # readers' facts come a little later
        skipped, read = sorted(hg.report().results[-2:], key=lambda result: result.consumed)
        if (skipped.consumed and read.consumed == read.subpartitions) or deadline.passed:
            break
        SYSTEM_CLOCK.sleep_s(0.1)
    assert (1, read.subpartitions) == (read.rows, read.consumed)
    assert 1 == skipped.consumed < skipped.subpartitions
    hg.release(out)


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_partitions_that_were_asked_for(
    spark: SparkSession, hg: Headgate, views: None, adaptive: str
) -> None:
    """A query that asks for a number of partitions gets it: round robin, by range, and by hash."""
    df = spark.table("orders")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    for asked in (df.repartition(5), df.repartition(6, "k"), df.repartitionByRange(7, "name", "v")):
        out = hg.offload(asked)
        assert sorted(told(df)) == sorted(told(out))
        given = sorted(out.rdd.glom().map(len).collect())
        assert len(given) == asked.rdd.getNumPartitions()
        assert given[-1] - given[0] <= 5 or len(given) == 6
        hg.release(out)
    spark.conf.unset("spark.sql.adaptive.enabled")


def test_what_cannot_be_carried_stays(spark: SparkSession, hg: Headgate, views: None) -> None:
    """An exchange of rows that Arrow does not take runs in Spark and is reported; exchanges above
    it run in Headgate."""
    spans = "select k, make_interval(0, 0, 0, int(v)) as i from orders"
    df = spark.sql(f"select k, count(*) from (select distinct k, i from ({spans})) group by k")
    out = hg.offload(df)
    assert sorted(told(df)) == sorted(told(out))
    done = finished(hg, out)
    assert (len(done.results), len(done.refused)) == (1, 1)
    assert "calendar interval" in hg.explain(out)
    hg.release(out)


def test_failures_are_sparks_and_nothing_stays(
    spark: SparkSession, hg: Headgate, views: None
) -> None:
    """An error in the user's own rows is raised as Spark raises it, and stored results are
    released."""
    counted = "select k, count(*) as c from orders group by k"
    df = spark.sql(
        f"select c, count(*) from ({counted}) where assert_true(c < 0) is null group by c"
    )
    with pytest.raises(SparkRuntimeException, match="is not true"):
        hg.offload(df)
    assert hg.results()[-1].released is not None
    hg.release(hg.offload(spark.table("orders").distinct()))
    assert findings(hg._services, recorded(hg)).live == ()


@pytest.mark.parametrize("kind", ["row", "pandas", "grouped", "cogrouped", "arrow", "window"])
def test_python_functions(spark: SparkSession, hg: Headgate, views: None, kind: str) -> None:
    """The user's functions run in the stages between exchanges as they do in Spark."""
    df = spark.table("orders").select("k", "v", "name")

    def summed(v: pd.Series) -> int:
        return int(v.sum())

    total: Any = pandas_udf(summed, "long")  # type: ignore[call-overload]
    made = {
        "row": lambda: df.groupBy(udf(lambda k: k % 5, "long")("k").alias("u")).count(),
        "pandas": lambda: df.groupBy("k").agg(total("v")),
        "grouped": lambda: df.groupBy("k").applyInPandas(lambda rows: rows.head(1), df.schema),
        "cogrouped": lambda: (
            df.groupBy("k")
            .cogroup(df.groupBy("k"))
            .applyInPandas(lambda left, right: left.head(1), df.schema)
        ),
        "arrow": lambda: df.distinct().mapInArrow(lambda batches: batches, df.schema).distinct(),
        "window": lambda: df.select("k", total("v").over(Window.partitionBy("name"))),
    }[kind]()
    out = hg.offload(made)
    assert sorted(told(made)) == sorted(told(out))
    assert exchanges(hg, out) >= 1
    hg.release(out)


@pytest.mark.parametrize(
    ("cancel", "error", "message"),
    [
        (lambda spark: spark.sparkContext.cancelJobGroup(GROUP), Py4JJavaError, "cancelled job"),
        (lambda spark: spark.interruptAll(), Py4JJavaError, "cancelled"),
        (lambda _: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt, None),
    ],
    ids=["group", "session", "interrupt"],
)
def test_cancelled(
    spark: SparkSession,
    hg: Headgate,
    views: None,
    cancel: Callable[[SparkSession], None],
    error: type[BaseException],
    message: str | None,
) -> None:
    """Cancelling a query's job group, interrupting its session's operations, or its driver, ends
    its map stages and releases its stored results."""

    def wait(n: int) -> int:
        SYSTEM_CLOCK.sleep_s(0.5)
        return n

    slow = udf(lambda n: wait(n), "long")
    counted = spark.table("orders").groupBy("k").count()
    df = counted.select("k", slow("count").alias("n")).groupBy("n").count()
    context, before = spark.sparkContext, len(hg.results())

    def cancel_soon() -> None:
        deadline = Deadline.after(60)
        while not (len(hg.results()) == before + 2 and runs(context, GROUP)):
            assert not deadline.passed
            SYSTEM_CLOCK.sleep_s(0.001)
        cancel(spark)

    context.setJobGroup(GROUP, "a slow query")
    with ThreadPoolExecutor(1) as beside:
        cancelled = beside.submit(cancel_soon)
        with pytest.raises(error, match=message):
            hg.offload(df)
        cancelled.result()
    assert not runs(context, GROUP)
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert all(result.released for result in hg.results()[before:])


def test_no_class_is_looked_up_again(
    spark: SparkSession, hg: Headgate, views: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that one query has looked up are not looked up again by the next query, because the
    JVM searches all its jars for a package."""
    df = spark.sql("select k, count(*) from orders group by k order by k")
    hg.release(hg.offload(df))
    gateway, asked = spark.sparkContext._gateway, []
    assert gateway is not None
    send = gateway._gateway_client.send_command

    def noted(command: str, *rest: Any, **more: Any) -> Any:
        asked.append(command)
        return send(command, *rest, **more)

    monkeypatch.setattr(gateway._gateway_client, "send_command", noted)
    hg.release(hg.offload(df))
    assert len(asked) > 100
    assert [] == [
        command
        for command in asked
        if command.startswith(("r\nu\norg", "r\nu\nscala", "r\nu\njava"))
    ]


def test_explained(spark: SparkSession, hg: Headgate, views: None) -> None:
    """`explain` shows what would run in Headgate before a query, and the cost of each exchange
    after it."""
    df = spark.sql("select k, count(*) from orders group by k order by k")
    assert hg.explain(df).count("runs in Headgate") == 2
    out = hg.offload(df)
    assert out.count() == 97
    assert "4 x 4, 388 rows" in hg.explain(out)
    hg.release(out)
    with pytest.raises(Invalid):
        hg.release(out)


def test_no_value_of_a_query_is_told(spark: SparkSession, hg: Headgate) -> None:
    """Neither the log nor Spark's pages contain literals of the user's expressions, which may be
    secrets."""
    secret = "MY-SECRET-KEY-16"
    key = F.expr(f"aes_encrypt(string(id), '{secret}')")
    numbers = spark.range(0, 40, 1, 2)
    hg.release(hg.offload(numbers.repartition(3, key)))
    hg.release(hg.offload(numbers.repartitionByRange(3, key)))
    hg.release(hg.repartition(numbers, 3, key, "id", F.col("id")))
    labels = [result.label for result in hg.results()[-3:]]
    assert [True] * 3 == ["id" in label for label in labels]
    assert not [record for record in recorded(hg) if secret in str(record.event)]
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(at).description().toString() for at in range(jobs.size())]
    assert not [description for description in described if secret in description]


def test_each_map_stage_is_described_by_its_result(
    spark: SparkSession, views: None, hg: Headgate
) -> None:
    """Map stages that run side by side have descriptions of their own in Spark's pages."""
    before = {job.jobId() for job in ended_jobs(spark)}
    out = hg.offload(
        spark.sql(
            "select * from (select k, sum(v) from orders group by k) a "
            "join (select v % 97 k, count(*) from orders group by 1) b using (k)"
        )
    )
    jobs = [job for job in ended_jobs(spark) if job.jobId() not in before]
    named = [" ".join(str(job.description().get()).split()[:3]) for job in jobs]
    results = [each.result for each in finished(hg, out).results]
    assert sorted(named) == sorted(f"headgate: write {result}" for result in results)


def test_code_that_is_added_later_reaches_the_tasks(
    spark: SparkSession, hg: Headgate, tmp_path: Path
) -> None:
    """Tasks import from a file that the user adds after other tasks have run."""
    rows = spark.range(60).selectExpr("id % 3 as k", "id as v")
    assert hg.repartition(rows, 2, "k").count() == 60
    archive = tmp_path / "added_later.zip"
    with ZipFile(archive, "w") as file:
        file.writestr("added_later.py", "def same(table):\n    return table\n")
    spark.sparkContext.addPyFile(str(archive))

    def same(table: pa.Table) -> pa.Table:
        added: Any = import_module("added_later")
        result: pa.Table = added.same(table)
        return result

    asked = rows.groupBy("k").applyInArrow(same, "k long, v long")
    assert sorted(hg.offload(asked).collect()) == sorted(rows.collect())


def test_a_task_may_be_larger_than_a_message(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that are too large to be sent with each task travel as PySpark's own do."""
    monkeypatch.setattr(task_rdds, "_COMMAND_BYTES_MAX", 0)
    rows = spark.range(60).selectExpr("id % 3 as k", "id as v")
    assert sorted(hg.repartition(rows, 2, "k").collect()) == sorted(rows.collect())
