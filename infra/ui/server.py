"""Serve the live page over HTTP: static files, values as JSON, and a stream of news.

Guarantees that nothing is written to the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from threading import BoundedSemaphore, Event
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from ...control.clock import PACE, Deadline
from ...control.errors import HeadgateError, Invalid
from ..cli.fields import Fields
from ..serving import PLAIN, GuardedHandler, GuardedServer, Query, ServerSettings
from . import pages
from .bucket_check import BucketCheck
from .log_reader import LogReader
from .masters import masters_page

_MASTERS_LINK = b'<a id="masters" href="#/masters">Masters</a>'
_OWN_PAGE = "Headgate-Page"  # browsers let no page of another server send this header
_STREAMS_MAX = 64
_SILENCE_S_MAX = 10.0  # a stream says something so often, to notice that nobody listens any more
_AFTER_ERROR_S = 2.0
_STATIC: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("index.html", "text/html; charset=utf-8"),
        "/page.js": ("page.js", "text/javascript; charset=utf-8"),
        "/audit.js": ("audit.js", "text/javascript; charset=utf-8"),
        "/exchange.js": ("exchange.js", "text/javascript; charset=utf-8"),
        "/masters.js": ("masters.js", "text/javascript; charset=utf-8"),
        "/icon.svg": ("icon.svg", "image/svg+xml"),
        "/page.css": ("page.css", "text/css; charset=utf-8"),
    }
)


class UiServer(GuardedServer):
    def __init__(self, reader: LogReader, settings: ServerSettings, bucket: BucketCheck) -> None:
        self.reader = reader
        self.bucket = bucket
        self.ending = Event()
        self.streams = BoundedSemaphore(_STREAMS_MAX)
        super().__init__(settings, _Handler)

    @property
    def url(self) -> str:
        """Return the address at which a viewer begins."""
        token = f"?token={quote(self.settings.token, safe='')}" if self.settings.token else ""
        return f"{super().url}{token}"

    def service_actions(self) -> None:
        """Drop the jobs at which nobody looks any more. The server calls this between requests."""
        self.reader.forget_idle()

    def end(self) -> None:
        """Stop to answer; streams end with their next look."""
        self.ending.set()
        super().end()


class _Handler(GuardedHandler):
    server: UiServer

    def respond(self, query: Query) -> None:
        is_check = query.path == "/api/fsck"
        if query.path.startswith("/api/") and self._is_from_elsewhere(is_check):
            self.answer(403, PLAIN, b"headgate ui: asked by another page\n")
        elif "token" in query.parameters and self.server.settings.token:
            # The word leaves the address, so that it is neither bookmarked nor seen on a screen.
            cookie = f"{self.cookie}={self.server.settings.token}; HttpOnly; SameSite=Lax; Path=/"
            self.answer(303, PLAIN, b"", {"Location": "/", "Set-Cookie": cookie})
        elif query.path in _STATIC:
            name, kind = _STATIC[query.path]
            content = files(__package__).joinpath("static", name).read_bytes()
            if self.server.reader.only:
                content = content.replace(_MASTERS_LINK, b"")
            self.answer(200, kind, content)
        elif is_check:
            self._show(lambda: _fsck(self.server, query))
        elif query.path == "/api/news":
            self._stream(query)
        elif (page := _PAGES.get(query.path)) is not None:
            self._show(lambda: page(self.server.reader, query))
        else:
            self.answer(404, PLAIN, b"there is no such page\n")

    def _is_from_elsewhere(self, is_check: bool) -> bool:
        """Return True if a page of another server makes the browser ask. That page would not see
        the answer, but a comparison with the bucket costs requests, so it is only for our page:
        browsers say where a request comes from only if they trust the server's address."""
        if is_check and _OWN_PAGE not in self.headers:
            return True
        return self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")

    def _show(self, page: Callable[[], Fields]) -> None:
        try:
            status, value = 200, page()
        except Invalid as exc:
            status, value = 404, {"error": str(exc)}
        except HeadgateError as exc:
            status, value = 503, {"error": str(exc)}
        body = json.dumps(value, separators=(",", ":")).encode()
        self.answer(status, "application/json", body)

    def _stream(self, query: Query) -> None:
        """Tell of news, until the viewer goes: of one job, of the masters, or of all jobs."""
        if not self.server.streams.acquire(blocking=False):
            self.answer(503, PLAIN, b"too many viewers\n")
            return
        try:
            self.close_connection = True
            self.head(200, {"Content-Type": "text/event-stream", "Connection": "close"})
            if self.command != "HEAD":
                self._send_news(query)
        finally:
            self.server.streams.release()

    def _send_news(self, query: Query) -> None:
        seen, silence, pause_s = None, Deadline.after(0), 0.0
        while not self.server.ending.wait(pause_s):
            try:
                news, pause_s = _news(self.server.reader, query), PACE.poll_s
            except HeadgateError as exc:
                news, pause_s = {"error": str(exc)}, _AFTER_ERROR_S
            if news != seen or silence.passed:
                line = f"data: {json.dumps(news)}" if news != seen else ": nothing new"
                self.wfile.write(f"{line}\n\n".encode())
                self.wfile.flush()
                seen, silence = news, Deadline.after(_SILENCE_S_MAX)


