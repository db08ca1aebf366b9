"""A wrongly rewritten plan gives no row: the check before each stage finds the fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from headgate import Headgate
from headgate.connectors.spark.queries import runner
from headgate.connectors.spark.queries.adaptive import parts_of
from headgate.connectors.spark.queries.exchange_nodes import Group
from headgate.connectors.spark.queries.planner import Planner
from headgate.connectors.spark.queries.runner import QueryRunner
from headgate.control.errors import Corrupt

from .conftest import setting
from .entered import detached, left

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CONF = {
    "spark.headgate.sql.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "16KB",
}
COPIED = (
    "select count(*), sum(v) from (select k, v from large union all select k, v from little) o"
    " where k in (select k from chosen)"
)
JOINED = "select count(*), sum(a.v + b.v) from large a join little b on a.k = b.k"

Plant = Callable[[pytest.MonkeyPatch], None]


def each_place_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Plant the fault that TPC-DS found: equal places are cut by their own groups."""
    patch.setattr(Planner, "alike", lambda self, shuffles: [[shuffle] for shuffle in shuffles])


def each_side_by_itself(patch: pytest.MonkeyPatch) -> None:
    def cut(self: QueryRunner, group: Group) -> None:
        for shuffle in group.shuffles:
            sizes = [self._done(shuffle).stored.sizes]
            (parts,) = parts_of(sizes, self._plans.adapting, [{}])
            shuffle.reading = replace(shuffle.reading, parts=parts)

    patch.setattr(QueryRunner, "_cut", cut)


def columns_of_another(patch: pytest.MonkeyPatch) -> None:
    scans = QueryRunner._scans

    def swapped(self: QueryRunner, inputs: Any) -> dict[Any, Any]:
        scanned = scans(self, inputs)
        return dict(zip(scanned, reversed(scanned.values()), strict=True))

    patch.setattr(QueryRunner, "_scans", swapped)


def a_part_is_lost(patch: pytest.MonkeyPatch) -> None:
    def most(*given: Any) -> Sequence[Any]:
        return [own[:-1] for own in parts_of(*given)]

    patch.setattr(runner, "parts_of", most)


PLANTED = [
    (each_place_by_itself, COPIED),
    (each_side_by_itself, JOINED),
    (columns_of_another, JOINED),
    (a_part_is_lost, JOINED),
]


@pytest.mark.parametrize(("plant", "query"), PLANTED)
@pytest.mark.usefixtures("unequal")
def test_a_fault_is_found(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch, plant: Plant, query: str
) -> None:
    """A wrongly rewritten plan gives no row and leaves nothing stored; in an enabled session Spark
    runs the query."""
    df, before = spark.sql(query), len(hg.results())
    with detached(hg, spark):
        expected = df.collect()
    plant(monkeypatch)
    with pytest.raises(Corrupt):
        hg.offload(df)
    assert len(hg.results()) > before
    assert all(result.released for result in hg.results()[before:])
    given: list[list[Row]] = []
    reasons = left(hg, lambda: given.append(spark.sql(query).collect()))
    assert [expected] == given
    assert [why.startswith("Corrupt: ") for why in reasons] == [True]


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"spark.sql.adaptive.enabled": "false"},
        {"spark.sql.codegen.wholeStage": "false"},
        {"spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly": "false"},
    ],
)
def test_partitions_that_a_join_prunes(
    spark: SparkSession, hg: Headgate, tmp_path: Path, conf: dict[str, str]
) -> None:
    """A scan of a partitioned table that is pruned by the other side of a join stands below an
    exchange as Spark plans it, here once in each of two stages."""
    folder = str(tmp_path / "f")
    spark.range(2_000).selectExpr("id % 50 p", "id v", "id % 97 k").write.partitionBy("p").parquet(
        folder
    )
    spark.read.parquet(folder).createOrReplaceTempView("f")
    spark.range(50).selectExpr("id p", "id % 7 g").createOrReplaceTempView("d")
    pruned = "select a.k, sum(a.v) s from f a join d on a.p = d.p where d.g = 3 group by a.k"
    for query in (pruned, f"select x.k, x.s, y.s from ({pruned}) x join ({pruned}) y on x.s = y.k"):
        with setting(spark, {"spark.sql.autoBroadcastJoinThreshold": "10MB"} | conf):
            df = spark.sql(query)
            with detached(hg, spark):
                expected = sorted(df.collect())
            assert "dynamicpruning" in str(df._jdf.queryExecution().executedPlan().toString())
            assert expected == sorted(hg.offload(df).collect())
            assert not left(hg, spark.sql(query).collect)
