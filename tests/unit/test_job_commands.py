"""The commands that list jobs and their exchanges, and the habits of all commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import headgate
from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.events.types import (
    Consumed,
    Event,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    WayChosen,
)
from headgate.control.ids import JobId
from headgate.control.inquiry import reading
from headgate.control.inquiry.listing import JobCondition, list_jobs
from headgate.control.inquiry.neglected import JobLog, follow_jobs
from headgate.control.inquiry.reading import known
from headgate.control.memory.log import MemoryFollower
from headgate.control.model.state import JobState
from headgate.infra.cli.options import Terminal
from headgate.infra.devstack import stack
from headgate.infra.devstack.daemons import Daemon
from headgate.infra.devstack.stack import StackState
from headgate.infra.start import commands
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, PARTITIONS, RESULT, KeptLog, exchange, ran
from ..doubles.steps import StoppedClock


def objects_of(*arguments: str) -> list[dict[str, Any]]:
    """Return the values that a command prints with --json, and nothing else."""
    _, lines, _ = ran(*arguments, "--json")
    return [json.loads(line) for line in lines]


def test_a_job_is_listed_until_it_is_forgotten(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is running, then neglected if its driver is silent, or ended if it is closed. What it
    holds is counted as long as it is there."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000), place="s3://b/r")
    (job,) = objects_of("jobs")
    size = sum(len(body) for body, _ in objects.values())
    assert (job["job"], job["state"], job["mode"]) == (JOB, "running", "per-job")
    assert (job["application"], job["store"], job["lease_ms"]) == ("tests", "s3://b/r", 60_000)
    assert (job["exchanges"], job["stored_bytes"], job["written_bytes"]) == (1, size, size)
    assert 0 < job["began_ms"] <= job["heard_ms"] <= SYSTEM_CLOCK.now_ms()
    silent = StoppedClock(job["heard_ms"] + 41_000)
    monkeypatch.setattr(reading, "SYSTEM_CLOCK", silent)
    since = f"{datetime.fromtimestamp(job['heard_ms'] // 1000, UTC):%H:%M:%S}"
    row = ran("jobs", "--utc")[1][2].split()
    assert [JOB, "silent", "since", since, "driver", "tests"] == row[:6]
    assert "silent" == objects_of("jobs")[0]["state"]
    later = StoppedClock(job["heard_ms"] + 61_000)
    monkeypatch.setattr(reading, "SYSTEM_CLOCK", later)
    code, lines, _ = ran("jobs")
    assert (code, lines[2].split()[:5]) == (0, [JOB, "neglected", "driver", "tests", "1"])
    assert lines[2].split()[-2:] == ["61", "s"]
    exchange(log, objects, close=True)
    (job,) = objects_of("jobs")
    assert (job["state"], job["closed"]) == ("ended", "closed")
    assert (job["stored_bytes"], job["written_bytes"]) == (0, size)


def test_other_jobs_are_listed_too(log: KeptLog) -> None:
    """A job of a session has masters that decide. A job without a registration and one whose log
    does not explain itself are listed with what is known."""
    registration = JobRegistered(SESSION, "0", "app")
    log.append(Event("a", JobId("s"), "", 1, "t", None, registration))
    log.append(Event("a", JobId("u"), "", 1, "t", None, JobUnregistered("x", 0)))
    registered = log.append(Event("a", JOB, "", 1, "t", None, registration)).at
    decisions = log.open_decisions(JOB)
    decisions.begin()
    decisions.write(Event(f"{registered}.0", JOB, "a", 0, "t", registered, JobAccepted(7)))
    decisions.commit(0)
    states = {job["job"]: (job["state"], job["mode"]) for job in objects_of("jobs")}
    assert {
        "s": ("running", SESSION),
        "u": ("unknown", "per-job"),
        JOB: ("damaged", SESSION),
    } == states
    assert "masters" in "".join(ran("jobs")[1])


def test_snapshots_save_the_reading(log: KeptLog, objects: Objects) -> None:
    """A job whose events the log has lost is listed from its snapshot, with the time at which it
    began."""
    exchange(log, objects, close=False, settings=MasterSettings(snapshot_events=4))
    whole = objects_of("jobs")
    (snapshot,) = known(log, "").values()
    log.expire(JOB, snapshot.position)
    assert whole == objects_of("jobs")
    assert [] == list(list_jobs(follow_jobs([], {}), {}, 0))
    (listed,) = list_jobs(follow_jobs([], known(log, "")), {}, 0)
    assert (listed.exchanges, listed.condition) == (1, JobCondition.RUNNING)


@pytest.mark.parametrize("command", ["jobs", "sweep"])
def test_commands_on_all_jobs_hold_no_indexes(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A command that holds the states of all jobs leaves out the indexes of their segments, those
    of snapshots as those of newer events: with them, three jobs would fill half a gigabyte."""
    states: list[JobState] = []
    for job, every in ((JOB, 4), (JobId("other"), 10_000)):
        settings = MasterSettings(snapshot_events=every)
        exchange(log, objects, close=False, settings=settings, job=job)
    assert any(any(indexes(snapshot.state)) for snapshot in known(log, "").values())

    def follow(*given: Any) -> dict[JobId, JobLog]:
        jobs = follow_jobs(*given)
        states.extend(entry.replay.state for entry in jobs.values())
        return jobs

    monkeypatch.setattr(reading, "follow_jobs", follow)
    assert 0 == ran(command)[0]
    assert [PARTITIONS, PARTITIONS] == [len(list(indexes(state))) for state in states]
    assert not any(any(indexes(state)) for state in states)


