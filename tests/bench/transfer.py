"""Bytes a second of writer and gate without their kernels, against a bare loop on the same store.

A kernel is the computation that is needed whatever carries the bytes: sort and encode, or checksum
and decode. It is measured alone, without I/O. The further time of writer and gate is compared with
a loop that moves the same bytes in the same requests, with as many threads and the same client.
Writer and gate can be faster than that, because their I/O goes on during the kernel. The rows come
in order, as those of `exchange` do, so that no fingerprint is computed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from obstore.store import S3Store
from rich.table import Table

from headgate import Invalid
from headgate.connectors.spark.tasks.worker import keep_memory
from headgate.control.clock import Deadline
from headgate.control.contract import (
    MasterSettings,
    PartitionDescriptor,
    ProducerDescriptor,
    ShuffleDescriptor,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId, job_id
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.settings import KafkaSettings
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.infra.devstack import stack
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import Manifest, build
from headgate.storage.format.messages import decode
from headgate.storage.format.segment import Longs
from headgate.storage.limits import Limits
from headgate.storage.reading.read_plan import plan
from headgate.storage.stores.open_store import open_store
from headgate.storage.stores.port import BlobStore, ByteRange
from headgate.storage.stores.s3.clients import hot_client
from headgate.storage.stores.s3.settings import s3_settings
from headgate.storage.upkeep.object_deletion import ObjectDeleter
from headgate.storage.writing.encoding import Segment, encode, sort

PARTITIONS = 8
ROWS = 1_250_000
BATCH_ROWS = 32_768
RUN_BATCHES = 4
ROOT = "bench"
CODEC = "lz4"
TARGET = 0.85
LIMITS = Limits()
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("s", pa.string())])

Batches = list[tuple[pa.RecordBatch, Longs]]


@dataclass(frozen=True, slots=True)
class Times:
    """One round: the seconds of the kernel, of the bare loop, and of ours."""

    kernel_s: float
    bare_s: float
    ours_s: float

    def __add__(self, other: Times) -> Times:
        return Times(
            self.kernel_s + other.kernel_s,
            self.bare_s + other.bare_s,
            self.ours_s + other.ours_s,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A job on the real stack, and a bare client of the same store."""

    id: JobId
    master: DriverMaster
    store: BlobStore
    shuffle: ObjectStoreEnvironment
    client: S3Store


