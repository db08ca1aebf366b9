"""The command line over a log and a bucket in memory: its output, its writes and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import headgate
from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import AttemptFailed, Event, JobAccepted, JobRegistered
from headgate.control.log import EventLog
from headgate.control.snapshots.resume import read_snapshots
from headgate.infra.cli import options
from headgate.infra.devstack import stack
from headgate.infra.devstack.daemons import Daemon
from headgate.infra.devstack.stack import StackState
from headgate.infra.target import Target
from headgate.storage.format.layout import Layout
from headgate.storage.stores.memory import Objects

from ..doubles.commands import (
    JOB,
    PARTITIONS,
    RESULT,
    WAIT_S,
    KeptLog,
    attempt,
    exchange,
    ran,
)


def test_events_are_a_line_each_under_their_job(log: KeptLog, objects: Objects) -> None:
    """All events of a job are printed in order, below its name."""
    exchange(log, objects, close=True)
    code, lines, _ = ran("events")
    assert code == 0
    assert lines[0] == "job j"
    assert lines[2].split()[2] == "JobRegistered"
    kinds = [line.split()[2] for line in lines[2:]]
    assert kinds.count("Consumable") == PARTITIONS
    assert "JobUnregistered" in kinds
    assert kinds[-1] == "Deleted"


def test_events_as_json_are_one_object_a_line(log: KeptLog, objects: Objects) -> None:
    """`events --json` prints one object a line with offset, kind and body, and nothing else to
    stdout."""
    exchange(log, objects, close=False)
    code, lines, _ = ran("events", "--job", JOB, "--partition", "r1/1", "--json")
    read = [json.loads(line) for line in lines]
    assert code == 0
    assert [event["kind"] for event in read if "attempt" in event["body"]] == [
        "AttemptStarted",
        "Produced",
        "Consumable",
    ]
    assert sorted(event["offset"] for event in read) == [event["offset"] for event in read]


def test_follow_needs_a_job(log: KeptLog) -> None:
    """`events --follow` without a job is an error of one line with exit code 2."""
    assert ran("events", "--follow") == (
        2,
        [],
        "error: --follow needs --job: only the events of one job have an order\n",
    )


def test_state_is_what_was_true_at_the_offset(log: KeptLog, objects: Objects) -> None:
    """`state --at` ignores facts after the offset."""
    exchange(log, objects, close=False)
    _, lines, _ = ran("events", "--job", JOB)
    first = next(line.split()[0] for line in lines if "Produced" in line)
    now, then = ran("state", "--job", JOB), ran("state", "--job", JOB, "--at", first)
    assert (now[0], then[0]) == (0, 0)
    assert any("3 of 3" in line for line in now[1])
    assert any("1 of 3" in line for line in then[1])


def test_an_unknown_job_is_an_error(log: KeptLog) -> None:
    """A misspelt job is an error, not a job without events."""
    code, _, error = ran("state", "--job", "nobody")
    assert (code, error) == (2, "error: the log has no events of job nobody\n")


def test_a_good_log_passes_the_audit(log: KeptLog, objects: Objects) -> None:
    """The audit derives every decision of a real master from the facts."""
    exchange(log, objects, close=True)
    code, lines, _ = ran("audit", "verify")
    assert code == 0
    assert lines[-1].startswith("1 job, ")
    assert lines[-1].endswith("every decision follows from its facts, none still due")


def test_a_wrong_decision_fails_the_audit(log: KeptLog) -> None:
    """A decision that does not follow gives exit code 1, and its offset is printed."""
    log.append(Event("a", JOB, "", 0, "t", None, JobRegistered("per-job", "0", "t")))
    decisions = log.open_decisions(JOB)
    decisions.begin()
    decisions.write(Event("0.0", JOB, "a", 0, "t", 0, JobAccepted(7)))
    decisions.commit(1)
    code, lines, _ = ran("audit", "verify", "--job", JOB)
    assert code == 1
    assert lines[0].startswith("offset 1 of job j: ")
    assert "1 violation" in lines[-1]


def headless(log: KeptLog, objects: Objects) -> int:
    """Run a job, remove its log up to its snapshot, and return the snapshot's offset."""
    exchange(log, objects, close=False, settings=MasterSettings(snapshot_events=4))
    (snapshot,) = read_snapshots(log, JOB, Deadline.after(WAIT_S)).values()
    log.expire(JOB, snapshot.position)
    return snapshot.position


