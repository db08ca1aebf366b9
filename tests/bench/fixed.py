"""The fixed cost of an exchange: 100 rows, warm, against Spark's own shuffle."""

from __future__ import annotations

from statistics import median

from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

from ..spark.entered import by_spark_alone
from .places import attached, consume

_WARM_UP = 40  # so many queries later the JVM has compiled most of what it runs


def run(spark: SparkSession, rounds: int, places: list[str]) -> Table:
    df = spark.range(0, 100, 1, 2).selectExpr("id % 10 AS k", "id AS v")
    table = Table("where", "Spark's own ms", "ours ms", "over ms", "of it writing ms")
    table.title = "exchange of 100 rows into 2, warm"
    for place in places:
        with attached(spark, place) as (hg, meter):
            own, ours, writes = [], [], []
            for _ in range(rounds + _WARM_UP):
                with by_spark_alone(hg):
                    own.append(meter.measure(lambda: consume(df.repartition(2, "k"))).wall_s)
                made: list[DataFrame] = []
                write = meter.measure(lambda made=made: made.append(hg.repartition(df, 2, "k")))  # type: ignore[misc]
                read = meter.measure(lambda made=made: consume(made[0]))  # type: ignore[misc]
                hg.release(made[0])
                ours.append(write.wall_s + read.wall_s)
                writes.append(write.wall_s)
            figures = [median(s[_WARM_UP:]) * 1000 for s in (own, ours, writes)]
            over = figures[1] - figures[0]
            table.add_row(
                place, f"{figures[0]:.0f}", f"{figures[1]:.0f}", f"{over:.0f}", f"{figures[2]:.0f}"
            )
    return table
