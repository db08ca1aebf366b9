"""How many events a second one session master takes: decoded, folded, decided and encoded.

The mix of a stage: 1,000 map partitions read by 200 reducers, each attempt started and produced
with an index of 200 subpartitions, each reader's reading stated, and what the master decides on it.
`core` is a job's ledger between two codecs, without a log. `kafka` is a whole session master on a
real broker, from the grant of its partitions until nothing is left to decide.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing

import numpy as np
from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control import codec
from headgate.control.author import Author
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION
from headgate.control.errors import Unavailable
from headgate.control.events import (
    AttemptStarted,
    Consumed,
    Event,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka import KafkaEventLog
from headgate.control.kafka_settings import KafkaSettings, TopicSettings
from headgate.control.ledger import Ledger
from headgate.control.session_steps import SessionSteps, Speaking
from headgate.infra import masters, stack
from headgate.storage.segment import SegmentIndex

SUBPARTITIONS = 200
LIMIT_S = 600.0
_JOB = JobId("job-0")


def index_of(subpartitions: int) -> bytes:
    noise = np.random.default_rng(7)
    rows, sizes = (noise.integers(1, 1 << bits, subpartitions) for bits in (8, 14))
    sums = noise.integers(1, 1 << 63, subpartitions, np.uint64)
    return SegmentIndex(400, rows, sizes, sums).packed()


def facts(exchanges: int, maps: int, reducers: int) -> Iterator[Fact]:
    """What a driver and its tasks say."""
    yield JobRegistered(SESSION, "0", "bench")
    index = index_of(SUBPARTITIONS)
    for number in range(exchanges):
        name = ResultId(f"1-{number:04d}")
        yield ResultRegistered(name, maps, SUBPARTITIONS, "", "repartition")
        yield PartitionRegistered(name, 0, maps)
        for partition in range(maps):
            attempt = AttemptId(PartitionId(name, partition), 1, number * maps + partition)
            yield AttemptStarted(attempt, "host")
            yield Produced(attempt, (SegmentSummary(0, 1 << 20, 10_000, 1, index),), 1)
        for reader in range(reducers):
            yield Consumed(name, reader, 1, reader, 50_000, 1 << 20, 8)
        if number:
            yield ReleaseRequested(ResultId(f"1-{number - 1:04d}"), "asked for")


class Core:
    """One job's ledger, fed with records; the CPU that each type of event took."""

    def __init__(self, job: JobId) -> None:
        self.ledger = Ledger(job)
        self.offset = 0
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()
        self._author = Author(job, "master")

    def take(self, record: bytes) -> None:
        """A fact, and then what is decided on it, as the log brings it back."""
        began_s = time.thread_time()
        event = codec.decode(record)
        self._observe(event, began_s)
        while due := self.ledger.unwritten(1):
            began_s = time.thread_time()
            record = codec.encode(self._author.decision(due[0]))
            self.ledger.wrote(1)
            self._observe(codec.decode(record), began_s)

    def _observe(self, event: Event, began_s: float) -> None:
        self.ledger.observe(Recorded(self.offset, event))
        self.ledger.settle()
        self.offset += 1
        self.cpu_s[event.kind] += time.thread_time() - began_s
        self.events[event.kind] += 1


def run(places: list[str]) -> Table:
    table = Table("place", "jobs", "partitions", "events", "events/s", "µs CPU an event")
    table.title = f"one session master; load average before {os.getloadavg()[0]:.1f}"
    for jobs, exchanges, maps, reducers in ((1, 5, 1_000, 200), (1_000, 1, 10, 2)):
        per_job = list(facts(exchanges, maps, reducers))
        table.add_row("core", f"{jobs:,}", f"{maps:,}", *in_core(jobs, per_job))
        if "real" in places:
            table.add_row("kafka", f"{jobs:,}", f"{maps:,}", *on_kafka(jobs, per_job))
    return table


