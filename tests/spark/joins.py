"""Joins of many tables with hot keys, sides that turn out empty, tiny or huge, and rows that become
many: one query for each seed, by Spark alone and through Headgate, in turn.

A query that takes twice Spark's time is asked again, for the machine may have been busy. One that
takes ten times Spark's is ended: plans of which one is never worse than that have no cliff.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate import Headgate
from headgate.control.clock import SYSTEM_CLOCK

from .conftest import setting
from .entered import detached, entered

SLOW, CLIFF, SMALL_S = 2.0, 10.0, 1.5
"""A query is slow or a cliff above so many times Spark's time, with so many seconds for all that
does not grow."""
_TRIES = 3
_SIDES = 5
_FILTERS = ("v * 2 = 1", "v % 7 = 3", "v >= 0", "k < 40", "v in (select v from d0 where k < 0)")
_KINDS = ("join", "join", "join", "left join", "left semi join", "left anti join")
_LIMITS = ("10m", "300k", "-1")
_GROUP = "headgate-joins"


@dataclass(frozen=True, slots=True)
class JoinQuery:
    text: str
    conf: Mapping[str, str]
    tables: str
    """The prefix of its tables: those that Spark knows the statistics of, or others."""


@dataclass(frozen=True, slots=True)
class Timed:
    seed: int
    query: JoinQuery
    spark_s: float
    here_s: float
    exchanges: int

    @property
    def times(self) -> float:
        return max(0.0, self.here_s - SMALL_S) / self.spark_s


def draw(seed: int) -> JoinQuery:
    """Return the query of a seed."""
    dice = Random(seed)
    tables = dice.choice(("known", "plain"))
    columns, joins = ["f.x"], []
    for at in range(dice.randint(2, _SIDES)):
        name, kind = f"s{at}", dice.choice(_KINDS)
        rows = f"select k, v from d{dice.randrange(_SIDES)} where {dice.choice(_FILTERS)}"
        if dice.random() < 0.3:
            rows = f"select k, max(v) v from ({rows}) group by k"
        elif dice.random() < 0.2:
            rows = f"select k, v from ({rows}) lateral view explode(sequence(1, 6)) e as each"
        key = dice.choice(("f.k", "f.g"))
        joins.append(f"{kind} ({rows}) {name} on {key} = {name}.k")
        if kind in ("join", "left join"):
            columns.append(f"{name}.v")
    sums = ", ".join(f"sum({column})" for column in columns)
    text = f"select f.g % 13 h, count(*), {sums} from fact f {' '.join(joins)} group by 1"
    text += dice.choice(("", " order by 1", " order by 1 limit 3"))
    conf = {
        "spark.sql.autoBroadcastJoinThreshold": dice.choice(_LIMITS),
        "spark.sql.cbo.enabled": str(tables == "known").lower(),
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "64k",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": dice.choice(("64m", "128k")),
    }
    return JoinQuery(text, conf, tables)


@contextmanager
def tables(spark: SparkSession, rows: int) -> Iterator[None]:
    """Make the tables, once with statistics and once without."""
    hot = "if(id % 10 < 6, 7, id % 3000)"
    sides = [
        f"select id % {400 * (at + 1)} k, id % 31 v from range({800 * at + 400})"
        for at in range(_SIDES)
    ]
    made = {"fact": f"select {hot} k, id % 900 g, id x from range(0, {rows}, 1, 4)"}
    made |= {f"d{at}": text for at, text in enumerate(sides)}
    for database in ("known", "plain"):
        spark.sql(f"create database {database}")
        for name, text in made.items():
            spark.sql(f"create table {database}.{name} using parquet as {text}")
            if database == "known":
                spark.sql(f"analyze table known.{name} compute statistics for all columns")
    try:
        yield
    finally:
        spark.catalog.setCurrentDatabase("default")
        for database in ("known", "plain"):
            spark.sql(f"drop database {database} cascade")


def ask(spark: SparkSession, hg: Headgate, seed: int) -> Timed:
    """Ask the query of a seed both ways, and compare the rows.

    Raises:
        AssertionError: the rows differ, or the query took ten times Spark's time.
    """
    query = draw(seed)
    spark.catalog.setCurrentDatabase(query.tables)
    best: Timed | None = None
    with setting(spark, query.conf):
        for _ in range(_TRIES):
            with detached(hg, spark):
                spark_s, expected = _timed(spark, query.text)
            before = len(hg.results())
            with entered(hg, spark), _ended_after(spark, SMALL_S + CLIFF * spark_s):
                try:
                    here_s, rows = _timed(spark, query.text)
                except PySparkException as exc:
                    raise AssertionError(f"seed {seed}, over {CLIFF} times: {query.text}") from exc
            assert expected == rows, f"seed {seed}: {query.text}"
            timed = Timed(seed, query, spark_s, here_s, len(hg.results()) - before)
            best = timed if best is None or timed.times < best.times else best
            if best.times <= SLOW:
                break
    assert best is not None
    return best


def _timed(spark: SparkSession, text: str) -> tuple[float, list[str]]:
    began_s = SYSTEM_CLOCK.monotonic_s()
    rows = sorted(map(str, spark.sql(text).collect()))
    return SYSTEM_CLOCK.monotonic_s() - began_s, rows


@contextmanager
def _ended_after(spark: SparkSession, limit_s: float) -> Iterator[None]:
    """End the jobs of this thread after a time."""
    context = spark.sparkContext
    context.setJobGroup(_GROUP, "joins", interruptOnCancel=True)
    timer = threading.Timer(limit_s, context.cancelJobGroup, [_GROUP])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        context._jsc.sc().clearJobGroup()
