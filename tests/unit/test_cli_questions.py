"""The commands with which an operator asks about a job."""

from __future__ import annotations

from headgate.control.clock import Deadline
from headgate.control.events.types import AttemptStarted, Event, ReleaseRequested
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, RESULT, KeptLog, attempt, exchange, ran


def test_what_is_available_is_asked(log: KeptLog, objects: Objects) -> None:
    """`available` prints whether a result or a partition is available, and its exit code says the
    same."""
    exchange(log, objects, close=False)
    asked = ("available", "--job", JOB, "--result", RESULT)
    assert ran(*asked)[:2] == (0, ["result r1 of job j is available"])
    assert ran(*asked, "--partition", "2")[0] == 0
    assert ran(*asked, "--partition", "3")[:2] == (1, ["partition r1/3 of job j is not available"])


def test_an_executor_may_go_when_nothing_runs_there(log: KeptLog, objects: Objects) -> None:
    """`may-release` names an attempt that runs on the host, and ends with exit code 1."""
    exchange(log, objects, close=False)
    assert ran("may-release", "--job", JOB, "--host", "h")[:2] == (
        0,
        ["job j loses nothing with h"],
    )
    log.append(Event("x", JOB, "", 0, "t", None, AttemptStarted(attempt(0), "h")))
    code, lines, _ = ran("may-release", "--job", JOB, "--host", "h")
    assert (code, lines) == (1, ["attempt r1/0/1-9 runs on h", "job j loses 1 with h"])


def test_what_is_unused_is_listed_and_released_when_told_so(log: KeptLog, objects: Objects) -> None:
    """`remove-unused` writes nothing without --release; with it, the release of unused results is
    stated."""
    exchange(log, objects, close=False)
    before = len(list(log.read_all(Deadline.after(1.0))))
    assert ran("remove-unused", "--job", JOB)[:2] == (0, [RESULT])
    assert ran("remove-unused", "--job", JOB, "--keep", RESULT, "--release")[:2] == (0, [])
    assert before == len(list(log.read_all(Deadline.after(1.0))))
    assert ran("remove-unused", "--job", JOB, "--release")[0] == 0
    *_, last = log.read_all(Deadline.after(1.0))
    assert last.event.body == ReleaseRequested(RESULT, "unused")
    assert ran("available", "--job", JOB, "--result", RESULT)[0] == 1
