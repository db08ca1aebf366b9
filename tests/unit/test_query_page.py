"""Queries on Spark's SQL page, with doubles of Spark's context."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from headgate.connectors.spark.jvm.pages import query_page
from headgate.connectors.spark.jvm.pages.plan_tree import PlanTree, States
from headgate.connectors.spark.jvm.pages.query_page import QueryPage, call_site
from headgate.control.errors import Invalid


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
        QueryPage(spark, dict, is_read=True)._end(0, "")
    assert 0.1 < sum(slept) < 0.3
    assert posted.count("SQLExecutionEnd") == 10


def test_a_job_that_was_closed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends on the page also if its job is closed while it runs."""

    def closed() -> States:
        raise Invalid("the job is not registered with this master")

    posted: list[str] = []
    monkeypatch.setattr(QueryPage, "_post", lambda page, name, *_, **more: posted.append(name))
    page = QueryPage(MagicMock(), closed, is_read=True)
    with page:
        page._number = 1
    page._spark.wait()
    assert ["DriverAccumUpdates", "SQLExecutionEnd"] == posted


def test_a_plan_that_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends on the page also if its plan is too deep for Python."""

    def too_deep(page: QueryPage) -> None:
        raise RecursionError

    posted: list[str] = []
    monkeypatch.setattr(QueryPage, "_post", lambda page, name, *_, **more: posted.append(name))
    monkeypatch.setattr(QueryPage, "_show_all", too_deep)
    page = QueryPage(MagicMock(), dict)
    with page:
        page._number, page._is_stale = 1, True
    page._spark.wait()
    assert ["SQLExecutionEnd"] == posted


def test_threads_that_share_properties_show_nothing() -> None:
    """No local property is set if threads of Python share threads of the JVM."""
    spark: Any = MagicMock()
    with QueryPage(spark, dict) as page:
        page.begin(str)
    assert not spark.sparkContext._jsc.sc().setLocalProperties.called


def test_libraries_are_whole_folders() -> None:
    """A library of the user's whose name begins as one of ours is the user's."""
    for folder in query_page._LIBRARIES:
        code = compile("site = call_site()", f"{Path(folder)}_extras/job.py", "exec")
        names: dict[str, Any] = {"call_site": call_site}
        exec(code, names)
        assert names["site"][0].endswith("_extras/job.py:1")
