"""Commands on a log and a store in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.events.types import ResultRegistered
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.settings import TopicSettings
from headgate.control.log import EventLog
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.memory.log import MemoryEventLog
from headgate.infra.cli import app
from headgate.infra.devstack import stack
from headgate.infra.target import Target
from headgate.storage.contract import ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore
from headgate.storage.upkeep.object_deletion import ObjectDeleter

JOB, RESULT = JobId("j"), ResultId("r1")
PARTITIONS, SUBPARTITIONS = 3, 4
WAIT_S = 10.0


class KeptLog(MemoryEventLog):
    """A log that stays open when a command closes it, so that the test can continue with it."""

    def close(self) -> None: ...

    def topic_settings(self, deadline: Deadline) -> TopicSettings:
        return TopicSettings()


class Context:
    application = "tests"

    def __init__(self, job: JobId) -> None:
        self.job_id = job

    def on_fatal_error(self, error: BaseException) -> None:
        raise AssertionError(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nothing is lost here."""


def exchange(
    log: EventLog,
    objects: Objects,
    close: bool,
    settings: MasterSettings | None = None,
    place: str = "",
    result: ResultId = RESULT,
    job: JobId = JOB,
) -> None:
    """Run one exchange through the real master and writers; every partition becomes consumable."""
    store = MemoryBlobStore(objects)
    settings = settings or MasterSettings()
    master = DriverMaster(
        log, ObjectDeleter(store, "root"), settings, DriverIdentity("d", "0", place)
    )
    master.start()
    master.register_job(Context(job))
    environment = ObjectStoreEnvironment(job, log, MemoryBlobStore(objects), "root", Limits())
    descriptor = master.register_partition_with_producer(
        ResultRegistered(result, PARTITIONS, SUBPARTITIONS, "", "repartition")
    ).result(WAIT_S)
    batch = pa.record_batch({"a": pa.array(range(100))})
    for index in range(PARTITIONS):
        attempt = AttemptId(PartitionId(result, index), descriptor.epoch, index)
        deployment = ResultPartitionDeployment(attempt, SUBPARTITIONS, batch.schema, "lz4")
        writer = environment.create_result_partition_writer(deployment, "h")
        writer.write(batch, np.arange(100) % SUBPARTITIONS)
        writer.finish()
    master.await_complete(descriptor)
    if close:
        master.unregister_job()
    master.close()
    environment.close()


@pytest.fixture
def objects() -> Objects:
    return {}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, objects: Objects) -> KeptLog:
    """Replace the log and the bucket that options name by ones in memory."""
    log = KeptLog()

    def bucket(target: Target, log: object = None, **options: str) -> tuple[BlobStore, str]:
        return MemoryBlobStore(objects), "root"

    monkeypatch.setattr(Target, "open_log", lambda target, topic=None: log)
    monkeypatch.setattr(Target, "open_bucket", bucket)
    monkeypatch.setattr(stack, "status", lambda: None)
    for name in ("HEADGATE_BROKER", "HEADGATE_STORE", "HEADGATE_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return log


def ran(*arguments: str) -> tuple[int, list[str], str]:
    """Run a command; return its exit code, its lines on stdout, and its stderr."""
    result = CliRunner().invoke(app.app, list(arguments))
    return result.exit_code, result.stdout.splitlines(), result.stderr


def attempt(partition: int) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), 1, 9)
