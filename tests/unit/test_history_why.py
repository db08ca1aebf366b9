"""The reasons why a partition was made again, derived from the log."""

from __future__ import annotations

from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Event,
    Fact,
    JobRegistered,
    Lost,
    PartitionRegistered,
    Produced,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
    Tick,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.inquiry.audit import refused
from headgate.control.inquiry.history import Made, why
from headgate.control.model.replay import Replay

JOB, RESULT = JobId("job"), ResultId("r")
SEGMENT = SegmentSummary(0, 10, 1, 0, b"")


def attempt(task: int, epoch: int = 1) -> AttemptId:
    return AttemptId(PartitionId(RESULT, 0), epoch, task)


def told(*facts: Fact) -> tuple[Made, ...]:
    """Return every attempt at partition 0, with its reason and outcome, after these facts and all
    decisions on them."""
    replay, records = Replay(JOB), list[Recorded]()
    for fact in (
        JobRegistered("per-job", "0", "app"),
        ResultRegistered(RESULT, 2, 1, "", ""),
        PartitionRegistered(RESULT, 0, 2),
        *facts,
    ):
        event = Event(f"f{len(records)}", JOB, "", 0, "reader r/7", None, fact)
        records.append(Recorded(len(records), event))
        for due in replay.observe(records[-1]):
            decided = Event(due.id, JOB, due.cause, 0, "master", due.basis, due.decision)
            records.append(Recorded(len(records), decided))
    return why(records, PartitionId(RESULT, 0))


def test_the_first_attempt() -> None:
    """A partition without failures has one attempt, made because its map stage was run."""
    (made,) = told(AttemptStarted(attempt(1), "host"), Produced(attempt(1), (SEGMENT,), 7))
    assert ("its map stage was run", "is the one that readers read") == (made.reason, made.outcome)


def test_a_retry_names_the_attempt_before_it() -> None:
    """A retry is explained by the attempt before it, which failed or has not ended."""
    first, second, third = told(
        AttemptStarted(attempt(1), "host"),
        AttemptFailed(attempt(1), "oom"),
        AttemptStarted(attempt(2), "host"),
        AttemptStarted(attempt(3), "host"),
        Produced(attempt(3), (SEGMENT,), 7),
    )
    assert second.reason == "attempt 1-1 was superseded: failed"
    assert third.reason == "attempt 1-2 has not ended"
    assert first.outcome == "was superseded: failed"


def test_what_was_lost_is_the_reason() -> None:
    """A loss is told with the object, the evidence, the author and all offsets."""
    _, again = told(
        AttemptStarted(attempt(1), "host"),
        Produced(attempt(1), (SEGMENT,), 7),
        Lost(attempt(1), "root/object", "404", 9),
        AttemptStarted(attempt(2), "host"),
        Produced(attempt(2), (SEGMENT,), 7),
    )
    expected = "it was ordered again: r/0: root/object is lost: 404, announced by reader r/7"
    assert again == Made(attempt(2), expected, "is the one that readers read", (8, 11, 12, 13, 14))


def test_another_driver_is_the_reason() -> None:
    """An attempt of a later driver is explained by that driver's start."""
    _, again = told(
        AttemptStarted(attempt(1), "host"),
        JobRegistered("per-job", "0", "app"),
        AttemptStarted(attempt(2, 2), "host"),
    )
    assert again.reason == "driver 2 of the job attached"


def test_nobody_made_it() -> None:
    """A partition without an attempt has no explanation."""
    assert told() == ()


def test_what_nothing_follows_from_is_told() -> None:
    """Repeated, late and foreign facts are listed as ignored; facts with an effect are not."""
    good: tuple[Fact, ...] = (
        JobRegistered("per-job", "0", "app"),
        ResultRegistered(RESULT, 1, 1, "", ""),
        PartitionRegistered(RESULT, 0, 1),
        AttemptStarted(attempt(1), "host"),
        Produced(attempt(1), (SEGMENT,), 7),
    )
    bad: tuple[Fact, ...] = (
        Produced(attempt(1), (SEGMENT,), 7),
        AttemptStarted(AttemptId(PartitionId(ResultId("other"), 0), 1, 1), "host"),
        Lost(attempt(2), "object", "404"),
        PartitionRegistered(RESULT, 1, 5),
        ReleaseRequested(ResultId("other"), "x"),
        Tick(5),
    )
    records: list[Recorded] = []
    replay = Replay(JOB)
    for fact in (*good, *bad):
        records.append(Recorded(len(records), Event(str(fact), JOB, "", 0, "by", None, fact)))
        for due in replay.observe(records[-1]):
            decided = Event(due.id, JOB, due.cause, 0, "master", due.basis, due.decision)
            records.append(Recorded(len(records), decided))
    assert list(bad[:-1]) == [recorded.event.body for recorded in refused(records, {})]
    decisions = [record for record in records if record.event.basis is not None]
    without = [record for record in records if record is not decisions[0]]
    assert [] == list(refused(without, {}))
