"""The machines of one job: executors that come and go, and the tasks that they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headgate.connectors.spark.tasks.combine_task import Share, copy_rows, share_reader
from headgate.control.clock import Clock
from headgate.control.contract import ShuffleDescriptor
from headgate.control.ids import AttemptId, ResultId
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.manifest import Manifest
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.stores.port import BlobStore
from headgate.storage.stores.rooted import Root, RootedStore
from headgate.storage.streaming.partition_updates import KnownPartitions
from headgate.storage.writing.writer import SegmentWriter

from .broker import Broker, SimLog
from .bucket import Bucket
from .faults import Chaos
from .oracle import JOB, ROOT, Oracle, Row
from .scheduler import Process, Scheduler, SimClock, SimExecutor, SimFuture, Versions

SCHEMA = pa.schema([("partition", pa.int32()), ("number", pa.int32()), ("task", pa.int32())])
WAIT_S = 30.0
BATCHES, STREAM_BATCHES = (0, 1, 1, 2, 3), (0, 1, 3, 5)
STREAM_MS, SLOW_MS, SLOW_SHARE = 40.0, 4_000.0, 0.2
LIMITS = Limits(100, 700, 2, 600, 2_000)
FOLDER, LOG = "file:///shared", "ours"
MANY = Root(FOLDER, f"{ROOT}/", log=lambda: LOG)
FETCHED_BYTES, GROUP_BYTES = (700, 3_000, 20_000), (50, 1_000, 5_000)


@dataclass(frozen=True)
class World:
    """The services and settings that all processes of a simulated world share."""

    scheduler: Scheduler
    chaos: Chaos
    oracle: Oracle
    broker: Broker
    bucket: Bucket
    mode: str  # whether the driver's own masters decide, or a session's
    lease_ms: int  # of each driver; with 0 there is no sweeper
    stream_at: int | None = None  # the number of each driver's pipelined exchange
    exchanges: int = 0  # of a driver without faults; with 0 the world draws a few
    chained: bool = False  # each exchange reads the one before, and none is released early
    combines: bool = False  # drivers combine the objects of some exchanges
    versions: Versions | None = None  # of its processes; None if there is one version
    mounts: bool = False  # the store is a folder, which processes may lack for a while


def rooted(world: World, clock: Clock, process: Process) -> BlobStore:
    """Return the store of a process that works for many drivers."""
    store = world.bucket.client(clock, process)
    return RootedStore(store, MANY) if world.mounts else store


class GivenUp(Exception):
    """The user's code failed in a task."""


@dataclass(frozen=True)
class Exchange:
    """One result. With a source, its map tasks read that result."""

    name: ResultId
    partitions: int
    subpartitions: int
    deterministic: bool
    source: Exchange | None
    position: int  # of the log, before the first fact about the result
    pipelined: bool = False
    original: ResultId | None = None  # the result whose rows it has, if that is another one
    again: bool = False  # made again, to combine its rows


