"""Spark's own pages, as its History Server shows them from the event log of a real application."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
import pytest

from headgate.control.clock import SYSTEM_CLOCK

from ..quick_java import QUICK_JAVA
from .logged import SECRET

pytestmark = pytest.mark.timeout(180)

_SERVER = "org.apache.spark.deploy.history.HistoryServer"
_WROTE = re.compile(r"headgate: write (\S+) .+: ")
READ_LATER = ("offload", "repartition", "rdd, true")
_WAIT_S, _ASKED_MAX = 0.2, 300


@dataclass(frozen=True, slots=True)
class History:
    """The answers of a History Server on one application, and the application's own report."""

    report: Any
    stages: list[Any]
    jobs: list[Any]
    executions: list[Any]
    events: list[Any]

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
                _answer(f"{api}/jobs"),
                _answer(f"{api}/sql?details=true&planDescription=true&length=1000"),
                [
                    json.loads(line)
                    for file in sorted(folder.glob("eventlog_v2_*/events_*"))
                    for line in file.read_text().splitlines()
                ],
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


def test_a_query_is_one_execution(history: History) -> None:
    """Each query is one root execution with the map stages of all of its exchanges, and the action
    below it. Both have the name of the user's method and line."""
    jobs = {_WROTE.match(job.get("description") or ""): job["jobId"] for job in history.jobs}
    job_of = {match[1]: job for match, job in jobs.items() if match}
    for query, results in history.report["queries"].items():
        named = {f"Headgate exchange {result}" for result in results}
        (root,) = (
            execution
            for execution in history.executions
            if named & {node["nodeName"] for node in execution["nodes"]}
        )
        assert results, query
        assert named <= {node["nodeName"] for node in root["nodes"]}, query
        assert {job_of[result] for result in results} <= set(root["successJobIds"]), query
        assert (root["id"], "COMPLETED") == (root["rootExecutionId"], root["status"]), query
        method = query.partition(",")[0]
        assert re.fullmatch(rf"{method} at .*/tests/spark/logged\.py:\d+", root["description"])
        below = [
            execution["description"]
            for execution in history.executions
            if execution["rootExecutionId"] == root["id"] != execution["id"]
        ]
        assert set(below) == (set() if query in READ_LATER else {root["description"]}), query


def test_nodes_have_the_volumes_of_the_report(history: History) -> None:
    """The node of an exchange has the rows and bytes that `hg.report()` says, to the byte. A query
    that has ended before its rows are read has no bytes read, not even 0."""
    values: Counter[int] = Counter()
    nodes: dict[str, dict[str, int]] = {}
    for event in history.events:
        if event["Event"].endswith("SparkListenerDriverAccumUpdates"):
            for number, value in event["accumUpdates"]:
                values[number] += value
        if event["Event"].endswith("SparkListenerSQLAdaptiveExecutionUpdate"):
            for node in _all(event["sparkPlanInfo"]):
                if node["nodeName"].startswith("Headgate exchange "):
                    metrics = {each["name"]: each["accumulatorId"] for each in node["metrics"]}
                    nodes[node["nodeName"].rpartition(" ")[2]] = metrics
    expected = {
        each["result"]: (each["rows"], each["stored_bytes"], each["read_bytes"])
        for each in history.report["results"]
    }
    names = "shuffle records written", "shuffle bytes written", "remote bytes read"
    later = [history.report["queries"][query][-1] for query in READ_LATER]
    for result in later:
        assert nodes[result][names[-1]] not in values
        values[nodes[result][names[-1]]] = expected[result][-1]
    assert expected == {
        result: tuple(values[metrics[name]] for name in names) for result, metrics in nodes.items()
    }


def test_operators_have_their_metrics(history: History) -> None:
    """The operators of map stages have the metrics that Spark's tasks have measured."""
    for query, results in history.report["queries"].items():
        name = f"Headgate exchange {results[0]}"
        (nodes,) = (
            execution["nodes"]
            for execution in history.executions
            if name in {node["nodeName"] for node in execution["nodes"]}
        )
        rows = [
            (node["nodeName"], metric["value"])
            for node in nodes
            if node["nodeName"] in ("Range", "SortMergeJoin")
            for metric in node["metrics"]
            if metric["name"] == "number of output rows"
        ]
        joined = [("Range", "1,000"), ("SortMergeJoin", "20,000")]
        fewer = {"repartition": 0, "collect, of pairs": 1, "collect, of a broadcast": 1}
        joined = joined[: fewer.get(query, 2)]
        assert sorted([("Range", "20,000"), *joined]) == sorted(rows), query


def test_a_query_that_fails(history: History) -> None:
    """A query that fails has failed on the page too, with its error. One of whose rows the caller
    wants no more has not failed."""
    (failed,) = [each for each in history.executions if each["status"] == "FAILED"]
    assert re.fullmatch(r"collect at .*/logged\.py:\d+", failed["description"])
    errors = [
        event["errorMessage"]
        for event in history.events
        if event["Event"].endswith("SparkListenerSQLExecutionEnd")
        and event["executionId"] == failed["id"]
    ]
    assert ["wrong" in error for error in errors] == [True]


def test_a_description_is_redacted(history: History) -> None:
    """A description that the user has set is redacted by Spark's settings."""
    described = [each["description"] for each in history.executions]
    assert ["with the password *********(redacted)"] * 2 == [
        each for each in described if "password" in each
    ]
    assert [each for each in described if SECRET in each] == []


def test_jobs_are_named_by_the_users_lines(history: History) -> None:
    """No stage or query is named by a line of Headgate, or by one of Spark's gateway."""
    names = [stage["name"] for stage in history.stages]
    names += [job["name"] for job in history.jobs]
    assert [name for name in names if "logged.py:" not in name] == []


def _all(node: Any) -> Iterator[Any]:
    yield node
    for child in node["children"]:
        yield from _all(child)


def test_no_shuffle_is_taken_for_sparks(history: History) -> None:
    """Exchanges that show as shuffles in Spark's pages are not counted as shuffles of Spark's."""
    assert {} == history.report["native"]
