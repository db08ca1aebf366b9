"""Map partitions that are lost while an action needs them are made again without failing the
action."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.control.events.types import Lost, Reproduce

from .cluster import attempts_of, audited, findings, kinds, own_job, recorded, rows, segments
from .conftest import READ_BY_TASKS, build_session, real_place

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PARTITIONS = 4
RANDOM = "reflect('java.util.UUID', 'randomUUID')"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Open a session with two slots, which eight readers fill."""
    session = build_session(real_place(), "local[2]", **READ_BY_TASKS)
    yield session
    session.stop()


@pytest.fixture
def hg(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Headgate]:
    with own_job(spark, request.node.name) as attached:
        yield attached


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 4_000, 1, PARTITIONS).select(
        (F.col("id") % 97).alias("k"), F.col("id").alias("v")
    )


def remove(hg: Headgate, name: str) -> None:
    hg._services.store.delete([name])


def flip(hg: Headgate, name: str) -> None:
    body = bytearray(hg._services.store.get(name))
    body[len(body) // 3] ^= 1
    remove(hg, name)
    hg._services.store.put(name, body, "damaged")


def cut(hg: Headgate, name: str) -> None:
    body = bytes(hg._services.store.get(name))
    remove(hg, name)
    hg._services.store.put(name, body[: len(body) // 2], "cut")


@pytest.mark.parametrize(
    ("damage", "evidence"),
    [(remove, "is gone"), (flip, "read twice"), (cut, "expected")],
    ids=["gone", "flipped", "cut"],
)
def test_only_what_is_lost_is_made_again(
    spark: SparkSession, hg: Headgate, damage: Callable[[Headgate, str], None], evidence: str
) -> None:
    """When one of four partitions is lost, only that partition is produced again. The action gives
    every row once, the log explains the loss, and nothing of the lost attempt stays."""
    df = orders(spark)
    expected = rows(df.repartition(8, "k"))
    out = hg.repartition(df, 8, "k")
    damage(hg, segments(hg)[1])
    assert expected == rows(out)
    assert expected == rows(out)
    events = recorded(hg)
    assert {0: 1, 1: 2, 2: 1, 3: 1} == attempts_of(events)
    bodies = [record.event.body for record in events]
    lost = [body for body in bodies if isinstance(body, Lost)]
    orders_again = [body for body in bodies if isinstance(body, Reproduce)]
    assert [(1,)] == [order.partitions for order in orders_again]
    assert all(body.attempt.partition.index == 1 and evidence in body.evidence for body in lost)
    assert audited(events).state.failed is None
    hg.release(out)
    assert findings(hg._services, recorded(hg)).live == ()


def test_everything_is_lost(spark: SparkSession, hg: Headgate) -> None:
    """When all objects are gone, every partition is made again once, and the rows are the same."""
    df = orders(spark)
    expected = rows(df.repartition(8, "k"))
    out = hg.repartition(df, 8, "k")
    hg._services.store.delete(segments(hg))
    assert expected == rows(out)
    seen = kinds(recorded(hg))
    assert (2 * PARTITIONS, 2 * PARTITIONS) == (seen["Produced"], seen["Consumable"])


def test_rows_that_cannot_come_again_are_never_mixed(spark: SparkSession, hg: Headgate) -> None:
    """The action fails with a clear error when the map stage gives other rows the second time."""
    df = orders(spark).withColumn("r", F.expr(RANDOM))
    out = hg.repartition(df, 8, "k")
    remove(hg, segments(hg)[2])
    with pytest.raises(PySparkException, match="made again with other rows"):
        out.collect()
    assert audited(recorded(hg)).state.failed is not None
