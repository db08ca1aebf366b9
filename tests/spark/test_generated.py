"""Random queries: Spark's answer and ours, under settings that change from query to query."""

from __future__ import annotations

import os

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate

from .generated import Tree, query, shrunk, tables

FIRST, COUNT = (int(os.environ.get(name, "0")) for name in ("QUERIES_FROM", "QUERIES"))
SEEDS = range(FIRST, FIRST + (COUNT or 100))
_SHRUNK_MAX = 3
_NOTHING_TO_WRITE = "there are no columns to repartition"


def answer(spark: SparkSession, tree: Tree) -> tuple[DataFrame, list[str]]:
    """Spark's own, under the settings of the query."""
    *settings, text = tree.text.split("; ")
    for setting in settings:
        spark.conf.set(*setting.removeprefix("set ").split("="))
    df = spark.sql(text)
    return df, told(df, tree)


def told(df: DataFrame, tree: Tree) -> list[str]:
    rows = [str(tuple(row)) for row in df.collect()]
    return rows if tree.inner[-1].text else sorted(rows)


def difference(hg: Headgate, df: DataFrame, expected: list[str], tree: Tree) -> tuple[str, int]:
    """What is not as in Spark: rows, order or schema, or an exchange that did not run here; and how
    many exchanges there were."""
    try:
        out = hg.offload(df)
        done, found = hg._offloaded[out], told(out, tree)
    except Exception as exc:
        return f"{type(exc).__name__}: {str(exc)[:300]}", 0
    refused = [reason for _, reason in done.refused if reason != _NOTHING_TO_WRITE]
    kept = f"{refused} stayed" if refused else ""
    if not done.refused and " Exchange " in done.plan:
        kept = "an exchange was added"
    wrong = "" if expected == found else f"{len(expected)} rows, here {len(found)}"
    changed = "" if df.schema == out.schema else f"{out.schema.simpleString()} is not the schema"
    hg.release(out)
    return ", ".join(filter(None, (wrong, changed, kept))), len(done.exchanges) + done.reused


def differs(spark: SparkSession, hg: Headgate, tree: Tree) -> bool:
    try:
        df, expected = answer(spark, tree)
    except (PySparkException, Py4JError):
        return False
    return difference(hg, df, expected, tree)[0] != ""


@pytest.mark.real
@pytest.mark.timeout(1200 + 10 * len(SEEDS))
def test_generated_queries(spark: SparkSession, hg: Headgate) -> None:
    """Every row, in the order that was asked for, and every exchange taken. Of what differs the
    smallest query is shown; what Spark itself cannot run is not asked, and is rare."""
    tables(spark)
    wrong: dict[int, str] = {}
    exchanges, unanswered = 0, []
    for seed in SEEDS:
        tree = query(seed)
        try:
            df, expected = answer(spark, tree)
        except (PySparkException, Py4JError) as exc:
            unanswered.append((seed, str(exc)[:300]))
            continue
        said, ran = difference(hg, df, expected, tree)
        exchanges += ran
        if said:
            if len(wrong) < _SHRUNK_MAX:
                tree = shrunk(tree, lambda smaller: differs(spark, hg, smaller))
            wrong[seed] = f"{said}; at its smallest: {tree.text}"
    assert not wrong, "\n".join(f"seed {seed}: {said}" for seed, said in wrong.items())
    assert exchanges > len(SEEDS)
    assert len(unanswered) * 20 <= len(SEEDS), unanswered


@pytest.mark.real
@pytest.mark.timeout(300 + 5 * len(SEEDS))
def test_generated_caches(spark: SparkSession, hg: Headgate) -> None:
    """A cache of a random query, filled here, has the rows that Spark finds."""
    tables(spark)
    filled = 0
    for seed in SEEDS[::10]:
        tree = query(seed)
        try:
            _, expected = answer(spark, tree)
        except (PySparkException, Py4JError):
            continue
        cached, before = spark.sql(tree.text.split("; ")[-1]).cache(), len(hg.results())
        assert expected == told(hg.offload(cached), tree), tree.text
        assert expected == told(cached, tree), tree.text
        filled += len(hg.results()) > before
        cached.unpersist()
    assert filled >= len(SEEDS[::10]) // 2


def test_shrinking() -> None:
    """Of a large query that is wrong for one reason, little more than the reason is left."""
    large = (tree for seed in range(99) if "full join" in (tree := query(seed)).text)
    found = max(large, key=lambda tree: len(tree.text))
    small = shrunk(found, lambda tree: "full join" in tree.text)
    assert small.text.endswith(" l full join few0 r on l.a = r.a) ")
    assert len(small.text) < len(found.text)
