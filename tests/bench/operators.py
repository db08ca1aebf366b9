"""Functions for groups of rows: Spark's own way and Headgate's, in turn, in one warm session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from headgate import Headgate

from ..processes import descendants
from .measure import peak_bytes
from .places import ROWS, attached, consume, rows

SCHEMA = "k long, mean double"
_CALLS = 5_000
_RESET_PEAK = "5"
_FEW, _MANY, _MOST = 1_000, 200_000, 1_000_000


def in_arrow(table: pa.Table) -> pa.Table:
    """About the least that one would write."""
    return pa.table({"k": [table["k"][0].as_py()], "mean": [pc.mean(table["x"]).as_py()]})


def in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [frame["k"].iat[0]], "mean": [frame["x"].mean()]})


def of_two(left: pa.Table, right: pa.Table) -> pa.Table:
    return in_arrow(left if left.num_rows else right)


@dataclass(frozen=True, slots=True)
class Case:
    """A query over so many groups; and what its function is given, for a call of its own."""

    name: str
    groups: int
    query: DataFrame
    function: Callable[..., Any]
    given: tuple[Any, ...]


@dataclass(slots=True)
class Side:
    """Seconds and the peak of any Python worker, of one side of a comparison."""

    took_s: list[float]
    peak: int = 0


def cases(spark: SparkSession) -> list[Case]:
    given = rows(spark)
    hashed = F.expr("abs(bigint(hash(v)))")
    keyed = {count: given.withColumn("k", hashed % count) for count in (_FEW, _MANY, _MOST)}
    skewed = F.when(F.col("v") % 10 < 3, F.lit(0)).otherwise(hashed % _MANY).cast("long")
    wide = [F.col("v").alias(f"v{at}") for at in range(46)]
    few = given.filter(f"v < {ROWS // 10}").withColumn("k", hashed % 20_000)
    named = given.withColumn("k", F.concat(F.lit("key-"), hashed % _MANY))
    part = keyed[_MANY].filter("v % 5 = 0")
    both = keyed[_MANY].groupBy("k").cogroup(part.groupBy("k")).applyInArrow(of_two, SCHEMA)
    return [
        *(_arrow(f"{count:,} groups", count, keyed[count]) for count in keyed),
        _arrow("string keys", _MANY, named),
        _arrow("a key of 30 %", _MANY, given.withColumn("k", skewed)),
        _arrow("50 columns, 1,000,000 rows", 20_000, few.select("*", *wide)),
        Case("cogroup, applyInArrow", _MANY, both, of_two, (_table(50), _table(10))),
        *(_pandas(f"{count:,} groups", count, keyed[count]) for count in keyed),
        *(_agg(count, keyed[count]) for count in keyed),
    ]


def _arrow(name: str, groups: int, given: DataFrame) -> Case:
    schema = f"k {given.schema['k'].dataType.simpleString()}, mean double"
    query = given.groupBy("k").applyInArrow(in_arrow, schema)
    return Case(f"applyInArrow, {name}", groups, query, in_arrow, (_table(ROWS // groups),))


def _pandas(name: str, groups: int, given: DataFrame) -> Case:
    query = given.groupBy("k").applyInPandas(in_pandas, SCHEMA)
    frame = _table(ROWS // groups).to_pandas()
    return Case(f"applyInPandas, {name}", groups, query, in_pandas, (frame,))


def _agg(groups: int, given: DataFrame) -> Case:
    merged = [F.count("*"), F.sum("v"), F.max("s")]
    return Case(f"agg, {groups:,} groups", groups, given.groupBy("k").agg(*merged), bool, ())


def _table(count: int) -> pa.Table:
    return pa.table({"k": range(count), "v": range(count), "x": [0.5] * count, "s": ["n"] * count})


def run(spark: SparkSession, rounds: int, only: Sequence[str]) -> Table:
    """The first case is the warm-up as well, and what one takes with hardly a group."""
    chosen = [case for case in cases(spark) if any(part in case.name for part in only or [""])]
    table = Table(title=f"{ROWS:,} rows, median of {rounds}; per group: one core's microseconds")
    for column in (
        "case",
        *("Spark s", "Headgate s", "times as fast", "alone us", "Spark's us", "own us"),
        *("Spark MiB", "Headgate MiB"),
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    with attached(spark, "real") as (hg, meter):
        warm = chosen[0]
        _compare(hg, meter.jvm, warm, 1)
        base: dict[Any, tuple[float, float]] = {}
        for case in chosen:
            theirs, ours = _compare(hg, meter.jvm, case, rounds)
            alone_us = _alone_us(spark, case)
            spark_s, ours_s = median(theirs.took_s), median(ours.took_s)
            if case.groups == _FEW:
                base[case.function] = spark_s, ours_s
            few = base.get(case.function, (0.0, 0.0)) if case.groups >= _MANY else (0.0, 0.0)
            slots = spark.sparkContext.defaultParallelism
            own = [
                f"{(took_s - few_s) * slots * 1e6 / case.groups - alone_us:.1f}" if few_s else ""
                for took_s, few_s in zip((spark_s, ours_s), few, strict=True)
            ]
            table.add_row(
                case.name,
                *(f"{spark_s:.1f}", f"{ours_s:.1f}", f"{spark_s / ours_s:.2f}", f"{alone_us:.0f}"),
                *own,
                *(f"{side.peak >> 20}" for side in (theirs, ours)),
            )
            print(f"{case.name}: {spark_s / ours_s:.2f}", flush=True)
    return table


def _compare(hg: Headgate, jvm: int, case: Case, rounds: int) -> tuple[Side, Side]:
    def through() -> None:
        out = hg.offload(case.query)
        consume(out)
        hg.release(out)

    def alone() -> None:
        consume(case.query)

    theirs, ours = Side([]), Side([])
    for _ in range(rounds):
        for side, work in ((theirs, alone), (ours, through)):
            for pid in _workers(jvm):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
            begun_s = time.monotonic()
            work()
            side.took_s.append(time.monotonic() - begun_s)
            side.peak = max([side.peak, *map(peak_bytes, _workers(jvm))])
    return theirs, ours


def _workers(jvm: int) -> list[int]:
    return [pid for daemon in descendants(jvm) for pid in descendants(daemon)]


def _alone_us(spark: SparkSession, case: Case) -> float:
    """What the function takes for one group, in as many processes at once as in the query."""
    function, given = case.function, case.given
    calls = min(_CALLS, case.groups)

    def call(slot: Iterable[int]) -> Iterator[float]:
        begun_s = time.monotonic()
        for _ in range(calls):
            function(*given)
        yield (time.monotonic() - begun_s) * 1e6 / calls

    context = spark.sparkContext
    slots: RDD[int] = context.parallelize(range(context.defaultParallelism))
    return median(slots.mapPartitions(call).collect())
