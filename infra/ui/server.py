"""Serve the live page over HTTP: static files, values as JSON, and a stream of news.

Guarantees: only GET and HEAD are answered, and nothing is written to the log. Whoever reaches the
server through a name that is not this machine's, or lacks the token if there is one, gets nothing.
"""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from threading import BoundedSemaphore, Event
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...control.clock import PACE, Deadline
from ...control.errors import HeadgateError, Invalid
from ..cli.fields import Fields
from . import pages
from .bucket_check import BucketCheck
from .log_reader import LogReader
from .masters import masters_page

_LOG = logging.getLogger(__name__)
_PORT = re.compile(r":[0-9]{1,5}$")
_HERE = ("localhost", "127.0.0.1", "[::1]")
_EVERYWHERE = ("0.0.0.0", "::")
_MASTERS_LINK = b'<a id="masters" href="#/masters">Masters</a>'
_STREAMS_MAX = 64
_SILENCE_S_MAX = 10.0  # a stream says something so often, to notice that nobody listens any more
_AFTER_ERROR_S = 2.0
_REQUEST_S_MAX = 30.0
_STATIC: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("index.html", "text/html; charset=utf-8"),
        "/page.js": ("page.js", "text/javascript; charset=utf-8"),
        "/exchange.js": ("exchange.js", "text/javascript; charset=utf-8"),
        "/masters.js": ("masters.js", "text/javascript; charset=utf-8"),
        "/icon.svg": ("icon.svg", "image/svg+xml"),
        "/page.css": ("page.css", "text/css; charset=utf-8"),
    }
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a server at the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class UiSettings:
    host: str = "127.0.0.1"
    port: int = 0
    """The port; 0 for any that is free."""
    token: str = field(default="", repr=False)
    """The word that a viewer must know; empty if everybody on this machine may look.

    Needed at an address that others reach.
    """

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise Invalid(f"others reach {self.host}: viewers need a token there")


