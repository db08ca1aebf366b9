"""The exporter as a process on real Kafka: its numbers, and the same numbers after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from urllib.error import HTTPError

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.kafka.log import KafkaEventLog, TopicSettings
from headgate.control.log import partition_of
from headgate.infra.cli import app
from headgate.infra.metrics.log_numbers import LogNumbersReader

from ..doubles.commands import JOB, PARTITIONS, exchange
from ..doubles.real_masters import LIMIT_S, wait_for
from ..doubles.real_masters import PARTITIONS as PLACES
from ..doubles.scrapes import Scraped, of_jobs, of_text, scraped
from ..link import Link

pytestmark = pytest.mark.real

HERE = "127.0.0.3"
COMMAND = "from headgate.infra.cli.app import main; main()"


@contextmanager
def exporter(log: KafkaEventLog, folder: Path, *options: str) -> Iterator[str]:
    """Run the command, and yield the address that it prints."""
    settings = log.settings
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
    heard = ("headgate_driver_heard_timestamp_seconds", JOB)
    # a heartbeat may have come meanwhile
    assert {**of_jobs(seen), heard: again[heard]} == of_jobs(again)
    assert 0 == again["headgate_decision_latency_seconds_count", "per-job"]
    assert 0 == again["headgate_fsck_findings", "missing"]
    settings = log.settings
    target = ["--broker", settings.bootstrap, "--prefix", settings.topic_prefix]
    reported = CliRunner().invoke(app.app, ["report", "--job", JOB, "--json", *target])
    report = json.loads(reported.stdout)
    assert report["stored_bytes"] == again["headgate_written_bytes_total", JOB] > 0
    assert 300 == again["headgate_written_rows_total", JOB]
    assert report["puts"] == again["headgate_estimated_put_requests", JOB]


def test_numbers_go_on_after_an_outage(log: KafkaEventLog) -> None:
    """A reader that loses Kafka for a while keeps its numbers, and says how old they are. Then it
    reads what it has missed: its numbers are those of a reader that comes later, and each event
    counts once."""
    ending = Event()
    with closing(Link(log.settings.bootstrap, HERE)) as link:
        settings = replace(log.settings, bootstrap=link.bootstrap, request_timeout_s=1.0)
        with (
            closing(KafkaEventLog(settings)) as far,
            closing(LogNumbersReader(far)) as reader,
            closing(LogNumbersReader(log)) as later,
        ):
            thread = Thread(target=reader.run, args=(ending,), daemon=True)
            thread.start()
            wait_for(lambda: reader.numbers() is not None, "the log is not read")
            link.cut()
            cut_ms = SYSTEM_CLOCK.now_ms()
            exchange(KafkaEventLog(log.settings), {}, close=True)
            assert {} == of_jobs(scraped(reader), JOB)
            while later.numbers() is None:
                later.step(0.1)
            wait_for(lambda: SYSTEM_CLOCK.now_ms() > cut_ms + 10_000, "the clock stands")
            seen = reader.numbers()
            assert seen is not None
            assert seen.read_ms < cut_ms + 1_000
            link.mend()
            there = of_jobs(scraped(later))
            wait_for(lambda: of_jobs(scraped(reader)) == there, "the numbers do not come")
            events = {k: n for k, n in scraped(reader).items() if k[0] == "headgate_events_total"}
            assert len(list(log.read_all(Deadline.after(LIMIT_S)))) == sum(events.values())
            ending.set()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_a_log_that_is_made_again_is_read_whole(log: KafkaEventLog) -> None:
    """A reader that goes on while the topics are deleted and made again, with more partitions, has
    the numbers of the new log."""
    wider = replace(log.settings, topic=TopicSettings(2 * PLACES, 1, 3_600_000))
    old, new = (partition_of(JOB, count) for count in (PLACES, 2 * PLACES))
    assert old < PLACES <= new
    ending = Event()
    with closing(KafkaEventLog(log.settings)) as far, closing(LogNumbersReader(far)) as reader:
        thread = Thread(target=reader.run, args=(ending,), daemon=True)
        thread.start()
        exchange(KafkaEventLog(log.settings), {}, close=True)
        wait_for(lambda: bool(shown(reader)), "the log is not read")
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        for deleted in admin.delete_topics([it.name for it in wider.topics]).values():
            deleted.result(LIMIT_S)
        with closing(KafkaEventLog(wider)) as again:
            again.prepare(Deadline.after(LIMIT_S))
            wait_for(lambda: {} == shown(reader), "the old log stays")
            exchange(KafkaEventLog(wider), {}, close=True)
            with closing(LogNumbersReader(again)) as later:
                while later.numbers() is None:
                    later.step(0.1)
                there = shown(later)
        wait_for(lambda: there == shown(reader), "the new log is not read")
        ending.set()
        thread.join(LIMIT_S)


def shown(reader: LogNumbersReader) -> Scraped:
    """Return the objects that jobs have deleted; empty while the log is read."""
    key = "headgate_deleted_objects_total"
    there = {} if reader.numbers() is None else scraped(reader)
    return {name: value for name, value in there.items() if name[0] == key}