def test_a_log_without_its_head_is_verified_from_its_snapshot(
    log: KeptLog, objects: Objects
) -> None:
    """The rest of a log without its head is verified from its snapshot, whose offset is printed. A
    wrong decision in the rest is found."""
    start = headless(log, objects)
    log.append(Event("a", JOB, "", 0, "t", None, JobRegistered("per-job", "0", "t")))
    for arguments in (("--job", JOB), ()):
        code, lines, _ = ran("audit", "verify", *arguments)
        assert code == 0
        assert f"verified from the snapshot at offset {start}" in lines[0]
        assert "every decision follows" in lines[-1]
    (event,) = [json.loads(line) for line in ran("events", "--json")[1]][-1:]
    decisions = log.open_decisions(JOB)
    decisions.begin()
    basis = event["offset"]
    decisions.write(Event(f"{basis}.0", JOB, "a", 0, "t", basis, JobAccepted(1)))
    decisions.commit(0)
    code, lines, _ = ran("audit", "verify")
    assert code == 1
    assert "JobAccepted(epoch=2)" in lines[0]


def test_state_and_fsck_know_a_job_from_its_snapshot(log: KeptLog, objects: Objects) -> None:
    """Without the log's head, a job's state is shown from its snapshot and its objects are no
    orphans. A state before the snapshot is an error that names the snapshot's offset."""
    start = headless(log, objects)
    code, lines, _ = ran("state", "--job", JOB)
    assert code == 0
    assert any(RESULT in line for line in lines)
    assert ran("fsck")[0] == ran("fsck", "--job", JOB)[0] == 0
    code, _, error = ran("state", "--job", JOB, "--at", str(start - 2))
    assert code == 2
    assert f"from the snapshot at offset {start} on, not at {start - 2}" in error


def test_a_whole_log_is_read_from_its_beginning(log: KeptLog, objects: Objects) -> None:
    """A log that has its head is shown and verified from its beginning, even if there is a
    snapshot."""
    exchange(log, objects, close=False, settings=MasterSettings(snapshot_events=4))
    (snapshot,) = read_snapshots(log, JOB, Deadline.after(WAIT_S)).values()
    code, lines, _ = ran("audit", "verify")
    facts = [r for r in log.read_all(Deadline.after(WAIT_S)) if r.event.basis is None]
    assert code == 0
    assert lines[0].startswith(f"1 job, {len(facts)} facts")
    assert RESULT not in "".join(ran("state", "--job", JOB, "--at", str(snapshot.first))[1])


def test_fsck_is_clean_after_an_exchange_and_after_close(log: KeptLog, objects: Objects) -> None:
    """fsck finds nothing while a job runs, nor after it has ended."""
    exchange(log, objects, close=False)
    assert (ran("fsck", "--deep")[0], len(objects)) == (0, 3)
    log.append(Event("x", JOB, "", 0, "t", None, AttemptFailed(attempt(9), "lost")))
    assert ran("fsck", "--job", JOB)[0] == 0


