"""The command line against real Kafka and MinIO, after a real exchange."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.events.types import ResultRegistered
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId, job_id
from headgate.control.kafka.settings import TopicSettings
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.infra.cli import app
from headgate.infra.devstack import stack
from headgate.infra.target import Target
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import build
from headgate.storage.limits import Limits
from headgate.storage.upkeep.object_deletion import ObjectDeleter

pytestmark = pytest.mark.real

RESULT = ResultId("r1")
PARTITIONS, SUBPARTITIONS = 3, 4
WAIT_S = 30.0
SCHEMA = pa.schema([("a", pa.int64())])


class Context:
    application = "tests"

    def __init__(self, job: JobId) -> None:
        self.job_id = job

    def on_fatal_error(self, error: BaseException) -> None:
        raise AssertionError(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nothing is lost here."""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return the running stack, and a place in its bucket for this suite alone."""
    state = stack.status()
    assert state is not None, "`make stack` starts it"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", state.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", state.secret_key)
    monkeypatch.setenv("HEADGATE_BROKER", state.bootstrap)
    monkeypatch.setenv("HEADGATE_STORE", f"s3://{state.bucket}/test-cli")
    monkeypatch.setenv("HEADGATE_S3_ENDPOINT", state.endpoint)
    store = f"s3://{state.bucket}/test-cli"
    return Target(state.bootstrap, store, "headgate", {}, {"endpoint": state.endpoint})


@pytest.fixture
def job(target: Target) -> Iterator[JobId]:
    """Run a job that has written and read one exchange and still holds it, and unregister it at the
    end."""
    job = job_id(f"test-cli-{os.urandom(6).hex()}")
    store, root = target.open_bucket()
    with closing(target.open_log()) as log, closing(store):
        log.prepare(Deadline.after(WAIT_S))
        release = ObjectDeleter(store, root)
        master = DriverMaster(log, release, MasterSettings(), DriverIdentity("driver", "0"))
        master.start()
        master.register_job(Context(job))
        exchange(master, job, target)
        yield job
        master.unregister_job()
        master.close()


def exchange(master: DriverMaster, job: JobId, target: Target) -> None:
    """Write three partitions, and read every subpartition."""
    store, root = target.open_bucket()
    environment = ObjectStoreEnvironment(job, target.open_log(), store, root, Limits())
    with closing(environment):
        descriptor = master.register_partition_with_producer(
            ResultRegistered(RESULT, PARTITIONS, SUBPARTITIONS, "", "repartition")
        ).result(WAIT_S)
        batch = pa.record_batch({"a": pa.array(range(100))}, SCHEMA)
        for index in range(PARTITIONS):
            attempt = AttemptId(PartitionId(RESULT, index), descriptor.epoch, index)
            writer = environment.create_result_partition_writer(
                ResultPartitionDeployment(attempt, SUBPARTITIONS, SCHEMA, "lz4")
            )
            writer.write(batch, np.arange(100) % SUBPARTITIONS)
            writer.finish()
        state = master.await_complete(descriptor)
        manifest = build(descriptor, state, Layout(root, job), store)
        for number in range(SUBPARTITIONS):
            gate = environment.create_input_gate(
                InputGateDeployment(manifest, SCHEMA, number, 1, number)
            )
            assert sum(batch.num_rows for batch in gate) == PARTITIONS * 25


def ran(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app.app, list(arguments))
    assert result.stderr == ""
    return result.exit_code, result.stdout.splitlines()


def test_events_and_state_tell_the_exchange(job: JobId) -> None:
    """The log lists the events in order, and the state at an offset is the state of that time."""
    code, lines = ran("events", "--job", job, "--json")
    events = [json.loads(line) for line in lines]
    produced = [event["offset"] for event in events if event["kind"] == "Produced"]
    assert (code, len(produced)) == (0, PARTITIONS)
    _, then = ran("state", "--job", job, "--at", str(produced[0]))
    _, now = ran("state", "--job", job)
    assert any(f"{PARTITIONS} of {PARTITIONS}" in line for line in now)
    assert any("4 of 4" in line for line in now)
    assert not any(f"{PARTITIONS} of {PARTITIONS}" in line for line in then)


def test_the_job_is_listed_and_reported(job: JobId) -> None:
    """`jobs` finds a running job among all of the log, and `report` has its exchange."""
    code, lines = ran("jobs", "--json")
    (listed,) = [entry for entry in map(json.loads, lines) if entry["job"] == job]
    assert (code, listed["state"], listed["application"]) == (0, "running", "tests")
    assert listed["heard_ms"] - listed["began_ms"] < 1000 * WAIT_S
    assert listed["stored_bytes"] > 0
    code, lines = ran("report", "--job", job, "--json")
    (exchange,) = json.loads(lines[0])["exchanges"]
    assert (code, exchange["rows"], exchange["puts"]) == (0, 100 * PARTITIONS, PARTITIONS)
    assert exchange["gets"] > 0


def test_audit_and_fsck_find_nothing(job: JobId) -> None:
    """A real exchange leaves a log that explains itself and a bucket that agrees with it."""
    assert ran("audit", "verify", "--job", job)[0] == 0
    code, lines = ran("fsck", "--job", job, "--deep")
    assert (code, lines[-1].startswith("clean: 3 objects")) == (0, True)


def test_fsck_finds_what_was_taken_and_what_was_put(job: JobId, target: Target) -> None:
    """fsck finds an object that was deleted from a real bucket, and one that was put there."""
    store, root = target.open_bucket()
    with closing(store):
        names = [stat.name for stat in store.list(Layout(root, job).prefix)]
        store.delete(names[:1])
        store.put(f"{Layout(root, job).prefix}00/x/0/1-1/0", b"strange", "w")
        code, lines = ran("fsck", "--job", job)
    assert code == 1
    assert [line.split()[0] for line in lines[:-1]] == ["missing", "orphan"]


def test_fsck_repairs_a_real_bucket(job: JobId, target: Target) -> None:
    """Repair works on a real bucket and a real log: it reports the missing attempt as lost, and
    leaves another job's object alone."""
    store, root = target.open_bucket()
    foreign = f"{Layout(root, JobId(f'{job}-other')).prefix}00/r1/0/1-1/0"
    with closing(store):
        names = [stat.name for stat in store.list(Layout(root, job).prefix)]
        store.delete(names[:1])
        store.put(foreign, b"another's", "w")
        code, lines = ran("fsck", "--job", job, "--repair")
        assert code == 0
        assert "1 attempt reported as lost" in lines[-1]
        assert [stat.name for stat in store.list(foreign)] == [foreign]
        store.delete([foreign])
    _, lines = ran("events", "--job", job, "--json")
    assert "Lost" in [json.loads(line)["kind"] for line in lines]


