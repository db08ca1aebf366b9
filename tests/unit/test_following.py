"""The jobs of a log that are followed are those that a new reader of the log has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import cast

import pytest

from headgate.control.clock import Deadline, ProgressDeadline
from headgate.control.errors import Lost, Unavailable
from headgate.control.events.types import (
    PartitionRegistered,
    Produced,
    Recorded,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
)
from headgate.control.ids import JobId, ResultId
from headgate.control.inquiry.following import FollowedJobs
from headgate.control.inquiry.neglected import follow_jobs
from headgate.control.inquiry.reading import READ_S_MAX, known, read_news, states
from headgate.control.log import EventLog, Follower, Tail, read_to
from headgate.control.memory.log import MemoryEventLog, MemoryTail
from headgate.testing.event_log_basics import decision

from ..doubles.scripted_jobs import ScriptedJob, TimedLog
from ..doubles.snapshots import LIFE, live
from ..doubles.steps import StoppedClock

LIMIT_S = 10.0


def summary(followed: FollowedJobs) -> dict[JobId, tuple[object, ...]]:
    """Return what counts of each job."""
    return {
        job: (entry.replay.snapshot(entry.position), entry.broken)
        for job, entry in followed.jobs.items()
    }


class SlowLog:
    """A follower and a tail that take 100 s for each of `left` events, and then stand still."""

    def __init__(self, left: int) -> None:
        self.clock, self.at, self.left = StoppedClock(), 0, left

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        self.clock.at_ms += 100_000
        self.at += self.at < self.left
        return []

    def position(self) -> int:
        return self.at

    def positions(self) -> Mapping[int, int]:
        return {0: self.at}

    def offsets(self) -> Mapping[int, range]:
        return {0: range(20)}


@pytest.mark.parametrize("left", [20, 19])
@pytest.mark.parametrize("tails", [False, True])
def test_a_reading_ends_when_it_stands_still(left: int, tails: bool) -> None:
    """A reading takes as long as it has to, and is ended once it makes no progress."""
    log = SlowLog(left)
    with ExitStack() as expected:
        if left < 20:
            expected.enter_context(pytest.raises(Unavailable))
        if tails:
            followed = FollowedJobs(MemoryEventLog(), clock=log.clock)
            followed._tail = cast(Tail, log)
            followed.read_to_end(ProgressDeadline(READ_S_MAX, log.clock))
        else:
            limit = ProgressDeadline(READ_S_MAX, log.clock)
            assert [] == list(read_to(cast(Follower, log), 20, 1, limit))
    assert log.clock.at_ms == 1_000 + 100_000 * (20 if left == 20 else 22)


def read_anew(log: EventLog) -> dict[JobId, tuple[object, ...]]:
    with closing(FollowedJobs(log)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        return summary(followed)


@pytest.mark.parametrize("every", [1, 3, 50])
def test_states_are_those_of_a_new_reader(every: int) -> None:
    """Jobs that are followed from event to event have the states that commands read, from the
    snapshots of masters or without any."""
    log = MemoryEventLog()
    with closing(FollowedJobs(log)) as followed:
        for facts in (LIFE[:4], LIFE[4:]):
            state = live(log, facts, every)
            followed.read_to_end(Deadline.after(LIMIT_S))
            snapshots = known(log, "")
            (entry,) = follow_jobs(read_news(log, "", snapshots), snapshots).values()
            assert entry.position == followed.jobs[state.job].position
            assert state.results.keys() == followed.jobs[state.job].replay.state.results.keys()
            (mine,), (other,) = summary(followed).values(), read_anew(log).values()
            assert str(mine) == str(other)


def test_each_event_is_read_once(timed: TimedLog) -> None:
    """Events that were read do not come again, and those of a snapshot are not replayed."""
    job = ScriptedJob(timed, "j")
    job.register("r", 2, 1, "x")
    position = job.keep_snapshot()
    job.write_all("r", [0])
    with closing(FollowedJobs(timed)) as followed:
        followed.open()
        events = followed.poll(0.0)
        kinds = [it.recorded.event.kind for it in events]
        assert ["ResultRegistered", "AttemptStarted", "Produced", "Consumable"] == kinds
        assert [False, True, True, True] == [it.recorded.offset >= position for it in events]
        for placed in events:
            followed.observe(placed.recorded)
        assert [] == followed.poll(0.0)
        result = followed.jobs[job.job].replay.state.results[ResultId("r")]
        assert 1 == result.totals.written.partitions


def test_the_indexes_of_segments_are_left_out(timed: TimedLog) -> None:
    """Nobody keeps the indexes of segments in memory, and the sizes stay."""
    job = ScriptedJob(timed, "j")
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    with closing(FollowedJobs(timed)) as followed:
        followed.open()
        bodies = [it.recorded.event.body for it in followed.poll(0.0)]
    (produced,) = [body for body in bodies if isinstance(body, Produced)]
    assert (1_000, b"") == (produced.size_bytes, produced.segments[0].index)
    (state,) = states(timed, "")
    assert produced == state.results[ResultId("r")].produced(0)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_stream_is_what_it_has_announced(timed: TimedLog, keeps: bool) -> None:
    """Events without indexes agree with those before them, and with a snapshot that had them."""
    job, segment = ScriptedJob(timed, "j"), SegmentSummary(0, 1_000, 100, 1, b"index")
    result = ResultRegistered(ResultId("r"), 1, 1, "", "x", pipelined=True)
    job.state(result, PartitionRegistered(ResultId("r"), 0, 1))
    attempt = job.begin("r", 0)
    job.state(SegmentProduced(attempt, segment))
    if keeps:
        job.keep_snapshot()
    job.state(Produced(attempt, (segment,), 1))
    with closing(FollowedJobs(timed)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        entry = followed.jobs[job.job]
    assert not entry.broken
    assert [entry.replay.state] == list(states(timed, ""))
    assert entry.replay.state.results[ResultId("r")].complete
    assert "b'index'" not in str(entry.replay.state.results[ResultId("r")].production)


def test_a_job_goes_when_the_log_has_forgotten_it(timed: TimedLog) -> None:
    """A job of which neither an event nor a snapshot is left goes within a minute; one with a
    snapshot stays."""
    clock = StoppedClock()
    gone, kept, young = (ScriptedJob(timed, name) for name in ("j", "k", "l"))
    with closing(FollowedJobs(timed, clock)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        kept.keep_snapshot()
        for job in (gone.job, kept.job):
            timed.expire(job, timed.written(job))
        young.register("r", 1, 1, "x")
        followed.read_to_end(Deadline.after(LIMIT_S))
        assert {"j", "k", "l"} == set(followed.jobs)
        clock.at_ms += 60_000
        followed.read_to_end(Deadline.after(LIMIT_S))
        assert {"k", "l"} == set(followed.jobs) == set(read_anew(timed))


def test_lost_events_begin_a_new_reading(timed: TimedLog) -> None:
    """If events are gone before they are read, the jobs are read anew, from their snapshots."""
    job = ScriptedJob(timed, "j")
    with closing(FollowedJobs(timed)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        job.register("r", 2, 1, "x")
        position = job.keep_snapshot()
        timed.expire(job.job, position)
        with pytest.raises(Lost):
            followed.read_to_end(Deadline.after(LIMIT_S))
        followed.read_to_end(Deadline.after(LIMIT_S))
        assert ["r"] == list(followed.jobs[job.job].replay.state.results)
        assert summary(followed) == read_anew(timed)


def test_a_beginning_that_fails_is_tried_again(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log goes away while it is opened, the next try begins anew, and no reader is left."""
    job, offsets, closed = ScriptedJob(timed, "j"), MemoryTail.offsets, list[MemoryTail]()
    fault = [Unavailable("no broker")]

    def away(tail: MemoryTail) -> Mapping[int, range]:
        if fault:
            raise fault.pop()
        return offsets(tail)

    monkeypatch.setattr(MemoryTail, "offsets", away)
    monkeypatch.setattr(MemoryTail, "close", lambda tail: closed.append(tail))
    followed = FollowedJobs(timed)
    with pytest.raises(Unavailable):
        followed.open()
    assert 1 == len(closed)
    followed.read_to_end(Deadline.after(LIMIT_S))
    assert timed.written(job.job) == followed.starts[timed.partition(job.job)]
    assert ["j"] == list(followed.jobs)


def test_another_log_begins_a_new_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was deleted and made again at the same place is noticed within a minute."""
    log, clock = MemoryEventLog(identity="first"), StoppedClock()
    with closing(FollowedJobs(log, clock)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        monkeypatch.setattr(log, "_identity", "second")
        clock.at_ms += 60_000
        with pytest.raises(Lost, match="another log"):
            followed.read_to_end(Deadline.after(LIMIT_S))
        followed.read_to_end(Deadline.after(LIMIT_S))


def test_a_log_that_does_not_explain_itself_stays_where_it_was(timed: TimedLog) -> None:
    """A job with a wrong decision keeps the numbers from before it, now and for a new reader."""
    job = ScriptedJob(timed, "j")
    with closing(FollowedJobs(timed)) as followed:
        followed.read_to_end(Deadline.after(LIMIT_S))
        with closing(timed.open_decisions(job.job)) as decisions:
            decisions.begin()
            decisions.write(decision(job.job, "wrong", 0))
            decisions.commit(0)
        followed.read_to_end(Deadline.after(LIMIT_S))
        assert followed.jobs[job.job].broken
        assert summary(followed) == read_anew(timed)
