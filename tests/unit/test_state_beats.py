"""Reading drivers' heartbeats: each is read once, and none is forgotten because of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Lost
from headgate.control.ids import JobId
from headgate.control.kafka import state
from headgate.control.kafka.records import Place
from headgate.control.kafka.settings import BEATS_MS
from headgate.control.kafka.state import Beats

PLACE = Place("headgate.heartbeats", 0)
NOW_MS = 1_700_000_000_000


class Beat:
    def __init__(self, offset: int, at_ms: int) -> None:
        self.offset, self.timestamp = lambda: offset, lambda: (2, at_ms)


class Topic:
    """A topic in memory that records the offsets from which it was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[str, int]] = []
        self.starts: list[int] = []
        monkeypatch.setattr(state, "_scan", self.scan)

    def scan(self, *_: object, start: int) -> Iterator[tuple[str, Any]]:
        self.starts.append(start)
        if start > len(self.held):
            raise Lost("offset is out of range", (start,))
        for offset, (key, at_ms) in enumerate(self.held[start:], start):
            yield key, Beat(offset, at_ms)


def read(beats: Beats) -> dict[JobId, int]:
    return beats.read(PLACE, Deadline.after(1.0))


def test_a_clock_that_is_ahead_forgets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat with a time days ahead, as a broker's clock may state it, does not remove other
    jobs' heartbeats."""
    topic, beats = Topic(monkeypatch), Beats(None)  # type: ignore[arg-type]
    topic.held = [("live", NOW_MS), ("sweep", NOW_MS + 2 * BEATS_MS)]
    assert {"live": NOW_MS, "sweep": NOW_MS + 2 * BEATS_MS} == read(beats)
    topic.held.append(("live", NOW_MS + 1))
    assert NOW_MS + 1 == read(beats)[JobId("live")]
    assert [0, 2] == topic.starts


def test_a_topic_that_was_made_anew_is_read_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, beats = Topic(monkeypatch), Beats(None)  # type: ignore[arg-type]
    topic.held = [("old", NOW_MS)] * 5
    assert ["old"] == list(read(beats))
    topic.held = [("new", NOW_MS)]
    assert {"new": NOW_MS} == read(beats)
    assert [0, 5, 0] == topic.starts
