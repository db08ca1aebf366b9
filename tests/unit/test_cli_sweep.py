"""`headgate sweep` over a log and a bucket in memory."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import MasterSettings
from headgate.control.errors import Fenced
from headgate.control.inquiry.neglected import neglected
from headgate.infra import sweep as sweeping
from headgate.infra.cli import job_commands
from headgate.infra.sweep import Swept
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, KeptLog, exchange, ran
from ..doubles.steps import StoppedClock


def test_sweep_ends_a_silent_job_and_deletes_its_objects(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep ends a job whose driver was silent for its lease, and deletes its objects; a second
    sweep finds nothing. A job whose objects are in another store is left alone."""
    settings = MasterSettings(lease_ms=60_000)
    exchange(log, objects, close=False, settings=settings, place="s3://bucket/root")
    here = ("--store", "s3://bucket/root/")
    assert (0, []) == ran("sweep", *here)[:2]
    later = SYSTEM_CLOCK.now_ms() + 61_000
    monkeypatch.setattr(job_commands, "time_of", lambda *_: later)
    monkeypatch.setattr(job_commands, "SYSTEM_CLOCK", StoppedClock(later))
    assert {} != objects
    code, lines, _ = ran("sweep", "--store", "s3://another/root")
    assert (code, lines) == (0, ["job j: not swept: its objects are in s3://bucket/root"])
    code, lines, _ = ran("sweep", "--job", JOB, *here)
    assert code == 0
    assert len(lines) == 1
    assert lines[0].startswith("job j: driver silent for 6")
    assert lines[0].endswith("3 objects deleted")
    assert {} == objects
    assert (0, []) == ran("sweep", *here)[:2]
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
        assert (0, []) == ran("sweep")[:2]
    assert {} != objects
