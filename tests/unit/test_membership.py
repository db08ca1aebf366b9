"""A member of the group of masters takes up partitions while the broker is slow, or partly away."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline, ProgressDeadline, SystemClock
from headgate.control.errors import Unavailable
from headgate.control.kafka import membership
from headgate.control.kafka.membership import KafkaMembership
from headgate.control.log import Grant


def member(**parts: Any) -> Any:
    made = KafkaMembership.__new__(KafkaMembership)
    named = {"_later": {}, "_granting": {}, "_delayed": {}, "_held": {}, "_what": "slot one"}
    for name, part in (named | parts).items():
        setattr(made, name, part)
    return made


def test_nobody_reads_for_a_partition_that_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large states of partitions that another member has now hold up neither the partitions that
    are left nor the end of this member."""
    begun, reads = Event(), list[bool]()

    def read_slowly(*args: object) -> dict[str, bytes]:
        deadline = next(each for each in args if isinstance(each, Deadline))
        begun.set()
        for _ in range(1_000):
            deadline.progress()
            if deadline.passed:
                break
            SYSTEM_CLOCK.sleep_s(0.01)
        reads.append(deadline.passed)
        raise Unavailable("not read in time")

    monkeypatch.setattr(membership, "read_state", read_slowly)
    monkeypatch.setattr(KafkaMembership, "_check_settled", lambda self, number: None)
    clients = SimpleNamespace(
        settings=SimpleNamespace(events_topic="e", state_topic="s"),
        first_offset=lambda place: 0,
        written_offset=lambda place: 7,
        exists=lambda topic, deadline: True,
    )
    consumer = SimpleNamespace(incremental_unassign=lambda places: None)
    later = {number: Deadline.after(0.0) for number in range(3)}
    with ThreadPoolExecutor(2) as pool:
        granting = member(_clients=clients, _asking=pool, _later=later)
        granting._take_up()
        assert begun.wait(5.0)
        granting._revoked(consumer, [SimpleNamespace(partition=number) for number in range(3)])
    assert [True, True] == reads


def test_a_large_state_is_read_as_long_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is taken up however long its state takes to read: only a read without progress
    ends, or a slow broker would let no master ever have the partition."""
    times_s = count(0.0, 40.0)

    def read_slowly(*args: object) -> dict[str, bytes]:
        deadline = next(each for each in args if isinstance(each, Deadline))
        for _ in range(4):
            assert not deadline.passed
            deadline.progress()
        return {"job": b"state"}

    monkeypatch.setattr(SystemClock, "monotonic_s", lambda clock: next(times_s))
    monkeypatch.setattr(membership, "read_state", read_slowly)
    clients = SimpleNamespace(
        settings=SimpleNamespace(events_topic="e", state_topic="s"),
        first_offset=lambda place: 0,
        written_offset=lambda place: 7,
        exists=lambda topic, deadline: True,
    )
    monkeypatch.setattr(KafkaMembership, "_check_settled", lambda self, number: None)
    deadline = ProgressDeadline(60.0)
    assert Grant(3, {"job": b"state"}, range(7)) == member(_clients=clients)._grant(3, deadline)


def test_a_partition_that_is_away_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that cannot be taken up is tried again and again, and one line says so until it
    is taken up, or another member has it."""

    def fail(number: int) -> Future[Grant]:
        asked: Future[Grant] = Future()
        asked.set_exception(Unavailable("a step is open"))
        return asked

    unassigned: list[object] = []
    consumer = SimpleNamespace(incremental_unassign=unassigned.append)
    asking = SimpleNamespace(submit=lambda grant, number, deadline: fail(number))
    waiting = member(_asking=asking, _later={4: Deadline.after(0.0)})
    monkeypatch.setattr(membership, "PACE", SimpleNamespace(retry_s=0.0))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            waiting._take_up()
        assert [4] == list(waiting._later)
        assert 1 == len(caplog.records)
        waiting._revoked(consumer, [SimpleNamespace(partition=4)])
        waiting._later[4] = Deadline.after(0.0)
        waiting._take_up()
    assert 2 == len(caplog.records)
    assert 1 == len(unassigned)
