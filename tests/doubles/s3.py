"""Loopback doubles for the S3 door: a store that answers by script, a proxy that loses answers, a
machine's metadata service that is busy."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from headgate.control.errors import HeadgateError
from headgate.storage.stores.port import ByteRange
from headgate.storage.stores.retries import RetrySettings
from headgate.storage.stores.s3.settings import MultipartSettings, S3Settings
from headgate.storage.stores.s3.store import S3BlobStore

HANG_S = 3.0
MIB = 1 << 20
MULTIPART = MultipartSettings(8 * MIB, 5 * MIB, 2)


class StillClock:
    """A clock that only sleeping moves on, without any delay."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_s(self) -> float:
        return sum(self.slept_s)

    def sleep_s(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer of a script. Status 0 breaks the connection, and status -1 lets the client
    wait."""

    status: int
    code: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        error = f"<Error><Code>{self.code}</Code><Message>m</Message></Error>".encode()
        return self.body or (error if self.code else b"")


DROP = Scripted(0)
HANG = Scripted(-1)
SLOW_DOWN = Scripted(503, "SlowDown")
MISSING = Scripted(404, "NoSuchKey")
STORED = Scripted(200)
MINE = Scripted(200, body=b"12345", headers={"x-amz-meta-headgate-write-id": "w"})
OTHER = Scripted(200, body=b"12345", headers={"x-amz-meta-headgate-write-id": "other"})


class ScriptedStore(ThreadingHTTPServer):
    """A server that answers requests in the order of a script, and repeats the last answer."""

    def __init__(self, script: Sequence[Scripted], port: int) -> None:
        super().__init__(("127.0.0.1", port), _ScriptedHandler)
        self.script = list(script)
        self.seen: list[str] = []
        self.urls: list[str] = []
        self.ending = threading.Event()
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next(self, seen: str, url: str) -> Scripted:
        with self.lock:
            self.seen.append(seen)
            self.urls.append(url)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def break_off(self) -> None:
        self.close_connection = True
        self.connection.shutdown(SHUT_RDWR)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class _ScriptedHandler(_Handler):
    def handle_one(self) -> None:
        assert isinstance(self.server, ScriptedStore)
        self.body()
        scripted = self.server.next(self.command, self.path)
        if scripted == HANG:
            self.server.ending.wait(HANG_S)
        if scripted.status < 1:
            return self.break_off()
        content = scripted.content()
        headers = {
            "content-length": str(len(content)),
            "etag": '"e"',
            "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT",
        }
        self.answer(scripted.status, headers | scripted.headers, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one


@contextmanager
def scripted(*script: Scripted, port: int = 0) -> Iterator[ScriptedStore]:
    """Run a server that answers by script while the block runs, at a free port unless one is
    given."""
    store = ScriptedStore(script, port)
    with _serving(store):
        yield store
        store.ending.set()


class LosingProxy(ThreadingHTTPServer):
    """A proxy that passes every request on, and loses the first answer to each write."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _LosingHandler)
        self.upstream = endpoint.removeprefix("http://")
        self.lost: set[str] = set()
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def loses(self, command: str, path: str) -> bool:
        # the start of an upload is never lost: that is a test of its own
        if command not in ("PUT", "POST") or path.endswith(("?uploads", "?delete")):
            return False
        with self.lock:
            first = path not in self.lost
            self.lost.add(path)
            return first


class _LosingHandler(_Handler):
    def handle_one(self) -> None:
        assert isinstance(self.server, LosingProxy)
        response, content = self._pass_on(self.server.upstream, self.body())
        if self.server.loses(self.command, self.path):
            return self.break_off()
        headers = {k: v for k, v in response.getheaders() if k.lower() != "transfer-encoding"}
        if self.command != "HEAD":
            headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            headers["content-length"] = str(len(content))
        self.answer(response.status, headers, content)

    def _pass_on(self, upstream: str, body: bytes) -> tuple[HTTPResponse, bytes]:
        # keep the client's Host header, which is signed
        kept = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
        connection = HTTPConnection(upstream, timeout=30)
        try:
            connection.request(self.command, self.path, body, kept)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one


@contextmanager
def losing(endpoint: str) -> Iterator[LosingProxy]:
    """Run a proxy in front of `endpoint` while the block runs."""
    proxy = LosingProxy(endpoint)
    with _serving(proxy):
        yield proxy


class MetadataService(ThreadingHTTPServer):
    """A machine's metadata service that refuses the first requests for each of its answers."""

    def __init__(self, refusals: int) -> None:
        super().__init__(("127.0.0.1", 0), _MetadataHandler)
        self.refusals = refusals
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def refuses(self, path: str) -> bool:
        with self.lock:
            self.seen[path] += 1
            return self.seen[path] <= self.refusals


_ROLES = "/latest/meta-data/iam/security-credentials/"
_KEYS = {
    "Code": "Success",
    "AccessKeyId": "AKOFTHEROLE",
    "SecretAccessKey": "s",
    "Token": "t",
    "Expiration": "2099-01-01T00:00:00Z",
}
_METADATA = {
    "/latest/api/token": b"token",
    _ROLES: b"role",
    f"{_ROLES}role": json.dumps(_KEYS).encode(),
}


class _MetadataHandler(_Handler):
    def handle_one(self) -> None:
        assert isinstance(self.server, MetadataService)
        self.body()
        refused = self.server.refuses(self.path)
        content = b"busy" if refused else _METADATA[self.path]
        self.answer(503 if refused else 200, {"content-length": str(len(content))}, content)

    do_GET = do_PUT = handle_one


@contextmanager
def metadata_service(refusals: int) -> Iterator[MetadataService]:
    """Run a metadata service while the block runs."""
    service = MetadataService(refusals)
    with _serving(service):
        yield service


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[None]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


Act = Callable[[S3BlobStore], object]
ACTS: dict[str, Act] = {
    "get": lambda store: store.get("a"),
    "range": lambda store: store.get("a", ByteRange(0, 4)),
    "put": lambda store: store.put("a", b"12345", "w"),
    "delete": lambda store: store.delete(["a"]),
    "list": lambda store: list(store.list("")),
}


def store_at(
    endpoint: str, clock: StillClock | None = None, retries: RetrySettings | None = None
) -> S3BlobStore:
    settings = S3Settings(
        "bucket",
        endpoint,
        request_timeout_s=5.0,
        retries=retries or RetrySettings(),
        multipart=MULTIPART,
    )
    return S3BlobStore(settings, clock or StillClock())


def failure(store: S3BlobStore, act: Act) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        act(store)
    store.close()
    assert caught.value.__cause__ is not None, "a door keeps the cause"
    return caught.value


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto on loopback while the block runs, and yield its endpoint."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
