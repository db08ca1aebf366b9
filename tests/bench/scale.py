"""An exchange of ten thousand map tasks and ten thousand readers, without its bytes.

The planner, the events, the master and the manifests are the product's own. What the tasks would
read is counted on a sample of them. The store only counts.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from rich.table import Table

from headgate.connectors.spark.exchanges.combining import parts_over
from headgate.connectors.spark.tasks.exchange_tasks import Part
from headgate.control.contract import PER_JOB, ShuffleDescriptor
from headgate.control.events import codec
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.master.announcer import Announcer
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import AnnouncedSegment, Manifest, PlacedResult, Source, place
from headgate.storage.format.manifest_shards import firsts, store_manifest
from headgate.storage.format.segment import Longs, SegmentIndex, inline_bytes
from headgate.storage.limits import Limits
from headgate.storage.reading.read_plan import plan
from headgate.storage.reading.slices import Slices
from headgate.storage.reading.stretches import StretchReader
from headgate.storage.reading.ways import (
    DIRECT,
    ExchangeSize,
    Readers,
    Way,
    choose,
    predict,
    puts,
    shares_of,
)
from headgate.storage.stores.costs import COSTS
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.port import Bytes
from headgate.storage.writing.spill import SLICES_MAX

from . import many_jobs
from .core import Core

WIDTH, EXECUTORS, SLOTS = 10_000, 1_000, 4_000
STORED_GB = (100, 10_000)
"""The sizes of the exchanges. Each takes more memory than the one before, so that the peak is its
own."""

_JOB, _FIRST, _COMBINED = JobId("scale"), ResultId("1-0001"), ResultId("1-0001-combined")
_ROW_BYTES, _SAMPLE = 100, 20
_INDEXED = 150  # first partitions, whose indexes fit into their events
_MIB = 1 << 20
_HEAD = f"""\
# Scale

Written by `make scale`. Do not edit it by hand.

Exchanges of {WIDTH:,} map tasks and {WIDTH:,} readers on {EXECUTORS:,} executors with {SLOTS:,}
slots, by the prices of S3 Standard. Planner, events, master and manifests are the real ones. No
byte is stored. Requests are those of the model; the counted ones are those that a sample of tasks
would send. Dollars are for one TB: all requests, and an hour of storage. Memory is the most that
the driver's process took. Rows take twice as much in memory as in the store.

"""
_JOBS_HEAD = f"""
{many_jobs.JOBS:,} jobs at the same time, whose masters are a group. Each has
{many_jobs.EXCHANGES} exchanges of {many_jobs.MAPS} map tasks and {many_jobs.READERS} readers.
The log is in memory.

"""


class CountingStore(MemoryBlobStore):
    """A store that forgets what is put."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = self.put_bytes = self.largest_bytes = 0

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        self.puts += 1
        self.put_bytes += len(body)
        self.largest_bytes = max(self.largest_bytes, len(body))


@dataclass(slots=True)
class Outcome:
    """The figures of one exchange."""

    case: str
    way: Way
    direct_requests: int
    direct_usd: float
    requests: int
    usd: float
    counted: int
    indexes: int
    log_mb: float
    master_s: float
    manifest_mb: float
    shard_kb: float
    memory_mb: float = 0.0

    def figures(self, terabytes: float) -> dict[str, str]:
        return {
            "exchange": self.case,
            "direct: requests": f"{self.direct_requests:,}",
            "direct: $/TB": f"{self.direct_usd / terabytes:.2f}",
            "way": f"{self.way.bundles} x {self.way.ranges}",
            "requests": f"{self.requests:,}",
            "counted": f"{self.counted:,}",
            "$/TB": f"{self.usd / terabytes:.2f}",
            "indexes read by the driver": f"{self.indexes:,}",
            "log MB": f"{self.log_mb:.0f}",
            "master CPU s": f"{self.master_s:.1f}",
            "manifest MB": f"{self.manifest_mb:.0f}",
            "largest shard KB": f"{self.shard_kb:.0f}",
            "memory MB": f"{self.memory_mb:.0f}",
        }


