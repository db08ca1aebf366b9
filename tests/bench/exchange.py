"""Repartition narrow or wide rows, in turn with Spark's own shuffle on local disk."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

from headgate import Headgate

from ..spark.entered import by_spark_alone
from .measure import Cost, Meter, middle
from .places import attached, consume, rows
from .tpch import views

_WARM_UP = 3


def narrow(spark: SparkSession, rounds: int, places: list[str], counts: list[int]) -> Table:
    """Repartition 10M rows of four columns."""
    return _run(spark, rounds, places, counts, rows(spark), "k", "10M rows x 4 columns")


def wide(
    spark: SparkSession, rounds: int, places: list[str], counts: list[int], scale: float
) -> Table:
    """Repartition the table `lineitem` of TPC-H: 16 columns, 6M rows at scale 1."""
    views(spark, scale)
    df, title = spark.table("lineitem"), f"lineitem at scale {scale:g}"
    return _run(spark, rounds, places, counts, df, "l_orderkey", title)


def _run(
    spark: SparkSession,
    rounds: int,
    places: list[str],
    counts: list[int],
    df: DataFrame,
    key: str,
    title: str,
) -> Table:
    table = Table("where", "n", "wall", "CPU", "Spark s", "ours s", "write s", "services CPU s")
    table.title = f"repartition of {title}, ratios to Spark's own shuffle in the same run"
    for place in places:
        with attached(spark, place) as (hg, meter):
            for n in counts:
                own, ours, write = compare(hg, meter, df, key, n, rounds)
                table.add_row(
                    place,
                    str(n),
                    f"{ours.wall_s / own.wall_s:.2f} x",
                    f"{ours.cpu_s / own.cpu_s:.2f} x",
                    f"{own.wall_s:.2f} ({own.cpu_s:.2f} CPU)",
                    f"{ours.wall_s:.2f} ({ours.jvm_s:.2f} + {ours.python_s:.2f} CPU)",
                    f"{write.wall_s:.2f} ({write.jvm_s:.2f} + {write.python_s:.2f} CPU)",
                    f"{ours.store_s:.2f} + {ours.broker_s:.2f}",
                )
    return table


def compare(
    hg: Headgate, meter: Meter, df: DataFrame, key: str, n: int, rounds: int
) -> tuple[Cost, Cost, Cost]:
    """Return the medians of Spark's own shuffle, of ours, and of our writing; first rounds only
    warm up."""
    own, ours, writes = [], [], []
    for _ in range(rounds + _WARM_UP):
        with by_spark_alone(hg):
            own.append(meter.measure(lambda: consume(df.repartition(n, key))))
        made: list[DataFrame] = []
        write = meter.measure(lambda made=made: made.append(hg.repartition(df, n, key)))  # type: ignore[misc]
        read = meter.measure(lambda made=made: consume(made[0]))  # type: ignore[misc]
        hg.release(made[0])
        ours.append(add(write, read))
        writes.append(write)
    return middle(own[_WARM_UP:]), middle(ours[_WARM_UP:]), middle(writes[_WARM_UP:])


def add(left: Cost, right: Cost) -> Cost:
    nothing = Cost(0.0, 0.0, 0.0, 0.0, 0.0)
    return left - (nothing - right)
