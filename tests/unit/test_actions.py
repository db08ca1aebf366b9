"""Actions whose session's headgate is closed while a user is about to run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.connectors.spark.patches import actions
from headgate.connectors.spark.patches.actions import enter, leave
from headgate.connectors.spark.patches.runs import Runs


def test_rows_of_a_session_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator whose first row nobody has asked for when its session leaves gives Spark's own
    rows, as every later action does."""

    @contextmanager
    def run(df: Any, *_: object) -> Iterator[Any]:
        yield SimpleNamespace(rows=["ours"])

    monkeypatch.setattr(actions, "session_name", lambda session: session)
    spark: Any = "a session"
    df: Any = SimpleNamespace(sparkSession=spark, rows=["Spark's"])
    iterate = actions._replacement(lambda df: iter(df.rows), actions._iterate)
    runs = Runs(run, run, run, run, nullcontext, lambda: True)
    enter(spark, runs)
    try:
        begun, late = iterate(df), iterate(df)
        rows = list(begun)
    finally:
        leave(spark, runs)
    assert ["ours"] == rows
    assert ["Spark's"] == list(late) == list(iterate(df))
