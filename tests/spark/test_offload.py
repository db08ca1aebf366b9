"""Whole queries: the rows, order and schema are Spark's own, and each exchange ran here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate

pytestmark = pytest.mark.timeout(300)

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


def exchanges(hg: Headgate, df: DataFrame) -> int:
    done = hg._offloaded[df]
    assert done.refused == ()
    return len(done.results) + done.reused


@pytest.mark.parametrize(("query", "count"), SORTED)
def test_order_is_sparks(
    spark: SparkSession, hg: Headgate, views: None, query: str, count: int
) -> None:
    """Rows that a query puts in order come in that order, through exchanges in its range."""
    df = spark.sql(query)
    out = hg.offload(df)
    assert told(df) == told(out)
    assert df.schema == out.schema
    assert count == exchanges(hg, out)
    hg.release(out)


@pytest.mark.parametrize(("query", "count"), UNSORTED)
def test_rows_are_sparks(
    spark: SparkSession, hg: Headgate, views: None, query: str, count: int
) -> None:
    """The same rows, whatever a query is made of, and every exchange of its plan is accounted."""
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
    """What turns out small is sent to everybody, what turns out empty cuts its branch: the other
    side of the join is not exchanged at all."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "2500")
    try:
        df = spark.sql(query)
        out = hg.offload(df)
        assert sorted(told(df)) == sorted(told(out))
        assert count == exchanges(hg, out)
        hg.release(out)
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
