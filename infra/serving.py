"""Serve over HTTP to this machine, or to those who know a token.

Guarantees: only GET and HEAD are answered. A request through a name that is not this machine's, or
without the token if there is one, gets nothing.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..control.errors import Invalid

_LOG = logging.getLogger(__name__)
_PORT = re.compile(r":[0-9]{1,5}$")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]*")  # what a header for it may have: RFC 6750
_EVERYWHERE = ("0.0.0.0", "::")
_REQUEST_S_MAX = 30.0
_BEARER = "Bearer "
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
PLAIN = "text/plain; charset=utf-8"


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a server at the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: int = 0
    """The port; 0 for any that is free."""
    token: str = field(default="", repr=False)
    """The word that a viewer must know; empty if everybody on this machine may look.

    Needed at an address that others reach.
    """

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise Invalid("a token has letters, digits and -._~+/= only")
        if not self.token and not is_loopback(self.host):
            raise Invalid(f"others reach {self.host}: viewers need a token there")


class GuardedServer(ThreadingHTTPServer):
    """Answers each request in a thread of its own."""

    daemon_threads = True

    def __init__(self, settings: ServerSettings, handler: type[GuardedHandler]) -> None:
        self.settings = settings
        if ":" in settings.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((settings.host, settings.port), handler)
        except (OSError, OverflowError) as exc:
            raise Invalid(f"cannot serve at {settings.host}, port {settings.port}: {exc}") from exc

    @property
    def url(self) -> str:
        """Return the address of the server, without the token."""
        host = self.settings.host
        if host in _EVERYWHERE:
            host = socket.gethostname()
        elif ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write no traceback for a viewer that is gone."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _LOG.log(level, "a request of %s ended early", client_address, exc_info=True)

    def end(self) -> None:
        """Stop to answer."""
        self.shutdown()
        self.server_close()


@dataclass(frozen=True, slots=True)
class Query:
    """The path and the parameters of a request, each given once."""

    path: str
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, target: str) -> Query:
        try:
            split = urlsplit(target)
        except ValueError:
            return cls("", {})
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


class GuardedHandler(BaseHTTPRequestHandler):
    """Admits the viewers that may look. A subclass answers in `respond`."""

    server: GuardedServer
    protocol_version = "HTTP/1.1"
    server_version = "headgate"
    sys_version = ""
    timeout = _REQUEST_S_MAX

    def respond(self, query: Query) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        query = Query.of(self.path)
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # or the body would be read as the next request
        if self._is_welcome(query):
            self.respond(query)
        elif self.server.settings.token:
            self.answer(403, PLAIN, b"headgate: the token is missing\n")
        else:
            self.answer(403, PLAIN, b"headgate: ask at localhost; other names need a token\n")

    do_HEAD = do_GET

    @property
    def cookie(self) -> str:
        """Return the name of the cookie: browsers send cookies to all ports of a machine."""
        return f"headgate-{self.server.server_address[1]}"

    def _is_welcome(self, query: Query) -> bool:
        """Return True for a viewer who knows the token. Without a token, only names of this machine
        are answered: a page of the internet whose name leads here cannot read the log."""
        token = self.server.settings.token
        if not token:
            name = _PORT.sub("", self.headers.get("Host", "")).lower()
            return is_loopback(name.removeprefix("[").removesuffix("]"))
        cookies = (
            text.strip().partition("=") for text in self.headers.get("Cookie", "").split(";")
        )
        words = (
            query.parameters.get("token", ""),
            {name: word for name, _, word in cookies}.get(self.cookie, ""),
            self.headers.get("Authorization", "").removeprefix(_BEARER),
        )
        return any(compare_digest(word.encode(), token.encode()) for word in words)

    def answer(
        self, status: int, kind: str, body: bytes, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **more})
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, text in {**_HEADERS, **headers}.items():
            self.send_header(name, text)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOG.debug(format, *arguments)
