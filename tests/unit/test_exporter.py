"""The exporter: its server, its command, and the pages that name metrics."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import MSG_WAITALL, create_connection

import pytest

from headgate.control.contract import MasterSettings
from headgate.control.errors import Invalid, Unavailable
from headgate.infra.cli import options
from headgate.infra.metrics import exporter
from headgate.infra.metrics.exporter import MetricsServer
from headgate.infra.metrics.families import FAMILIES
from headgate.infra.metrics.log_numbers import LogNumbersReader
from headgate.infra.metrics.regular_fsck import FsckNumbers, RegularFsck
from headgate.infra.serving import ServerSettings
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.upkeep.fsck import Kind

from ..doubles.commands import KeptLog, exchange, ran
from ..doubles.scrapes import of_jobs, of_text, reading, scraped
from ..doubles.scripted_jobs import ScriptedJob, TimedLog

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text()
ANSWER_S_MAX = 10.0
CHECKED = FsckNumbers({}, 5, 0.5, 1_000)
BASE_UNITS = ("bytes", "rows", "seconds", "objects", "requests", "records", "dollars", "offset")


@contextmanager
def serving(reader: LogNumbersReader, settings: ServerSettings) -> Iterator[MetricsServer]:
    server = MetricsServer(reader, lambda: CHECKED, settings)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join(ANSWER_S_MAX)


@contextmanager
def ask(
    server: MetricsServer, path: str = "/metrics", **headers: str
) -> Iterator[tuple[HTTPResponse, str]]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=ANSWER_S_MAX)
    connection.request("GET", path, headers=headers)
    with connection.getresponse() as answer:
        yield answer, answer.read().decode()
    connection.close()


# The server


def test_the_numbers_are_served(timed: TimedLog, no_thread_stays: None) -> None:
    """Prometheus gets the numbers in the format that it asks for, whatever names jobs have."""
    job = ScriptedJob(timed, "j", 'a "quoted" \\ name\nof two lines')
    job.register("r", 1, 1, "x")
    reader = reading(timed)
    with serving(reader, ServerSettings()) as server:
        assert server.url.endswith(f":{server.server_address[1]}/metrics")
        with ask(server) as (answer, text):
            assert 200 == answer.status
            assert "text/plain" in answer.headers["Content-Type"]
            assert of_jobs(scraped(reader)) == of_jobs(of_text(text))
            assert 5 == of_text(text)["headgate_fsck_live_bytes",]
        with ask(server, Accept="application/openmetrics-text; version=1.0.0") as (answer, text):
            assert "application/openmetrics-text" in answer.headers["Content-Type"]
            assert text.endswith("# EOF\n")
            assert set(re.findall(r"# TYPE (\w+)", text)) == {
                family.name.removesuffix("_total") for family in FAMILIES
            }
        with ask(server, "/") as (answer, text):
            assert (404, "the metrics are at /metrics\n") == (answer.status, text)


def test_a_reader_on_its_way_is_not_served(timed: TimedLog) -> None:
    """Before the log was read to its end, a scrape fails, and shows no counter on its way."""
    with (
        serving(LogNumbersReader(timed), ServerSettings()) as server,
        ask(server) as (answer, text),
    ):
        assert (503, "the log is still being read\n") == (answer.status, text)


def test_who_may_scrape(timed: TimedLog) -> None:
    """Without a token only this machine's names are answered, with one only who knows it."""
    reader = reading(timed)
    with (
        serving(reader, ServerSettings()) as server,
        ask(server, Host="evil.example") as (answer, _),
    ):
        assert 403 == answer.status
    with serving(reader, ServerSettings(token="secret")) as server:
        for headers, path, status in (
            ({}, "/metrics", 403),
            ({"Authorization": "Bearer wrong"}, "/metrics", 403),
            ({"Authorization": "Bearer secret", "Host": "any.example"}, "/metrics", 200),
            ({}, "/metrics?token=secret", 200),
        ):
            with ask(server, path, **headers) as (answer, _):
                assert status == answer.status, headers
    with pytest.raises(Invalid, match="need a token"):
        ServerSettings(host="0.0.0.0")


def test_every_address_of_this_machine_is_answered(timed: TimedLog) -> None:
    """A server at another loopback address answers those who ask for that address. A request for
    something that is no address gets an answer, too."""
    with serving(reading(timed), ServerSettings(host="127.0.0.2")) as server:
        host, port = "127.0.0.2", server.server_address[1]
        for path, status in (("/metrics", 200), ("http://[/metrics", 404)):
            with create_connection((host, port), ANSWER_S_MAX) as connection:
                asked = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n"
                connection.sendall(asked.encode())
                assert f"HTTP/1.1 {status}".encode() == connection.recv(12, MSG_WAITALL), path


# The command