def run(page: Path) -> list[Table]:
    exchanges = [_exchange(gigabytes).figures(gigabytes / 1000) for gigabytes in STORED_GB]
    jobs = [many_jobs.run()]
    page.write_text("".join((_HEAD, _in_markdown(exchanges), _JOBS_HEAD, _in_markdown(jobs))))
    return [_in_terminal(rows) for rows in (exchanges, jobs)]


def _in_markdown(rows: list[dict[str, str]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_terminal(rows: list[dict[str, str]]) -> Table:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    return table


def _exchange(gigabytes: int) -> Outcome:
    limits, readers = Limits(files=True), Readers(np.arange(WIDTH), SLOTS, EXECUTORS)
    stored_bytes = gigabytes * 10**9
    ended = ceil(stored_bytes / WIDTH / (limits.segment_bytes / 2))  # half of it in memory
    of_partition = ceil(ended / max(1, SLICES_MAX // WIDTH))
    rows = stored_bytes // _ROW_BYTES
    objects = WIDTH * of_partition
    slices = Slices.even(objects, WIDTH, rows, stored_bytes)
    size = ExchangeSize(WIDTH, objects, objects - _INDEXED, stored_bytes, slices, readers)
    costs = COSTS["s3-standard"]
    direct, chosen = predict(size, DIRECT, limits, costs), choose(size, limits, costs)
    first, tasks = shares_of(slices.sizes, WIDTH, chosen.way, limits)
    parts = parts_over(first, tasks, np.ones((len(first), WIDTH), np.int64), WIDTH)
    log, store = _Log(), CountingStore()
    log.states(JobRegistered(PER_JOB, "0", "scale"))
    log.result(_FIRST, WIDTH)
    for partition in range(WIDTH):
        log.produced(_FIRST, partition, _first_segments(size, rows, partition))
    log.result(_COMBINED, len(parts))
    announced: list[AnnouncedSegment] = []
    for partition, part in enumerate(parts):
        segments = [_combined_segment(size, chosen.way, part)]
        attempt = log.produced(_COMBINED, partition, segments)
        announced += [(attempt, segment) for segment in segments]
        log.states(Consumed(_FIRST, part.subpartitions.start, 1, partition, 1, 1, 1))
    log.states(ReleaseRequested(_FIRST, "combined"))
    descriptor = ShuffleDescriptor(_JOB, _COMBINED, len(parts), WIDTH, 1)
    placed = place(descriptor, tuple(announced), Layout("root", _JOB), store)
    store_manifest(store, Layout("root", _JOB), placed, 1)
    for reader in range(WIDTH):
        log.states(Consumed(_COMBINED, reader, 1, reader, 1, 1, 1))
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counted = _combining_gets(size, chosen.way, parts, limits) + _reading_gets(placed, limits)
    return Outcome(
        f"{gigabytes:,} GB",
        chosen.way,
        direct.requests,
        direct.usd,
        chosen.requests,
        chosen.usd
        + costs.usd(puts(size.objects, stored_bytes), log.indexes)
        + costs.storage_usd(stored_bytes),
        counted + puts(len(announced), stored_bytes),
        log.indexes,
        log.core.log_bytes / 1e6,
        sum(log.core.cpu_s.values()),
        store.put_bytes / 1e6,
        store.largest_bytes / 1e3,
        memory_mb,
    )


class _Log:
    """The log of the job: its master takes every event at once."""

    def __init__(self) -> None:
        self.core = Core(_JOB)
        self.indexes = 0
        self._announcer = Announcer(_JOB, "driver")
        self._task = 0

    def states(self, fact: Fact) -> None:
        self.core.take(codec.encode(self._announcer.fact(fact)))

    def result(self, result: ResultId, partitions: int) -> None:
        self.states(ResultRegistered(result, partitions, WIDTH, "", "repartition"))
        self.states(PartitionRegistered(result, 0, partitions))

    def produced(
        self, result: ResultId, partition: int, segments: list[SegmentSummary]
    ) -> AttemptId:
        """State an attempt. Indexes that are too large for its event are left out."""
        self._task += 1
        attempt = AttemptId(PartitionId(result, partition), 1, self._task)
        self.states(AttemptStarted(attempt, "host-0123"))
        left, stated = inline_bytes(partition), []
        for segment in segments:
            index = segment.index if len(segment.index) <= left else b""
            left -= len(index)
            self.indexes += result == _COMBINED and not index
            stated.append(
                SegmentSummary(
                    segment.number, segment.size_bytes, segment.rows, segment.checksum, index
                )
            )
        self.states(Produced(attempt, tuple(stated), 1))
        return attempt


def _first_segments(size: ExchangeSize, rows: int, partition: int) -> list[SegmentSummary]:
    count = size.objects // size.partitions
    rows, size_bytes = rows // size.objects, size.stored_bytes // size.objects
    index = _index(range(WIDTH), rows, size_bytes, partition) if not partition else b"0" * 110_000
    return [SegmentSummary(number, size_bytes, rows, 1, index) for number in range(count)]


def _combined_segment(size: ExchangeSize, way: Way, part: Part) -> SegmentSummary:
    sizes = _uneven(part.subpartitions, size.stored_bytes // way.bundles // WIDTH)
    size_bytes = int(sizes.sum())
    index = _index(part.subpartitions, size_bytes // _ROW_BYTES, size_bytes, 0)
    rows = sum(SegmentIndex.unpacked(index, WIDTH).rows.tolist())
    return SegmentSummary(0, size_bytes, rows, 1, index)


def _index(reach: range, rows: int, size_bytes: int, seed: int) -> bytes:
    draw = np.random.default_rng(seed)
    all_rows, sizes = np.zeros((2, WIDTH), np.int64)
    sums = np.zeros(WIDTH, np.uint64)
    filled = slice(reach.start, reach.stop)
    all_rows[filled] = _uneven(reach, max(1, rows // len(reach)))
    sizes[filled] = _uneven(reach, max(1, size_bytes // len(reach)))
    sums[filled] = draw.integers(1, 1 << 63, len(reach), np.uint64)
    return SegmentIndex(400, all_rows, sizes, sums).packed()


def _uneven(reach: range, mean: int) -> Longs:
    """Return sizes that differ by up to a tenth of their mean."""
    factors = np.random.default_rng(reach.start).uniform(0.9, 1.1, len(reach))
    return np.maximum(1, mean * factors).astype(np.int64)


def _combining_gets(size: ExchangeSize, way: Way, parts: tuple[Part, ...], limits: Limits) -> int:
    """Return the requests of all tasks that combine, as a sample of them plans them. Each index is
    in a footer."""
    sample = parts[:: max(1, len(parts) // _SAMPLE)]
    gets = 0
    for part in sample:
        assert part.partitions is not None
        objects = len(part.partitions) * size.objects // size.partitions
        sources = tuple(_objects(part.subpartitions, objects, size))
        first, count = part.subpartitions.start, len(part.subpartitions)
        clients: Any = SimpleNamespace(limits=limits)
        reader = StretchReader((), clients, cast(Any, None), cast(Any, None))
        gets += objects
        for read in [(source,) for source in sources] if limits.files else [sources]:
            manifest = Manifest(_JOB, _FIRST, 1, first, count, read)
            deployment = InputGateDeployment(manifest, pa.schema([]), first, count, 1)
            gets += sum(len(block.sources) for block in reader._blocks(deployment))
    return gets * len(parts) // len(sample)


def _objects(reach: range, count: int, size: ExchangeSize) -> Iterator[Source]:
    """Yield the objects of map tasks, as far as a task that combines reads them."""
    sizes = _uneven(reach, size.stored_bytes // size.objects // WIDTH)
    starts = np.cumsum(sizes) - sizes
    for at in range(count):
        attempt = AttemptId(PartitionId(_FIRST, at), 1, at)
        yield Source(attempt, f"o{at}", starts, sizes, sizes, sizes.astype(np.uint64))


def _reading_gets(placed: PlacedResult, limits: Limits) -> int:
    """Return the requests of all readers and for their shards, as a sample of readers plans them.
    Each runs on another executor."""
    shards = firsts(placed.objects, WIDTH)
    readers = range(0, WIDTH, WIDTH // _SAMPLE)
    gets = 0
    for reader in readers:
        first = reader // shards.step * shards.step
        shard = placed.part(first, min(shards.step, WIDTH - first))
        deployment = InputGateDeployment(
            shard, pa.schema([]), reader, 1, reader, executors=EXECUTORS
        )
        gets += 1 + len({(p.source.name, p.window) for p in plan(deployment, limits)})
    return gets * WIDTH // len(readers)
