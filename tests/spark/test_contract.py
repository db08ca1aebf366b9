"""The whole contract as a session offers it: results that outlive a job, and questions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid, attach
from headgate.connectors.spark.attach import attach_session
from headgate.infra.embedded import EmbeddedStack, start_embedded
from headgate.storage.stores.files import FileBlobStore

from .conftest import READ_BY_TASKS, Place, build_session

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True, slots=True)
class Kept:
    """An embedded stack that outlives the headgates of one test."""

    stack: EmbeddedStack

    @property
    def bootstrap(self) -> str:
        return self.stack.bootstrap

    @property
    def endpoint(self) -> str:
        return self.stack.endpoint

    @property
    def bucket(self) -> str:
        return self.stack.bucket

    def close(self) -> None:
        """Do nothing: the stack is closed after the tests."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = build_session(Place("embedded", READ_BY_TASKS), "local[2]")
    session.conf.set("spark.headgate.job.id", "contract")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with start_embedded() as started:
        yield started


def attached(spark: SparkSession, stack: EmbeddedStack) -> Headgate:
    return attach_session(spark, lambda: Kept(stack))


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 300, 1, 2).select((F.col("id") % 7).alias("k"), F.col("id").alias("v"))


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, df.collect()))


def test_a_promoted_result_outlives_its_job(spark: SparkSession, stack: EmbeddedStack) -> None:
    """A later driver reads a promoted result of a closed job, and can release it. A result that was
    not promoted is gone with the job."""
    with attached(spark, stack) as hg:
        kept, dropped = hg.repartition(orders(spark), 3, "k"), hg.repartition(orders(spark), 3, "v")
        name = hg.promote(kept)
        other = hg.results()[-1].result
        assert hg.ops.is_available(other)
        del dropped
    with attached(spark, stack) as hg:
        assert not hg.ops.is_available(other)
        assert hg.ops.is_available(name, 1)
        again = hg.read(name)
        assert rows(orders(spark)) == rows(again)
        hg.release(again)
        assert not hg.ops.is_available(name)
        with pytest.raises(Invalid, match="not released"):
            hg.promote(again)


def test_what_nobody_holds_is_removed(spark: SparkSession, stack: EmbeddedStack) -> None:
    """`remove_unused` releases a result that is neither named as used nor promoted, and keeps the
    others."""
    with attached(spark, stack) as hg:
        used = hg.repartition(orders(spark), 3, "k")
        promoted, unused = (hg.repartition(orders(spark), 3, "v") for _ in range(2))
        hg.promote(promoted)
        assert (hg.results()[-1].result,) == hg.remove_unused(used)
        assert rows(orders(spark)) == rows(used) == rows(promoted)
        hg.release(promoted)
        with pytest.raises(PySparkException, match="Lost"):
            unused.collect()


def test_an_executor_may_go_and_the_log_says_why(spark: SparkSession, stack: EmbeddedStack) -> None:
    """After the map stage any executor may be released, and the log tells that each partition was
    made once."""
    with attached(spark, stack) as hg:
        out = hg.repartition(orders(spark), 3, "k")
        assert hg.ops.may_release_executor(socket.gethostname())
        (made,) = hg.ops.why(hg.results()[-1].result, 0)
        assert ("its map stage was run", "is the one that readers read") == (
            made.reason,
            made.outcome,
        )
        assert len(rows(out)) == 300


@pytest.mark.parametrize("folders", ["a", "abc"])
def test_files_without_a_broker(spark: SparkSession, tmp_path: Path, folders: str) -> None:
    """A session with a folder as its store, or with several, and no other setting, exchanges
    through them and leaves nothing there."""
    stores = [FileBlobStore(tmp_path / folder) for folder in folders]

    def stored() -> list[int]:
        return [sum("/_driver/" not in it.name for it in store.list("")) for store in stores]

    urls = [(tmp_path / folder).as_uri() for folder in folders]
    spark.conf.set("spark.headgate.store", ",".join(urls))
    try:
        with attach(spark) as hg:
            df = orders(spark)
            out = hg.repartition(df, 4, "k")
            assert hg.results()[-1].puts == sum(stored()) > 0
            assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
            hg.repartition(orders(spark).repartition(20), 4, "k")
            assert all(stored())
        assert not any(list(store.list("")) for store in stores)
    finally:
        spark.conf.unset("spark.headgate.store")
