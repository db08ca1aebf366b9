"""Ask one random query of Spark alone and through Headgate."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate

from .entered import by_spark_alone, finished
from .generated import SETTINGS, Tree, shrunk

_NOTHING_TO_WRITE = "there are no columns to repartition"
_ERROR_CHARS = 300
_WRONG_ROWS = " rows, here "
_SEES_ABOVE = 3  # one query in this many


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one query.

    `said` tells how the answers differ, `exchanges` counts the exchanges, and `unanswered` tells
    why Spark itself has no answer. Both texts are empty when all is well.
    """

    said: str = ""
    exchanges: int = 0
    unanswered: str = ""

    @property
    def is_right(self) -> bool:
        return not self.said and not self.unanswered

    @property
    def are_rows_wrong(self) -> bool:
        return _WRONG_ROWS in self.said


def set_all(spark: SparkSession, tree: Tree) -> None:
    """Apply the settings of a query, and unset those of an earlier query."""
    stated = tree.settings
    for key in SETTINGS - stated.keys():
        spark.conf.unset(key)
    for key, value in stated.items():
        spark.conf.set(key, value)


def answer(spark: SparkSession, hg: Headgate, tree: Tree) -> tuple[DataFrame, list[str]]:
    """Return Spark's own DataFrame and answer, under the settings of the query."""
    set_all(spark, tree)
    df = spark.sql(tree.statement)
    with by_spark_alone(hg):
        return df, told(df, tree)


def told(df: DataFrame, tree: Tree) -> list[str]:
    rows = [str(tuple(row)) for row in df.collect()]
    return rows if tree.is_ordered else sorted(rows)


def difference(hg: Headgate, df: DataFrame, expected: list[str], tree: Tree) -> Outcome:
    """Compare an offloaded query with Spark's answer: rows, order, schema, the rows of a further
    query above it, and whether every exchange ran in Headgate."""
    try:
        out = hg.offload(df)
        done, actual = finished(hg, out), told(out, tree)
        actual_above = _above(out, tree)
        with by_spark_alone(hg):
            expected_above = _above(df, tree)
    except Exception as exc:
        return Outcome(f"{type(exc).__name__}: {str(exc)[:_ERROR_CHARS]}")
    refused = [reason for _, reason in done.refused if reason != _NOTHING_TO_WRITE]
    kept = f"{refused} stayed" if refused else ""
    if not done.refused and " Exchange " in done.plan:
        kept = "an exchange was added"
    wrong = "" if expected == actual else f"{len(expected)}{_WRONG_ROWS}{len(actual)}"
    if expected_above != actual_above:
        wrong += f"{len(expected_above)}{_WRONG_ROWS}{len(actual_above)} above"
    changed = "" if df.schema == out.schema else f"{out.schema.simpleString()} is not the schema"
    hg.release(out)
    complaint = ", ".join(filter(None, (wrong, changed, kept)))
    return Outcome(complaint, len(done.exchanges) + done.reused)


def _above(df: DataFrame, tree: Tree) -> list[str]:
    """For some queries, count the values of one column with a further query: Spark plans that query
    by the partitioning that it is told."""
    chosen = crc32(tree.statement.encode())
    if chosen % _SEES_ABOVE:
        return []
    names = [f"x{at}" for at in range(len(df.columns))]
    counted = df.toDF(*names).groupBy(names[chosen // _SEES_ABOVE % len(names)]).count()
    return sorted(str(tuple(row)) for row in counted.collect())


def ask(spark: SparkSession, hg: Headgate, tree: Tree) -> Outcome:
    try:
        df, expected = answer(spark, hg, tree)
    except (PySparkException, Py4JError) as exc:
        return Outcome(unanswered=str(exc)[:_ERROR_CHARS])
    return difference(hg, df, expected, tree)


def smallest(spark: SparkSession, hg: Headgate, tree: Tree) -> Tree:
    """Return the smallest query that still differs."""
    return shrunk(tree, lambda less: ask(spark, hg, less).said != "")