def indexes(state: JobState) -> Iterator[bytes]:
    attempts = (result.production.attempts.values() for result in state.results.values())
    for produced in (produced for values in attempts for produced in values if produced):
        yield from (segment.index for segment in produced.segments)


def test_a_report_starts_at_the_snapshot(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report on one job reads what is newer than the job's snapshot, and no event before it."""
    exchange(log, objects, close=False, settings=MasterSettings(snapshot_events=4))
    (before,) = objects_of("report", "--job", JOB)
    starts: list[int | None] = []
    follow = log.follow

    def watched(job: JobId, position: int | None = 0) -> MemoryFollower:
        starts.append(position)
        return follow(job, position)

    monkeypatch.setattr(log, "follow", watched)
    assert before == objects_of("report", "--job", JOB)[0]
    (snapshot,) = known(log, JOB).values()
    assert [snapshot.position] == starts
    log.append(Event("c", JOB, "", 0, "t", None, Consumed(RESULT, 0, 4, 1, 300, 1_000, 5)))
    assert before["gets"] + 5 == objects_of("report", "--job", JOB)[0]["gets"]


def test_a_report_has_the_exchanges_of_the_log(log: KeptLog, objects: Objects) -> None:
    """`report` shows rows, bytes, requests, sent and predicted, and price, and leaves out what only
    the driver knows."""
    exchange(log, objects, close=False)
    log.append(Event("w", JOB, "", 0, "t", None, WayChosen(RESULT, "direct", 6, 400)))
    log.append(Event("c", JOB, "", 0, "t", None, Consumed(RESULT, 0, 4, 1, 300, 1_000, 5)))
    (report,) = objects_of("report", "--job", JOB)
    (listed,) = report["exchanges"]
    size = sum(len(body) for body, _ in objects.values())
    assert (listed["result"], listed["label"], listed["rows"]) == (RESULT, "repartition", 300)
    assert (listed["stored_bytes"], listed["puts"]) == (size, PARTITIONS)
    assert (listed["read_bytes"], listed["gets"]) == (1_000, 5)
    assert listed["price_usd"] == report["price_usd"] == pytest.approx(3 * 5e-6 + 5 * 4e-7)
    assert (listed["way"], listed["predicted_gets"], listed["predicted_ms"]) == ("direct", 6, 400)
    assert not {"driver", "native"} & (listed.keys() | report.keys())
    code, lines, _ = ran("report", "--job", JOB)
    assert (code, lines[0]) == (0, f"job {JOB}")
    assert lines[3].split()[:6] == [RESULT, "repartition", "direct", "3", "x", "4"]
    exchange(log, objects, close=True)
    ((ended,),) = (report["exchanges"] for report in objects_of("report", "--job", JOB))
    assert (ended["released"], ended["way"], ended["predicted_gets"]) == ("closed", "direct", 6)
    assert lines[-1].startswith("1 exchange: ")
    assert "read by 5 gets, 0.000017 USD" in lines[-1]
    assert ran("report", "--job", "nobody")[0] == 2


@pytest.mark.slow
def test_every_command_that_prints_speaks_json(log: KeptLog, objects: Objects) -> None:
    """Each command prints nothing but JSON objects with --json, with the same exit code."""
    exchange(log, objects, close=False)
    here = ("--job", JOB)
    every: tuple[tuple[str, ...], ...] = (
        ("jobs",),
        ("report", *here),
        ("events", *here),
        ("state", *here),
        ("audit", "verify"),
        ("why", "--partition", f"{RESULT}/1", *here),
        ("available", *here, "--result", RESULT),
        ("available", *here, "--partition", f"{RESULT}/1"),
        ("may-release", *here, "--host", "h"),
        ("remove-unused", *here),
        ("doctor",),
        ("fsck",),
        ("fsck", "--repair"),
    )
    for command in every:
        as_text, as_json = ran(*command), ran(*command, "--json")
        assert as_text[0] == as_json[0], command
        assert all(isinstance(json.loads(line), dict) for line in as_json[1]), command
        assert as_json[1], command
    assert objects_of("available", *here, "--result", RESULT, "--partition", "2") == [
        {"job": JOB, "result": RESULT, "partition": 2, "available": True}
    ]
    (state,) = objects_of("state", *here)
    assert (state["results"][0]["result"], state["results"][0]["consumable"]) == (RESULT, 3)
    (answer,) = objects_of("fsck")
    assert (answer["findings"], answer["live"], answer["repaired"]) == ([], 3, None)
    (lost,) = objects_of("lost", "--partition", f"{RESULT}/1", *here, "--evidence", "pulled")
    assert lost["attempt"] == f"{RESULT}/1/1-1"


def test_findings_and_sweeps_as_json(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=1), place="s3://b/r")
    objects["root/j/00/r1/0/1-77/0"] = (b"strange", "w")
    (answer,) = objects_of("fsck", "--repair")
    assert [(f["kind"], f["size_bytes"]) for f in answer["findings"]] == [("orphan", 7)]
    assert answer["repaired"]["left"] == ["root/j/00/r1/0/1-77/0"]
    clock = StoppedClock(SYSTEM_CLOCK.now_ms() + 61_000)
    monkeypatch.setattr("headgate.infra.cli.job_commands.time_of", lambda *_: clock.now_ms())
    monkeypatch.setattr("headgate.infra.cli.job_commands.SYSTEM_CLOCK", clock)
    (away,) = objects_of("sweep", "--store", "s3://c/r")
    assert (away["swept"], away["error"]) == (False, "its objects are in s3://b/r")
    (swept,) = objects_of("sweep", "--store", "s3://b/r")
    assert (swept["job"], swept["swept"], swept["objects"]) == (JOB, True, 4)