def by_type() -> Table:
    """What each type of event takes, and what a partition keeps in memory."""
    core = fed(list(facts(5, 1_000, 200)))
    table = Table("event", "count", "µs CPU")
    table.title = f"core; {partition_bytes(1_000):,} bytes of memory a live partition"
    for kind, spent_s in sorted(core.cpu_s.items(), key=lambda spent: -spent[1]):
        table.add_row(kind, f"{core.events[kind]:,}", f"{spent_s / core.events[kind] * 1e6:.1f}")
    return table


def records_of(job: JobId, bodies: list[Fact]) -> list[bytes]:
    author = Author(job, "driver")
    return [codec.encode(author.fact(body)) for body in bodies]


def fed(bodies: list[Fact]) -> Core:
    core = Core(_JOB)
    for record in records_of(_JOB, bodies):
        core.take(record)
    return core


def partition_bytes(maps: int) -> int:
    """Without the records themselves, with the index that is kept of each."""
    records = records_of(_JOB, list(facts(1, maps, 0)))
    gc.collect()
    tracemalloc.start()
    core = Core(_JOB)
    for record in records:
        core.take(record)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(core.ledger.state.results[ResultId("1-0000")].winners) == maps
    return held // maps


def in_core(jobs: int, bodies: list[Fact]) -> tuple[str, ...]:
    names = [JobId(f"job-{number}") for number in range(jobs)]
    records = [records_of(name, bodies) for name in names]
    cores = [Core(name) for name in names]
    gc.collect()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for turn in zip(*records, strict=True):
        for core, record in zip(cores, turn, strict=True):
            core.take(record)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return _row(sum(core.offset for core in cores), took_s, cpu_s)


def on_kafka(jobs: int, bodies: list[Fact]) -> tuple[str, ...]:
    found = stack.status()
    assert found is not None, "start the stack first: make stack"
    prefix, topic = f"bench-{time.time_ns()}", TopicSettings(4, 1, 86_400_000)
    settings = KafkaSettings(found.bootstrap, prefix, topic)
    try:
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            _fill(log, jobs, bodies)
        with closing(KafkaEventLog(settings)) as log:
            return _decided(log)
    finally:
        admin = AdminClient({"bootstrap.servers": found.bootstrap})
        for deleted in admin.delete_topics([one.name for one in settings.topics]).values():
            deleted.result(LIMIT_S)


def _fill(log: KafkaEventLog, jobs: int, bodies: list[Fact]) -> None:
    authors = [Author(JobId(f"job-{number}"), "driver") for number in range(jobs)]
    receipts = []
    for body in bodies:
        for author in authors:
            event = author.fact(body)
            try:
                receipts.append(log.append(event))
            except Unavailable:  # the client's queue is full
                receipts[-1].offset(Deadline.after(LIMIT_S))
                receipts.append(log.append(event))
    for receipt in receipts:
        receipt.offset(Deadline.after(LIMIT_S))


def _decided(log: KafkaEventLog) -> tuple[str, ...]:
    speaking = Speaking("0", "bench", SYSTEM_CLOCK, "")
    with closing(SessionSteps(log, speaking, masters.STEP_EVENTS_MAX)) as steps:
        while not steps._held:
            steps.step(0.1)
        gc.collect()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while not _rests(steps):
            steps.step(1.0)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        cases = [case for held in steps._held.values() for case in held.jobs.values()]
        replays = [case.ledger._replay for case in cases]
        return _row(sum(one.facts + one.decisions for one in replays), took_s, cpu_s)


def _rests(steps: SessionSteps) -> bool:
    """Every fact is read, and every decision on it is committed and read back."""
    if not all(held.recovered and not held.touched for held in steps._held.values()):
        return False
    cases = [case for held in steps._held.values() for case in held.jobs.values()]
    return not any(case.ledger._replay.due for case in cases)


def _row(events: int, took_s: float, cpu_s: float) -> tuple[str, ...]:
    return f"{events:,}", f"{events / took_s:,.0f}", f"{cpu_s / events * 1e6:.1f}"
