"""Bytes that are gone or damaged, answers that are lost, a broker that forgets: through Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid
from headgate.connectors.spark.session import attach_session
from headgate.infra.embedded import EmbeddedStack, start_embedded

from ..unit.s3_doubles import LosingProxy, losing
from .cluster import audited, recorded, segments
from .conftest import Place, build_session

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True, slots=True)
class Behind:
    """The embedded stack with a proxy before its store, which loses the answer of every write."""

    stack: EmbeddedStack
    proxy: LosingProxy

    @property
    def bootstrap(self) -> str:
        return self.stack.bootstrap

    @property
    def bucket(self) -> str:
        return self.stack.bucket

    @property
    def endpoint(self) -> str:
        return self.proxy.endpoint

    def close(self) -> None:
        self.stack.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = build_session(
        Place("embedded", {}), "local[2]", **{"spark.python.task.killTimeout": "200ms"}
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def proxy() -> Iterator[LosingProxy]:
    with start_embedded() as stack, losing(stack.endpoint) as before:
        before.stack = stack  # type: ignore[attr-defined]
        yield before


@pytest.fixture(scope="module")
def hg(spark: SparkSession, proxy: LosingProxy) -> Iterator[Headgate]:
    stack: EmbeddedStack = proxy.stack  # type: ignore[attr-defined]
    with attach_session(spark, lambda: Behind(stack, proxy)) as attached:
        yield attached


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 3000, 1, 3).select((F.col("id") % 31).alias("k"), F.col("id").alias("v"))


def test_every_answer_to_a_put_lost_once(
    spark: SparkSession, hg: Headgate, proxy: LosingProxy
) -> None:
    """The job succeeds, with each row once and each partition produced once."""
    df = orders(spark)
    out = hg.repartition(df, 4, "k")
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    lost = [path for path in proxy.lost if f"/{hg.results()[-1].result}/" in path]
    assert 3 == len(lost) == len(segments(hg))
    audited(recorded(hg))


def test_a_lost_object_is_made_again(spark: SparkSession, hg: Headgate) -> None:
    """One object is gone: the action gives every row once, and one partition was made again."""
    df = orders(spark)
    out = hg.repartition(df, 4, "k")
    hg._services.store.delete([segments(hg)[0]])
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    result = hg.results()[-1].result
    assert [1, 1, 2] == sorted(len(hg.why(result, index)) for index in range(3))
    audited(recorded(hg))


def test_embedded_broker_that_forgot(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the embedded broker has dropped events, the next exchange says so in one sentence."""
    assert hg._services.log.first_offset(hg.job) == 0
    monkeypatch.setattr(type(hg._services.log), "first_offset", lambda log, job: 7)
    with pytest.raises(Invalid, match="the embedded broker is full"):
        hg.repartition(orders(spark), 4, "k")
