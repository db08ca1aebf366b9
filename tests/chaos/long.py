"""An application of many small exchanges with known rows: `python -m tests.chaos.long`.

Some of its results are promoted, for ever or for a short time. A later application of the same job
looks for those first, and continues with the exchanges that were not reported as done.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK

from .application import session, tell

KEYS, WIDE_CHARS, WIDE_ROWS = 17, 100_000, 50
PROMOTED_EVERY, SOON_MS = 10, 60_000
_SETTINGS = {"spark.executor.memory": "512m", "spark.task.maxFailures": "16"}

Rows = list[list[int]]


def plain(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id")
    return spark.range(0, rows, 1, 3).select((number % KEYS).alias("k"), number.alias("v"))


def pairs(rows: int) -> Rows:
    return [[number % KEYS, number] for number in range(rows)]


def hashed(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    return hg.repartition(plain(spark, rows), 3, "k"), pairs(rows)


def dealt(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    return hg.offload(plain(spark, rows).repartition(4)), pairs(rows)


def ordered(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    return hg.offload(plain(spark, rows).orderBy(F.desc("v"))), pairs(rows)


def added(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    sums = Counter[int]()
    for key, value in pairs(rows):
        sums[key] += value
    out = hg.offload(plain(spark, rows).groupBy("k").agg(F.sum("v").alias("v")))
    return out, [list(pair) for pair in sums.items()]


def called(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    def count(table: pa.Table) -> pa.Table:
        return pa.table({"k": table["k"].slice(0, 1), "v": [table.num_rows]})

    out = hg.group_by(plain(spark, rows), "k").applyInArrow(count, "k long, v long")
    return out, [list(pair) for pair in Counter(key for key, _ in pairs(rows)).items()]


def wide(spark: SparkSession, hg: Headgate, rows: int) -> tuple[DataFrame, Rows]:
    text = F.repeat(F.lit("x"), WIDE_CHARS).alias("t")
    stored = hg.repartition(plain(spark, WIDE_ROWS).select("k", "v", text), 2, "k")
    right = [[key, WIDE_CHARS] for key, _ in pairs(WIDE_ROWS)]
    return stored.select("k", F.length("t").alias("v")), right


KINDS: tuple[Callable[[SparkSession, Headgate, int], tuple[DataFrame, Rows]], ...] = (
    hashed,
    ordered,
    added,
    dealt,
    called,
    wide,
)


def read(df: DataFrame) -> Rows:
    return sorted([row["k"], row["v"]] for row in df.collect())


def exchange(spark: SparkSession, hg: Headgate, number: int) -> dict[str, Any]:
    """Run an exchange, and report whether its rows are right."""
    promoted = number % PROMOTED_EVERY == 0
    kind = hashed if promoted else KINDS[number % len(KINDS)]
    out, right = kind(spark, hg, 100 + 37 * number % 5_000)
    answer, report = read(out), dict[str, Any](exchange=number)
    if answer != sorted(right):
        rows = f"{len(answer)} rows, {len(right)} are right"
        report["wrong"] = f"exchange {number}, {kind.__name__}: {rows}"
    if promoted:
        is_soon = number // PROMOTED_EVERY % 2
        name = hg.promote(out, SYSTEM_CLOCK.now_ms() + SOON_MS if is_soon else 0)
        report["soon" if is_soon else "promoted"] = {name: len(right)}
    return report


def look_for(hg: Headgate, promoted: Mapping[str, int]) -> dict[str, Any]:
    """Report the promoted results that no longer have their rows."""
    wrong = []
    for name, rows in promoted.items():
        answer = read(hg.read(name)) if hg.ops.is_available(name) else []
        if answer != sorted(pairs(rows)):
            wrong.append(f"{name} has {len(answer)} rows, {rows} are right")
    return {"wrong": ", ".join(wrong)} if wrong else {}


def run(spark: SparkSession, given: Mapping[str, Any]) -> None:
    tell("attaching")
    hg = attach(spark)
    tell("working", **look_for(hg, given["promoted"]))
    begun_s = SYSTEM_CLOCK.monotonic_s()
    for at, number in enumerate(range(given["done"], given["exchanges"])):
        due_s = begun_s + at * given["pace_s"]
        SYSTEM_CLOCK.sleep_s(max(0.0, due_s - SYSTEM_CLOCK.monotonic_s()))
        tell("working", **exchange(spark, hg, number))
    tell("closing")
    hg.close()
    tell("closed")


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session(given["conf"], "local-cluster[1,2,512]", **_SETTINGS)
    run(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