class _Context:
    def __init__(self, job: JobId) -> None:
        self.job_id = job
        self.application = "bench"

    def on_fatal_error(self, error: BaseException) -> None:
        raise error

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nothing is lost here."""


def run(rounds: int, counts: tuple[int, ...] = (32, 200)) -> Table:
    """Return the medians of the rounds; the first round only warms up."""
    table = Table("side", "n", "requests", "MiB", "kernel s", "bare s", "ours s", "bare / ours")
    table.title = f"{PARTITIONS * ROWS:,} rows to the store and back, target {TARGET:.0%}"
    keep_memory()
    with opened() as job:
        for n in counts:
            lane = Lane(job, n, [_batches(number, n) for number in range(PARTITIONS)])
            turns = [lane.turn(number) for number in range(rounds + 1)][1:]
            mib = sum(len(segment.body) for segment in lane.segments) / (1 << 20)
            sides = ("writer", PARTITIONS), (f"{n} gates", lane.gets), ("one gate", lane.gets)
            for at, (side, asked) in enumerate(sides):
                times = [turn[at] for turn in turns]
                table.add_row(side, str(n), str(asked), *_figures(times, mib))
    return table


def _figures(times: list[Times], mib: float) -> list[str]:
    kernel, bare, ours = (
        median(getattr(t, name) for t in times) for name in ("kernel_s", "bare_s", "ours_s")
    )
    rest = ours - kernel
    return [
        f"{mib:.0f}",
        f"{kernel:.2f}",
        f"{bare:.2f} ({mib / bare:.0f} MiB/s)",
        f"{ours:.2f} ({mib / rest:.0f} MiB/s less kernel)",
        f"{bare / rest:.0%}",
    ]


class Lane:
    """A writer of the same rows into `n` subpartitions, again and again."""

    def __init__(self, job: Job, n: int, rows: list[Batches]) -> None:
        self._job = job
        self._n = n
        self._rows = rows
        self.segments = [_encoded(batches, n) for batches in rows]
        self.gets = 0

    def turn(self, number: int) -> tuple[Times, Times, Times]:
        """Write, then read by a gate for each subpartition, and by one gate for all. The order
        changes from turn to turn, and in writing also from partition to partition."""
        descriptor = self._register(ResultId(f"{self._n}-{number}"))
        names = [f"{ROOT}/{self._job.id}/bare-{number}-{at}" for at in range(PARTITIONS)]
        write = Times(0, 0, 0)
        for at in range(PARTITIONS):
            write += _in_turn(
                number + at,
                partial(_encoded, self._rows[at], self._n),
                partial(self._bare_put, names[at], self.segments[at]),
                partial(self._write, descriptor, at),
            )
        manifest = self._manifest(descriptor)
        works = partial(self._decode, manifest), partial(self._bare_gets, manifest)
        read = _in_turn(number, *works, partial(self._read, manifest, 1))
        read_all = _in_turn(number, *works, partial(self._read, manifest, self._n))
        self._job.store.delete([*names, *(source.name for source in manifest.sources)])
        return write, read, read_all

    def _register(self, result: ResultId) -> ShuffleDescriptor:
        partition = PartitionDescriptor(result, PARTITIONS, self._n, "", "bench")
        future = self._job.master.register_partition_with_producer(
            self._job.id, partition, ProducerDescriptor(0, PARTITIONS)
        )
        return future.result(15)

    def _manifest(self, descriptor: ShuffleDescriptor) -> Manifest:
        state = self._job.master.await_complete(descriptor)
        return build(descriptor, state, Layout(ROOT, self._job.id), self._job.store)

    def _write(self, descriptor: ShuffleDescriptor, number: int) -> None:
        partition = PartitionId(descriptor.result, number)
        attempt = AttemptId(partition, descriptor.epoch, number)
        writer = self._job.shuffle.create_result_partition_writer(
            ResultPartitionDeployment(attempt, self._n, SCHEMA, CODEC, ordered=True)
        )
        for batch, targets in self._rows[number]:
            writer.write(batch, targets)
        assert len(writer.finish().segments) == 1, "the kernel encodes one segment a partition"

    def _read(self, manifest: Manifest, count: int) -> None:
        before, rows = self._job.store.requests, 0
        for first in range(0, self._n, count):
            deployment = InputGateDeployment(manifest, SCHEMA, first, count, first)
            for batch in self._job.shuffle.create_input_gate(deployment):
                rows += batch.num_rows
        self.gets = (self._job.store.requests - before).gets
        assert rows == PARTITIONS * ROWS, "every row is read"
        assert self.gets == len(self._windows(manifest)), "the bare loop asks what the gate asks"

    def _decode(self, manifest: Manifest) -> None:
        schema = SCHEMA.serialize().to_pybytes()
        bodies = {
            s.name: made.body for s, made in zip(manifest.sources, self.segments, strict=True)
        }
        for piece in plan(self._whole(manifest), LIMITS):
            part = bodies[piece.source.name][piece.span.start : piece.span.end]
            checksum = xxhash.xxh3_64_intdigest(part)
            assert checksum == int(piece.source.checksums[piece.at]), "the same bytes are stored"
            list(decode(part, schema, piece.rows))

    def _bare_put(self, name: str, segment: Segment) -> None:
        self._job.client.put(name, segment.body, use_multipart=False)

    def _bare_gets(self, manifest: Manifest) -> None:
        def get(window: tuple[str, ByteRange]) -> int:
            name, span = window
            return len(self._job.client.get_range(name, start=span.start, length=span.length))

        with ThreadPoolExecutor(LIMITS.fetch_parallel) as threads:
            moved = sum(threads.map(get, self._windows(manifest)))
        assert moved == int(manifest.sizes.sum()), "the windows cover every subpartition once"

    def _windows(self, manifest: Manifest) -> list[tuple[str, ByteRange]]:
        pieces = plan(self._whole(manifest), LIMITS)
        return list(dict.fromkeys((piece.source.name, piece.window) for piece in pieces))

    def _whole(self, manifest: Manifest) -> InputGateDeployment:
        return InputGateDeployment(manifest, SCHEMA, 0, self._n, 0)


@contextmanager
def opened() -> Iterator[Job]:
    """Open a job of its own, and delete everything that it stored at the end."""
    state = stack.status()
    if state is None or not state.is_up():
        raise Invalid("start the stack first: make stack")
    os.environ["AWS_ACCESS_KEY_ID"] = state.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = state.secret_key
    options = {"endpoint": state.endpoint}
    store, _ = open_store(f"s3://{state.bucket}/{ROOT}", options)
    log = KafkaEventLog(KafkaSettings(state.bootstrap))
    log.prepare(Deadline.after(15))
    me = DriverIdentity(f"bench {os.getpid()}", "0")
    master = DriverMaster(log, ObjectDeleter(store, ROOT), MasterSettings(), me)
    context = _Context(job_id(f"transfer-{os.getpid()}"))
    master.register_job(context)
    shuffle = ObjectStoreEnvironment(context.job_id, log, store, ROOT, LIMITS)
    client = hot_client(s3_settings(state.bucket, options))
    try:
        yield Job(context.job_id, master, store, shuffle, client)
    finally:
        master.unregister_job(context.job_id)
        master.close()
        shuffle.close()


def _batches(number: int, n: int) -> Batches:
    """Return rows like those of `places.rows`, and the subpartition of each."""
    drawn = np.random.default_rng(number)
    keys = drawn.integers(-100_000, 100_000, ROWS)
    values = np.arange(ROWS) + number * ROWS
    names = pc.binary_join_element_wise("name-", pa.array(values % 5000).cast(pa.string()), "")
    columns = [pa.array(keys), pa.array(values), pa.array(drawn.random(ROWS)), names]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    targets = keys * 2_654_435_761 % n
    return [
        (rows.slice(at, BATCH_ROWS), targets[at : at + BATCH_ROWS])
        for at in range(0, ROWS, BATCH_ROWS)
    ]


def _encoded(batches: Batches, n: int) -> Segment:
    """Sort and encode these rows as a writer does before it puts a segment."""
    runs = []
    for at in range(0, len(batches), RUN_BATCHES):
        taken = batches[at : at + RUN_BATCHES]
        runs.append(sort([batch for batch, _ in taken], [targets for _, targets in taken], n))
    return encode(runs, CODEC, AttemptId(PartitionId(ResultId("kernel"), 0), 0, 0))


def _in_turn(number: int, *works: Callable[[], object]) -> Times:
    """Time kernel, bare loop and ours, starting with another one each time."""
    spent_s = [0.0] * len(works)
    for step in range(len(works)):
        at = (number + step) % len(works)
        start = time.monotonic()
        works[at]()
        spent_s[at] = time.monotonic() - start
    return Times(*spent_s)
