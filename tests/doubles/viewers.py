"""A server of the live page in a thread, and a viewer that asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from headgate.control.memory.log import MemoryEventLog
from headgate.infra.serving import ServerSettings
from headgate.infra.target import Target
from headgate.infra.ui.bucket_check import BucketCheck
from headgate.infra.ui.log_reader import LogReader
from headgate.infra.ui.server import UiServer

from .scripted_jobs import TimedLog

ANSWER_S_MAX = 10.0


class Viewer:
    """Asks a server that runs in a thread."""

    def __init__(
        self, log: MemoryEventLog, settings: ServerSettings | None = None, store: str = ""
    ) -> None:
        self.reader = LogReader(log)
        bucket = BucketCheck(log, store, Target("", store, "").open_bucket)
        self.server = UiServer(self.reader, settings or ServerSettings(), bucket)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @contextmanager
    def ask(self, path: str, method: str = "GET", **headers: str) -> Iterator[HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)
        with closing(connection):
            connection.request(method, path, headers={"Headgate-Page": "1", **headers})
            with connection.getresponse() as answer:
                yield answer

    def value(self, path: str) -> Any:
        with self.ask(path) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        self.server.end()
        self.thread.join(ANSWER_S_MAX)
        self.reader.close()


@pytest.fixture
def timed() -> TimedLog:
    return TimedLog()


@pytest.fixture
def viewer(timed: TimedLog) -> Iterator[Viewer]:
    viewer = Viewer(timed)
    yield viewer
    viewer.close()
