"""Queries that Comet runs: its exchanges stay in Spark and are named, those of Spark run in
Headgate.

Comet has no release for the newest Spark, so `make test-comet` runs these tests on another one,
with Comet's jar in `COMET_JAR`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import Row, SparkSession

from headgate import Headgate

from .conftest import build_session, real_place
from .entered import detached, left, stored

JAR = os.environ.get("COMET_JAR", "")
pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

COMET = "org.apache.spark.sql.comet"
COMETS = "CometShuffleExchangeExec is another engine's exchange"
JOIN = "select a.k, count(*) n, max(v) v from a join b on a.k = b.k group by a.k order by a.k"
MAPS = "select k, max_by(map('v', k), n)['v'] v from (select k, count(*) n from a group by k)"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("tables")
    session = build_session(
        real_place(),
        "local[2]",
        **{
            "spark.jars": JAR,
            "spark.driver.extraClassPath": JAR,
            "spark.plugins": "org.apache.spark.CometPlugin",
            "spark.shuffle.manager": f"{COMET}.execution.shuffle.CometShuffleManager",
            "spark.memory.offHeap.enabled": "true",
            "spark.memory.offHeap.size": "1g",
            "spark.sql.autoBroadcastJoinThreshold": "-1",
        },
    )
    session.range(0, 20_000, 1, 4).selectExpr("id", "id % 100 k").write.parquet(f"{folder}/a")
    session.range(0, 100).selectExpr("id k", "id * 2 v").write.parquet(f"{folder}/b")
    for name in "ab":
        session.read.parquet(f"{folder}/{name}").createOrReplaceTempView(name)
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


@pytest.mark.parametrize(
    ("query", "conf", "here", "comets"),
    [
        (JOIN, {}, 0, 3),
        (f"{MAPS} group by k order by k", {"spark.comet.shuffle.mode": "native"}, 1, 1),
        (JOIN, {"spark.comet.shuffle.enabled": "false"}, 3, 0),
    ],
    ids=["comet", "both", "here"],
)
def test_exchanges_of_comet_are_named(
    hg: Headgate, spark: SparkSession, query: str, conf: dict[str, str], here: int, comets: int
) -> None:
    """A query that Comet runs has its rows, and `explain` and `report().native` say which of its
    exchanges are Comet's."""
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        with detached(hg, spark):
            expected = spark.sql(query).collect()
        explanation = str(hg.explain(spark.sql(query)))
        assert (here, comets) == (explanation.count("runs in Headgate"), explanation.count(COMETS))
        rows: list[Row] = []
        reasons = left(hg, lambda: rows.extend(spark.sql(query).collect()))
        assert expected == rows != []
        assert ({COMETS: comets} if comets else {}) == reasons
        assert here == stored(hg, lambda: spark.sql(query).collect())
    finally:
        for key in conf:
            spark.conf.unset(key)