def test_the_stack_and_the_hook_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = Daemon("kafka-1", 9, "/stack/kafka-1"), Daemon("minio", 8, "/stack/minio")
    monkeypatch.setattr(stack, "up", lambda nodes_wanted: StackState(nodes))
    monkeypatch.setattr(stack, "status", lambda: StackState(nodes))
    monkeypatch.setattr(stack, "down", lambda wipe: None)
    monkeypatch.setattr(Daemon, "is_alive", lambda self: self.name == "minio")
    (up,), (status,) = objects_of("stack", "up"), objects_of("stack", "status")
    assert up == status
    assert [(node["name"], node["up"]) for node in up["nodes"]] == [
        ("kafka-1", False),
        ("minio", True),
    ]
    assert (up["up"], up["bootstrap"], up["bucket"]) == (False, "127.0.0.1:9", "headgate")
    assert [{"up": False, "wiped": True}] == objects_of("stack", "down", "--wipe")
    hook = tmp_path / "hook.pth"
    monkeypatch.setattr(commands, "hook_file", lambda: hook)
    for arguments, is_there in (((), True), (("--remove",), False)):
        answer = {"path": str(hook), "installed": is_there}
        assert [answer] == objects_of("start-up-hook", *arguments)
        assert is_there == hook.exists()


