"""Executors that are released, killed and decommissioned, under settings of Spark's: an exchange in
Headgate against one of Spark's own.

Two executors in processes run an exchange with four map tasks and read it. Then something happens
to the executors, and the rows are read again. The table has the executors that were there before
this second read, the seconds after which executors had gone, the shuffle files that were moved, and
the map tasks that ran again.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

from headgate import attach
from headgate.infra.devstack import stack

from ..spark.cluster import executors, kill_executors

ROWS, MAPS, READERS = 2_000, 4, 8
_WAIT_S = 20.0
_OFF = {
    "spark.dynamicAllocation.enabled": "false",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": str(2**63 - 1),
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": str(2**31 - 1),
    "spark.decommission.enabled": "false",
    "spark.storage.decommission.enabled": "false",
    "spark.stage.maxConsecutiveAttempts": "4",
    "spark.task.maxFailures": "4",
}
_DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}
_BOUNDED = _DYNAMIC | {
    "spark.dynamicAllocation.shuffleTracking.timeout": "3s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "3s",
}
_UNTRACKED = _DYNAMIC | {
    "spark.dynamicAllocation.shuffleTracking.enabled": "false",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
}
_DECOMMISSION = {"spark.decommission.enabled": "true"}
_MIGRATION = _DECOMMISSION | {"spark.storage.decommission.enabled": "true"}

Event = Callable[[SparkSession], object]


def nothing(spark: SparkSession) -> None:
    """Let nothing happen."""


def decommission_one(spark: SparkSession) -> None:
    """Send an executor the signal that its node will end, as Spark's script for Kubernetes does."""
    os.kill(executors(spark)[0], signal.SIGPWR)


def decommission_all(spark: SparkSession) -> None:
    for pid in executors(spark):
        os.kill(pid, signal.SIGPWR)


@dataclass(frozen=True, slots=True)
class Trial:
    """Something that happens to executors between two reads of an exchange."""

    name: str
    conf: dict[str, str]
    event: Event = nothing
    stays: int = 0
    """The executors that should stay."""
    cached: bool = False
    deaths: int = 0
    """The times that a task of the second read kills its executor."""


TRIALS = (
    Trial("idle", _DYNAMIC),
    Trial("idle, cached", _DYNAMIC, cached=True),
    Trial("idle, timeouts of 3 s", _BOUNDED),
    Trial("idle, cached, timeouts of 3 s", _BOUNDED, cached=True),
    Trial("idle, not tracked, decommissioned", _UNTRACKED),
    Trial("all killed", {}, kill_executors, 2),
    Trial("killed by 1 reader", {}, stays=2, deaths=1),
    Trial(
        "killed by 1 reader, stage.maxConsecutiveAttempts=1",
        {"spark.stage.maxConsecutiveAttempts": "1"},
        stays=2,
        deaths=1,
    ),
    Trial(
        "killed by 2 readers, task.maxFailures=2",
        {"spark.task.maxFailures": "2"},
        stays=2,
        deaths=2,
    ),
    Trial("one decommissioned", _DECOMMISSION, decommission_one, 1),
    Trial("one decommissioned, migration", _MIGRATION, decommission_one, 1),
    Trial("all decommissioned, migration", _MIGRATION, decommission_all),
)


def run(names: list[str]) -> Table:
    sides = ("Spark's own", "Headgate")
    figures = ("executors", "gone after s", "moved", "map tasks again", "second read")
    table = Table("what happens", "exchange", *figures)
    table.title = f"{MAPS} map tasks on two executors; load average {os.getloadavg()[0]:.1f}"
    for trial in TRIALS:
        if not names or any(name in trial.name for name in names):
            for side in sides:
                with tempfile.TemporaryDirectory() as folder:
                    table.add_row(trial.name, side, *measured(trial, side, Path(folder)))
    return table


def measured(trial: Trial, side: str, folder: Path) -> tuple[str, ...]:
    maps, deaths = folder / "maps", folder / "deaths"
    maps.mkdir()
    deaths.mkdir()
    with session(trial.conf | {"spark.local.dir": str(folder)}) as spark, attach(spark) as hg:
        rows = noted(spark.range(0, ROWS, 1, MAPS), maps)
        out = rows.repartition(READERS, "id") if side != "Headgate" else None
        out = hg.repartition(rows, READERS, "id") if out is None else out
        out = out.cache() if trial.cached else out
        read = deadly(out, deaths)  # read twice: another DataFrame would have another shuffle
        assert len(read.collect()) == ROWS
        assert len(hg.results()) == (side == "Headgate")
        assert len(list(maps.iterdir())) == MAPS
        before, files = executors(spark), shuffle_files(folder)
        trial.event(spark)
        took_s = wait(spark, before, trial)
        stayed, moved = len(executors(spark)), len(shuffle_files(folder) - files)
        for number in range(trial.deaths):
            (deaths / str(number)).touch()
        try:
            again = len(read.collect())
            outcome = "the same rows" if again == ROWS else f"{again} rows"
        except (PySparkException, Py4JJavaError) as exc:
            outcome = "failed: " + reason(str(exc))
        repeated = len(list(maps.iterdir())) - MAPS
    return str(stayed), took_s, str(moved), str(repeated), outcome


def reason(text: str) -> str:
    """Return which of Spark's limits has ended an action."""
    for word in ("maximum allowable number of times", "failed 2 times", "failed 4 times"):
        if word in text:
            return word
    return text[:80]


def wait(spark: SparkSession, before: list[int], trial: Trial) -> str:
    """Wait until so many of the former executors have gone as should, and return the seconds."""
    if trial.event is kill_executors or trial.deaths:
        return ""
    began_s = time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < _WAIT_S:
        if len(set(executors(spark)) & set(before)) <= trial.stays:
            return f"{took_s:.1f}"
        time.sleep(0.05)
    return "stayed"


def shuffle_files(folder: Path) -> set[Path]:
    return set(folder.glob("**/shuffle_*.data"))


def noted(df: DataFrame, folder: Path) -> DataFrame:
    """Leave a file for each map task that runs."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tempfile.mkstemp(dir=folder)
        yield from batches

    return df.mapInArrow(note, df.schema)


def deadly(df: DataFrame, folder: Path) -> DataFrame:
    """Let the reader of partition 0 take a file of a folder and kill its executor, if there is
    one."""

    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0 and (files := sorted(folder.iterdir())):
            files[0].unlink()
            os.kill(parent(os.getppid()), signal.SIGKILL)

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    return df.mapInArrow(die, df.schema)


@contextmanager
def session(conf: dict[str, str]) -> Iterator[SparkSession]:
    """Open a session with two executors in processes of their own, on the real stack."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    state = stack.status()
    assert state is not None, "start the stack first: make stack"
    os.environ["AWS_ACCESS_KEY_ID"] = state.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = state.secret_key
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("headgate-bench")
    fixed = {
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.headgate.broker": state.bootstrap,
        "spark.headgate.store": f"s3://{state.bucket}/bench",
        "spark.headgate.s3.endpoint": state.endpoint,
        "spark.headgate.warm.up": "false",
        "spark.headgate.driver.read.bytes": "0",  # small rows stand for large ones here
    }
    for key, value in (_OFF | fixed | conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
