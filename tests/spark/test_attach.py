"""Attach reports every wrong setting soon, with one clear error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate import HeadgateError, Invalid, Unavailable, attach
from headgate.connectors.spark.attach import attach_session
from headgate.control.clock import SYSTEM_CLOCK

from .conftest import Place

pytestmark = pytest.mark.timeout(240)

NOBODY = "127.0.0.1:1"


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Return a dictionary for the settings of one test, which are unset after it."""
    changed: dict[str, str] = {}
    before = dict(spark.conf.getAll)
    yield changed
    for key in changed:
        if key in before:
            spark.conf.set(key, before[key])
        else:
            spark.conf.unset(key)


def refused(spark: SparkSession, conf: dict[str, str]) -> HeadgateError:
    """Attach with these settings, and return the error, which must come within 20 s."""
    for key, value in conf.items():
        spark.conf.set(key, value)
    start_s = SYSTEM_CLOCK.monotonic_s()
    with pytest.raises(HeadgateError) as caught:
        attach(spark)
    assert SYSTEM_CLOCK.monotonic_s() - start_s < 20
    assert len(str(caught.value)) < 600
    return caught.value


def test_misspelt_key(spark: SparkSession, conf: dict[str, str]) -> None:
    """An unknown key is an error that names the nearest key."""
    conf["spark.headgate.codex"] = "lz4"
    error = refused(spark, conf)
    assert "no spark.headgate.codex; the nearest key is spark.headgate.codec" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("codec", "snappy", "one of lz4, zstd, none"),
        ("fetch.parallel", "0", "at least 1"),
        ("segment.bytes", "many", "cannot be used"),
        ("kafka.acks", "0", "acks"),
        ("kafka.linger.mss", "5", "linger.ms"),
        ("s3.secret_access_key", "hidden", "AWS chain"),
        ("s3.regio", "eu-1", "region"),
        ("job.id", "no/slash", "job id"),
    ],
)
def test_value_that_cannot_be_used(
    spark: SparkSession, conf: dict[str, str], key: str, value: str, text: str
) -> None:
    """A bad value is refused by its key, and a secret value is not shown."""
    conf[f"spark.headgate.{key}"] = value
    error = refused(spark, conf)
    assert isinstance(error, Invalid)
    assert text in str(error)
    assert "hidden" not in str(error)


def test_broker_unreachable(spark: SparkSession, conf: dict[str, str]) -> None:
    """An unreachable broker is an error within the limit, and the error names the address."""
    conf["spark.headgate.broker"] = NOBODY
    conf["spark.headgate.store"] = "s3://headgate/x"
    error = refused(spark, conf)
    assert isinstance(error, Unavailable)
    assert NOBODY in str(error)


def test_a_store_that_nobody_shares(spark: SparkSession, conf: dict[str, str]) -> None:
    """A store in memory is refused, because tasks are other processes and cannot share it."""
    conf["spark.headgate.broker"] = NOBODY
    conf["spark.headgate.store"] = "memory://x"
    error = refused(spark, conf)
    assert isinstance(error, Invalid)
    assert "tasks cannot share memory://x" in str(error)


def test_half_configured(spark: SparkSession, place: Place, conf: dict[str, str]) -> None:
    """A broker without a store is refused."""
    conf["spark.headgate.broker"] = NOBODY
    conf["spark.headgate.store"] = ""
    assert "set spark.headgate.store too" in str(refused(spark, conf))


def test_connect_session() -> None:
    """A Spark Connect session is refused with one sentence."""
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(Invalid, match="Spark Connect"):
        attach_session(remote, lambda: pytest.fail("nothing is started"))


def test_executor_without_headgate(tmp_path: Path) -> None:
    """A worker whose Python lacks headgate is found at attach, and the error says what to do."""
    program = (
        "from pyspark.sql import SparkSession\n"
        "from headgate import attach, Invalid\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "try:\n    attach(spark)\nexcept Invalid as exc:\n    print('said:', exc)\n"
    )
    bare = tmp_path / "python"  # no site-packages: Spark itself is on the workers' path
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYSPARK_PYTHON": str(bare)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert "has headgate none, the driver has 0." in done.stdout, done.stderr[-2000:]
    assert f"set PYSPARK_PYTHON={sys.executable}" in done.stdout
    assert "at org.apache.spark" not in done.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("store", "s3://no-such-bucket-here/x", "no-such-bucket-here"),
        ("s3.endpoint", f"http://{NOBODY}", NOBODY),
        ("topic.partitions", "3", "partitions"),
    ],
)
def test_services_not_as_configured(
    spark: SparkSession, place: Place, conf: dict[str, str], key: str, value: str, text: str
) -> None:
    """A missing bucket, an unreachable store and a topic with other settings each give one
    error."""
    conf[f"spark.headgate.{key}"] = value
    assert text in str(refused(spark, conf))


def test_a_job_is_shown_by_its_driver(
    spark: SparkSession, conf: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With `spark.headgate.ui.port` the driver serves the page of its job, with the numbers of
    `results`, until the headgate is closed."""
    conf["spark.headgate.ui.port"] = "0"
    spark.conf.set("spark.headgate.ui.port", "0")

    def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", path, headers={"Headgate-Page": "1"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    with attach(spark) as hg:
        job = re.escape(hg.job)
        (port,) = re.findall(
            rf"{job} is shown at http://127\.0\.0\.1:(\d+)/#/job/{job}\n", capsys.readouterr().err
        )
        hg.repartition(spark.range(100), 3, "id").collect()
        page = ask(int(port), f"/api/job?job={hg.job}")[1]
        (mine,), (shown,) = hg.results(), page["report"]["exchanges"]
        assert (mine.rows, mine.stored_bytes, mine.gets) == tuple(
            shown[name] for name in ("rows", "stored_bytes", "gets")
        )
        assert 100 == mine.rows
        assert ask(int(port), f"/api/fsck?job={hg.job}")[1]["clean"]
        assert [hg.job] == [it["job"] for it in ask(int(port), "/api/jobs")[1]["jobs"]]
        assert 404 == ask(int(port), "/api/masters")[0]
    with pytest.raises(ConnectionRefusedError):
        ask(int(port), "/api/jobs")
