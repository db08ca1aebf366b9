"""The JVM releases the objects that Python has dropped, many at a time."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError

from headgate.connectors.spark.jvm.gateway.dropped_objects import DroppedObjects
from headgate.control.clock import SYSTEM_CLOCK, Deadline

UTIL = SimpleNamespace(Collections=SimpleNamespace(list=list), StringTokenizer=str.split)
LIMIT_S = 10.0


def wait_until_empty(dropped: DroppedObjects) -> None:
    deadline = Deadline.after(LIMIT_S)
    while dropped._dropped and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.02)


def test_dropped_objects_go_together() -> None:
    """Objects that were dropped within a moment are released by one call; py4j gets the rest. As
    many as the call itself has dropped wait for others, so that an idle session makes no calls."""
    queue: deque[Any] = deque()
    released: list[list[str]] = []
    dropped = DroppedObjects(queue, SimpleNamespace(removeAll=released.append), UTIL)
    for name in ("o1", "o2", "o3"):
        dropped.appendleft(("client", name))
    dropped.appendleft("end of the worker")
    wait_until_empty(dropped)
    for name in ("o4", "o5"):
        dropped.appendleft(("client", name))
    SYSTEM_CLOCK.sleep_s(0.5)
    assert [["o1", "o2", "o3"]] == released
    dropped.appendleft(("client", "o6"))
    wait_until_empty(dropped)
    SYSTEM_CLOCK.sleep_s(0.1)
    assert [["o1", "o2", "o3"], ["o4", "o5", "o6"]] == released
    assert ["end of the worker"] == list(queue)


def test_py4j_goes_on_when_the_jvm_refuses() -> None:
    """After a call that failed, py4j dropped objects as it does by itself."""
    queue: deque[Any] = deque()

    def refuse(names: list[str]) -> None:
        raise Py4JError("the JVM has ended")

    dropped = DroppedObjects(queue, SimpleNamespace(removeAll=refuse), UTIL)
    for name in ("o1", "o2", "o3"):
        dropped.appendleft(("client", name))
    dropped._thread.join(LIMIT_S)
    dropped.appendleft(("client", "o4"))
    assert [("client", "o4")] == list(queue)
