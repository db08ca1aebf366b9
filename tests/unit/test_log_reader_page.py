"""The live page: reading the log, the stream of news, the door of the server, and the command."""

from __future__ import annotations

import json
import re
import socket
from http.client import HTTPResponse
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Invalid, Lost
from headgate.control.events.types import ReleaseRequested
from headgate.control.ids import JobId, ResultId
from headgate.control.log import Placed
from headgate.control.memory.log import MemoryFollower, MemoryTail
from headgate.infra.serving import ServerSettings
from headgate.infra.ui.log_reader import LogReader
from headgate.infra.ui.server import UiServer

from ..doubles.commands import KeptLog, ran
from ..doubles.scripted_jobs import ScriptedJob, TimedLog
from ..doubles.steps import StoppedClock
from ..doubles.viewers import ANSWER_S_MAX, Viewer

STATIC = Path(__file__).parents[2] / "infra/ui/static"

# Reading


def test_each_event_is_read_once(
    timed: TimedLog, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many look at a job, its log is followed once, until nobody has looked for a while."""
    job = ScriptedJob(timed, "j")
    positions: list[int | None] = []
    follow = timed.follow

    def watched(name: JobId, position: int | None = 0) -> MemoryFollower:
        positions.append(position)
        return follow(name, position)

    viewer.value("/api/job?job=j")
    monkeypatch.setattr(timed, "follow", watched)
    before = viewer.value("/api/job?job=j")["moment"]["events"]
    job.state(ReleaseRequested(ResultId("r"), "spot"))
    mine = len(positions)
    assert before + 1 == viewer.value("/api/job?job=j")["moment"]["events"]
    assert mine == len(positions)


def test_a_job_is_forgotten_when_nobody_looks(timed: TimedLog) -> None:
    """A job is read again from its start when nobody has looked at it for minutes."""
    clock = StoppedClock()
    ScriptedJob(timed, "j")
    ScriptedJob(timed, "k")
    reader = LogReader(timed, clock)
    with reader.history("j") as first:
        pass
    with reader.history("j") as second:
        assert first is second
    reader.forget_idle()
    with reader.history("j") as third:
        assert first is third
    clock.at_ms += 300_000
    with reader.history("k"):
        reader.forget_idle()
    with reader.history("j") as fourth:
        assert first is not fourth
    reader.close()


def test_the_server_forgets_by_itself(
    viewer: Viewer, timed: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to look for a job to be forgotten."""
    ScriptedJob(timed, "j")
    viewer.value("/api/job?job=j")
    with viewer.reader.history("j") as first:
        pass
    monkeypatch.setattr(viewer.reader, "clock", StoppedClock(10**12))
    forgotten = Event()
    monkeypatch.setattr(MemoryFollower, "close", lambda _: forgotten.set())
    assert forgotten.wait(ANSWER_S_MAX)
    with viewer.reader.history("j") as second:
        assert first is not second


def test_the_list_of_jobs_goes_on_from_what_it_knows(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list the jobs again reads only new events, and not before some time has passed."""
    clock = StoppedClock()
    job = ScriptedJob(timed, "j")
    reader = LogReader(timed, clock)
    assert 1 == len(reader.listing().jobs)
    job.register("r", 1, 1, "x")
    ScriptedJob(timed, "k")
    assert 1 == len(reader.listing().jobs)
    read: list[Placed] = []
    poll = MemoryTail.poll

    def watched(tail: MemoryTail, limit: int, timeout_s: float) -> list[Placed]:
        events = poll(tail, limit, timeout_s)
        read.extend(events)
        return events

    monkeypatch.setattr(MemoryTail, "poll", watched)
    clock.at_ms += 3_000
    assert [(it.job, it.exchanges) for it in reader.listing().jobs] == [("j", 1), ("k", 0)]
    assert [3, 2] == [sum(it.recorded.event.job == job for it in read) for job in ("j", "k")]
    reader.close()


def test_no_index_of_a_segment_is_kept(timed: TimedLog) -> None:
    """Neither the list of jobs nor a job keeps the indexes of segments, which no page shows."""
    job = ScriptedJob(timed, "j")
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    reader = LogReader(timed)
    with reader.history("j") as history:
        states = [reader.listing().jobs[0].state, history.state(None)]
    for state in states:
        ((_, produced),) = state.results[ResultId("r")].production.attempts.items()
        assert produced is not None
        assert [b""] == [segment.index for segment in produced.segments]
    reader.close()


def test_a_long_first_listing_does_not_delay_the_second(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is read again after ten times as long as the last reading took, but the first one,
    which reads the whole log, does not count."""
    clock = StoppedClock()
    job = ScriptedJob(timed, "j")
    reader = LogReader(timed, clock)
    read_beats = timed.read_beats

    def slow(name: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        clock.at_ms += 5_000
        return read_beats(name, deadline)

    monkeypatch.setattr(timed, "read_beats", slow)
    seen: list[int] = []
    for index, wait_ms in enumerate((0, 2_100, 40_000, 11_000)):
        job.register(f"r{index}", 1, 1, "x")
        clock.at_ms += wait_ms
        seen.append(reader.listing().jobs[0].exchanges)
    assert [1, 2, 2, 4] == seen
    reader.close()


def test_a_page_survives_the_retention_of_the_log(timed: TimedLog, viewer: Viewer) -> None:
    """When the log has lost events that a page had still to read, the page reads it anew."""
    job = ScriptedJob(timed, "j")
    viewer.value("/api/job?job=j")
    job.register("r", 4, 1, "x")
    timed.expire(JobId("j"), timed.written(JobId("j")) - 3)
    with viewer.ask("/api/job?job=j") as answer:
        assert 503 == answer.status
    with viewer.ask("/api/job?job=j") as answer:
        assert 200 == answer.status


def test_a_log_that_is_made_anew_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not shown for long of a log that was deleted and made again."""
    old, new, clock = TimedLog(), TimedLog(), StoppedClock()
    for log, exchanges in ((old, 3), (new, 1)):
        job = ScriptedJob(log, "j")
        for number in range(exchanges):
            job.register(f"r{number}", 1, 1, "x")
    reader = LogReader(old, clock)
    with reader.history("j") as history:
        assert 3 == len(history.state().results)
    monkeypatch.setattr(old, "identity", lambda deadline: "new")
    monkeypatch.setattr(old, "follow", new.follow)
    clock.at_ms += 61_000
    with pytest.raises(Lost, match="another log"), reader.history("j"):
        pass
    for _ in range(2):
        clock.at_ms += 61_000
        with reader.history("j") as history:
            assert 1 == len(history.state().results)
    reader.close()


# The stream


def next_news(stream: HTTPResponse) -> Any:
    while not (line := stream.readline()).startswith(b"data:"):
        assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data:"))


def test_viewers_hear_of_news(timed: TimedLog, viewer: Viewer) -> None:
    """A stream tells of a job's events as they come, and of changes in the list of jobs."""
    job = ScriptedJob(timed, "j")
    with viewer.ask("/api/news?job=j") as stream:
        assert "text/event-stream" == stream.headers["Content-Type"]
        assert {"events": 2} == next_news(stream)
        job.register("r", 1, 1, "x")
        while (news := next_news(stream)) != {"events": 5}:
            assert news["events"] < 5
    with viewer.ask("/api/news") as stream:
        first = next_news(stream)
        ScriptedJob(timed, "k")
        assert first != next_news(stream)


def test_a_stream_tells_why_it_has_no_news(viewer: Viewer) -> None:
    """A job that the log does not know may still come: the stream says so, and goes on."""
    with viewer.ask("/api/news?job=j") as stream:
        assert {"error": "the log has no events of job j"} == next_news(stream)


# The door


def test_pages_are_static_and_local(viewer: Viewer) -> None:
    """The page and all that it loads come from this server, and may load nothing from elsewhere."""
    paths = ["/", "/page.css", "/icon.svg", *(f"/{path.name}" for path in STATIC.glob("*.js"))]
    for path in paths:
        with viewer.ask(path) as answer:
            assert 200 == answer.status, path
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "nosniff" == answer.headers["X-Content-Type-Options"]
            text = answer.read().decode()
            assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    with viewer.ask("/../server.py") as answer:
        assert 404 == answer.status


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return sum(share * it for share, it in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_can_be_read_in_light_and_dark() -> None:
    """Every colour of text has the contrast that WCAG asks for, on every ground."""
    css = (STATIC / "page.css").read_text()
    names = set(re.findall(r"[; {]color: var\(--(\w+)\)", css)) - {"page"}
    assert {"ink", "dim", "good", "warn", "lost", "link"} == names
    for scheme in re.findall(r":root \{(.+?)\}", css, re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w{6});", scheme))
        for name, ground in product(names, ("page", "box", "over")):
            low, high = sorted(luminance(colours[it]) for it in (name, ground))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def test_text_of_users_stays_text(timed: TimedLog, viewer: Viewer) -> None:
    """Names and reasons travel as strings of JSON, and the script never reads them as markup."""
    nasty = "</script><img src=x onerror=alert(1)>"
    job = ScriptedJob(timed, "j", nasty)
    job.register("r", 1, 1, nasty)
    with viewer.ask("/api/job?job=j") as answer:
        assert "application/json" == answer.headers["Content-Type"]
        page = json.loads(answer.read())
    assert (nasty, nasty) == (page["job"]["application"], page["report"]["exchanges"][0]["label"])
    scripts = "".join(path.read_text() for path in STATIC.glob("*.js"))
    assert [] == re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", scripts)


def test_wrong_questions_get_errors(timed: TimedLog, viewer: Viewer) -> None:
    """A job, a result or a parameter that does not exist is answered in one line."""
    ScriptedJob(timed, "j")
    for path, says in (
        ("/api/job?job=none", "no events of job none"),
        ("/api/job", "job is missing"),
        ("/api/job?job=../x", "job id"),
        ("/api/job?job=j&at=x", "at is not a number"),
        ("/api/exchange?job=j&result=r", "has no result r"),
    ):
        with viewer.ask(path) as answer:
            assert 404 == answer.status
            assert says in json.loads(answer.read())["error"]


def test_other_names_of_this_machine_are_refused(viewer: Viewer) -> None:
    """Without a token, a page of the internet whose name leads to this machine gets nothing."""
    for host, status in (
        ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.1", 403),
        ("", 403),
        ("Localhost:9", 200),
        ("[::1]", 200),
        ("127.0.0.2:80", 200),
    ):
        with viewer.ask("/api/jobs", Host=host) as answer:
            assert status == answer.status, host
            assert ("ask at localhost" in answer.read().decode()) == (status == 403)


def test_a_token_opens_the_page(timed: TimedLog) -> None:
    """Viewers give a token once: the address loses it, and a cookie has it from then on."""
    viewer = Viewer(timed, ServerSettings(token="secret"))
    try:
        for path in ("/", "/page.js", "/api/jobs", "/api/news", "/?token=wrong"):
            with viewer.ask(path) as answer:
                assert 403 == answer.status, path
        with viewer.ask("/?token=secret", Host="any.example") as answer:
            assert (303, "/") == (answer.status, answer.headers["Location"])
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        with viewer.ask("/api/jobs", Cookie=cookie.split(";")[0]) as answer:
            assert 200 == answer.status
        with viewer.ask("/api/jobs", Cookie=cookie.split("=")[0] + "=wrong") as answer:
            assert 403 == answer.status
        assert "secret" not in repr(viewer.server.settings)
    finally:
        viewer.close()


def test_tokens_travel_as_they_are(timed: TimedLog) -> None:
    """All characters that a header may have are fine in a token, beside cookies of other servers;
    others are refused before anything is served."""
    viewer = Viewer(timed, ServerSettings(token="a+b/c="))
    try:
        with viewer.ask(
            viewer.server.url.removeprefix(f"http://127.0.0.1:{viewer.port}")
        ) as answer:
            assert 303 == answer.status
            cookie = answer.headers["Set-Cookie"].split(";")[0]
        for headers in ({"Cookie": f'x={{"y": 1}}; {cookie}'}, {"Authorization": "Bearer a+b/c="}):
            with viewer.ask("/api/jobs", **headers) as answer:
                assert 200 == answer.status
    finally:
        viewer.close()
    for token in ("a;b", "a b", "é", "a\r\nX: y"):
        with pytest.raises(Invalid, match="a token has"):
            ServerSettings(token=token)


def test_a_request_is_one_request(viewer: Viewer) -> None:
    """The body of a request is no further request: a proxy would send its answer to another viewer.
    An address that is none is answered, too."""
    second = b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    first = b"GET http://[ HTTP/1.1\r\nHost: localhost\r\ncontent-length: %d\r\n\r\n" % len(second)
    with socket.create_connection(("127.0.0.1", viewer.port), ANSWER_S_MAX) as connection:
        connection.sendall(first + second)
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert [b"HTTP/1.1 404"] == re.findall(rb"HTTP/1.1 \d+", answers)


def test_a_wide_address_needs_a_token() -> None:
    """A server that others reach refuses to start without a token."""
    with pytest.raises(Invalid, match="need a token"):
        ServerSettings(host="0.0.0.0")


class _Unwritable(TimedLog):
    """A log that fails a test which writes to it once it is sealed."""

    sealed = False

    def append(self, *arguments: Any) -> Any:
        return self._refuse() if self.sealed else super().append(*arguments)

    def open_decisions(self, *arguments: Any) -> Any:
        return self._refuse() if self.sealed else super().open_decisions(*arguments)

    def beat(self, *arguments: Any) -> NoReturn:
        self._refuse()

    def join(self, *arguments: Any) -> NoReturn:
        self._refuse()

    def prepare(self, *arguments: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("somebody writes")


def test_nothing_is_written(no_thread_stays: None) -> None:
    """No page writes to the log, and requests that would change something are not understood."""
    log = _Unwritable()
    job = ScriptedJob(log, "j")
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    log.sealed = True
    viewer = Viewer(log)
    address = "job=j&result=r&partition=0"
    try:
        for page in ("jobs", "job", "masters", "exchange", "partition", "audit"):
            with viewer.ask(f"/api/{page}?{address}") as answer:
                assert 200 == answer.status, page
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            with viewer.ask("/api/jobs", method) as answer:
                assert 501 == answer.status
        with viewer.ask("/api/jobs", "HEAD") as answer:
            assert (200, b"") == (answer.status, answer.read())
    finally:
        viewer.close()


def test_decisions_are_verified_on_demand(timed: TimedLog, viewer: Viewer) -> None:
    """The page of a job verifies its decisions as `headgate audit verify` does."""
    job = ScriptedJob(timed, "j")
    job.register("r", 2, 1, "x")
    job.write_all("r", range(2))
    (audit,) = viewer.value("/api/audit?job=j")["audits"]
    assert ("", 7, 5, 0) == tuple(audit[it] for it in ("violation", "facts", "decisions", "due"))


# The command


def test_the_command_serves_until_it_is_stopped(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headgate ui` prints its address, and makes a token where others reach it."""

    def stopped(server: UiServer) -> None:
        server.shutdown = lambda: None  # type: ignore[method-assign]
        raise KeyboardInterrupt

    monkeypatch.setattr(UiServer, "serve_forever", stopped)
    code, (line,), _ = ran("ui", "--port", "0")
    assert 0 == code
    assert re.fullmatch(r"serving at http://127\.0\.0\.1:\d+/", line)
    (line,) = ran("ui", "--port", "0", "--host", "0.0.0.0")[1]
    assert re.fullmatch(r"serving at http://[^/]+:\d+/\?token=[\w-]{20,}", line)
    (line,) = ran("ui", "--port", "0", "--token", "secret")[1]
    assert line.endswith("/?token=secret")
