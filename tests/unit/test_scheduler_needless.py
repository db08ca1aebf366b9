"""Jobs that nobody needs are ended, and only those."""

from __future__ import annotations

import select
import socket
from functools import partial
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.connectors.spark.jvm import scheduler
from headgate.connectors.spark.jvm.scheduler import StoppedJobs
from headgate.connectors.spark.queries.query_stages import QueryStages
from headgate.connectors.spark.tasks.shipping import is_left


@pytest.mark.parametrize(("shares", "tags"), [(False, ["query"]), (True, ["one", "two"])])
def test_what_is_left_is_ended_by_the_tag_of_the_query(
    monkeypatch: pytest.MonkeyPatch, shares: bool, tags: list[str]
) -> None:
    """One call ends all of it, unless the query shares jobs with others."""
    context: Any = object()
    ended: list[str] = []
    monkeypatch.setattr(scheduler, "end_jobs", lambda _, tag: ended.append(tag))
    monkeypatch.setattr(Thread, "start", lambda _: None)
    jobs, over = StoppedJobs(context), {"one": False, "two": False}
    for tag in over:
        jobs.add(tag, partial(over.__getitem__, tag))
    jobs.leave("query", lambda: shares)
    ended.clear()
    assert jobs.end()
    assert tags == ended
    over["one"] = True
    assert jobs.end()
    over["two"] = True
    assert not jobs.end()


@pytest.mark.parametrize(("at", "is_own"), [(-1, False), (0, True)])
def test_a_broadcast_inside_another_stage_goes_on(at: int, is_own: bool) -> None:
    def updated(at: int, _: Any) -> Any:
        assert at >= 0
        return stages

    stages: Any = SimpleNamespace(indexOf=lambda _: at, updated=updated)
    query = QueryStages.__new__(QueryStages)
    query._lock, query._stages = Lock(), stages
    sent: Any = SimpleNamespace(exchange=SimpleNamespace(child=lambda: None))
    assert query.forget(sent) == is_own


def test_a_stream_is_left_where_half_closed_streams_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS has no `POLLRDHUP`."""
    monkeypatch.delattr(select, "POLLRDHUP", raising=False)
    here, there = socket.socketpair()
    with here:
        with there:
            assert not is_left(here)
        assert is_left(here)
