"""The exporter as a process on real Kafka: its numbers, and the same numbers after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.infra.cli import app
from headgate.infra.devstack import stack

from ..doubles.commands import JOB, PARTITIONS, exchange
from ..doubles.scrapes import Scraped, of_jobs, of_text

pytestmark = pytest.mark.real

LIMIT_S = 30.0
COMMAND = "from headgate.infra.cli.app import main; main()"


@pytest.fixture
def log() -> Iterator[KafkaEventLog]:
    """Return a log of this test on the real stack, whose topics are deleted at the end."""
    state = stack.status()
    assert state is not None, "`make stack` starts it"
    topic = TopicSettings(4, 1, 3_600_000)
    settings = KafkaSettings(state.bootstrap, f"test-{SYSTEM_CLOCK.now_ms()}", topic, LIMIT_S)
    log = KafkaEventLog(settings)
    log.prepare(Deadline.after(LIMIT_S))
    yield log
    log.close()
    admin = AdminClient({"bootstrap.servers": state.bootstrap})
    for deleted in admin.delete_topics([topic.name for topic in settings.topics]).values():
        deleted.result(LIMIT_S)


@contextmanager
def exporter(log: KafkaEventLog, folder: Path, *options: str) -> Iterator[str]:
    """Run the command, and yield the address that it prints."""
    settings = log._settings
    target = ["--broker", settings.bootstrap, "--prefix", settings.topic_prefix]
    arguments = ["exporter", "--port", "0", *target, *options]
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("serving at ").strip()
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(LIMIT_S), (folder / "errors").read_text()
    finally:
        process.kill()
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def scrape(url: str, at_least: int, name: str = "headgate_deleted_objects_total") -> Scraped:
    """Scrape until the log is read, and the metric is at least as large, or fail."""
    deadline = Deadline.after(LIMIT_S)
    while not deadline.passed:
        with suppress(HTTPError), urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            scraped = of_text(answer.read().decode())
            if sum(value for key, value in scraped.items() if key[0] == name) >= at_least:
                return scraped
        deadline.pause()
    raise AssertionError(f"{name} did not come to {at_least}")


def test_numbers_survive_a_restart(log: KafkaEventLog, tmp_path: Path) -> None:
    """The numbers of a job that a process has seen event by event are those of one that begins
    later, and those of `headgate report`. Latencies are counted once, by the one that was there."""
    with exporter(log, tmp_path) as url:
        scrape(url, 0)
        exchange(log, {}, close=True)
        seen = scrape(url, PARTITIONS)
        assert PARTITIONS <= seen["headgate_events_total", "Consumable"]
        count = seen["headgate_decision_latency_seconds_count", "per-job"]
        assert 2 * PARTITIONS < count
        assert 0 < seen["headgate_decision_latency_seconds_sum", "per-job"] < count * LIMIT_S
    (tmp_path / "bucket").mkdir()
    bucket = f"file://{tmp_path / 'bucket'}"
    with exporter(log, tmp_path, "--fsck-seconds", "3600", "--store", bucket) as url:
        again = scrape(url, 1, "headgate_fsck_timestamp_seconds")
    assert of_jobs(seen) == of_jobs(again)
    assert 0 == again["headgate_decision_latency_seconds_count", "per-job"]
    assert 0 == again["headgate_fsck_findings", "missing"]
    settings = log._settings
    target = ["--broker", settings.bootstrap, "--prefix", settings.topic_prefix]
    reported = CliRunner().invoke(app.app, ["report", "--job", JOB, "--json", *target])
    report = json.loads(reported.stdout)
    assert report["stored_bytes"] == again["headgate_written_bytes_total", JOB] > 0
    assert 300 == again["headgate_written_rows_total", JOB]
    assert report["puts"] == again["headgate_estimated_put_requests", JOB]
