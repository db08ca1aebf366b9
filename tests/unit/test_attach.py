"""Attaching a session: settings that contradict each other, and failures that leave nothing
behind."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from headgate import Closed, Invalid
from headgate.connectors.spark import attach
from headgate.connectors.spark.jvm.names import Features
from headgate.connectors.spark.report import Hold
from headgate.connectors.spark.services import JobServices
from headgate.connectors.spark.settings import read_settings
from headgate.connectors.spark.tasks.exchange_tasks import WorkerSettings
from headgate.control.ids import job_id
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore

JOB = job_id("job")
CONTEXT = SimpleNamespace(appName="tests", getConf=dict[str, str])
SPARK: Any = SimpleNamespace(version="4.3.0", sparkContext=CONTEXT)


def fail(*_: object) -> None:
    raise RuntimeError("no door")


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("step", ["open_door", "Exchanger", "Headgate"])
def test_a_failing_attach_ends_its_master(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """An attach that fails after registration leaves neither the master's threads nor its log
    open."""
    log: Any = MemoryEventLog()
    kafka: Any = None
    worker = WorkerSettings("key", JOB, kafka, "memory:", "root", (), Limits(), 1.0)
    services = JobServices(log, MemoryBlobStore(), worker, ExitStack())
    monkeypatch.setattr(attach, "makes_room", lambda _: True)
    monkeypatch.setattr(attach, "open_door", lambda *_: None)
    monkeypatch.setattr(attach, step, fail)
    with pytest.raises(RuntimeError, match="no door"):
        attach._register(SPARK, read_settings({}), services, MagicMock(), Features())
    with pytest.raises(Closed):
        log.written(JOB)


def test_applications_of_one_moment_have_jobs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two local drivers that start in the same millisecond share an application id, but not a job.
    A driver that attaches again gets its former job."""
    applications = ["local-1795545284524", "app-20261124184000-0000"]
    monkeypatch.setattr("os.getpid", lambda: 7)
    first = [attach.default_job(application) for application in applications]
    assert first == [attach.default_job(application) for application in applications]
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    second = [attach.default_job(application) for application in applications]
    monkeypatch.setattr("os.getpid", lambda: 8)
    third = [attach.default_job(application) for application in applications]
    assert 6 == len({*first, *second, *third})
    assert all(job_id(name).startswith(tuple(applications)) for name in (*first, *second, *third))


def test_names_of_other_applications_are_kept() -> None:
    """An application id of YARN or Kubernetes is unique, so it is the job's name."""
    for application in ("application_1795545284524_0001", "spark-0123456789abcdef"):
        assert application == attach.default_job(application)


def test_queries_without_their_plans_are_refused() -> None:
    """A session that is limited to public PySpark cannot have its queries run by Headgate."""
    conf = {"spark.headgate.sql.enabled": "true", "spark.headgate.catalyst": "off"}
    with pytest.raises(Invalid, match=r"sql\.enabled = true needs .* spark\.headgate\.catalyst"):
        read_settings(conf)


@pytest.mark.parametrize(
    ("conf", "shuffles_s", "partitions_s", "parts"),
    [
        ({}, None, 600.0, ["native shuffle, because shuffles.timeout is not set", "sql.enabled"]),
        (
            {"sql.enabled": "true", "sql.from.bytes": "9"},
            None,
            None,
            ["native shuffle or a cached partition, because", "are not set", "sql.from.bytes=9"],
        ),
        ({"sql.enabled": "true"}, 60.0, None, ["a cached partition, because cached.timeout"]),
        ({}, 60.0, 600.0, []),
    ],
)
def test_what_would_hold_executors_is_logged(
    caplog: pytest.LogCaptureFixture,
    conf: dict[str, str],
    shuffles_s: float | None,
    partitions_s: float | None,
    parts: list[str],
) -> None:
    """One line names the settings without which executors stay for ever, and the setting of ours
    that leaves shuffles to Spark. There is no line if all waits end."""
    settings = read_settings({f"spark.headgate.{key}": value for key, value in conf.items()})
    limits = [
        Hold("native shuffle", 0, "shuffles.timeout", shuffles_s),
        Hold("cached partition", 0, "cached.timeout", partitions_s),
    ]
    attach._hint_at_held_executors(limits, settings.exchanges)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(parts)
    assert all(part in line for part in parts for line in lines)
    attach._hint_at_held_executors([], settings.exchanges)
    assert len(caplog.records) == len(lines)


def test_a_number_beyond_all_clients_is_refused() -> None:
    """A number that no clock can count is `Invalid`, as any other text that cannot be used."""
    with pytest.raises(Invalid, match=r"request\.ms"):
        read_settings({"spark.headgate.request.ms": "9" * 400})


@pytest.mark.parametrize(
    ("conf", "files"),
    [
        ({"spark.executor.cores": "4"}, True),
        ({"spark.io.encryption.enabled": "TRUE"}, False),
        ({"spark.executor.pyspark.memory": "2g"}, True),
    ],
)
def test_the_processes_of_an_executor_share_files(conf: dict[str, str], files: bool) -> None:
    """They write none if Spark is to encrypt its own files, and map none if it limits their
    memory."""
    context: Any = SimpleNamespace(getConf=lambda: conf)
    limits = attach._limits_of(context, Limits())
    assert limits.files is files
    assert limits.merges is (files and "spark.executor.pyspark.memory" not in conf)


@pytest.mark.parametrize(("pinned", "warned"), [(None, False), ("true", False), ("false", True)])
def test_threads_that_are_shared(
    pinned: str | None,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning says that queries may end each other where threads share their jobs' properties."""
    monkeypatch.delenv("PYSPARK_PIN_THREAD", raising=False)
    if pinned is not None:
        monkeypatch.setenv("PYSPARK_PIN_THREAD", pinned)
    attach._hint_at_threads()
    assert warned == ("PYSPARK_PIN_THREAD=false" in caplog.text)


def test_an_application_that_sets_up_its_logging_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is shown once: on stderr, or where the application shows its own from then on."""
    logger = logging.getLogger("headgate")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logging.root, "handlers", [])
    before = logger.level
    try:
        attach._log_from("INFO")
        logger.info("first")
        logging.basicConfig(format="here %(message)s")
        logger.info("second")
        attach._log_from("ERROR")
        logger.info("third")
    finally:
        logger.setLevel(before)
    lines = capsys.readouterr().err.splitlines()
    assert ["INFO first", "here second"] == [line[-11:].strip() for line in lines]
