"""The commands that explain a job: `why`, `lost`, and `events --rejected`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headgate.control.events.types import (
    AttemptStarted,
    Event,
    JobRegistered,
    JobUnregistered,
    Lost,
    Reproduce,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, RESULT, KeptLog, exchange, ran


def test_lost_and_why(log: KeptLog, objects: Objects) -> None:
    """An operator reports a loss, the next master orders the partition again, and `why` tells the
    story."""
    exchange(log, objects, close=False)
    code, lines, _ = ran(
        "lost", "--partition", f"{RESULT}/1", "--job", JOB, "--evidence", "disk pulled"
    )
    assert (code, len(lines)) == (0, 1)
    (fact,) = [r for r in log.follow(JOB).poll(500, 0) if isinstance(r.event.body, Lost)]
    assert f"attempt {RESULT}/1/1-1 was reported as lost, at offset {fact.offset}" == lines[0]
    exchange(log, objects, close=False)
    orders = [r.event.body for r in log.follow(JOB).poll(500, 0)]
    assert [(1,)] == [body.partitions for body in orders if isinstance(body, Reproduce)]
    code, lines, _ = ran("why", "--partition", f"{RESULT}/1", "--job", JOB)
    assert code == 0
    assert lines[0].startswith(f"attempt {RESULT}/1/1-1: was superseded: {RESULT}/1: ")
    assert "its map stage was run" in lines[1]


def test_what_is_not_there_is_said(log: KeptLog, objects: Objects) -> None:
    """A partition that does not exist, or is not a partition's name, is an error of one line."""
    exchange(log, objects, close=False)
    for arguments, pattern in (
        (("why", "--partition", "r1/9", "--job", JOB), "no attempt at partition r1/9"),
        (("why", "--partition", "nine", "--job", JOB), "write result/index"),
        (("why", "--partition", f"r1/{'9' * 5_000}", "--job", JOB), "write result/index"),
        (
            ("lost", "--partition", "r1/9", "--job", JOB, "--evidence", "x"),
            "no consumable partition r1/9",
        ),
    ):
        code, _, error = ran(*arguments)
        assert (code, bool(re.search(pattern, error.replace("\n", " ")))) == (2, True), error


def test_rejected(log: KeptLog, objects: Objects) -> None:
    """`events --rejected` shows garbage and facts without effect, and no other event."""
    exchange(log, objects, close=False)
    assert ran("events", "--rejected")[1] == []
    log.put_record(JOB, JOB, b"no event")
    foreign = JobId("nobody")
    log.append(Event("x", foreign, "", 0, "t", None, Lost(next(iter_attempts(log)), "o", "404")))
    log.append(Event("y", JobId("new"), "", 0, "t", None, JobRegistered("per-job", "0", "a")))
    code, lines, _ = ran("events", "--rejected")
    text = "\n".join(lines)
    assert code == 0
    assert "the record is not an event of a known version" in text
    assert "job nobody" in text
    assert "Lost" in text
    assert "JobRegistered" not in text


def iter_attempts(log: KeptLog) -> Iterator[AttemptId]:
    for recorded in log.follow(JOB).poll(500, 0):
        attempt = getattr(recorded.event.body, "attempt", None)
        if attempt is not None:
            yield attempt


def test_what_is_in_the_log_does_nothing_to_a_terminal(log: KeptLog, objects: Objects) -> None:
    """Text in the log cannot clear a screen, hide a line or style it."""
    hostile = "\x7f\x1b[2J\x9b1A\u202eevil [bold]text[/nowhere] :smile:"
    forged = "oom\n    8 00:00:01.000 Released            1-0001 swept"
    fact = JobUnregistered(forged)
    log.append(Event("z", JobId("new"), "", 0, forged, None, fact))
    log.append(Event("x", JobId("new"), "", 0, "t", None, JobRegistered("per-job", "0", hostile)))
    begun = AttemptStarted(AttemptId(PartitionId(ResultId(hostile), 1), 1, 2), hostile)
    log.append(Event("y", JobId("new"), "", 0, "t\r", None, begun))
    for arguments in (["events"], ["events", "--json"], ["state", "--job", "new"], ["jobs"]):
        code, lines, _ = ran(*arguments)
        assert 0 == code
        assert all(line.isprintable() and not line.startswith("    8") for line in lines)
    spelled = "\\x7f\\x1b[2J\\x9b1A\\u202eevil [bold]text[/nowhere] :smile:"
    assert spelled in "".join(ran("events")[1])