def test_doctor_finds_the_stack_fit(target: Target) -> None:
    """`doctor` finds that real Kafka isolates and fences and that MinIO creates conditionally, and
    leaves no object behind."""
    _, lines = ran("doctor")
    assert [line for line in lines[5:] if line.split()[1] != "ok"] == []
    store, root = target.open_bucket()
    with closing(store):
        assert [stat.name for stat in store.list(f"{root}/doctor-")] == []


def test_doctor_takes_topics_as_they_are(target: Target) -> None:
    """Topics with settings of their own are no fault: doctor says which keys drivers must set."""
    prefix = f"own-{os.urandom(4).hex()}"
    settings = TopicSettings(partitions=3, retention_ms=86_400_000)
    with closing(replace(target, prefix=prefix).open_log(settings)) as log:
        log.prepare(Deadline.after(WAIT_S))
    result = CliRunner().invoke(app.app, ["doctor", "--json", "--prefix", prefix])
    checks = {check["name"]: check for check in map(json.loads, result.stdout.splitlines())}
    keys = "spark.headgate.topic.partitions=3, spark.headgate.topic.retention.ms=86400000"
    assert ("hint", True) == (
        checks["reach broker"]["verdict"],
        checks["reach broker"]["says"].endswith(f"drivers must set {keys}"),
    )
    assert "ok" == checks["fence a master"]["verdict"]


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("HEADGATE_S3_ENDPOINT", "https", "what listens there does not speak TLS; write http"),
        ("AWS_SESSION_TOKEN", "nonsense", "the session token is not valid"),
    ],
)
def test_doctor_names_what_is_wrong_with_the_bucket(
    target: Target, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, says: str
) -> None:
    """An endpoint that is written as https and does not speak TLS, and a session token that does
    not fit, are named as such."""
    former = os.environ.get(variable, "")
    monkeypatch.setenv(variable, former.replace("http", text, 1) or text)
    result = CliRunner().invoke(app.app, ["doctor", "--json"])
    checks = {check["name"]: check for check in map(json.loads, result.stdout.splitlines())}
    assert ("wrong", True) == (
        checks["reach bucket"]["verdict"],
        says in checks["reach bucket"]["says"],
    )