@pytest.mark.parametrize("deep", [False, True])
def test_fsck_finds_what_is_wrong(log: KeptLog, objects: Objects, deep: bool) -> None:
    """A lost object or an unknown one gives exit code 1; flipped bytes do so with --deep only."""
    exchange(log, objects, close=False)
    layout = Layout("root", JOB)
    names = sorted(objects)
    body, write_id = objects[names[0]]
    objects[names[0]] = (bytes(len(body)), write_id)
    del objects[names[1]]
    objects[layout.segment(attempt(0), 0)] = (b"strange", "w")
    code, lines, _ = ran("fsck", *(["--deep"] if deep else []))
    kinds = [line.split()[0] for line in lines[:-1]]
    assert code == 1
    assert (["missing", "mismatched", "orphan"] if deep else ["missing", "orphan"]) == kinds


def test_fsck_repairs_and_says_what_it_did(log: KeptLog, objects: Objects) -> None:
    """`fsck --repair` deletes leftovers and reports losses; a finding that it leaves alone gives
    exit code 1. Without --repair, fsck writes nothing."""
    exchange(log, objects, close=False)
    late = attempt(0)
    log.append(Event("x", JOB, "", 0, "t", None, AttemptFailed(late, "oom")))
    objects[Layout("root", JOB).segment(late, 0)] = (b"leftover", "w")
    del objects[sorted(objects)[1]]
    before = dict(objects), len(list(log.read_all(Deadline.after(1.0))))
    assert ran("fsck")[0] == 1
    assert before == (objects, len(list(log.read_all(Deadline.after(1.0)))))
    code, lines, _ = ran("fsck", "--repair")
    assert lines[-1] == (
        "1 object deleted, 0 uploads aborted, 1 attempt reported as lost, 0 findings left alone"
    )
    assert code == 0
    objects["root/j/00/r1/0/1-77/0"] = (b"strange", "w")
    code, lines, _ = ran("fsck", "--repair")
    assert code == 1
    assert lines[-2].split() == ["left", "alone", "root/j/00/r1/0/1-77/0"]
    assert lines[-1].endswith("1 finding left alone")


def test_fsck_mends_no_job_whose_log_is_wrong(log: KeptLog, objects: Objects) -> None:
    """`fsck --repair` deletes nothing of a job with a decision that does not follow from its
    facts."""
    exchange(log, objects, close=True)
    objects[Layout("root", JOB).segment(attempt(0), 0)] = (b"leftover", "w")
    decisions = log.open_decisions(JOB)
    decisions.begin()
    decisions.write(Event("0.0", JOB, "a", 0, "t", 0, JobAccepted(7)))
    decisions.commit(1)
    code, lines, _ = ran("fsck", "--repair")
    assert (code, len(objects)) == (1, 1)
    assert lines[-1].startswith("0 objects deleted")


