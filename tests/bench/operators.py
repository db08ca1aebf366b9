"""Functions for groups of rows, in Spark and in Headgate, in turn, in one warm session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.box import SIMPLE
from rich.table import Table

from headgate import Headgate

from ..processes import descendants
from ..spark.entered import by_spark_alone
from .measure import peak_bytes
from .places import ROWS, attached, consume, rows

SCHEMA = "k long, mean double"
_CALLS = 5_000
_LEAST_S = 60  # repeat a shorter case: the JVM compiles it only after some rounds
_RESET_PEAK = "5"
_SIDE = "HEADGATE_BENCH_SIDE"
_SPARK, _HEADGATE = "spark", "headgate"
_FEW, _MANY, _MOST = 1_000, 200_000, 1_000_000


def in_arrow(table: pa.Table) -> pa.Table:
    """Compute about the least that a user's function would."""
    return pa.table({"k": [table["k"][0].as_py()], "mean": [pc.mean(table["x"]).as_py()]})


def in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [frame["k"].iat[0]], "mean": [frame["x"].mean()]})


def of_two(left: pa.Table, right: pa.Table) -> pa.Table:
    return in_arrow(left if left.num_rows else right)


@dataclass(frozen=True, slots=True)
class Case:
    """A query over a number of groups; the user's function with its arguments, if it is not Spark's
    own."""

    name: str
    groups: int
    query: DataFrame
    function: Callable[..., Any] | None
    given: tuple[Any, ...]


@dataclass(slots=True)
class Side:
    """One side of a comparison: its seconds, and the peak of any of its Python workers."""

    name: str
    took_s: list[float] = field(default_factory=list)
    peak: int = 0

    @property
    def median_s(self) -> float:
        return median(self.took_s)


def cases(spark: SparkSession) -> list[Case]:
    _use_workers(spark, _SPARK)  # a function keeps the workers of its definition
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
        _arrow("50 columns, 1M rows", 20_000, few.select("*", *wide)),
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
    return Case(f"agg, {groups:,} groups", groups, given.groupBy("k").agg(*merged), None, ())


def _table(count: int) -> pa.Table:
    return pa.table({"k": range(count), "v": range(count), "x": [0.5] * count, "s": ["n"] * count})


def run(spark: SparkSession, rounds: int, only: Sequence[str]) -> Table:
    """Run the cases. The first one also warms up, and gives the cost of a query with hardly any
    group."""
    chosen = [
        decider for decider in cases(spark) if any(part in decider.name for part in only or [""])
    ]
    title = f"{ROWS:,} rows, median of {rounds} or of what a minute holds; us: of a core, per group"
    table = Table(title=title, box=SIMPLE, padding=(0, 1))
    table.add_column("case", no_wrap=True)
    for figure in (
        *("Spark\ns", "Headgate\ns", "times\nas fast", "at\nbest", "alone\nus", "Spark's\nus"),
        *("own\nus", "Spark\nMiB", "Headgate\nMiB"),
    ):
        table.add_column(figure, justify="right")
    slots = spark.sparkContext.defaultParallelism
    with attached(spark, "real") as (hg, meter):
        _compare(hg, meter.jvm, chosen[0], 1)
        few: dict[Any, tuple[float, float]] = {}
        for decider in chosen:
            theirs, ours = sides = _compare(hg, meter.jvm, decider, rounds)
            alone_us = _alone_us(spark, decider)
            if decider.groups == _FEW:
                few[decider.function] = theirs.median_s, ours.median_s
            own = ["", ""]
            if decider.groups >= _MANY and decider.function in few:
                pairs = zip(sides, few[decider.function], strict=True)
                more_s = [side.median_s - few_s for side, few_s in pairs]
                own = [
                    f"{extra_s * slots * 1e6 / decider.groups - alone_us:.1f}" for extra_s in more_s
                ]
            best_s = alone_us * decider.groups / slots / 1e6
            figures = [
                *(f"{side.median_s:.1f}" for side in sides),
                f"{theirs.median_s / ours.median_s:.2f}",
                *((f"{theirs.median_s / best_s:.1f}", f"{alone_us:.0f}") if best_s else ("", "")),
                *own,
                *(f"{side.peak >> 20}" for side in sides),
            ]
            table.add_row(decider.name, *figures)
            print(f"{decider.name}: {' | '.join(figures)}", flush=True)
    return table


def _compare(hg: Headgate, jvm: int, decider: Case, rounds: int) -> tuple[Side, Side]:
    def through() -> None:
        out = hg.offload(decider.query)
        consume(out)
        hg.release(out)

    def alone() -> None:
        with by_spark_alone(hg):
            consume(decider.query)

    theirs, ours = Side(_SPARK), Side(_HEADGATE)
    while len(ours.took_s) < rounds or sum(theirs.took_s + ours.took_s) < _LEAST_S:
        for side, work in ((theirs, alone), (ours, through)):
            _use_workers(decider.query.sparkSession, side.name)
            for pid in _workers(jvm, side.name):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
            begun_s = time.monotonic()
            work()
            side.took_s.append(time.monotonic() - begun_s)
            side.peak = max([side.peak, *map(peak_bytes, _workers(jvm, side.name))])
    return theirs, ours


def _use_workers(spark: SparkSession, side: str) -> None:
    """Give each side Python workers of its own: Spark does not share workers between
    environments."""
    spark.sparkContext.environment[_SIDE] = side


def _workers(jvm: int, side: str) -> list[int]:
    named = f"{_SIDE}={side}".encode()
    return [
        pid
        for daemon in descendants(jvm)
        for pid in descendants(daemon)
        if named in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]


def _alone_us(spark: SparkSession, decider: Case) -> float:
    """Return the microseconds of one call of the function on a fresh copy of its group.

    As many processes call it at once as in the query. The result is 0 for a function of Spark's
    own.
    """
    if decider.function is None:
        return 0.0
    function, given = decider.function, decider.given
    calls = min(_CALLS, decider.groups)

    def call(slot: Iterable[int]) -> Iterator[float]:
        begun_s = time.monotonic()
        for _ in range(calls):
            tuple(map(_anew, given))
        between_s = time.monotonic()
        for _ in range(calls):
            function(*map(_anew, given))
        ended_s = time.monotonic()
        yield (ended_s - between_s - (between_s - begun_s)) * 1e6 / calls

    context = spark.sparkContext
    slots: RDD[int] = context.parallelize(range(context.defaultParallelism))
    return median(slots.mapPartitions(call).collect())


def _anew(rows: pa.Table | pd.DataFrame) -> pa.Table | pd.DataFrame:
    return rows.slice(0) if isinstance(rows, pa.Table) else rows.copy(deep=False)
