"""A Spark session for whose exchanges session masters decide, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Invalid, Unavailable, attach

from .cluster import audited, recorded
from .conftest import Place, build_session, real_place

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PREFIX = f"test-session-{os.urandom(4).hex()}"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Return the real stack with a topic and a group of masters of these tests alone."""
    real = real_place()
    own = {"spark.headgate.topic.prefix": PREFIX, "spark.headgate.topic.partitions": "2"}
    yield Place("real", {**real.conf, **own, "spark.headgate.mode": "session"})
    admin = AdminClient({"bootstrap.servers": real.conf["spark.headgate.broker"]})
    for deleted in admin.delete_topics([f"{PREFIX}.events"]).values():
        deleted.result(20)


@pytest.fixture(scope="module")
def spark(place: Place) -> Iterator[SparkSession]:
    session = build_session(place, "local[2]")
    yield session
    session.stop()


def start_master(place: Place, slot: str) -> subprocess.Popen[bytes]:
    conf = {key.removeprefix("spark.headgate."): value for key, value in place.conf.items()}
    where = ["--broker", conf["broker"], "--store", conf["store"], "--prefix", PREFIX]
    options = ["--s3", f"endpoint={conf['s3.endpoint']}", "--kafka", "session.timeout.ms=6000"]
    command = [sys.executable, "-m", "headgate", "master", "--slot", slot, *where, *options]
    return subprocess.Popen(command)


def rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.select(F.spark_partition_id(), "*").collect()))


def test_an_exchange_is_decided_by_the_session(spark: SparkSession, place: Place) -> None:
    """Attaching without a master fails at its deadline. With a master, an exchange gives Spark's
    rows, and after that master is killed a later one ends the job."""
    spark.conf.set("spark.headgate.wait.ms", "2000")
    with pytest.raises(Unavailable, match=r"JobRegistered .* no master has answered"):
        attach(spark)
    spark.conf.set("spark.headgate.wait.ms", "60000")
    df = spark.range(0, 10_000, 1, 4).withColumn("k", F.col("id") % 97)
    expected = sorted(
        map(str, df.repartition(4, "k").select(F.spark_partition_id(), "*").collect())
    )
    first = start_master(place, "one")
    try:
        hg = attach(spark)
        out = hg.repartition(df, 4, "k")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    assert expected == rows(out)
    events = recorded(hg)
    assert {"master"} == {r.event.by.split()[0] for r in events if r.event.basis is not None}
    assert audited(events).state.results
    second = start_master(place, "one")
    try:
        hg.close()
    finally:
        second.terminate()
        assert second.wait(20) == 0


def test_the_embedded_stack_has_no_session(spark: SparkSession) -> None:
    """Mode `session` without a broker is refused, and the error names the setting."""
    kept = {name: spark.conf.get(f"spark.headgate.{name}") for name in ("broker", "store")}
    for name in kept:
        spark.conf.unset(f"spark.headgate.{name}")
    try:
        with pytest.raises(Invalid, match=r"set spark\.headgate\.broker"):
            attach(spark)
    finally:
        for name, value in kept.items():
            spark.conf.set(f"spark.headgate.{name}", value or "")
