"""The commands with which an operator asks about a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import tzinfo
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import PER_JOB
from headgate.control.events.types import (
    AttemptStarted,
    Event,
    JobRegistered,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
)
from headgate.control.ids import ResultId
from headgate.control.inquiry import reading
from headgate.control.inquiry.reading import read
from headgate.infra.cli import log_commands, views
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, RESULT, KeptLog, attempt, exchange, ran


def test_what_is_available_is_asked(log: KeptLog, objects: Objects) -> None:
    """`available` prints whether a result or a partition is available, and its exit code says the
    same."""
    exchange(log, objects, close=False)
    asked = ("available", "--job", JOB, "--result", RESULT)
    assert ran(*asked)[:2] == (0, ["result r1 of job j is available"])
    assert ran(*asked, "--partition", "2")[0] == 0
    assert ran(*asked[:3], "--partition", "r1/2")[:2] == (
        0,
        ["partition r1/2 of job j is available"],
    )
    unwritten = ResultRegistered(ResultId("r2"), 1, 1, "", "")
    log.append(Event("y", JOB, "", 0, "t", None, unwritten))
    assert ran(*asked[:3], "--partition", "r2/0")[:2] == (
        1,
        ["partition r2/0 of job j is not available"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("available", "--result", "typo"), "job j has no result typo"),
        (("available", "--partition", "r1/3"), "result r1 has 3 partitions, from 0 on"),
        (("available", "--partition", "1"), "name a --result, or a --partition as result/index"),
        (
            ("available", "--result", "r2", "--partition", "r1/1"),
            "partition r1/1 is not of result r2",
        ),
        (("events", "--partition", "TYPO"), "write result/index or index"),
        (("events", "--partition", "9" * 5_000), "write result/index or index"),
        (("events", "--partition", "r1/3"), "no event of the log is about partition r1/3"),
        (("events", "--partition", "7"), "no event of the log is about partition 7"),
        (("events", "--partition", "TYPO/1", "--rejected"), "is about partition TYPO/1"),
        (("state", "--at", "1000000"), "the log has no offset 1000000 yet"),
        (("remove-unused", "--keep", "typo"), "job j has no result typo"),
        (
            ("may-release", "--host", "typo"),
            "no attempt of job j has begun on host typo",
        ),
    ],
)
def test_a_name_that_the_job_does_not_have_is_an_error(
    log: KeptLog, objects: Objects, asked: tuple[str, ...], says: str
) -> None:
    """A misspelt result, partition or host is no answer: the command says what it does not know."""
    exchange(log, objects, close=False)
    code, lines, error = ran(*asked, "--job", JOB)
    assert (2, [], True) == (code, lines, says in " ".join(error.split()))


def test_events_of_a_partition_are_not_collected(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is printed when it is read: those before the first one that names the partition
    may be too many to be held."""
    exchange(log, objects, close=False)
    numbers, printed, row = count(), list[int](), views.event_row

    def counted(*arguments: Any) -> Iterator[Recorded]:
        nonlocal numbers
        numbers = count()
        for recorded in read(*arguments):
            next(numbers)
            yield recorded

    def noted(recorded: Recorded, zone: tzinfo | None) -> Text:
        printed.append(next(numbers))
        return row(recorded, zone)

    monkeypatch.setattr(log_commands, "read", counted)
    monkeypatch.setattr(views, "event_row", noted)
    assert 0 == ran("events", "--job", JOB, "--partition", "r1/2")[0]
    assert 1 == printed[0] < printed[-1]


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
    published."""
    exchange(log, objects, close=False)
    before = len(list(log.read_all(Deadline.after(1.0))))
    code, lines, _ = ran("remove-unused", "--job", JOB)
    assert (0, RESULT, "1 unused result, nothing is released: --release asks for that") == (
        code,
        *lines,
    )
    code, lines, _ = ran("remove-unused", "--job", JOB, "--keep", RESULT, "--release")
    assert (0, "none is unused: each is in use, outlives its job, or is being written") == (
        code,
        *lines,
    )
    assert before == len(list(log.read_all(Deadline.after(1.0))))
    code, lines, _ = ran("remove-unused", "--job", JOB, "--release")
    assert (0, "the release of 1 unused result is asked for: the driver decides it") == (
        code,
        lines[-1],
    )
    *_, last = log.read_all(Deadline.after(1.0))
    assert last.event.body == ReleaseRequested(RESULT, "unused")
    assert ran("available", "--job", JOB, "--result", RESULT)[0] == 1


def test_what_only_another_driver_does_is_said(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is asked for, and a loss that is reported, wait for the next driver of a job
    whose driver is silent."""
    exchange(log, objects, close=False)
    registered = JobRegistered(PER_JOB, "0", "t", lease_ms=86_400_000)
    log.append(Event("y", JOB, "", 0, "t", None, registered))
    hours_on = SYSTEM_CLOCK.now_ms() + 12_600_000
    monkeypatch.setattr(reading, "SYSTEM_CLOCK", SimpleNamespace(now_ms=lambda: hours_on))
    asked = ran("remove-unused", "--job", JOB, "--release")[1][-1]
    stated = ran("lost", "--job", JOB, "--partition", "r1/1", "--evidence", "disk pulled")[1][-1]
    silent = "the job is silent for 3 h"
    assert [True, True] == [silent in line for line in (stated, asked)], (stated, asked)
    assert stated.endswith(", only a next driver makes it again")
    assert asked.endswith("Its next driver decides, or `headgate sweep` once the lease is over")


def test_what_an_operator_asks_is_no_sign_of_the_driver(log: KeptLog, objects: Objects) -> None:
    """A driver is silent from its own last fact on, whatever is published by hand meanwhile."""
    exchange(log, objects, close=False)

    def heard_ms() -> int:
        (line,) = ran("jobs", "--json")[1]
        return int(json.loads(line)["heard_ms"])

    before = heard_ms()
    ran("lost", "--job", JOB, "--partition", "r1/1", "--evidence", "disk pulled")
    ran("remove-unused", "--job", JOB, "--release")
    assert before == heard_ms()
    log.append(Event("x", JOB, "", 0, "t", None, AttemptStarted(attempt(0), "h")))
    assert before < heard_ms()


def test_fsck_of_another_store_says_so(log: KeptLog, objects: Objects) -> None:
    """A store that no job has registered is an error that names the right one: all objects would
    seem to be gone."""
    exchange(log, objects, close=False, place="s3://bucket/root")
    for job, says in (((), "the jobs have"), (("--job", JOB), "the job has")):
        assert ran("fsck", *job, "--store", "s3://bucket/root/")[0] == 0
        code, _, error = ran("fsck", *job, "--store", "s3://bucket/other")
        wrong = f"no object is in s3://bucket/other: {says} registered s3://bucket/root"
        assert (2, True) == (code, wrong in " ".join(error.split()))