def test_errors_are_one_line(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of Headgate's is one line on stderr, whatever its text, without markup or
    traceback."""

    def unreachable(target: Target) -> EventLog:
        raise Unavailable("no [broker]\nat all")

    monkeypatch.setattr(Target, "open_log", unreachable)
    assert ran("events") == (2, [], "error: no [broker] at all\n")


def test_an_option_without_a_value_is_refused(log: KeptLog) -> None:
    """`--kafka name` is refused with the form that it must have."""
    code, _, error = ran("events", "--kafka", "client.id")
    assert (code, "an option must be KEY=VALUE" in error) == (2, True)


def targets(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """Return the list of targets that commands connect to; the list grows with each command."""
    seen: list[Target] = []

    def open_log(target: Target) -> EventLog:
        seen.append(target)
        return log

    monkeypatch.setattr(Target, "open_log", open_log)
    return seen


def test_a_slot_must_be_a_name(log: KeptLog) -> None:
    """A slot that cannot be part of a transactional id is refused before anything is joined."""
    code, _, error = ran("master", "--slot", "a/b")
    assert (code, error.startswith("error: slot 'a/b'")) == (2, True)


def test_options_come_before_the_environment(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over an environment variable, and both reach the connection."""
    seen = targets(log, monkeypatch)
    monkeypatch.setenv("HEADGATE_BROKER", "exported:1")
    monkeypatch.setenv("HEADGATE_S3_ENDPOINT", "http://exported")
    monkeypatch.setenv("HEADGATE_KAFKA_CLIENT_ID", "exported")
    ran("events", "--kafka", "client.id=typed", "--store", "s3://b/r")
    options = {"client.id": "typed"}, {"endpoint": "http://exported"}
    assert [Target("exported:1", "s3://b/r", "headgate", *options)] == seen


def test_the_local_stack_is_used_when_nothing_is_named(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands without options use the local stack, and say so on stderr."""
    seen = targets(log, monkeypatch)
    nodes = Daemon("kafka-1", 9, "/stack/kafka-1"), Daemon("minio", 8, "/stack/minio")
    state = StackState(nodes)
    monkeypatch.setattr(stack, "status", lambda: state)
    monkeypatch.setattr(Daemon, "is_alive", lambda self: True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "exported")
    _, lines, notice = ran("events")
    assert lines == []
    assert (
        notice == "no broker given: using the local stack, 127.0.0.1:9 and s3://headgate/headgate\n"
    )
    s3 = {"endpoint": "http://127.0.0.1:8"}
    assert [Target("127.0.0.1:9", "s3://headgate/headgate", "headgate", {}, s3)] == seen


def test_stack_up_prints_what_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stack up` prints all lines for a shell, and Spark settings for broker, store and
    endpoint."""
    nodes = Daemon("kafka-1", 9, "/stack/kafka-1"), Daemon("minio", 8, "/stack/minio")
    state = StackState(nodes)
    monkeypatch.setattr(stack, "up", lambda nodes: state)
    code, lines, _ = ran("stack", "up")
    assert code == 0
    exports = dict(line[7:].split("=") for line in lines if line.startswith("export "))
    assert exports == {
        "AWS_ACCESS_KEY_ID": "headgate",
        "AWS_SECRET_ACCESS_KEY": "headgate-local",
        "HEADGATE_BROKER": "127.0.0.1:9",
        "HEADGATE_STORE": "s3://headgate/headgate",
        "HEADGATE_S3_ENDPOINT": "http://127.0.0.1:8",
    }
    spark = dict(line.split() for line in lines if line.startswith("spark.headgate."))
    assert list(spark.values()) == ["127.0.0.1:9", "s3://headgate/headgate", "http://127.0.0.1:8"]


def test_stack_status_without_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stack status` without a stack is an error that says how to start one."""
    monkeypatch.setattr(stack, "status", lambda: None)
    code, _, error = ran("stack", "status")
    assert code == 2
    assert "headgate stack up" in error


@pytest.mark.parametrize("missing", ["filelock", "psutil"])
def test_half_of_the_extra_is_none(missing: str) -> None:
    """The stack needs both packages of its extra. One of them alone, which another program may have
    brought, changes nothing for the other commands."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from headgate.infra.cli.options import missing\n"
        f"assert missing('stack') == [{missing!r}]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_stack_needs_its_extra(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of the local stack its commands have help and say what to install, and
    other commands ask for a broker."""
    monkeypatch.setattr(options, "missing", lambda *_: ["psutil"])
    for command in ("up", "status", "down"):
        code, _, error = ran("stack", command)
        assert code == 2
        assert "pip install 'pyspark-headgate[stack]'" in error
        assert 0 == ran("stack", command, "--help")[0]
    monkeypatch.setattr(stack, "status", lambda: pytest.fail("the stack is not asked"))
    assert 0 == ran("events")[0]


def test_the_demo_needs_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo without its packages is an error of one line that names their extras."""
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    assert ran("demo") == (
        2,
        [],
        "error: the demo needs pyspark, moto, flask, flask_cors: "
        "pip install 'pyspark-headgate[spark,embedded]'\n",
    )


def test_the_version(log: KeptLog) -> None:
    assert ran("--version") == (0, [f"headgate {headgate.__version__}"], "")
