"""Executors in processes of their own, the log of a job, and faults inside tasks."""

from __future__ import annotations

import os
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.connectors.spark.services import JobServices
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.events.types import AttemptStarted, Recorded
from headgate.control.inquiry.audit import fold
from headgate.control.model.replay import Replay
from headgate.storage.format.layout import Layout
from headgate.storage.stores.open_store import open_store
from headgate.storage.upkeep import fsck
from headgate.storage.upkeep.fsck import Findings

from ..processes import command, descendants

Task = Callable[[int, Iterable[Any]], Iterator[Any]]


def executors(spark: SparkSession) -> list[int]:
    """Return the executor processes under this session's JVM."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return [pid for pid in descendants(jvm) if "CoarseGrainedExecutorBackend" in command(pid)]


def kill_executors(spark: SparkSession) -> int:
    """Kill every executor, wait until all are gone, and return their number."""
    killed = executors(spark)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    deadline = Deadline.after(10)
    while set(executors(spark)) & set(killed) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.05)
    assert not set(executors(spark)) & set(killed)
    return len(killed)


@contextmanager
def own_job(spark: SparkSession, name: str) -> Iterator[Headgate]:
    """Attach a job of its own for a test, so that its log is its own."""
    job = f"{spark.sparkContext.applicationId}-{zlib.crc32(name.encode())}"
    spark.conf.set("spark.headgate.job.id", job)
    with attach(spark) as attached:
        yield attached


def rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.select(F.spark_partition_id(), "*").collect()))


def recorded(hg: Headgate) -> list[Recorded]:
    """Return the whole log of a job."""
    log = hg._services.log
    follower = log.follow(hg.job)
    events: list[Recorded] = []
    deadline = Deadline.after(20)
    end = follower.end()
    while follower.position() < end and not deadline.passed:
        events += follower.poll(500, 0.5)
    follower.close()
    assert follower.position() >= end
    return events


def audited(events: list[Recorded]) -> Replay:
    """Replay the log; raise an error if a recorded decision is not the one that follows."""
    replay = Replay(events[0].event.job)
    for record in events:
        replay.observe(record)
    return replay


def kinds(events: list[Recorded]) -> Counter[str]:
    return Counter(record.event.kind for record in events)


def attempts_of(events: list[Recorded]) -> Counter[int]:
    """Count the started attempts of each partition."""
    bodies = (record.event.body for record in events)
    return Counter(b.attempt.partition.index for b in bodies if isinstance(b, AttemptStarted))


def findings(services: JobServices, events: list[Recorded]) -> Findings:
    """Compare the bucket with the log of one job."""
    states = fold(events)
    store, root = open_store(services.worker.store, dict(services.worker.s3))
    return fsck.check(store, root, lambda: states, states[0].job)


def result_objects(hg: Headgate) -> dict[str, int]:
    """Return the sizes of the job's objects by name, without its driver's marker."""
    layout = Layout(hg._services.worker.root, hg.job)
    listed = hg._services.store.list(layout.prefix)
    return {stat.name: stat.size_bytes for stat in listed if layout.driver_of(stat.name) is None}


def segments(hg: Headgate) -> list[str]:
    """Return the objects of the newest result, in the order of their partitions."""
    result = hg.results()[-1].result
    names = [name for name in result_objects(hg) if f"/{result}/" in name]
    return sorted(names, key=lambda name: int(name.split("/")[-3]))
