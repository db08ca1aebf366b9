"""Small results that the driver reads: the same rows, no task that reads, and tasks where they do
better."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.run import check_rows
from headgate.control.events.types import BY_DRIVER, Consumed

from .cluster import audited, recorded, segments
from .conftest import setting

pytestmark = pytest.mark.timeout(240)
CONF = {"spark.headgate.driver.read.bytes": "128k"}


def placed(df: DataFrame) -> list[str]:
    """Return every row with its partition."""
    return sorted(str(tuple(row)) for row in df.select(F.spark_partition_id(), "*").collect())


def newest(hg: Headgate) -> str:
    return hg.results()[-1].result


def readers(hg: Headgate, result: str) -> list[int]:
    """Return the readers of a result."""
    bodies = (record.event.body for record in recorded(hg))
    return [b.task for b in bodies if isinstance(b, Consumed) and b.result == result]


@pytest.mark.parametrize(
    "columns",
    [
        "id as v, id % 3 = 0 as b, cast(id as byte) as c, cast(id as short) as d",
        "concat('t', id) as s, if(id % 3 = 0, null, encode(id, 'utf-8')) as b, null as n",
        "cast(id as decimal(9, 2)) as d, cast(id as decimal(38, 9)) as e, cast(id as double) as f",
        "date_add(date '2026-01-01', cast(id as int)) as d, timestamp_micros(id) as t",
        "array(id, null) as a, if(id % 5 = 0, null, struct(id as x, 'y' as y)) as s",
        "map(id, array(id % 2)) as m, id as v",
    ],
)
@pytest.mark.parametrize("n", [1, 9])
def test_rows_are_where_spark_puts_them(
    spark: SparkSession, hg: Headgate, columns: str, n: int
) -> None:
    """The rows of all types come from the driver, each in the partition that Spark gives it, also
    where most partitions have none. They are there when every object is gone."""
    df = spark.sql(f"select id % 4 as k, {columns} from range(0, 40, 1, 3)")
    out = hg.repartition(df, n, "k")
    hg._services.store.delete(segments(hg))
    assert placed(df.repartition(n, "k")) == placed(out) == placed(out)
    assert [BY_DRIVER] == readers(hg, newest(hg))
    audited(recorded(hg))


def test_no_rows(spark: SparkSession, hg: Headgate) -> None:
    out = hg.repartition(spark.range(10).where("id < 0"), 3, "id")
    assert (out.count(), out.rdd.getNumPartitions()) == (0, 3)
    assert [BY_DRIVER] == readers(hg, newest(hg))


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_the_exchanges_of_a_query(spark: SparkSession, hg: Headgate, adaptive: str) -> None:
    """A query whose exchanges are all small has its rows, with neighbours read together or not, and
    no task reads."""
    spark.range(0, 300, 1, 3).selectExpr("id % 20 k", "id v").createOrReplaceTempView("left_rows")
    spark.range(0, 30, 1, 2).selectExpr("id k", "id w").createOrReplaceTempView("right_rows")
    query = "select k, count(v), sum(w) from left_rows full join right_rows using (k) group by k"
    before = len(hg.results())
    unset = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.enabled": adaptive}
    with setting(spark, unset):
        rows = sorted(map(tuple, hg.offload(spark.sql(query)).collect()))
    assert [(k, 15, 15 * k) if k < 20 else (k, 0, k) for k in range(30)] == rows
    assert len(hg.results()) > before + 1
    assert {BY_DRIVER} == set(readers(hg, newest(hg)))


def test_what_is_lost_is_made_again(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an object is gone before the driver reads it, tasks read, and its partition is made
    again."""

    def losing(*given: Any) -> None:
        hg._services.store.delete(segments(hg)[:1])
        check_rows(*given)

    monkeypatch.setattr(run, "check_rows", losing)
    df = spark.range(0, 300, 1, 3).selectExpr("id % 20 k", "id v")
    out, name = hg.repartition(df, 2, "k"), newest(hg)
    assert [] == readers(hg, name)
    assert placed(df.repartition(2, "k")) == placed(out)
    assert (2, False) == (len(readers(hg, name)), BY_DRIVER in readers(hg, name))
    assert [1, 1, 2] == sorted(len(hg.ops.why(name, index)) for index in range(3))
    audited(recorded(hg))


def test_a_map_stage_of_these_rows_runs_again(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost partition whose map stage uses rows of the driver is made again with the same rows."""
    df = spark.range(0, 300, 1, 3).selectExpr("id % 20 k", "id v")
    first = hg.repartition(df, 3, "k")
    assert [BY_DRIVER] == readers(hg, newest(hg))
    monkeypatch.setattr(run, "read_by_driver", lambda *task: None)
    again, name = hg.repartition(first.selectExpr("v as k", "k as v"), 2, "k"), newest(hg)
    hg._services.store.delete(segments(hg)[:1])
    expected = df.selectExpr("v as k", "k as v").repartition(2, "k")
    assert placed(expected) == placed(again)
    assert [1, 1, 2] == sorted(len(hg.ops.why(name, index)) for index in range(3))
    audited(recorded(hg))


def test_a_result_by_its_name(spark: SparkSession, hg: Headgate) -> None:
    df = spark.range(0, 300, 1, 3).selectExpr("id % 20 k", "id v")
    out, name = hg.repartition(df, 3, "k"), newest(hg)
    assert placed(out) == placed(hg.read(name))
    assert [BY_DRIVER, BY_DRIVER] == readers(hg, name)


@pytest.mark.parametrize(
    ("columns", "count"),
    [("concat(uuid(), uuid()) as v", 6_000), ("repeat('x', 100000) as v", 100)],
)
def test_what_is_not_small_is_read_by_tasks(
    spark: SparkSession, hg: Headgate, columns: str, count: int
) -> None:
    """Tasks read rows that take more bytes than the setting, or far more without compression."""
    df = spark.sql(f"select id % 20 as k, {columns} from range(0, {count}, 1, 2)")
    out, written = hg.repartition(df, 2, "k"), hg.results()[-1]
    assert (out.count(), BY_DRIVER in readers(hg, written.result)) == (count, False)
    assert (written.stored_bytes > 131072) == ("uuid" in columns)


def test_many_objects_are_read_by_tasks(spark: SparkSession, hg: Headgate) -> None:
    """One process is slower than all tasks to read more than a few objects."""
    out, result = hg.repartition(spark.range(0, 200, 1, 70), 2, "id"), newest(hg)
    assert (out.count(), BY_DRIVER in readers(hg, result)) == (200, False)
