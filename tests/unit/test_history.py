"""The state of a job at each of its events."""

from __future__ import annotations

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Invalid
from headgate.control.events.types import Recorded
from headgate.control.inquiry.audit import fold
from headgate.control.inquiry.job_history import JobHistory
from headgate.control.model.replay import Replay

from ..doubles.scripted_jobs import ScriptedJob, TimedLog


def life() -> tuple[ScriptedJob, list[Recorded]]:
    """Return a job of some hundred events, and these."""
    log = TimedLog()
    job = ScriptedJob(log, "j")
    for number in range(4):
        job.register(f"r{number}", 20, 2, "repartition")
        job.write_all(f"r{number}", range(20))
        job.read(f"r{number}", 0, 10, 100)
        job.release(f"r{number}")
        job.delete(f"r{number}")
    job.close()
    return job, list(log.read_all(Deadline.after(5.0)))


def test_each_state_is_the_fold_of_the_events_before_it() -> None:
    """The state at an offset is that of folding all events up to there, however they came."""
    job, records = life()
    assert len(records) > 260
    history = JobHistory(job.job)
    for start in range(0, len(records), 7):
        history.observe(records[start : start + 7])
    for count, recorded in enumerate(records, 1):
        (expected,) = fold(records[:count])
        assert expected == history.state(recorded.offset)
        assert records[:count] == list(history.until(recorded.offset))
    assert history.state() == history.state(records[-1].offset)
    assert 0 == history.state(records[0].offset - 1).epoch


def test_states_start_at_the_snapshot_if_events_are_gone() -> None:
    """Without the first events the states are the same from the snapshot on, and unknown before;
    with all events the snapshot is not needed."""
    job, records = life()
    replay = Replay(job.job)
    for recorded in records[:150]:
        replay.observe(recorded)
    snapshot = replay.snapshot(records[150].offset)
    history, whole = JobHistory(job.job, snapshot), JobHistory(job.job, snapshot)
    assert snapshot.state == history.state()
    history.observe(records[100:])
    whole.observe(records)
    assert (history.start, whole.start) == (snapshot, None)
    for count in range(151, len(records) + 1):
        (expected,) = fold(records[:count])
        assert expected == history.state(records[count - 1].offset)
    with pytest.raises(Invalid, match="are gone"):
        history.state(records[148].offset)
    (expected,) = fold(records[:100])
    assert expected == whole.state(records[99].offset)
