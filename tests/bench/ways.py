"""A wide exchange of a gigabyte, read from the objects of its map tasks and from combined ones."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from ..spark.conftest import setting
from .exchange import add
from .places import attached, consume

_ROWS, _PARTITIONS, _SUBPARTITIONS = 12_000_000, 200, 2_000


def run(spark: SparkSession) -> Table:
    numbers = spark.range(0, _ROWS, 1, _PARTITIONS)
    text = F.sha2(F.col("id").cast("string"), 256).alias("s")
    df = numbers.select("id", (F.hash("id") % 100_000).alias("k"), F.rand(1).alias("x"), text)
    table = Table("way", "objects", "PUT", "GET", "MB", "s", "JVM", "Python", "store", "broker")
    table.title = f"{_PARTITIONS} x {_SUBPARTITIONS}; CPU seconds of each process"
    for name, combine in {"direct": "false", "combined": "true"}.items():
        with setting(spark, {"spark.headgate.combine": combine}):
            table.add_row(name, *_figures(spark, df))
    table.add_row("Spark's own", *_own(spark, df))
    return table


def _figures(spark: SparkSession, df: DataFrame) -> list[str]:
    with attached(spark, "real") as (hg, meter):
        made: list[DataFrame] = []
        before = hg.report()  # of the same application
        write = meter.measure(lambda: made.append(hg.repartition(df, _SUBPARTITIONS, "k")))
        cost = add(write, meter.measure(lambda: consume(made[0])))
        report = hg.report()
        last = report.results[-1]
        return [
            str(last.puts),
            f"{report.puts - before.puts:,}",
            f"{report.gets - before.gets:,}",
            f"{last.stored_bytes / 1e6:.0f}",
            *(f"{cpu_s:.1f}" for cpu_s in (cost.wall_s, cost.jvm_s, cost.python_s)),
            *(f"{cpu_s:.1f}" for cpu_s in (cost.store_s, cost.broker_s)),
        ]


def _own(spark: SparkSession, df: DataFrame) -> list[str]:
    with attached(spark, "real") as (_, meter):
        cost = meter.measure(lambda: consume(df.repartition(_SUBPARTITIONS, "k")))
    figures = (f"{cpu_s:.1f}" for cpu_s in (cost.wall_s, cost.jvm_s, cost.python_s))
    return ["", "", "", "", *figures, "", ""]
