"""Which exchanges that have ended let the rest of a query be planned again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.connectors.spark.queries.runner import QueryRunner

LIMIT = 100


def exchange(size_bytes: int | None, rows: int = 1) -> Any:
    """Return an exchange of this size, or one that has not ended if the size is None."""
    mark = SimpleNamespace(rows=rows, size_bytes=size_bytes)
    return SimpleNamespace(mark=mark, is_done=size_bytes is not None, opposite=[])


@pytest.mark.parametrize(
    ("own", "opposite", "again"),
    [
        (exchange(10), [None], True),
        (exchange(10), [1_000], True),
        (exchange(10), [10], False),
        (exchange(10), [10, None], True),
        (exchange(10), [], False),
        (exchange(1_000), [None], False),
        (exchange(0, rows=0), [10], True),
        (exchange(0, rows=0), [], True),
    ],
)
def test_what_changes_the_plan(own: Any, opposite: list[int | None], again: bool) -> None:
    """An empty exchange does, and a small one opposite to what is large or not there yet."""
    assert changes(own, opposite) == again


@pytest.mark.parametrize(
    ("own", "opposite", "asked", "again"),
    [
        (exchange(10), [10], {"sends_of_two": True}, True),
        (exchange(1_000), [1_000], {"sends_of_two": True}, False),
    ],
)
def test_what_changes_the_plan_when_asked(
    own: Any, opposite: list[int | None], asked: dict[str, Any], again: bool
) -> None:
    """A limit for completed sides lets one of two small sides be broadcast."""
    assert changes(own, opposite, **asked) == again


def changes(own: Any, opposite: list[int | None], **asked: Any) -> bool:
    runner = QueryRunner.__new__(QueryRunner)
    adapting = SimpleNamespace(**{"sends_of_two": False, **asked})
    plans: Any = SimpleNamespace(adapting=adapting)
    runner._plans = plans
    own.opposite = [exchange(size) for size in opposite]
    return runner._changes_plan(own, LIMIT)