def test_the_command_serves_until_it_is_stopped(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headgate exporter` prints its address, and reads until it is told to end."""

    def stopped(reader: LogNumbersReader, ending: threading.Event) -> None:
        assert reader.numbers() is not None, "the first step was taken"
        ending.set()

    monkeypatch.setattr(LogNumbersReader, "run", stopped)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(exporter, "log_to_stderr", lambda: None)  # that stays for other tests
    code, (line,), _ = ran("exporter", "--port", "0")
    assert 0 == code
    assert re.fullmatch(r"serving at http://127\.0\.0\.1:\d+/metrics", line)
    code, _, error = ran("exporter", "--port", "0", "--host", "0.0.0.0")
    assert (2, True) == (code, "viewers need a token" in error)
    code, _, error = ran("exporter", "--port", "70000")
    assert (2, True) == (code, "cannot serve at 127.0.0.1, port 70000" in error)


def test_a_signal_ends_every_wait(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends at once if it is told to, whatever it waits for."""
    handlers: dict[int, Callable[[int, None], None]] = {}

    def waiting(reader: LogNumbersReader, timeout_s: float) -> None:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        raise AssertionError("the wait goes on")

    monkeypatch.setattr(LogNumbersReader, "step", waiting)
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr(exporter, "log_to_stderr", lambda: None)
    assert 0 == ran("exporter", "--port", "0")[0]
    assert {signal.SIGTERM, signal.SIGINT} == set(handlers)


def test_fsck_runs_at_its_interval(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is compared again and again; a comparison that fails keeps the former numbers."""
    outcomes: list[FsckNumbers | Exception] = [CHECKED, Unavailable("no bucket"), OSError("odd")]
    outcomes.append(CHECKED)
    ending, waits = threading.Event(), list[float]()

    def check(fsck: RegularFsck) -> FsckNumbers:
        outcome = outcomes.pop(0)
        if not outcomes:
            ending.set()
        if isinstance(outcome, Exception):
            assert fsck.last is CHECKED
            raise outcome
        return outcome

    monkeypatch.setattr(RegularFsck, "check", check)
    monkeypatch.setattr(ending, "wait", waits.append)
    RegularFsck(log, MemoryBlobStore(objects), "root", 3_600.0).run(ending)
    assert [3_600.0] * 4 == waits


def test_findings_are_counted_by_kind(log: KeptLog, objects: Objects) -> None:
    """The numbers of fsck are those of `headgate fsck`."""
    exchange(log, objects, close=False, settings=MasterSettings())
    missing = min(name for name in objects if "r1" in name)
    del objects[missing]
    store = MemoryBlobStore(objects)
    store.put("root/unknown/0a/r/0/1-1/0", b"abc", "w")
    checked = RegularFsck(log, store, "root", 60.0).check()
    assert {Kind.MISSING: 1, Kind.ORPHAN: 1} == dict(checked.findings)
    assert 0 < checked.live_bytes < sum(stat.size_bytes for stat in store.list(""))


def test_without_the_package_the_extra_is_named(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without prometheus-client is told which extra brings it."""
    monkeypatch.setitem(options._PACKAGES, "metrics", ("no_such_package",))
    code, _, error = ran("exporter")
    assert (2, True) == (code, "pyspark-headgate[metrics]" in error)


# Names and pages


def test_names_follow_the_conventions() -> None:
    """Counters end in `_total`, and a number with a unit ends in that unit, in base units."""
    for family in FAMILIES:
        plain = family.name.removesuffix("_total")
        assert re.fullmatch(r"headgate_[a-z]+(_[a-z]+)*", family.name)
        assert (family.type == "counter") == family.name.endswith("_total")
        assert not re.search(r"_(ms|kb|mb|usd|count|percent)(_|$)", plain)
        if re.search("latency|timestamp|lease|duration|bytes|price", plain):
            assert plain.endswith(BASE_UNITS), plain


def test_the_page_lists_every_metric() -> None:
    """docs/metrics.md has a row for each metric, as the exporter describes it, and no other."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `headgate_")]
    assert rows == [
        f"| `{it.name}` | {it.type} | {', '.join(it.labels.split())} | {it.meaning} |"
        for it in FAMILIES
    ]


def test_the_page_says_how_many_series_a_job_has(timed: TimedLog) -> None:
    """The page's number of series is the largest that a job can have."""
    job = ScriptedJob(timed, "j")
    job.register("r", 1, 1, "x")
    series = len(of_jobs(scraped(reading(timed))))
    # the time of a fact that waits is there only while it waits
    assert f"has {series + 1} series at most" in PAGE


def named(expression: str) -> set[str]:
    return set(re.findall(r"headgate_\w+", expression))


def known() -> set[str]:
    plain = {family.name for family in FAMILIES if family.type != "histogram"}
    parts = ("bucket", "sum", "count")
    return plain | {f"{f.name}_{part}" for f in FAMILIES if f.type == "histogram" for part in parts}


def labels_of(name: str) -> set[str]:
    (family,) = [it for it in FAMILIES if name in (it.name, f"{it.name}_bucket", f"{it.name}_sum")]
    return {*family.labels.split(), "le"}


def expressions() -> dict[str, str]:
    """Return the expressions of the dashboard and of the alert rules, by their titles."""
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    shown = {
        f"{panel['title']} {number}": target["expr"]
        for panel in dashboard["panels"]
        for number, target in enumerate(panel.get("targets", ()))
    }
    alerts = (DOCS / "alerts.yml").read_text()
    rules = re.findall(r"- alert: (\w+)\n +expr: >-\n((?: {10}.*\n)+)", alerts)
    return shown | {name: " ".join(text.split()) for name, text in rules}


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    """Every metric and every label in an expression exists, and its brackets are paired."""
    alerts = (DOCS / "alerts.yml").read_text().count("- alert:")
    panels = json.loads((DOCS / "grafana.json").read_text())["panels"]
    assert len(expressions()) >= alerts + len([p for p in panels if p["type"] != "row"])
    for title, expression in expressions().items():
        assert named(expression), title
        assert set() == named(expression) - known(), title
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), title
        for name, matchers in re.findall(r"(headgate_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*(?:=|!)", matchers)) <= labels_of(name), title
        for function, name in re.findall(r"(rate|increase)\((headgate_\w+)", expression):
            assert name.endswith(("_total", "_bucket", "_sum", "_count")), (title, function)


def test_every_metric_is_on_the_dashboard() -> None:
    """The dashboard has a picture of every metric."""
    dashboard = (DOCS / "grafana.json").read_text()
    assert set() == {family.name for family in FAMILIES} - {
        name.removesuffix("_bucket") for name in named(dashboard)
    }
