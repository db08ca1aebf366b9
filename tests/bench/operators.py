"""Functions for groups of rows: Spark's own way and Headgate's, in turn, in one warm session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from headgate import Headgate

from .places import ROWS, attached, consume, rows

_GROUPS = 5_000
_SCHEMA = "k string, n long, mean double"
_FEW = "1,000 groups"


def mean(table: pa.Table) -> pa.Table:
    """What every case calls: about the least that one would write."""
    key, value = table["k"][0].as_py(), pc.mean(table["x"]).as_py()
    return pa.table({"k": [str(key)], "n": [table.num_rows], "mean": [value]})


def _cases(spark: SparkSession) -> Mapping[str, tuple[int, DataFrame]]:
    """How many groups there are, and the rows."""
    given = rows(spark)
    hashed = F.expr("abs(hash(v))")
    wide = [F.col("v").alias(f"v{at}") for at in range(46)]
    skewed = F.when(F.col("v") % 10 < 3, F.lit(0)).otherwise(hashed % 200_000)
    return {
        _FEW: (1_000, given.withColumn("k", hashed % 1_000)),
        "200,000 groups": (200_000, given.withColumn("k", hashed % 200_000)),
        "1,000,000 groups": (1_000_000, given.withColumn("k", hashed % 1_000_000)),
        "string keys, 200,000 groups": (
            200_000,
            given.withColumn("k", F.concat(F.lit("key-"), hashed % 200_000)),
        ),
        "a key of 30 %, 200,000 groups": (200_000, given.withColumn("k", skewed)),
        "50 columns, 20,000 groups of 1,000,000 rows": (
            20_000,
            given.filter(f"v < {ROWS // 10}").withColumn("k", hashed % 20_000).select("*", *wide),
        ),
    }


def run(spark: SparkSession, rounds: int) -> Table:
    alone_us = _alone_us()
    title = f"applyInArrow, median of {rounds}; the function alone takes {alone_us:.0f} us a group"
    table = Table(title=title)
    for column in ("case", "Spark s", "Headgate s", "times as fast", "own us a group"):
        table.add_column(column, justify="left" if column == "case" else "right")
    slots = spark.sparkContext.defaultParallelism
    with attached(spark, "real") as (hg, _):
        few_s = 0.0
        for name, (groups, given) in _cases(spark).items():
            spark_s, ours_s = _compare(hg, given, rounds)
            few_s = ours_s if name == _FEW else few_s
            own_us = (ours_s - few_s) * slots * 1e6 / groups - alone_us
            told = f"{own_us:.1f}" if groups >= 200_000 else ""
            table.add_row(name, f"{spark_s:.2f}", f"{ours_s:.2f}", f"{spark_s / ours_s:.2f}", told)
    return table


def _compare(hg: Headgate, given: DataFrame, rounds: int) -> tuple[float, float]:
    """Seconds of Spark and of Headgate, the first round not counted."""
    query, theirs, ours = given.groupBy("k").applyInArrow(mean, _SCHEMA), [], []

    def through() -> None:
        out = hg.offload(query)
        consume(out)
        hg.release(out)

    for _ in range(rounds + 1):
        theirs.append(_seconds(lambda: consume(query)))
        ours.append(_seconds(through))
    return median(theirs[1:]), median(ours[1:])


def _seconds(work: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    work()
    return time.monotonic() - begun_s


def _alone_us() -> float:
    """What the function takes for a group of 50 rows."""
    group = pa.table({"k": range(50), "v": range(50), "x": [0.5] * 50, "s": ["name"] * 50})
    return _seconds(lambda: [mean(group) for _ in range(_GROUPS)]) * 1e6 / _GROUPS