def test_tables_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A table that is wider than a terminal is printed whole, to a pipe too."""
    table = Table("a", "b")
    table.add_row("x" * 120, "y" * 120)
    Terminal().print(table)
    assert f"{'x' * 120} " in (text := capsys.readouterr().out)
    assert f"{'y' * 120} " in text


def test_a_long_name_is_whole(log: KeptLog) -> None:
    name = JobId("application-" + 7 * "0123456789")
    log.append(Event("a", name, "", 1, "t", None, JobRegistered("per-job", "0", name)))
    for command in (("jobs",), ("state", "--job", name)):
        assert name in "".join(ran(*command)[1])


def test_times_are_in_the_zone_of_the_machine(log: KeptLog) -> None:
    """Times are in the zone of the reader, or with --utc in UTC; the head names the zone."""
    code = (
        "from headgate.control.events.types import Event, JobRegistered, Recorded\n"
        "from headgate.infra.cli import views\n"
        "event = Event('a', 'j', '', 1_000, 't', None, JobRegistered('', '', ''))\n"
        "for view in (views.event_head, views.event_row): print(view(Recorded(0, event), None))"
    )
    environment = os.environ | {"TZ": "Asia/Kolkata"}
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert " IST " in printed
    assert "05:30:01.000" in printed
    stated_ms = 1_000_000
    log.append(Event("a", JOB, "", stated_ms, "t", None, JobRegistered("", "0", "a")))
    lines = ran("events", "--utc")[1]
    assert (lines[1].split()[1], lines[2].split()[1]) == ("UTC", "00:16:40.000")
    (began_ms,) = [job["began_ms"] for job in objects_of("jobs")]
    began = datetime.fromtimestamp(began_ms / 1000, UTC)
    assert f"{began:%Y-%m-%d %H:%M:%S} UTC" in ran("jobs", "--utc")[1][2]


def test_the_version_is_told() -> None:
    code, lines, _ = ran("--version")
    assert (code, lines) == (0, [f"headgate {headgate.__version__}"])


def test_a_shell_completes_commands() -> None:
    """The script that `--install-completion` installs asks for words in this way."""
    asked = {"_HEADGATE_COMPLETE": "complete_bash", "COMP_WORDS": "headgate jo", "COMP_CWORD": "1"}
    code = "from headgate.infra.cli.app import app; app(prog_name='headgate')"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked
    ).stdout
    assert ["jobs"] == printed.split()


def test_an_operator_needs_no_spark() -> None:
    """The command lists jobs and reports on them where PySpark is not installed."""
    code = (
        "import sys\n"
        "for name in ('pyspark', 'py4j', 'pandas'): sys.modules[name] = None\n"
        "from typer.testing import CliRunner\n"
        "from headgate.control.memory.log import MemoryEventLog\n"
        "from headgate.control.events.types import Event, JobRegistered\n"
        "from headgate.infra.cli.app import app\n"
        "from headgate.infra.target import Target\n"
        "log = MemoryEventLog()\n"
        "log.append(Event('a', 'j', '', 1, 't', None, JobRegistered('', '0', 'a')))\n"
        "MemoryEventLog.close = lambda log: None\n"
        "Target.open_log = lambda target: log\n"
        "for words in (['jobs', '--broker', 'b'], ['report', '--broker', 'b', '--job', 'j']):\n"
        "    print(CliRunner().invoke(app, words).output)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    assert b"running" in printed
    assert b"0 exchanges" in printed
