"""Random queries: Spark's answer and ours, with and without adaptive execution and broadcasts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate

from .conftest import Place, real_place
from .generated import Query, tables

FIRST, COUNT = (int(os.environ.get(name, "0")) for name in ("QUERIES_FROM", "QUERIES"))
SEEDS = range(FIRST, FIRST + (COUNT or 40))
pytestmark = [pytest.mark.real, pytest.mark.timeout(120 + 30 * len(SEEDS))]
CONF = {
    "spark.sql.adaptive.enabled": ("true", "true", "false"),
    "spark.sql.autoBroadcastJoinThreshold": ("10MB", "4000", "-1", "-1"),
}


@pytest.fixture(scope="module")
def place() -> Place:
    return real_place()


@pytest.fixture(scope="module")
def queried(spark: SparkSession) -> Iterator[SparkSession]:
    tables(spark)
    yield spark
    for key in CONF:
        spark.conf.unset(key)


def told(df: DataFrame, ordered: bool) -> list[str]:
    rows = [str(tuple(row)) for row in df.collect()]
    return rows if ordered else sorted(rows)


def test_generated_queries(queried: SparkSession, hg: Headgate) -> None:
    """Every row, in the order that was asked for, and every exchange taken."""
    wrong: list[tuple[object, ...]] = []
    taken = 0
    for seed in SEEDS:
        for key, values in CONF.items():
            queried.conf.set(key, values[seed % len(values)])
        query = Query(seed)
        df = queried.sql(query.text)
        expected = told(df, query.ordered)
        try:
            out = hg.offload(df)
            done = hg._offloaded[out]
            if expected != told(out, query.ordered) or done.refused:
                wrong.append((seed, "differs", done.refused, query.text))
            taken += len(done.exchanges) + done.reused
            hg.release(out)
        except Exception as exc:
            wrong.append((seed, type(exc).__name__, str(exc)[:300], query.text))
    assert wrong == []
    assert taken > len(SEEDS)
