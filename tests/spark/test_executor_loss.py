"""Killed executors, failing tasks, and twin attempts that both produce, on executors in
processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Corrupt, Headgate, attach
from headgate.connectors.spark.exchanges import rows as rows_module
from headgate.connectors.spark.exchanges import run as run_module
from headgate.connectors.spark.exchanges.rerun import Writing
from headgate.connectors.spark.exchanges.run import ExchangeRun
from headgate.connectors.spark.exchanges.stored import StoredResult
from headgate.connectors.spark.jvm.scheduler import running_tasks
from headgate.connectors.spark.queries import runner
from headgate.connectors.spark.tasks import shipping
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .cluster import (
    Task,
    attempts_of,
    audited,
    executors,
    findings,
    kill_executors,
    kinds,
    own_job,
    recorded,
    rows,
    segments,
)
from .conftest import Place, build_session, setting
from .entered import finished

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(place: Place) -> Iterator[SparkSession]:
    session = build_session(
        place,
        "local-cluster[2,1,1024]",
        **{"spark.executor.memory": "1g", "spark.scheduler.mode": "FAIR"},
    )
    yield session
    session.stop()


@pytest.fixture
def hg(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Headgate]:
    with own_job(spark, request.node.name) as attached:
        yield attached


def ship_by(patched: pytest.MonkeyPatch, ship: Callable[[Any], Any]) -> None:
    """Ship all tasks in another way, those that write and those that read."""
    for module in (rows_module, run_module):
        patched.setattr(module, "ship", ship)


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 20_000, 1, 4).select(
        (F.col("id") % 97).alias("k"), F.col("id").alias("v"), F.sha1(F.col("id").cast("string"))
    )


def test_all_executors_killed(spark: SparkSession) -> None:
    """All executors may be killed after the map stage: the rows are the same, nothing is produced
    again, the log replays to the same decisions, and nothing is left after close."""
    df = orders(spark)
    expected = rows(df.repartition(8, "k"))
    hg = attach(spark)
    out = hg.repartition(df, 8, "k")
    before = kinds(recorded(hg))
    assert kill_executors(spark) >= 1
    assert expected == rows(out)
    assert kill_executors(spark) >= 1
    assert expected == rows(out)
    events = recorded(hg)
    after = kinds(events)
    assert (after["AttemptStarted"], after["Produced"], after["Consumable"]) == (4, 4, 4)
    assert (before["Produced"], 0) == (after["Produced"], after["Superseded"])
    replay = audited(events)
    assert (list(replay.due), after["Consumed"]) == ([], 16)
    assert findings(hg._services, events).clean
    watched = attach_reader(hg)
    hg.close()
    events = watched()
    replay = audited(events)
    assert (list(replay.due), replay.state.closed) == ([], "closed")
    assert findings(hg._services, events).found == ()
    assert findings(hg._services, events).live == ()


@pytest.mark.timeout(600)
def test_all_executors_killed_after_each_stage(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored exchanges survive the loss of all executors, after whichever exchange of the query it
    comes."""
    df = orders(spark)
    query = df.join(df.groupBy("k").count(), "k").groupBy("count").agg(F.sum("v")).orderBy("count")
    expected = query.collect()
    write, killed = ExchangeRun.run, []

    def write_and_kill(*given: Any) -> StoredResult:
        written = write(*given)
        killed.append(kill_executors(spark))
        return written

    with monkeypatch.context() as patched:
        patched.setattr(runner, "_AT_ONCE", 1)
        patched.setattr(ExchangeRun, "run", write_and_kill)
        with setting(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
            out = hg.offload(query)
    assert expected == out.collect()
    results = hg.results()
    assert len(killed) == len(results) == 4
    assert all(killed)
    seen = kinds(recorded(hg))
    made = sum(result.partitions for result in results)
    assert (seen["Produced"], seen["Superseded"], seen["Reproduce"]) == (made, 0, 0)
    hg.release(out)
    assert findings(hg._services, recorded(hg)).live == ()


def test_killed_while_functions_run(spark: SparkSession, hg: Headgate, tmp_path: Path) -> None:
    """A task that takes over from a killed executor reads its groups again, and calls the function
    for all of them."""
    slow, begun = tmp_path / "slow", tmp_path / "begun"

    def counted(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        if slow.exists():
            begun.touch()
            SYSTEM_CLOCK.sleep_s(0.05)
        return pd.DataFrame({"k": left["k"][:1], "n": len(left) * 1000 + len(right)})

    df = orders(spark)
    halves = df.groupBy("k").cogroup(df.filter("v % 2 = 0").groupBy("k"))
    query = halves.applyInPandas(counted, "k long, n long")
    expected = sorted(query.collect())
    out = hg.offload(query)
    slow.touch()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(out.collect)
        deadline = Deadline.after(60)
        while not begun.exists() and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.05)
        assert kill_executors(spark) >= 1
        slow.unlink()
        assert expected == sorted(reading.result())
    assert hg._exchanger.door is not None
    calls_in_spark = "FlatMap" in finished(hg, out).plan
    assert calls_in_spark is not hg._exchanger.door.version.grouped


def attach_reader(hg: Headgate) -> Any:
    """Return a function that reads the job's log even after its headgate is closed."""
    from headgate.control.kafka.log import KafkaEventLog

    class Reader:
        job = hg.job

        class _services:
            log = KafkaEventLog(hg._services.worker.kafka)

    return lambda: recorded(Reader)  # type: ignore[arg-type]


def after_the_put(task: Task) -> Task:
    """Let the first attempt at every partition store its objects and die before its event."""

    def run(index: int, given: Iterable[Any]) -> Iterator[Any]:
        from unittest import mock

        from pyspark import TaskContext

        from headgate.control.events.types import Produced
        from headgate.storage.writing import writer

        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0

        def die(*stated: Any) -> Any:
            if first:
                raise SystemError("killed after the put")
            return Produced(*stated)

        with mock.patch.object(writer, "Produced", die):
            yield from task(index, given)

    return run


def after_the_event(task: Task) -> Task:
    """Let the first attempt at every partition die after its event, before Spark hears of its
    success."""

    def run(index: int, given: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from task(index, given)
        if context.attemptNumber() == 0:
            raise SystemError("killed after the event")

    return run


@pytest.mark.parametrize(
    ("fault", "died", "superseded"),
    [(after_the_put, 4, 0), (after_the_event, 4, 4)],
)
def test_exactly_once(
    spark: SparkSession,
    hg: Headgate,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    died: int,
    superseded: int,
) -> None:
    """Every row is read once, from one attempt, whenever a map task dies or has a twin."""
    df = orders(spark)
    assert len(executors(spark)) == 2
    with monkeypatch.context() as patched:
        ship_by(patched, lambda task: fault(shipping.ship(task)))
        out = hg.repartition(df, 8, "k")
    assert rows(df.repartition(8, "k")) == rows(out)
    events = recorded(hg)
    seen = kinds(events)
    assert (4 + died, 4) == (sum(attempts_of(events).values()), seen["Consumable"])
    assert superseded == seen["Superseded"]
    audited(events)
    hg.release(out)
    listed = findings(hg._services, recorded(hg))
    assert listed.live == ()


def dying() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a user's function whose process dies between two batches of the first attempt.

    It is defined inside, because executors cannot import this module.
    """

    def dies_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if (number, context.partitionId(), context.attemptNumber()) == (3, 0, 0):
                os._exit(1)
            yield batch

    return dies_once


def test_rows_that_end_early_are_not_all(spark: SparkSession) -> None:
    """A map task fails when the process upstream of it dies, although the rows end like a whole
    partition. In the end every row is there."""
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.headgate.job.id": f"{spark.sparkContext.applicationId}-early",
    }
    df = orders(spark).withColumn("wide", F.repeat(F.lit("x"), 500))
    expected = rows(df.repartition(8, "k"))
    with setting(spark, conf), attach(spark) as hg:
        assert expected == rows(hg.repartition(df.mapInArrow(dying(), df.schema), 8, "k"))


def cut_off(task: Task) -> Task:
    """Let the first attempt at every partition write no rows, be confirmed, and die."""

    def run(index: int, given: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        yield from task(index, () if first else given)
        if first:
            raise SystemError("killed after the event")

    return run


@pytest.mark.parametrize("catalyst", ["auto", "off"])
def test_announced_without_all_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, catalyst: str
) -> None:
    """An announced result with fewer rows than Spark's successful attempts wrote is never read."""
    conf = {
        "spark.headgate.catalyst": catalyst,
        "spark.headgate.job.id": f"{spark.sparkContext.applicationId}-{catalyst}",
    }
    with setting(spark, conf), attach(spark) as hg, monkeypatch.context() as patched:
        ship_by(patched, lambda task: cut_off(shipping.ship(task)))
        with pytest.raises(Corrupt, match=r"0 rows, but .* wrote 5000: run the exchange again"):
            hg.repartition(orders(spark), 8, "k")
        (result,) = hg.results()
        assert result.released is not None


def test_twins(spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    """When two attempts run side by side, as with speculation, and both produce, one is read, and
    the other is superseded and deleted."""
    df = orders(spark)
    run = Writing.run

    def carrying(stage: Writing, described: str) -> list[int]:
        with stage.settings.carried():
            return run(stage, described)

    def twice(stage: Writing, described: str) -> list[int]:
        with ThreadPoolExecutor(2) as both:
            first, second = (both.submit(carrying, stage, described) for _ in range(2))
            assert first.result() == second.result()
        return first.result()

    with monkeypatch.context() as patched:
        patched.setattr(Writing, "run", twice)
        out = hg.repartition(df, 8, "k")
    assert rows(df.repartition(8, "k")) == rows(out)
    seen = kinds(recorded(hg))
    assert (8, 4, 4) == (seen["Produced"], seen["Consumable"], seen["Superseded"])


def test_retried_reader(spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that fails after its `Consumed` is run again and reads the same rows."""
    df = orders(spark)
    calls = []

    def choose(task: Task) -> Task:
        calls.append(task)
        shipped = shipping.ship(task)
        return shipped if len(calls) == 1 else after_the_event(shipped)

    with monkeypatch.context() as patched:
        ship_by(patched, choose)
        out = hg.repartition(df, 8, "k")
    assert rows(df.repartition(8, "k")) == rows(out)
    assert kinds(recorded(hg))["Consumed"] == 16
    assert hg.results()[-1].consumed == 8


def test_lost_under_fair_scheduling(spark: SparkSession, hg: Headgate) -> None:
    """A partition that is lost while readers fill both executors is made again alone. The action
    shares the cluster fairly, and all executors were killed once before."""
    df = orders(spark)
    expected = rows(df.repartition(8, "k"))
    out = hg.repartition(df, 8, "k")
    hg._services.store.delete([segments(hg)[2]])
    kill_executors(spark)
    assert expected == rows(out)
    events = recorded(hg)
    assert {0: 1, 1: 1, 2: 2, 3: 1} == attempts_of(events)
    assert audited(events).state.failed is None


def test_a_barrier_under_fair_scheduling(spark: SparkSession, hg: Headgate) -> None:
    """A stage with a barrier is made again while its readers fill both executors, which were killed
    once before."""
    barred = spark.range(0, 300, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True)
    out = hg.repartition(barred, 8, "id")
    hg._services.store.delete([segments(hg)[-1]])
    kill_executors(spark)
    assert list(range(300)) == sorted(number for (number,) in out.collect())
    assert audited(recorded(hg)).state.failed is None


def test_a_barrier_has_the_slots_of_its_profile(spark: SparkSession, hg: Headgate) -> None:
    """The slots of a stage with a barrier are those of the stage's own resource profile, as Spark
    counts them."""
    plain = spark.range(0, 300, 1, 2)
    for cpus in (1, 2):
        asked = ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus)).build
        barred = plain.mapInArrow(lambda it: it, "id long", barrier=True, profile=asked)
        with nullcontext() if cpus == 1 else pytest.raises(Py4JJavaError, match="SPARK-24819"):
            assert 300 == hg.repartition(barred, 3, "id").count()


def test_slots_are_counted_in_every_pool(spark: SparkSession) -> None:
    """A stage that runs in a pool of its own has the slot of its task, until that ends."""
    context = spark.sparkContext
    tracker = context.statusTracker()

    def slots() -> int:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("slots")]
        return running_tasks(context, {stage for job in jobs if job for stage in job.stageIds})

    def sleep() -> None:
        context.setLocalProperty("spark.scheduler.pool", "slots")
        context.setJobGroup("slots", "a task that sleeps")
        context.parallelize(range(1), 1).foreach(lambda _: SYSTEM_CLOCK.sleep_s(3))

    with ThreadPoolExecutor(1) as pool:
        sleeping, deadline = pool.submit(sleep), Deadline.after(60)
        while not slots() and not sleeping.done() and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.05)
        assert slots() == 1
        sleeping.result()
    assert slots() == 0


def test_wide_rows_need_no_more_of_a_heap(spark: SparkSession, hg: Headgate) -> None:
    """Wide rows, which in one batch would exceed an executor's heap, are exchanged without losing
    one."""
    rows, chars = 12_000, 100_000
    wide = spark.range(0, rows, 1, 1).select("id", F.repeat(F.lit("x"), chars).alias("t"))
    before = set(executors(spark))
    out = hg.repartition(wide, 8, "id")
    sums = out.select(F.sum("id"), F.sum(F.length("t"))).first()
    assert sums == (rows * (rows - 1) // 2, rows * chars)
    assert before == set(executors(spark))
