"""Lines about events in the logs of drivers and masters."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest

from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.log_lines import write_line
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Event,
    JobRegistered,
    JobUnregistered,
    Lost,
    Recorded,
    ReleaseRequested,
)
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps
from headgate.control.master.term import Term
from headgate.control.memory.log import MemoryEventLog
from headgate.infra.spelling import Spelling
from headgate.storage.stores.memory import Objects
from headgate.testing.faulty_log import FaultyEventLog, LogFault

from ..doubles import jobs
from ..doubles.commands import JOB, RESULT, KeptLog, exchange
from ..doubles.groups import JOBS, OPENING, Storage, drive, state_facts
from ..doubles.jobs import attempt, produced
from ..doubles.scripted_jobs import TimedLog
from ..doubles.steps import CLOCK
from ..doubles.watched_jobs import joined_by

EVENTS = "headgate.events"


def kinds(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in caplog.records if record.name == EVENTS]


def test_a_driver_writes_a_line_for_each_event_of_importance(
    log: KeptLog, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver's log has the life of its job and results, if it is asked for, and each event of its
    tasks on the level below."""
    exchange(log, objects, close=True)
    assert [] == kinds(caplog)
    caplog.set_level(logging.INFO, EVENTS)
    life = ["JobRegistered", "JobAccepted", "ResultRegistered", "ResultComplete"]
    second = KeptLog()
    exchange(second, {}, close=True)
    assert [*life, "JobUnregistered", "Released", "Deleted"] == kinds(caplog)
    caplog.clear()
    caplog.set_level(logging.DEBUG, EVENTS)
    exchange(KeptLog(), {}, close=False)
    by_kind = {vars(record)["event"]: vars(record) for record in caplog.records}
    assert {*life, "AttemptStarted", "Produced", "Consumable"} < by_kind.keys()
    begun = by_kind["AttemptStarted"]
    assert (JOB, RESULT, "1") == (begun["job"], begun["result"], begun["attempt"].split("-")[0])
    assert begun["partition"] in range(3)
    assert f"event=AttemptStarted job={JOB} result={RESULT} partition=" in begun["message"]
    assert by_kind["JobAccepted"]["attempt"] is None


def test_a_driver_that_was_away_writes_what_it_has_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a lost connection, the lines go on where they ended: each event has one line."""
    caplog.set_level(logging.INFO, EVENTS)
    log, term, announcer = MemoryEventLog(), Term("driver"), Announcer(JOB, "driver", CLOCK)
    state_facts(log, JOB, JobRegistered("per-job", "0", "tests", "", 0))
    lost = attempt(1, 7)
    for before, later in (("first", "second"), ("third", "fourth")):
        state_facts(log, JOB, AttemptFailed(lost, before))
        with closing(JobSteps.open(log, announcer, MasterSettings(), term)) as steps:
            steps.step(0.0)
            state_facts(log, JOB, AttemptFailed(lost, later))
            steps.step(0.0)
            steps.step(0.0)
    assert ["JobAccepted", *["AttemptFailed"] * 3] == kinds(caplog)
    reasons = [vars(record)["reason"] for record in caplog.records]
    assert [None, *map(json.dumps, ("second", "third", "fourth"))] == reasons


def test_an_error_while_more_facts_are_waited_for_repeats_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step that has written lines and then fails to read more is followed by steps that go on
    behind these lines."""
    caplog.set_level(logging.DEBUG, EVENTS)
    log, term, announcer = MemoryEventLog(), Term("driver"), Announcer(jobs.JOB, "driver")
    faulty = FaultyEventLog(log)
    jobs.state_facts(log, *jobs.OPENING)
    with closing(JobSteps.open(faulty, announcer, MasterSettings(), term)) as steps:
        steps.step(0.0)
        steps.step(0.0)
        faulty.fault = LogFault("poll", faulty.calls["poll"] + 2, Unavailable("injected"))
        jobs.state_facts(log, produced(0, 1))
        with pytest.raises(Unavailable, match="injected"):
            steps.step(1.0)
    little = MasterSettings(step_events_max=1)
    with closing(JobSteps.open(faulty, announcer, little, term)) as steps:
        for _ in range(12):
            steps.step(0.0)
    assert ["Produced", "Consumable"] == kinds(caplog)[-2:]
    assert len(kinds(caplog)) == len(set(kinds(caplog)))


def test_masters_write_a_line_once(caplog: pytest.LogCaptureFixture) -> None:
    """The master that decides for a job writes its lines. The next one does not write those of the
    events that it takes up."""
    caplog.set_level(logging.INFO, EVENTS)
    log, storage, job = TimedLog(), Storage(), JOBS[0]
    first = joined_by(log, "a")
    drive(log, storage, first)
    state_facts(log, job, *OPENING)
    drive(log, storage, first)
    assert ["JobRegistered", "ResultRegistered", "JobAccepted"] == kinds(caplog)
    first.close()
    caplog.clear()
    second = joined_by(log, "b")
    drive(log, storage, second)
    assert [] == kinds(caplog)
    state_facts(log, job, AttemptStarted(attempt(1, 7), "worker-1"), produced(1, 7))
    evidence = 'of "reader 3"\nmaster: \u202eall is well'
    state_facts(log, job, Lost(attempt(1, 7), "r1/1/1-7", evidence))
    drive(log, storage, second)
    assert ["Lost", "Superseded", "Reproduce", "Deleted"] == kinds(caplog)
    lost, _, again, _ = caplog.records
    line = Spelling("%(job)s %(partition)s %(message)s").format(lost)
    assert f"{job} 1 event=Lost job={job} result=r1 partition=1 attempt=1-7 reason=" in line
    assert json.dumps(evidence) in line
    assert "\n" not in line
    assert ("1", "r1") == (vars(again)["partition"], vars(again)["result"])


def test_a_line_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Names that others have made up do not begin a line of their own, or a field."""
    caplog.set_level(logging.DEBUG, EVENTS)
    odd = "r1\n2026-01-01 INFO event=JobFailed"
    for fact in (
        JobUnregistered(odd),
        AttemptStarted(AttemptId(PartitionId(ResultId(odd), 1), 1, 7), odd),
        ReleaseRequested(ResultId(odd), odd),
    ):
        write_line(Recorded(1, Event("e", JOB, "", 0, odd, None, fact)))
    assert 3 == len(caplog.messages)
    for record in caplog.records:
        assert "\n" not in logging.Formatter("%(message)s %(host)s %(result)s").format(record)
    assert f"reason={json.dumps(odd)} offset=" in caplog.messages[0]
    assert f"result={json.dumps(odd)} partition=1 attempt=1-7 host=" in caplog.messages[1]