def _news(reader: LogReader, query: Query) -> Mapping[str, Any]:
    """Return a value that changes when there is something new to show."""
    if job := query.parameters.get("job", ""):
        with reader.history(job) as history:
            return {"events": len(history.records)}
    if "masters" in query.parameters:
        return {"masters": hash(json.dumps(_group(reader)))}
    listing = reader.listing()
    return {"jobs": hash(tuple((it.job, it.heard_ms, it.condition) for it in listing.jobs))}


def _jobs(reader: LogReader, query: Query) -> Fields:
    return pages.jobs_page(reader.listing())


def _job(reader: LogReader, query: Query) -> Fields:
    job = query.text("job")
    beat_ms = reader.beat_ms(job)
    return _at_moment(reader, query, lambda moment: pages.job_page(moment, beat_ms))


def _masters(reader: LogReader, query: Query) -> Fields:
    return {"now_ms": reader.listing().now_ms, **_group(reader)}


def _group(reader: LogReader) -> Fields:
    listing, group = reader.listing(), reader.group()
    return masters_page(group, listing.deciders, listing.jobs, listing.due, reader.partition)


def _exchange(reader: LogReader, query: Query) -> Fields:
    result = query.text("result")
    return _at_moment(reader, query, lambda moment: pages.exchange_page(moment, result))


def _partition(reader: LogReader, query: Query) -> Fields:
    result, index = query.text("result"), query.number("partition") or 0
    return _at_moment(reader, query, lambda moment: pages.partition_page(moment, result, index))


def _audit(reader: LogReader, query: Query) -> Fields:
    return _at_moment(reader, query, pages.audit_page)


def _fsck(server: UiServer, query: Query) -> Fields:
    with server.reader.history(query.text("job")) as history:
        place = pages.Moment.of(history, None, 0).store
    return server.bucket.page(query.text("job"), place)


def _at_moment(reader: LogReader, query: Query, page: Callable[[pages.Moment], Fields]) -> Fields:
    """Return a page of a job at an offset (`at`), at its n-th event (`event`), or now."""
    with reader.history(query.text("job")) as history:
        at, event = query.number("at"), query.number("event")
        if event is not None:
            at = pages.offset_of(history, event, query.parameters.get("result", ""))
        return page(pages.Moment.of(history, at, reader.clock.now_ms()))


_PAGES: Mapping[str, Callable[[LogReader, Query], Fields]] = MappingProxyType(
    {
        "/api/jobs": _jobs,
        "/api/job": _job,
        "/api/masters": _masters,
        "/api/exchange": _exchange,
        "/api/partition": _partition,
        "/api/audit": _audit,
    }
)
