"""Faults seen through Spark: lost or damaged bytes, lost answers, and a broker that forgets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import BarrierTaskContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headgate import Headgate, Invalid
from headgate.connectors.spark.attach import attach_session
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.run import check_rows
from headgate.connectors.spark.jvm.scheduler import StoppedStages
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.events.types import ResultRegistered
from headgate.control.ids import ResultId
from headgate.infra.embedded import EmbeddedStack, start_embedded
from headgate.storage.reading.ways import DIRECT, predict

from ..doubles.s3 import LosingProxy, losing
from .cluster import audited, kinds, recorded, segments
from .conftest import READ_BY_TASKS, Place, build_session

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True, slots=True)
class Behind:
    """An embedded stack behind a proxy that loses the answer of every write."""

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
    session = build_session(Place("embedded", READ_BY_TASKS), "local[2]")
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
    """A job whose every put loses its first answer gives each row once and produces each partition
    once."""
    df = orders(spark)
    out = hg.repartition(df, 4, "k")
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    lost = [path for path in proxy.lost if f"/{hg.results()[-1].result}/" in path]
    assert 3 == len(lost) == len(segments(hg))
    audited(recorded(hg))


def test_a_lost_object_is_made_again(spark: SparkSession, hg: Headgate) -> None:
    """When one object is gone, the action gives every row once, and one partition is made again."""
    df = orders(spark)
    out = hg.repartition(df, 4, "k")
    hg._services.store.delete([segments(hg)[0]])
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    result = hg.results()[-1].result
    assert [1, 1, 2] == sorted(len(hg.ops.why(result, index)) for index in range(3))
    audited(recorded(hg))


def together(batches: Iterator[Any]) -> Iterator[Any]:
    """Wait until all tasks of the stage are here."""
    BarrierTaskContext.get().barrier()
    return batches


@pytest.mark.parametrize("partitions", [3, 8])
def test_a_lost_object_of_a_barrier_is_made_again(
    spark: SparkSession, hg: Headgate, partitions: int
) -> None:
    """Spark runs no part of a stage with a barrier: all of it runs again, and readers leave it all
    slots that it needs."""
    rows = spark.range(0, 300, 1, 2).mapInArrow(together, "id long", barrier=True)
    out = hg.repartition(rows, partitions, "id")
    hg._services.store.delete([segments(hg)[0]])
    assert list(range(300)) == sorted(id for (id,) in out.collect())
    hg.release(out)
    audited(recorded(hg))


def test_a_stage_without_slots_waits_for_two_results(spark: SparkSession) -> None:
    """It gets slots again when both are there, and Spark forgets it when it has ended."""
    context = spark.sparkContext
    root = context._jsc.sc().taskScheduler().rootPool()
    stopped, results = StoppedStages(context), (ResultId("a"), ResultId("b"))

    def queued() -> list[Any]:
        return list(root.schedulableQueue().toArray())

    def sleep() -> None:
        context.parallelize(range(2), 2).foreach(lambda _: SYSTEM_CLOCK.sleep_s(2))

    with ThreadPoolExecutor(1) as pool:
        sleeping, deadline = pool.submit(sleep), Deadline.after(60)
        while not (queued() and queued()[0].runningTasks() == 2) and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.05)
        (stage,) = queued()
        tasks = [int(task) for task in stage.runningTasksSet().mkString(" ").split()]
        for result in results:
            for task in tasks:  # they begin to wait one after the other
                stopped.add(result, [task])
        for result in results:
            assert ["headgate-idle"] == [each.name() for each in queued()]
            stopped.end(result)
        assert [stage.name()] == [each.name() for each in queued()]
        sleeping.result()
    while queued() and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.05)
    assert [] == queued()


def test_a_lost_index_is_made_again(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an object is gone whose index was too large for the log, the driver waits until its
    partition is made again. Readers need no object of the manifest."""
    store, wide = hg._services.store, 50_000

    def losing(*given: Any) -> None:
        store.delete(segments(hg)[:1])
        check_rows(*given)

    monkeypatch.setattr(run, "check_rows", losing)
    monkeypatch.setattr(run, "choose", lambda size, *more: predict(size, DIRECT, *more))
    df = spark.range(0, 2 * wide, 1, 2)
    out = hg.repartition(df, wide, "id")
    result = hg.results()[-1].result
    assert [1, 2] == sorted(len(hg.ops.why(result, index)) for index in range(2))
    listed = [stat.name for stat in store.list(f"{hg._services.worker.root}/{hg.job}/")]
    shards = [name for name in listed if f"/{result}/manifest/" in name]
    assert len(shards) > 1
    store.delete(shards)
    place = F.expr(f"pmod(hash(id), {wide})")
    for at in (0, wide - 1):
        rows = spark.sparkContext.runJob(out.rdd, list, [at])
        assert sorted(df.where(place == at).collect()) == sorted(rows)
    hg.release(out)
    audited(recorded(hg))


