"""`headgate sweep` over a log and a bucket in memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import MasterSettings
from headgate.control.errors import Fenced
from headgate.control.events.types import AttemptStarted, Event
from headgate.control.ids import ResultId
from headgate.control.inquiry.neglected import Neglected, neglected, seen
from headgate.infra import sweep as sweeping
from headgate.infra.cli import job_commands
from headgate.infra.sweep import Swept
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, KeptLog, attempt, exchange, ran
from ..doubles.next_version import next_version
from ..doubles.steps import StoppedClock

LATER = ResultId("r2")


def test_sweep_ends_a_silent_job_and_deletes_its_objects(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep ends a job whose driver was silent for its lease, and deletes its objects; a second
    sweep finds nothing. A job whose objects are in another store is left alone."""
    settings = MasterSettings(lease_ms=60_000)
    exchange(log, objects, close=False, settings=settings, place="s3://bucket/root")
    here = ("--store", "s3://bucket/root/")
    code, (line,), _ = ran("sweep", *here)
    assert (code, line[:-12]) == (0, "left alone: 1 running; no lease ends before 5")
    later = SYSTEM_CLOCK.now_ms() + 61_000
    monkeypatch.setattr(job_commands, "time_of", lambda *_: later)
    monkeypatch.setattr(job_commands, "SYSTEM_CLOCK", StoppedClock(later))
    assert {} != objects
    code, lines, _ = ran("sweep", "--store", "s3://another/root")
    assert (code, lines[0]) == (0, "job j: not swept: its objects are in s3://bucket/root")
    code, lines, _ = ran("sweep", "--job", JOB, *here)
    assert code == 0
    assert "left alone: none" == lines[1]
    assert lines[0].startswith("job j: driver silent for 6")
    assert lines[0].endswith("3 objects deleted")
    assert {} == objects
    assert (0, ["left alone: 1 ended"]) == ran("sweep", *here)[:2]
    assert ran("audit", "verify")[0] == ran("fsck")[0] == 0


def test_a_job_that_cannot_be_swept_stops_no_other(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that cannot be swept is named with its reason, whatever that is; the others are swept,
    and the exit code is 1."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=1))
    later, fails = SYSTEM_CLOCK.now_ms() + 61_000, iter([Fenced("injected"), TimeoutError()])
    search, swept = neglected, sweeping.sweep

    def sweep(*given: Any) -> Swept:
        for error in fails:
            raise error
        return swept(*given)

    monkeypatch.setattr(job_commands, "time_of", lambda *_: later)
    monkeypatch.setattr(job_commands, "SYSTEM_CLOCK", StoppedClock(later))
    monkeypatch.setattr(job_commands, "neglected", lambda *given: [*search(*given)] * 3)
    monkeypatch.setattr(sweeping, "sweep", sweep)
    code, lines, _ = ran("sweep")
    assert (1, "job j: not swept: injected") == (code, lines[0])
    assert "job j: not swept: TimeoutError" == lines[1]
    assert lines[2].endswith("3 objects deleted")


def test_a_clock_that_is_ahead_ends_nobody(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is silent only if both the log's clock and this machine's clock say so."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000))
    now = SYSTEM_CLOCK.now_ms()
    for at_the_log, here in ((now + 61_000, now), (now, now + 61_000)):
        monkeypatch.setattr(job_commands, "time_of", lambda *_, at=at_the_log: at)
        monkeypatch.setattr(job_commands, "SYSTEM_CLOCK", StoppedClock(here))
        assert 0 == ran("sweep")[0]
    assert {} != objects


def test_a_sweep_says_when_the_lease_of_a_silent_driver_ends(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep names a driver that is silent and still has its lease, and when that ends."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000))
    heard_ms = json.loads(ran("jobs", "--json")[1][0])["heard_ms"]
    later = StoppedClock(heard_ms + 41_000)
    monkeypatch.setattr(job_commands, "time_of", lambda *_: later.at_ms)
    monkeypatch.setattr(job_commands, "SYSTEM_CLOCK", later)
    since, ends = (
        f"{datetime.fromtimestamp(at_ms // 1000, UTC):%F %T}"
        for at_ms in (heard_ms, heard_ms + 60_000)
    )
    assert ran("sweep", "--utc")[1] == [
        f"job j: not swept: silent since {since}, its lease ends at {ends} UTC",
        "left alone: 1 silent; no lease ends before 19 s are over",
    ]
    left = json.loads(ran("sweep", "--json")[1][0])
    assert (False, heard_ms + 60_000) == (left["swept"], left["due_ms"])


def test_an_operator_ends_a_job_whose_driver_is_dead(log: KeptLog, objects: Objects) -> None:
    """`end` ends an open job before its lease is over and deletes its objects, in the name of an
    operator. A job that has ended, or that there is not, is an error."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000))
    code, lines, _ = ran("end", "--job", JOB)
    assert (0, 1) == (code, len(lines))
    assert lines[0].endswith("3 objects deleted")
    assert {} == objects
    (end,) = [r.event for r in log.follow(JOB).poll(500, 0) if r.event.kind == "LeaseExpired"]
    assert end.by.startswith("operator ")
    for job, says in ((JOB, "job j is not open"), ("typo", "no events of job typo")):
        code, _, error = ran("end", "--job", job)
        assert (2, True) == (code, says in error)


def test_a_job_whose_driver_is_heard_is_not_ended(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is heard while `end` begins keeps its job, and the exit code is 1."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000))

    def heard(*given: Any) -> Neglected:
        log.append(Event("x", JOB, "", 0, "driver", None, AttemptStarted(attempt(0), "h")))
        return seen(*given)

    monkeypatch.setattr(job_commands, "seen", heard)
    code, lines, _ = ran("end", "--job", JOB)
    assert (1, ["job j: not swept: its driver, or another one, is back"]) == (code, lines)
    assert {} != objects


def test_a_job_of_a_newer_version_is_named(log: KeptLog, objects: Objects) -> None:
    """A job of which a newer version has written events, or the snapshot that is left, is neither
    swept nor ended: the commands say so."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=1, snapshot_events=1))
    with next_version():
        exchange(log, objects, close=False, settings=MasterSettings(lease_ms=1), result=LATER)
    for oldest in (0, 10_000):
        log.expire(JOB, oldest)
        assert "newer" == json.loads(ran("jobs", "--json")[1][0])["state"]
        named = f"job {JOB}: not swept: its log was written by a newer Headgate"
        assert (0, [named, "left alone: 1 newer"], "") == ran("sweep")
        code, _, error = ran("end", "--job", JOB)
        assert (2, True) == (code, "was written by a newer Headgate" in error), error
    assert 6 == len(objects)
