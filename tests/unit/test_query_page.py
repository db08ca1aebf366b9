"""Queries on Spark's SQL page, with doubles of Spark's context."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from headgate.connectors.spark.jvm.names import Feature
from headgate.connectors.spark.jvm.pages import query_page
from headgate.connectors.spark.jvm.pages.plan_tree import PlanTree, States
from headgate.connectors.spark.jvm.pages.query_page import QueryPage, call_site
from headgate.control.errors import Invalid

ALL = frozenset(Feature)


def test_ends_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that nobody reads to their ends wait for the time of one, not one after another."""
    slept: list[float] = []
    clock = SimpleNamespace(now_ms=lambda: round(1000 * sum(slept)), sleep_s=slept.append)
    monkeypatch.setattr(query_page, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(PlanTree, "is_read", lambda *_: False)
    posted: list[str] = []
    monkeypatch.setattr(QueryPage, "_post", lambda page, name, *_, **more: posted.append(name))
    spark: Any = MagicMock()
    for _ in range(10):
        QueryPage(spark, ALL, dict, is_read=True)._end(0, "")
    assert 0.1 < sum(slept) < 0.3
    assert posted.count("SQLExecutionEnd") == 10


def test_a_job_that_was_closed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends on the page also if its job is closed while it runs."""

    def closed() -> States:
        raise Invalid("the job is not registered with this master")

    posted: list[str] = []
    monkeypatch.setattr(QueryPage, "_post", lambda page, name, *_, **more: posted.append(name))
    page = QueryPage(MagicMock(), ALL, closed, is_read=True)
    with page:
        page._number = 1
    page._spark.wait()
    assert ["DriverAccumUpdates", "SQLExecutionEnd"] == posted


def test_a_plan_that_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends on the page also if its plan is too deep for Python."""

    def too_deep(tree: object) -> list[str]:
        raise RecursionError

    posted: list[str] = []
    monkeypatch.setattr(QueryPage, "_post", lambda page, name, *_, **more: posted.append(name))
    monkeypatch.setattr(query_page, "lines", too_deep)
    page = QueryPage(MagicMock(), ALL, dict)
    with page:
        page._number, page._is_stale = 1, True
    page._spark.wait()
    assert ["DriverAccumUpdates", "SQLExecutionEnd"] == posted


def test_a_plan_is_added_while_pages_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query adds a plan also while another thread waits for all pages, this one's too."""
    node = {"nodeName": "Range", "simpleString": "Range", "children": [], "metrics": []}
    monkeypatch.setattr(QueryPage, "_post", lambda *_, **__: None)
    page = QueryPage(MagicMock(), ALL, dict)
    page._number, core = 1, page._spark
    vars(core)["mapper"] = SimpleNamespace(writeValueAsString=lambda _: json.dumps(node))
    added, ended = threading.Event(), threading.Event()
    core.later(ended.wait)
    page.last(node)
    waits = threading.Thread(target=core.wait, daemon=True)
    waits.start()
    while not core._lock.locked():
        pass

    def add(node: dict[str, Any]) -> None:
        page._plan.last(node)
        added.set()

    adds = threading.Thread(target=page._show, args=(node, add), daemon=True)
    adds.start()
    assert added.wait(10)
    ended.set()
    for thread in (waits, adds):
        thread.join(10)
        assert not thread.is_alive()
    core.wait()


def test_threads_that_share_properties_show_nothing() -> None:
    """No local property is set if threads of Python share threads of the JVM."""
    spark: Any = MagicMock()
    with QueryPage(spark, ALL, dict) as page:
        page.begin(str)
    assert not spark.sparkContext._jsc.sc().setLocalProperties.called


def test_libraries_are_whole_folders() -> None:
    """A library of the user's whose name begins as one of ours is the user's."""
    for folder in query_page._LIBRARIES:
        code = compile("site = call_site()", f"{Path(folder)}_extras/job.py", "exec")
        names: dict[str, Any] = {"call_site": call_site}
        exec(code, names)
        assert names["site"][0].endswith("_extras/job.py:1")


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("/home/me/my_job.py:8", "my_job.py:8"),
        ("/tmp/ipykernel_123/4567890.py:3", "cell:3"),
        ("<ipython-input-1-b0efd5682eb7>:4", "cell:4"),
        ("<stdin>:1", "<stdin>:1"),
    ],
)
def test_a_line_of_a_notebook_is_one_of_a_cell(place: str, line: str) -> None:
    """Jupyter and IPython name their cells by numbers that tell nothing and take the room of the
    partitioning."""
    page = object.__new__(QueryPage)
    page._site = (f"collect at {place}", "")
    assert line == page.line
