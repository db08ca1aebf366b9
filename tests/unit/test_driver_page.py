"""The live page in the process of a driver: what it reads, and that the job does not need it."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from headgate.connectors.spark.services import JobServices
from headgate.connectors.spark.settings import read_settings
from headgate.control.errors import Invalid
from headgate.control.ids import JobId
from headgate.infra.ui.driver_page import DriverPage
from headgate.infra.ui.log_reader import LogReader
from headgate.storage.stores.memory import MemoryBlobStore

from ..doubles.scripted_jobs import ScriptedJob, TimedLog
from ..doubles.viewers import Viewer

WORKER: Any = SimpleNamespace(job=JobId("j"))


def services() -> JobServices:
    log: Any = TimedLog()
    return JobServices(log, MemoryBlobStore(), WORKER, ExitStack())


@pytest.mark.parametrize(("text", "port"), [(None, None), ("0", 0), ("4041", 4041)])
def test_a_port_is_asked_for(text: str | None, port: int | None) -> None:
    """No page is served unless a port is set; 0 is a port, too."""
    conf = {} if text is None else {"spark.headgate.ui.port": text}
    assert port == read_settings(conf).attaching.ui_port


def test_only_the_drivers_job_is_read(timed: TimedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's page shows its own job, and reads neither the others nor the whole log."""
    own = ScriptedJob(timed, "j")
    ScriptedJob(timed, "other")

    def refuse(*arguments: object) -> NoReturn:
        raise AssertionError("the whole log is read")

    for method in ("read_all", "tail"):
        monkeypatch.setattr(timed, method, refuse)
    reader = LogReader(timed, timed.clock, "j")
    assert [("j", 0)] == [(it.job, it.exchanges) for it in reader.listing().jobs]
    own.register("r", 1, 1, "x")
    own.now_ms += 60_000
    own.write_all("r", [0])
    assert [("j", 1)] == [(it.job, it.exchanges) for it in reader.listing().jobs]
    with reader.history("j") as history:
        assert JobId("j") == history.job
    with pytest.raises(Invalid, match="shows job other"), reader.history("other"):
        pass
    with pytest.raises(Invalid, match="shows job other"):
        reader.beat_ms("other")
    with pytest.raises(Invalid, match="shows the masters"):
        reader.group()
    reader.close()


def test_only_a_page_of_all_jobs_leads_to_the_masters(timed: TimedLog, viewer: Viewer) -> None:
    """The page of a driver has no link to a page that it does not serve."""
    for only, is_there in (("", True), ("j", False)):
        viewer.server.reader = LogReader(timed, only=only)
        with viewer.ask("/") as answer:
            page = answer.read()
        assert b"page.js" in page
        assert is_there is (b"#/masters" in page)


def test_a_page_begins_and_ends_with_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is printed when the page is served, and the page ends with the services."""
    closed: list[str] = []
    page = SimpleNamespace(url="http://127.0.0.1:4/#/job/j", close=lambda: closed.append("page"))
    job = services()
    job.opened.callback(closed.append, "log")
    job.show(lambda worker, port: page, 4)
    assert "headgate: job j is shown at http://127.0.0.1:4/#/job/j\n" == capsys.readouterr().err
    assert [] == closed
    job.close()
    assert ["page", "log"] == closed


def test_a_job_does_without_a_page(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the port is taken, or the page fails in another way, the job goes on, with a warning."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker: Any = SimpleNamespace(job=JobId("j"), kafka=None, store="", s3=())

        def start(_: object, port: int) -> DriverPage:
            return DriverPage(worker, port)

        def fail(*_: object) -> NoReturn:
            raise RuntimeError("no thread can start")

        job = services()
        job.show(start, port)
        job.show(fail, 0)
    first, second = caplog.records
    assert (logging.WARNING, logging.WARNING) == (first.levelno, second.levelno)
    assert f"job j has no live page: cannot serve at 127.0.0.1, port {port}" in first.getMessage()
    assert "job j has no live page: no thread can start" == second.getMessage()
    assert "" == capsys.readouterr().err
    job.close()
