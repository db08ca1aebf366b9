"""Attaching a session: settings that go together, and nothing that stays when it fails."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Closed, Invalid
from headgate.connectors.spark import attach
from headgate.connectors.spark.services import Services
from headgate.connectors.spark.settings import Settings, read_settings
from headgate.control.ids import job_id
from headgate.control.memory import MemoryEventLog
from headgate.storage.contract import Limits
from headgate.storage.memory import MemoryBlobStore

JOB = job_id("job")
SPARK: Any = SimpleNamespace(version="4.3.0", sparkContext=SimpleNamespace(appName="tests"))


def fail(*_: object) -> None:
    raise RuntimeError("no door")


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("step", ["open_door", "Exchanger", "Headgate"])
def test_a_failing_attach_ends_its_master(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whatever fails once the job is registered, neither the master's threads nor its log stay."""
    log: Any = MemoryEventLog()
    worker: Any = SimpleNamespace(job=JOB, root="root", store="memory:", limits=Limits())
    services = Services(log, MemoryBlobStore(), worker, ExitStack())
    monkeypatch.setattr(attach, "open_door", lambda _: None)
    monkeypatch.setattr(attach, step, fail)
    with pytest.raises(RuntimeError, match="no door"):
        attach._register(SPARK, Settings(), services)
    with pytest.raises(Closed):
        log.written(JOB)


def test_queries_without_their_plans_are_refused() -> None:
    """Whoever keeps to public PySpark cannot have the session's queries run here."""
    conf = {"spark.headgate.sql.enabled": "true", "spark.headgate.catalyst": "off"}
    with pytest.raises(Invalid, match=r"sql\.enabled = true needs .* spark\.headgate\.catalyst"):
        read_settings(conf)
