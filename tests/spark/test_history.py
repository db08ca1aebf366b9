"""Spark's own pages, as its History Server shows them from the event log of a real application."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
import pytest

from headgate.control.clock import SYSTEM_CLOCK

from .conftest import QUICK_JAVA

pytestmark = pytest.mark.timeout(180)

_SERVER = "org.apache.spark.deploy.history.HistoryServer"
_WROTE = re.compile(r"headgate: write (\S+),")
_WAIT_S, _ASKED_MAX = 0.2, 300


@dataclass(frozen=True, slots=True)
class History:
    """The answers of a History Server on one application, and the application's own report."""

    report: Any
    stages: list[Any]
    executions: list[Any]

    def written(self) -> dict[str, tuple[int, int]]:
        """Return the rows and bytes of each exchange, as the stages that wrote them have them."""
        named = [(_WROTE.match(stage.get("description") or ""), stage) for stage in self.stages]
        return {
            match[1]: (stage["shuffleWriteRecords"], stage["shuffleWriteBytes"])
            for match, stage in named
            if match
        }


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("events")
    app = [sys.executable, "-m", "tests.spark.logged", str(folder)]
    printed = subprocess.run(app, check=True, stdout=subprocess.PIPE, timeout=120).stdout
    report = json.loads(printed.splitlines()[-1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "spark.history.fs.logDirectory": folder.as_uri(),
        "spark.history.ui.port": str(port),
        "spark.history.fs.cleaner.enabled": "false",
    }
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_HISTORY_OPTS": " ".join(f"-D{key}={value}" for key, value in options.items()),
    }
    home = Path(pyspark.__file__).parent
    with subprocess.Popen(
        [home / "bin" / "spark-class", _SERVER],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            api = f"http://127.0.0.1:{port}/api/v1/applications/{report['application']}"
            yield History(
                report,
                _answer(f"{api}/stages"),
                _answer(f"{api}/sql?details=true&planDescription=true&length=1000"),
            )
        finally:
            server.kill()


def _answer(url: str) -> Any:
    """Return an answer of the server, which may take a while to begin."""
    for _ in range(_ASKED_MAX):
        try:
            with urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except (URLError, ConnectionError):
            SYSTEM_CLOCK.sleep_s(_WAIT_S)
    raise TimeoutError(url)


def test_stages_show_the_bytes_and_rows(history: History) -> None:
    """The stages of all exchanges have written and read what `hg.report()` says, to the byte."""
    results = history.report["results"]
    assert {each["result"]: (each["rows"], each["stored_bytes"]) for each in results} == (
        history.written()
    )
    read = sum(stage["shuffleReadBytes"] for stage in history.stages)
    assert sum(each["read_bytes"] for each in results) == read > 0


def test_no_shuffle_is_taken_for_sparks(history: History) -> None:
    """Exchanges that show as shuffles in Spark's pages are not counted as shuffles of Spark's."""
    assert {} == history.report["native"]