def reordered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows in an order that no other attempt has."""
    context = TaskContext.get()
    assert context is not None
    rng = np.random.default_rng(context.taskAttemptId())
    for batch in batches:
        yield batch.take(pa.array(rng.permutation(batch.num_rows)))


def _attempt() -> str:
    context = TaskContext.get()
    assert context is not None
    return str(context.taskAttemptId())


def registered(hg: Headgate) -> ResultRegistered:
    """Return the registration of the newest result."""
    bodies = [record.event.body for record in recorded(hg)]
    return [body for body in bodies if isinstance(body, ResultRegistered)][-1]


@pytest.mark.parametrize("shuffled", ["grouped", "ranked", "joined"])
def test_rows_behind_a_shuffle_are_made_again(
    spark: SparkSession, hg: Headgate, shuffled: str
) -> None:
    """A partition behind one of Spark's own shuffles can be made again, although its rows come in
    another order then."""
    df = orders(spark)
    behind = {
        "grouped": df.groupBy("k").agg(F.sum("v").alias("v"), F.max("v").alias("most")),
        "ranked": df.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
        "joined": df.join(df.where("v < 50").withColumnRenamed("v", "w").hint("shuffle_hash"), "k"),
    }[shuffled]
    behind = behind.mapInArrow(reordered, behind.schema)
    expected = sorted(map(str, behind.collect()))
    out = hg.repartition(behind, 4, "k")
    assert registered(hg).deterministic
    hg._services.store.delete([segments(hg)[0]])
    assert expected == sorted(map(str, out.collect()))
    assert expected == sorted(map(str, out.collect()))
    assert kinds(recorded(hg))["JobFailed"] == 0


def test_an_exchange_behind_another_is_made_again(spark: SparkSession, hg: Headgate) -> None:
    """When objects of a result and of its input are gone, both are made again, because the log
    knows that one was read for the other."""
    first = hg.repartition(orders(spark), 3, "k")
    source, lost = registered(hg), segments(hg)[0]
    grouped = first.groupBy("k").agg(F.sum("v").alias("v"))
    out = hg.repartition(grouped, 4, "v")
    assert (source.result,) == registered(hg).inputs
    expected = sorted(map(tuple, out.collect()))
    hg._services.store.delete([lost, segments(hg)[0]])
    assert expected == sorted(map(tuple, out.collect()))


def test_embedded_broker_that_forgot(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the embedded broker has dropped events, the next exchange fails with one sentence."""
    assert hg._services.log.oldest(hg.job) == 0
    monkeypatch.setattr(type(hg._services.log), "oldest", lambda log, job: 7)
    with pytest.raises(Invalid, match="the embedded broker is full"):
        hg.repartition(orders(spark), 4, "k")


def test_rows_that_are_others_fail_the_job(spark: SparkSession, hg: Headgate) -> None:
    """An action fails when a nondeterministic map stage gives other values the second time, and the
    error says what to do. It is the last test of its job."""
    attempt = F.udf(_attempt).asNondeterministic()
    out = hg.repartition(orders(spark).withColumn("attempt", attempt()), 4, "k")
    assert not registered(hg).deterministic
    hg._services.store.delete([segments(hg)[0]])
    with pytest.raises(
        PySparkException, match=r"other rows than were read before.*storage"
    ) as caught:
        out.collect()
    assert "checkpoint" in str(caught.value)
