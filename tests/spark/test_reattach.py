"""A second driver continues the job of a killed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import attach
from headgate.connectors.spark import attach as attaching
from headgate.connectors.spark.services import JobServices
from headgate.connectors.spark.settings import Settings, read_settings
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import MasterSettings
from headgate.control.ids import JobId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings
from headgate.control.model.replay import Replay
from headgate.control.snapshots.resume import read_snapshots
from headgate.storage.format.layout import Layout
from headgate.storage.stores.open_store import open_store

from .cluster import findings, kinds, recorded
from .conftest import READ_BY_TASKS, Place, build_session, real_place

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

ROWS, SUBPARTITIONS = 5_000, 7
FIRST_S_MAX = 90.0
BEGUN_S = 2.0  # time for the tasks of the third result to begin
ROOT = Path(__file__).parents[2]


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).select((F.col("id") % 97).alias("k"), F.col("id").alias("v"))


def rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def first_driver(conf: dict[str, str], ready: str, snapshot_events: int) -> None:
    """Write two results, release one of them, and begin a third one that never ends."""

    def often(conf: Mapping[str, str]) -> Settings:
        settings = read_settings(conf)
        return replace(settings, master=replace(settings.master, snapshot_events=snapshot_events))

    vars(attaching)["read_settings"] = often
    spark = build_session(Place("real", conf), "local[2]")
    hg = attach(spark)
    hg.repartition(orders(spark), SUBPARTITIONS, "k")
    hg.release(hg.repartition(orders(spark), 3, "k"))
    Path(ready).touch()
    slow = F.udf(lambda v: SYSTEM_CLOCK.sleep_s(600))
    hg.repartition(orders(spark).select("k", slow("v").alias("v")), 2, "k")


@pytest.fixture
def place() -> Place:
    real = real_place()
    job = {"spark.headgate.job.id": f"job-{SYSTEM_CLOCK.now_ms()}"}
    return Place(real.name, real.conf | READ_BY_TASKS | job)


def kill_the_first(place: Place, tmp_path: Path, snapshot_events: int) -> None:
    """Run the first driver until its results are stored, then kill it with its JVM and workers."""
    ready = tmp_path / "ready"
    given = json.dumps([place.conf, str(ready), snapshot_events])
    code = "import json, sys; from tests.spark.test_reattach import first_driver\n"
    code += "first_driver(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-c", code, given]
    driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        deadline = Deadline.after(FIRST_S_MAX)
        while not ready.exists():
            assert driver.poll() is None, "the first driver works"
            assert not deadline.passed, "the first driver's results stand in time"
            SYSTEM_CLOCK.sleep_s(0.1)
        SYSTEM_CLOCK.sleep_s(BEGUN_S)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.parametrize("snapshot_events", [5, MasterSettings().snapshot_events])
def test_the_next_driver_reads_what_a_killed_one_wrote(
    place: Place, tmp_path: Path, snapshot_events: int
) -> None:
    """A job's second driver reads the complete result of the first one, and produces nothing again.

    It finds that result in a snapshot, or in the log behind the snapshot. It makes new results
    beside it, and its close leaves nothing of either driver.
    """
    kill_the_first(place, tmp_path, snapshot_events)
    with closing(KafkaEventLog(KafkaSettings(place.conf["spark.headgate.broker"]))) as log:
        job = JobId(place.conf["spark.headgate.job.id"])
        stored = read_snapshots(log, job, Deadline.after(20))[job]
    assert ("1-0002" in stored.state.results) is (snapshot_events == 5)
    spark = build_session(place, "local[2]")
    try:
        hg = attach(spark)
        assert 2 == hg._results.epoch
        assert ["1-0001"] == [
            r.result for r in hg.results() if r.consumable == r.partitions and r.released is None
        ]
        before = kinds(recorded(hg))
        read, df = hg.read("1-0001"), orders(spark)
        assert rows(df) == rows(read)
        assert df.schema == read.schema
        after = kinds(recorded(hg))
        for kind in ("AttemptStarted", "Produced", "Consumable"):
            assert before[kind] == after[kind]
        assert SUBPARTITIONS == after["Consumed"]
        assert rows(df) == rows(hg.repartition(read, 3, "k"))
        assert {"2-0001"} < {r.result for r in hg.results()}
        events = recorded(hg)
        assert findings(hg._services, events).clean
        hg.close()
        assert_nothing_stays(hg._services)
    finally:
        spark.stop()


def assert_nothing_stays(services: JobServices) -> None:
    """Assert that neither object nor upload stays, and that log and last snapshot agree."""
    worker = services.worker
    with closing(KafkaEventLog(worker.kafka)) as log:
        with closing(log.follow(worker.job)) as follower:
            replay, end = Replay(worker.job), follower.end()
            while follower.position() < end:
                for record in follower.poll(500, 1.0):
                    replay.observe(record)
        assert ([], "closed") == (list(replay.due), replay.state.closed)
        (last,) = read_snapshots(log, worker.job, Deadline.after(20)).values()
        assert last.state == replay.state
    store, root = open_store(worker.store, dict(worker.s3))
    with closing(store):
        prefix = Layout(root, worker.job).prefix
        assert ([], []) == (list(store.list(prefix)), list(store.uploads(prefix)))