class UiServer(ThreadingHTTPServer):
    """Answers each request in a thread of its own."""

    daemon_threads = True

    def __init__(self, reader: LogReader, settings: UiSettings, bucket: BucketCheck) -> None:
        self.reader = reader
        self.bucket = bucket
        self.settings = settings
        self.ending = Event()
        self.streams = BoundedSemaphore(_STREAMS_MAX)
        if ":" in settings.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((settings.host, settings.port), _Handler)
        except OSError as exc:
            raise Invalid(f"cannot serve at {settings.host}, port {settings.port}: {exc}") from exc

    @property
    def url(self) -> str:
        """Return the address at which a viewer begins."""
        host = self.settings.host
        if host in _EVERYWHERE:
            host = socket.gethostname()
        elif ":" in host:
            host = f"[{host}]"
        token = f"?token={self.settings.token}" if self.settings.token else ""
        return f"http://{host}:{self.server_address[1]}/{token}"

    def service_actions(self) -> None:
        """Drop the jobs at which nobody looks any more. The server calls this between requests."""
        self.reader.forget_idle()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write no traceback for a viewer that is gone."""
        _LOG.debug("a request of %s ended early", client_address, exc_info=True)

    def end(self) -> None:
        """Stop to answer; streams end with their next look."""
        self.ending.set()
        self.shutdown()
        self.server_close()


@dataclass(frozen=True, slots=True)
class _Query:
    """The path and the parameters of a request, each given once."""

    path: str
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, target: str) -> _Query:
        split = urlsplit(target)
        named = parse_qs(split.query, keep_blank_values=True)
        return cls(split.path, {name: texts[-1] for name, texts in named.items()})

    def text(self, name: str) -> str:
        if not (text := self.parameters.get(name, "")):
            raise Invalid(f"the parameter {name} is missing")
        return text

    def number(self, name: str) -> int | None:
        text = self.parameters.get(name, "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise Invalid(f"the parameter {name} is not a number")
        return int(text) if text else None


class _Handler(BaseHTTPRequestHandler):
    server: UiServer
    protocol_version = "HTTP/1.1"
    server_version = "headgate"
    sys_version = ""
    timeout = _REQUEST_S_MAX

    def do_GET(self) -> None:
        query = _Query.of(self.path)
        if query.path.startswith("/api/") and self._is_from_elsewhere:
            self._answer(403, "text/plain; charset=utf-8", b"headgate ui: asked by another page\n")
        elif not self._is_welcome(query):
            self._answer(403, "text/plain; charset=utf-8", b"headgate ui: the token is missing\n")
        elif "token" in query.parameters and self.server.settings.token:
            # The word leaves the address, so that it is neither bookmarked nor seen on a screen.
            cookie = f"{self._cookie}={self.server.settings.token}; HttpOnly; SameSite=Lax; Path=/"
            self._answer(303, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})
        elif query.path in _STATIC:
            name, kind = _STATIC[query.path]
            content = files(__package__).joinpath("static", name).read_bytes()
            if self.server.reader.only:
                content = content.replace(_MASTERS_LINK, b"")
            self._answer(200, kind, content)
        elif query.path == "/api/fsck":
            self._show(lambda: _fsck(self.server, query))
        elif query.path == "/api/news":
            self._stream(query)
        elif (page := _PAGES.get(query.path)) is not None:
            self._show(lambda: page(self.server.reader, query))
        else:
            self._answer(404, "text/plain; charset=utf-8", b"there is no such page\n")

    do_HEAD = do_GET

    @property
    def _cookie(self) -> str:
        """Return the name of the cookie: browsers send cookies to all ports of a machine."""
        return f"headgate-{self.server.server_address[1]}"

    @property
    def _is_from_elsewhere(self) -> bool:
        """Return True if a page of another server makes the browser ask. That page would not see
        the answer, but a comparison with the bucket costs requests."""
        return self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")

    def _is_welcome(self, query: _Query) -> bool:
        """Return True for a viewer who knows the token. Without a token, only names of this machine
        are answered: a page of the internet whose name leads here cannot read the log."""
        token = self.server.settings.token
        if not token:
            return _PORT.sub("", self.headers.get("Host", "")) in _HERE
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            morsel = None
        words = (query.parameters.get("token", ""), "" if morsel is None else morsel.value)
        return any(compare_digest(word.encode(), token.encode()) for word in words)

    def _show(self, page: Callable[[], Fields]) -> None:
        try:
            status, value = 200, page()
        except Invalid as exc:
            status, value = 404, {"error": str(exc)}
        except HeadgateError as exc:
            status, value = 503, {"error": str(exc)}
        body = json.dumps(value, separators=(",", ":")).encode()
        self._answer(status, "application/json", body)

    def _answer(
        self, status: int, kind: str, body: bytes, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, text in {**_HEADERS, **headers, **more}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, query: _Query) -> None:
        """Tell of news, until the viewer goes: of one job, of the masters, or of all jobs."""
        if not self.server.streams.acquire(blocking=False):
            self._answer(503, "text/plain; charset=utf-8", b"too many viewers\n")
            return
        try:
            self.close_connection = True
            self.send_response(200)
            headers = {"Content-Type": "text/event-stream", "Connection": "close"}
            for name, text in {**_HEADERS, **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self._send_news(query)
        finally:
            self.server.streams.release()

    def _send_news(self, query: _Query) -> None:
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

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOG.debug(format, *arguments)


def _news(reader: LogReader, query: _Query) -> Mapping[str, Any]:
    """Return a value that changes when there is something new to show."""
    if job := query.parameters.get("job", ""):
        with reader.history(job) as history:
            return {"events": len(history.records)}
    if "masters" in query.parameters:
        return {"masters": hash(json.dumps(_group(reader)))}
    listing = reader.listing()
    return {"jobs": hash(tuple((it.job, it.heard_ms, it.condition) for it in listing.jobs))}


def _jobs(reader: LogReader, query: _Query) -> Fields:
    return pages.jobs_page(reader.listing())


def _job(reader: LogReader, query: _Query) -> Fields:
    job = query.text("job")
    beat_ms = reader.beat_ms(job)
    return _at_moment(reader, query, lambda moment: pages.job_page(moment, beat_ms))


def _masters(reader: LogReader, query: _Query) -> Fields:
    return {"now_ms": reader.listing().now_ms, **_group(reader)}


def _group(reader: LogReader) -> Fields:
    listing, group = reader.listing(), reader.group()
    return masters_page(group, listing.deciders, listing.jobs, listing.due, reader.partition)


def _exchange(reader: LogReader, query: _Query) -> Fields:
    result = query.text("result")
    return _at_moment(reader, query, lambda moment: pages.exchange_page(moment, result))


def _partition(reader: LogReader, query: _Query) -> Fields:
    result, index = query.text("result"), query.number("partition") or 0
    return _at_moment(reader, query, lambda moment: pages.partition_page(moment, result, index))


def _audit(reader: LogReader, query: _Query) -> Fields:
    return _at_moment(reader, query, pages.audit_page)


def _fsck(server: UiServer, query: _Query) -> Fields:
    with server.reader.history(query.text("job")) as history:
        place = pages.Moment.of(history, None, 0).store
    return server.bucket.page(query.text("job"), place)


def _at_moment(reader: LogReader, query: _Query, page: Callable[[pages.Moment], Fields]) -> Fields:
    """Return a page of a job at an offset (`at`), at its n-th event (`event`), or now."""
    with reader.history(query.text("job")) as history:
        at, event = query.number("at"), query.number("event")
        if event is not None:
            at = pages.offset_of(history, event)
        return page(pages.Moment.of(history, at, reader.clock.now_ms()))


_PAGES: Mapping[str, Callable[[LogReader, _Query], Fields]] = MappingProxyType(
    {
        "/api/jobs": _jobs,
        "/api/job": _job,
        "/api/masters": _masters,
        "/api/exchange": _exchange,
        "/api/partition": _partition,
        "/api/audit": _audit,
    }
)
