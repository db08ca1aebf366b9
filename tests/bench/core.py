"""The cost of an event to a master without a log: decode, fold, decide and encode.

The events are the mix of a stage: 1,000 map partitions read by 200 reducers. Each attempt is
started and produced with an index of 200 subpartitions, each reader announces what it read, and the
master decides on all of it.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from headgate.control.contract import SESSION
from headgate.control.events import codec
from headgate.control.events.types import (
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
from headgate.control.master.announcer import Announcer
from headgate.control.model.ledger import Ledger
from headgate.storage.format.segment import SegmentIndex

EXCHANGES, MAPS, REDUCERS = 20, 1_000, 200
_JOB = JobId("job-0")


@dataclass(frozen=True, slots=True)
class Taken:
    """A number of events, and the time that they took."""

    events: int
    took_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.events / self.took_s


def index_of(subpartitions: int) -> bytes:
    noise = np.random.default_rng(7)
    rows, sizes = (noise.integers(1, 1 << bits, subpartitions) for bits in (8, 14))
    sums = noise.integers(1, 1 << 63, subpartitions, np.uint64)
    return SegmentIndex(400, rows, sizes, sums).packed()


def facts(exchanges: int, maps: int, reducers: int) -> Iterator[Fact]:
    """Yield the facts that a driver and its tasks state."""
    yield JobRegistered(SESSION, "0", "bench")
    index = index_of(REDUCERS)
    for number in range(exchanges):
        name = ResultId(f"1-{number:04d}")
        yield ResultRegistered(name, maps, REDUCERS, "", "repartition")
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
    """The ledger of one job, fed with records, and the CPU time of each type of event."""

    def __init__(self, job: JobId) -> None:
        self.ledger = Ledger(job)
        self.offset = 0
        self.log_bytes = 0
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()
        self._announcer = Announcer(job, "master")

    def take(self, record: bytes) -> None:
        """Take a fact and then each decision on it, as the log would bring them back."""
        began_s = time.thread_time()
        self.log_bytes += len(record)
        event = codec.decode(record)
        self._observe(event, began_s)
        while due := self.ledger.unwritten(1):
            began_s = time.thread_time()
            record = codec.encode(self._announcer.decision(due[0]))
            self.ledger.wrote(1)
            self.log_bytes += len(record)
            self._observe(codec.decode(record), began_s)

    def _observe(self, event: Event, began_s: float) -> None:
        self.ledger.observe(Recorded(self.offset, event))
        self.ledger.settle()
        self.offset += 1
        self.cpu_s[event.kind] += time.thread_time() - began_s
        self.events[event.kind] += 1


def by_type() -> Table:
    """Measure the CPU time of each type of event, and the memory that the master keeps per
    partition."""
    core = fed(list(facts(EXCHANGES, MAPS, REDUCERS)))
    table = Table("event", "count", "µs CPU")
    table.title = f"core; {partition_bytes(1_000):,} bytes of memory a live partition"
    for kind, spent_s in sorted(core.cpu_s.items(), key=lambda spent: -spent[1]):
        table.add_row(kind, f"{core.events[kind]:,}", f"{spent_s / core.events[kind] * 1e6:.1f}")
    return table


def records_of(job: JobId, bodies: list[Fact]) -> list[bytes]:
    announcer = Announcer(job, "driver")
    return [codec.encode(announcer.fact(body)) for body in bodies]


def fed(bodies: list[Fact]) -> Core:
    core = Core(_JOB)
    for record in records_of(_JOB, bodies):
        core.take(record)
    return core


def partition_bytes(maps: int) -> int:
    """Return the memory per partition, with each partition's index and without the records
    themselves."""
    records = records_of(_JOB, list(facts(1, maps, 0)))
    gc.collect()
    tracemalloc.start()
    core = Core(_JOB)
    for record in records:
        core.take(record)
    gc.collect()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(core.ledger.state.results[ResultId("1-0000")].production.winners) == maps
    return used_bytes // maps


def in_core() -> Taken:
    records = records_of(_JOB, list(facts(EXCHANGES, MAPS, REDUCERS)))
    core = Core(_JOB)
    gc.collect()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for record in records:
        core.take(record)
    return Taken(core.offset, time.perf_counter() - began_s, time.process_time() - began_cpu_s)
