"""The exporter on a real broker: how it keeps up with 5,000 events a second, and begins anew.

A hundred jobs state the events of stages, with the decisions that follow, at a steady rate. The
exporter is a process of its own, which is scraped once a second.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeAlias
from urllib.error import HTTPError

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control.clock import Deadline
from headgate.control.events import codec
from headgate.control.events.types import Recorded
from headgate.control.ids import JobId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import partition_of
from headgate.control.master.announcer import Announcer
from headgate.control.model.replay import Replay
from headgate.infra.devstack import stack

from .core import facts

RATE, JOBS, PARTITIONS, SCRAPE_S = 5_000, 100, 16, 1.0
MAPS, REDUCERS = 100, 50
LIMIT_S = 600.0
LogRecord: TypeAlias = tuple[int, JobId, bytes]
"""A partition, a job, and an event."""
_COMMAND = "from headgate.infra.cli.app import main; main()"
_EVENTS = re.compile(r"^headgate_events_total\{.*\} (\S+)$", re.MULTILINE)
_WRITTEN = re.compile(r"^headgate_written_objects_total\{.*\} (\S+)$", re.MULTILINE)


def run(events: int) -> Table:
    """Measure both, and delete the topics."""
    state = stack.status()
    assert state is not None, "`make stack` starts it"
    topic = TopicSettings(PARTITIONS, 1, 3_600_000)
    settings = KafkaSettings(state.bootstrap, f"bench-{os.urandom(4).hex()}", topic)
    KafkaEventLog(settings).prepare(Deadline.after(LIMIT_S))
    produced = list(_records(events))
    try:
        rows = {**_keeping_up(settings, produced), **_beginning(settings, len(produced))}
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([topic.name for topic in settings.topics]).values():
            deleted.result(LIMIT_S)
    table = Table("headgate exporter", "", title=f"{len(produced):,} events of {JOBS} jobs")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _records(events: int) -> Iterator[LogRecord]:
    """Yield the records of an empty log.

    Nobody else writes, so the offset of a fact, on which its decisions are based, is known before.
    """
    exchanges = max(1, events // (JOBS * (3 * MAPS + REDUCERS)))
    jobs = [JobId(f"job-{number}") for number in range(JOBS)]
    replays, ends = {job: Replay(job) for job in jobs}, [0] * PARTITIONS
    lives = zip(*(facts(exchanges, MAPS, REDUCERS) for _ in jobs), strict=True)
    for row in lives:
        for job, fact in zip(jobs, row, strict=True):
            announcer, replay = Announcer(job, "bench"), replays[job]
            number = partition_of(job, PARTITIONS)
            due = [announcer.fact(fact)]
            while due:
                event = due.pop(0)
                derived = replay.observe(Recorded(ends[number], event))
                due += [announcer.decision(each) for each in derived]
                ends[number] += 1
                yield number, job, codec.encode(event)


@contextmanager
def _exporter(settings: KafkaSettings) -> Iterator[tuple[psutil.Process, str]]:
    target = ["--broker", settings.bootstrap, "--prefix", settings.topic_prefix]
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "exporter", "--port", "0", *target],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().removeprefix("serving at ").strip()
        yield psutil.Process(process.pid), url
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _scrape(url: str, sought: re.Pattern[str]) -> tuple[int, float]:
    """Wait until the exporter has read the log; return a sum, and the time of the scrape."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        with suppress(HTTPError), urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            text = answer.read().decode()
            return int(sum(map(float, sought.findall(text)))), time.monotonic() - began_s
        time.sleep(0.05)
    raise AssertionError("the exporter does not come to the end of the log")


class _Sender(Thread):
    """Sends the records at the rate, and counts those that the broker has."""

    def __init__(self, settings: KafkaSettings, records: list[LogRecord]) -> None:
        super().__init__(daemon=True)
        self.delivered = 0
        self._topic = settings.events_topic
        self._records = records
        self._producer = Producer({"bootstrap.servers": settings.bootstrap, "linger.ms": 5})

    def run(self) -> None:
        began_s, position = time.monotonic(), 0
        while self.delivered < len(self._records):
            due = min(len(self._records), int((time.monotonic() - began_s) * RATE))
            for number, job, body in self._records[position:due]:
                self._producer.produce(
                    self._topic, body, job.encode(), partition=number, on_delivery=self._count
                )
            position = due
            self._producer.poll(0.005)

    def _count(self, *_: object) -> None:
        self.delivered += 1


def _keeping_up(settings: KafkaSettings, records: list[LogRecord]) -> dict[str, str]:
    lags, scrapes = list[int](), list[float]()
    with _exporter(settings) as (process, url):
        _scrape(url, _EVENTS)
        cpu_s = sum(process.cpu_times()[:2])
        sender, began_s = _Sender(settings, records), time.monotonic()
        sender.start()
        while sender.is_alive():
            sender.join(SCRAPE_S)
            delivered = sender.delivered
            seen, took_s = _scrape(url, _EVENTS)
            lags.append(max(0, delivered - seen))
            scrapes.append(took_s)
        took_s = time.monotonic() - began_s
        while (seen := _scrape(url, _EVENTS)[0]) < len(records):
            assert time.monotonic() - began_s < LIMIT_S, f"{seen} of {len(records)} came"
        cpu_s = sum(process.cpu_times()[:2]) - cpu_s
        memory_bytes = process.memory_info().rss
    return {
        "events a second, sent": f"{len(records) / took_s:,.0f}",
        "behind at a scrape: median, most": f"{statistics.median(lags):,.0f}, {max(lags):,} events",
        "processor": f"{cpu_s / took_s:.0%} of one",
        "scrape: median, longest": f"{statistics.median(scrapes):.3f} s, {max(scrapes):.3f} s",
        "memory": f"{memory_bytes / 1e6:.0f} MB",
    }


def _beginning(settings: KafkaSettings, events: int) -> dict[str, str]:
    began_s = time.monotonic()
    with _exporter(settings) as (process, url):
        started_s = time.monotonic() - began_s
        written, _ = _scrape(url, _WRITTEN)
        took_s = time.monotonic() - began_s - started_s
        assert written > 0, "the log was read"
        cpu_s = sum(process.cpu_times()[:2])
    return {
        "start of the process": f"{started_s:.1f} s",
        "to read the log anew": f"{took_s:.1f} s, {events / took_s:,.0f} events a second",
        "processor of both": f"{cpu_s:.1f} s",
    }
