"""Each key `spark.sql.adaptive.*` and `spark.sql.shuffle.*` of Spark does what our page says of
it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate
from headgate.connectors.spark.versions import NEWEST

from .conftest import READ_BY_TASKS, Place, setting
from .entered import by_spark_alone, finished
from .pairs import known_keys

pytestmark = pytest.mark.timeout(300)

PREFIXES = ("spark.sql.adaptive.", "spark.sql.shuffle.")
_LINE = re.compile(r"\| `((?:adaptive|shuffle)\.[\w.]+)` \| (obeyed|without effect|refused) \|")
PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
STATED = {f"spark.sql.{key}": effect for key, effect in _LINE.findall(PAGE.read_text())}

_TARGET = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
_PARTS = "spark.sql.adaptive.coalescePartitions."
_SKEW = "spark.sql.adaptive.skewJoin."
_JOIN = "spark.sql.adaptive.convertSortMergeJoinToShuffledHashJoin."
_SENT = "spark.sql.adaptive.autoBroadcastJoinThreshold"
_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum."
_FULL = "spark.sql.adaptive.nonEmptyPartitionRatioForBroadcastJoin"
_EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
_HASHED = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
_COST = "spark.sql.adaptive.customCostEvaluatorClass"
_EMPTY = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
# Under these settings parts of several subpartitions are read, and the hot key is cut.
BASE: Mapping[str, str] = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.shuffle.targetPostShuffleInputSize": "16KB",
    f"{_PARTS}minPartitionSize": "1KB",
    f"{_PARTS}parallelismFirst": "false",
    f"{_SKEW}skewedPartitionFactor": "2",
    f"{_SKEW}skewedPartitionThresholdInBytes": "24KB",
}
WIDE = {_TARGET: "1GB"}
# For each key a value, and the settings under which the value tells.
VALUES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    _TARGET: ("1GB", {}),
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations": ("false", {}),
    _SENT: ("-1", {"spark.sql.autoBroadcastJoinThreshold": "2KB"}),
    f"{_PARTS}enabled": ("false", {}),
    f"{_PARTS}initialPartitionNum": ("12", {}),
    f"{_PARTS}maxReducerPartitionsPerTask": ("1", {}),
    f"{_PARTS}minPartitionNum": ("8", WIDE),
    f"{_PARTS}minPartitionSize": ("1GB", {**WIDE, f"{_PARTS}minPartitionNum": "8"}),
    f"{_PARTS}parallelismFirst": ("true", WIDE),
    f"{_JOIN}enabled": ("false", {_HASHED: "1GB"}),
    f"{_JOIN}lookThroughOperators.enabled": ("false", {_HASHED: "1GB"}),
    f"{_JOIN}minWideningFactor": ("100000.0", {_HASHED: "20KB"}),
    "spark.sql.adaptive.costEvaluator.countLocalSort.enabled": ("true", {}),
    _COST: ("a.class.of.the.User", {}),
    "spark.sql.adaptive.enabled": ("false", {}),
    "spark.sql.adaptive.fetchShuffleBlocksInBatch": ("false", {}),
    "spark.sql.adaptive.forceApply": ("true", {}),
    "spark.sql.adaptive.forceOptimizeSkewedJoin": ("true", {}),
    "spark.sql.adaptive.localShuffleReader.enabled": (
        "false",
        {"spark.sql.autoBroadcastJoinThreshold": "10KB", _FULL: "0"},
    ),
    "spark.sql.adaptive.logLevel": ("TRACE", {}),
    _HASHED: ("1GB", {}),
    _FULL: ("0.9", {"spark.sql.autoBroadcastJoinThreshold": "10KB"}),
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": ("false", {}),
    _EXCLUDED: (_EMPTY, {}),
    "spark.sql.adaptive.rebalancePartitionsSmallPartitionFactor": ("0.9", {}),
    "spark.sql.adaptive.shuffle.targetPostShuffleInputSize": ("1GB", {}),
    f"{_SKEW}enabled": ("false", {}),
    f"{_SKEW}skewedPartitionFactor": ("1000", {}),
    f"{_SKEW}skewedPartitionThresholdInBytes": ("1GB", {}),
    "spark.sql.adaptive.streaming.stateless.enabled": ("false", {}),
    f"{_CHECKSUM}enableFullRetryOnMismatch": ("false", {}),
    f"{_CHECKSUM}enableQueryLevelRollbackOnMismatch": ("true", {}),
    f"{_CHECKSUM}enabled": ("false", {}),
    "spark.sql.shuffle.partitions": ("5", {}),
    "spark.sql.shuffle.spreadNullJoinKeys.enabled": ("true", {}),
}
JOIN = "select l.k, l.v, r.v w from hot l left join cold r on l.k = r.k"
# Queries for keys that a join of these tables does not show.
FEW = "(select k, max(v) m from {} group by k) r"
FULL = "select * from hot h join (select * from hot where v in (83140, 50439)) r on h.k = r.k"
QUERIES: Mapping[str, str] = {
    _SENT: JOIN.replace("cold r", "(select k, max(v) v from cold where v % 97 = 1 group by k) r"),
    # Spark looks at a side that is an exchange, when it has ended: an aggregate of it says nothing.
    _FULL: FULL,
    f"{_JOIN}lookThroughOperators.enabled": (
        f"select l.k, l.m, r.m n from {FEW.format('hot')[:-1]}l join {FEW.format('cold')} using (k)"
    ),
    "spark.sql.adaptive.localShuffleReader.enabled": FULL,
    _EXCLUDED: f"select h.v, m from hot h join {FEW.format('cold where v % 97 = 98')} using (k)",
    "spark.sql.adaptive.forceApply": "select k from cold where k < 3",
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": (
        "select /*+ rebalance(k) */ k, v from hot"
    ),
    "spark.sql.adaptive.rebalancePartitionsSmallPartitionFactor": (
        "select /*+ rebalance(k) */ k, v from hot"
    ),
}


@dataclass(frozen=True)
class Shape:
    """Everything in which a query may follow a setting, but its rows."""

    tasks: int
    exchanges: tuple[tuple[int, str], ...]
    joins: tuple[str, ...]
    refused: tuple[str, ...]


@pytest.fixture(scope="module")
def place() -> Place:
    return Place("embedded", READ_BY_TASKS)


@pytest.fixture(scope="module", autouse=True)
def tables(spark: SparkSession) -> None:
    spark.sql(
        "create or replace temp view hot as select"
        " if(id % 3 = 0, null, if(id % 3 = 1, 7, id % 500)) k,"
        " id * 7919 % 100003 v from range(0, 20000, 1, 4)"
    )
    spark.sql("create or replace temp view cold as select id k, id v from range(0, 500, 1, 2)")


@pytest.fixture(autouse=True)
def base(spark: SparkSession) -> Iterator[None]:
    with setting(spark, BASE):
        yield


def shape(hg: Headgate, df: DataFrame) -> tuple[Shape, list[Any]]:
    """Return the shape of an offloaded query, and its rows."""
    out = hg.offload(df)
    done, rows = finished(hg, out), sorted(map(str, out.collect()))
    exchanges = tuple(
        (each.stored.descriptor.subpartitions, re.sub(r"#\d+L?", "", each.label))
        for each in done.exchanges
    )
    joins = tuple(re.findall(r"\w+Join\b", done.plan))
    refused = tuple(reason for _, reason in done.refused)
    tasks = out.rdd.getNumPartitions()
    hg.release(out)
    return Shape(tasks, exchanges, joins, refused), rows


@cache
def usual(
    spark: SparkSession, hg: Headgate, query: str, beside: tuple[tuple[str, str], ...]
) -> Shape:
    """Return the shape of a query under the other settings alone."""
    with setting(spark, dict(beside)):
        return shape(hg, spark.sql(query))[0]


def test_the_page_names_all_keys(spark: SparkSession) -> None:
    """The table of the page has every key of this Spark, and this module a value for each."""
    known = {key for key in known_keys(spark) if key.startswith(PREFIXES)}
    assert STATED.keys() == VALUES.keys()
    if spark.version.startswith(NEWEST):
        assert known == set(VALUES)


@pytest.mark.parametrize("key", VALUES)
def test_a_key_does_what_the_page_says(spark: SparkSession, hg: Headgate, key: str) -> None:
    """A key that is obeyed changes the tasks, the exchanges or the joins of some query; one without
    effect changes none of these; one that is refused leaves an exchange to Spark. The rows are
    always Spark's."""
    value, beside = VALUES[key]
    query = QUERIES.get(key, JOIN)
    before = usual(spark, hg, query, tuple(beside.items()))
    asked = {**beside, key: value}
    with setting(spark, beside if key == _COST else asked), by_spark_alone(hg):
        expected = sorted(map(str, spark.sql(query).collect()))
    with setting(spark, asked):
        after, rows = shape(hg, spark.sql(query))
    assert expected == rows
    effect = "obeyed" if before != after else "without effect"
    assert STATED[key] == ("refused" if before.refused != after.refused else effect), after
