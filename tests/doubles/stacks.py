"""A master and an environment on a log and a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.contract import (
    MasterSettings,
    ShuffleDescriptor,
)
from headgate.control.errors import HeadgateError
from headgate.control.events.types import Produced, ResultRegistered
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.log import EventLog
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import build
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from .jobs import HURRIED, JOB, RESULT, Job, audited
from .logs import STEP_EVENTS_MAX, FaultyLog

WAIT_MS = 1_000
SETTINGS = MasterSettings(wait_ms=WAIT_MS, step_events_max=STEP_EVENTS_MAX, pace=HURRIED)
SCHEMA = pa.schema([("n", pa.int64())])
PARTITIONS, SUBPARTITIONS, ROWS = 2, 3, 20
LIMITS = Limits(segment_bytes=80, fetch_parallel=2)
LAYOUT = Layout("root", JOB)


@dataclass
class Stack:
    """One log and one bucket, shared by many successive drivers."""

    inner: EventLog = field(default_factory=MemoryEventLog)
    objects: Objects = field(default_factory=dict)
    drivers: Iterator[int] = field(default_factory=count)
    tasks: Iterator[int] = field(default_factory=count)

    @property
    def store(self) -> MemoryBlobStore:
        return MemoryBlobStore(self.objects)

    @contextmanager
    def master(
        self,
        log: EventLog | None = None,
        store: BlobStore | None = None,
        settings: MasterSettings = SETTINGS,
        address: str = "",
    ) -> Iterator[DriverMaster]:
        release = ObjectDeleter(store or self.store, "root")
        me = DriverIdentity(f"driver {next(self.drivers)}", "0", address)
        master = DriverMaster(log or self.inner, release, settings, me)
        master.start()
        try:
            yield master
        finally:
            master.close()

    @contextmanager
    def environment(self, log: EventLog | None = None) -> Iterator[ObjectStoreEnvironment]:
        """Open an executor's environment. Its log is wrapped, because an environment closes its
        log."""
        shared = log or FaultyLog(self.inner)
        environment = ObjectStoreEnvironment(JOB, shared, self.store, "root", LIMITS, Runtime(0.3))
        try:
            yield environment
        finally:
            environment.close()

    def ended(self) -> None:
        """Assert that the job is over: nothing is undecided, nothing is stored, every step is
        explained."""
        state = audited(self.inner).state
        assert state.closed is not None
        assert all(result.production.attempts == {} for result in state.results.values())
        assert self.objects == {}

    def end(self) -> None:
        """Let a new driver end the job. It is patient, because the machine may be busy."""
        with self.master(settings=replace(SETTINGS, wait_ms=10 * WAIT_MS)) as master:
            master.register_job(Job())
            master.unregister_job()
        self.ended()


@pytest.fixture
def stack() -> Iterator[Stack]:
    made = Stack()
    yield made
    made.end()


def register(
    master: DriverMaster, partitions: int = PARTITIONS, result: ResultId = RESULT
) -> ShuffleDescriptor:
    registered = ResultRegistered(result, partitions, SUBPARTITIONS, "", "test")
    return master.register_partition_with_producer(registered).result(WAIT_MS / 1000)


def write(environment: ObjectStoreEnvironment, attempt: AttemptId) -> Produced:
    deployment = ResultPartitionDeployment(attempt, SUBPARTITIONS, SCHEMA, "none")
    writer = environment.create_result_partition_writer(deployment)
    try:
        for first in (0, 10):
            numbers = np.arange(first, first + 10) + attempt.partition.index * ROWS
            writer.write(pa.record_batch([numbers], schema=SCHEMA), numbers % SUBPARTITIONS)
        return writer.finish()
    except BaseException as exc:
        with suppress(HeadgateError):
            writer.abort(type(exc).__name__)
        raise


def produce(
    stack: Stack, environment: ObjectStoreEnvironment, it: ShuffleDescriptor, partition: int
) -> None:
    """Run one map task, with up to four attempts as in Spark."""
    for left in range(3, -1, -1):
        attempt = AttemptId(PartitionId(it.result, partition), it.epoch, next(stack.tasks))
        try:
            write(environment, attempt)
            return
        except HeadgateError:
            if not left:
                raise


def read(
    stack: Stack, environment: ObjectStoreEnvironment, master: DriverMaster, d: ShuffleDescriptor
) -> None:
    """Read a complete result, and assert that every row is there once, in its subpartition."""
    manifest = build(d, master.await_complete(d), LAYOUT, stack.store)
    for at in range(SUBPARTITIONS):
        gate = environment.create_input_gate(InputGateDeployment(manifest, SCHEMA, at, 1, at))
        numbers = sorted(n for batch in gate for n in batch["n"].to_pylist())
        assert [n for n in range(d.partitions * ROWS) if n % SUBPARTITIONS == at] == numbers