class Executor:
    """The worker process of one machine."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.busy = False
        self.limits = self._limits()
        self._environments: dict[Root | None, ObjectStoreEnvironment] = {}
        self.serve(None)

    def serve(self, root: Root | None) -> None:
        """Run the next task for the driver that knows its root so."""
        if root not in self._environments:
            scheduler, process = self.world.scheduler, self.process
            clock = SimClock(scheduler, process)
            client = self.world.bucket.client(clock, process)
            self._environments[root] = ObjectStoreEnvironment(
                JOB,
                SimLog(self.world.broker, process),
                client if root is None else RootedStore(client, root),
                ROOT,
                self.limits,
                Runtime(
                    WAIT_S,
                    clock,
                    lambda _, name: SimExecutor(scheduler, process, name),
                    lambda: SimFuture(scheduler),
                ),
            )
        self.environment = self._environments[root]

    def work(self, run: Callable[[Executor, int], object], number: int) -> object:
        try:
            return run(self, number)
        finally:
            self.busy = False

    def write(self, exchange: Exchange, attempt: AttemptId, manifest: Manifest | None) -> int:
        """Run a map task as a worker does; with a manifest, its rows are read from another
        result."""
        given = self.world.oracle.given.setdefault(attempt, {})
        deployment = ResultPartitionDeployment(
            attempt, exchange.subpartitions, SCHEMA, "none", exchange.pipelined
        )

        def copy(writer: SegmentWriter) -> None:
            for rows, targets in self._in_any_order(
                attempt, self._rows(exchange, attempt, manifest)
            ):
                for row, target in zip(rows, targets, strict=True):
                    given.setdefault(target, []).append(row)
                columns = [pa.array(column, pa.int32()) for column in zip(*rows, strict=True)]
                writer.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), np.array(targets))
                self._use_rows("rows", exchange)

        return self._written(deployment, copy)

    def _written(
        self, deployment: ResultPartitionDeployment, copy: Callable[[SegmentWriter], None]
    ) -> int:
        """Write an attempt with the rows that `copy` gives, and return their number."""
        writer = self.environment.create_result_partition_writer(deployment, self.process.name)
        try:
            copy(writer)
            if self.world.chaos.strikes("task given up"):
                raise GivenUp(str(deployment.attempt))
            return writer.finish().rows
        except BaseException as exc:
            writer.abort(type(exc).__name__)
            raise

    def _limits(self) -> Limits:
        """Return the limits of this machine's tasks; tasks that combine read as much as fits."""
        if not self.world.combines:
            return LIMITS
        dice = self.world.scheduler.dice(f"limits of {self.process.name}")
        fetch_bytes, files = dice.choice(FETCHED_BYTES), dice.choice((True, False))
        return replace(LIMITS, fetch_bytes=fetch_bytes, files=files)

    def combine(
        self, exchange: Exchange, attempt: AttemptId, source: ShuffleDescriptor, share: Share
    ) -> int:
        """Run a task that combines rows of another result."""
        deployment = ResultPartitionDeployment(attempt, exchange.subpartitions, SCHEMA, "none")
        group_bytes = self.world.scheduler.dice(f"groups of {attempt}").choice(GROUP_BYTES)

        def copy(writer: SegmentWriter) -> None:
            bytes_max = self.limits.fetch_bytes if self.limits.files else None
            reader = share_reader(self.environment, source, share, SCHEMA, attempt.task, bytes_max)
            copy_rows(reader, writer, group_bytes)

        return self._written(deployment, copy)

    def _use_rows(self, what: str, exchange: Exchange) -> None:
        """Let the user's code take its time. At either end of a stream it may take long, so that
        one end waits for the other, or gets many updates at once."""
        dice, ms = self.world.scheduler.random, None
        if exchange.pipelined:
            ms = (SLOW_MS if dice.random() < SLOW_SHARE else STREAM_MS) * dice.random()
        self.world.scheduler.pause(what, ms)

    def _rows(
        self, exchange: Exchange, attempt: AttemptId, manifest: Manifest | None
    ) -> Iterator[tuple[list[Row], list[int]]]:
        """Yield the rows of the user's code: the same rows at every attempt, or other ones each
        time."""
        index, tag, dice = attempt.partition.index, attempt.task, self.world.scheduler.random
        if exchange.deterministic:
            tag, dice = (
                0,
                self.world.scheduler.dice(f"{exchange.original or exchange.name}/{index}"),
            )
        if manifest is not None:
            assert exchange.source is not None, "what is read has a source"
            rows = self.read(exchange.source, manifest, range(index, index + 1), attempt.task)
            batches = [range(len(rows))]
        else:
            counts = STREAM_BATCHES if exchange.pipelined else BATCHES
            sizes = [dice.randint(1, 9) for _ in range(dice.choice(counts))]
            batches = [range(sum(sizes[:at]), sum(sizes[: at + 1])) for at in range(len(sizes))]
        for numbers in filter(None, batches):
            targets = [dice.randrange(exchange.subpartitions) for _ in numbers]
            yield [(index, number, tag) for number in numbers], targets

    def _in_any_order(
        self, attempt: AttemptId, batches: Iterator[tuple[list[Row], list[int]]]
    ) -> Iterator[tuple[list[Row], list[int]]]:
        """Yield the rows as behind one of Spark's shuffles: every other attempt has them in an
        order of its own, in batches of another size."""
        dice = self.world.scheduler.dice(str(attempt))
        if dice.random() < 0.5:
            yield from batches
            return
        pairs = [pair for rows, targets in batches for pair in zip(rows, targets, strict=True)]
        dice.shuffle(pairs)
        while pairs:
            some, pairs = pairs[:7], pairs[7:]
            yield [row for row, _ in some], [target for _, target in some]

    def read(
        self,
        exchange: Exchange,
        manifest: Manifest,
        part: range,
        task: int,
        known: KnownPartitions | None = None,
        position: int = 0,
    ) -> list[Row]:
        """Run a reader task with the partitions known at a log position, and return its rows.

        A gate that comes to its end must have given every row.
        """
        deployment = InputGateDeployment(manifest, SCHEMA, part.start, len(part), task)
        if known is not None:
            unknown, updates = known.unknown, known.told
            deployment = replace(deployment, unknown=unknown, told=updates, position=position)
        rows: list[Row] = []
        for batch in self.environment.create_input_gate(deployment):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            self._use_rows("batch", exchange)
        self.world.oracle.read(exchange.name, exchange.partitions, part, task, rows)
        return rows
