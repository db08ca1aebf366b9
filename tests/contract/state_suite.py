"""The contract of the state that every event log keeps by key: snapshots and heartbeats of jobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Fenced
from headgate.control.ids import JobId
from headgate.control.log import Decisions, EventLog, StateRecord, partition_of
from headgate.control.snapshots.resume import begin, follow_all, take_up

from .event_log_suite import (
    LIMIT_S,
    EventLogBasics,
    EventLogSuite,
    append,
    decision,
    fact,
    names,
    read,
    same_partition,
)


def standing(log: EventLog, job: JobId | None) -> dict[str, bytes]:
    return log.read_state(job, Deadline.after(LIMIT_S))


def assert_stands(log: EventLog, job: JobId | None, expected: dict[str, bytes]) -> None:
    """Wait for the expected state: a commit is confirmed a moment before its records can be
    read."""
    deadline = Deadline.after(LIMIT_S)
    while standing(log, job) != expected and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.01)
    assert expected == standing(log, job)


class StateBasics(EventLogBasics):
    def test_the_newest_state_stands(self, log: EventLog, job: JobId) -> None:
        """Each key has the value that was stored last, and a removed key is gone."""
        assert_stands(log, job, {})
        with closing(log.open_decisions(job)) as decisions:
            self.keep(decisions, {job: b"1", f"{job}/r": b"r1", f"{job}/s": b"s1"})
            self.keep(decisions, {job: b"2", f"{job}/s": None})
            assert_stands(log, job, {job: b"2", f"{job}/r": b"r1"})
            self.keep(decisions, {job: None, f"{job}/r": None})
        assert_stands(log, job, {})

    def test_state_is_each_jobs_own(self, log: EventLog, job: JobId) -> None:
        """A job's state holds nothing of other jobs; a reader of all jobs gets everything."""
        others = [same_partition(job, self.PARTITIONS), *(JobId(f"{job}{n}") for n in range(4))]
        for one in (job, *others):
            assert partition_of(one, self.PARTITIONS) == log.partition(one)
            with closing(log.open_decisions(one)) as decisions:
                self.keep(decisions, {one: one.encode(), f"{one}/r": b"r"})
        for one in (job, *others):
            assert_stands(log, one, {one: one.encode(), f"{one}/r": b"r"})
        everything = standing(log, None)
        assert {one: one.encode() for one in (job, *others)}.items() <= everything.items()

    def test_a_job_begins_behind_what_others_did(self, log: EventLog, job: JobId) -> None:
        """The first driver of a job stores a start position behind other jobs' events, once, and
        the job's log is read from there."""
        other = same_partition(job, self.PARTITIONS)
        last = [append(log, fact(other, f"fact {n}")) for n in range(20)][-1]
        begin(log, job, Deadline.after(LIMIT_S))
        first = append(log, fact(job, "first"))
        begin(log, job, Deadline.after(LIMIT_S))
        for start in (None, 0):
            deadline = Deadline.after(LIMIT_S)
            with closing(take_up(log, job, deadline, start).follower) as follower:
                assert last < follower.position() <= first
                assert ["first"] == names(read(follower, 1))
            with closing(follow_all(log, job, deadline)) as follower:
                assert last < follower.position() <= first

    @staticmethod
    def keep(decisions: Decisions, state: dict[str, bytes | None]) -> None:
        """Store these records in one step."""
        decisions.begin()
        for key, body in state.items():
            decisions.keep(StateRecord(key, body))
        decisions.commit(0)

    def test_beats_tell_who_was_heard_last(self, log: EventLog, job: JobId) -> None:
        """`read_beats` gives the newest heartbeat of each job, by a clock that is close to ours."""
        others = [same_partition(job, self.PARTITIONS), JobId(f"{job}-else")]
        assert {} == log.read_beats(job, Deadline.after(LIMIT_S))
        before = SYSTEM_CLOCK.now_ms()
        for one in (job, *others):
            log.beat(one)
        first = self.heard(log, job, before - 1_000)
        SYSTEM_CLOCK.sleep_s(0.005)
        log.beat(job)
        assert abs(self.heard(log, job, first) - SYSTEM_CLOCK.now_ms()) < 5_000
        for one in others:
            assert self.heard(log, one, 0) > 0
        assert {job, *others} <= log.read_beats(None, Deadline.after(LIMIT_S)).keys()

    @staticmethod
    def heard(log: EventLog, job: JobId, after_ms: int) -> int:
        """Return the time at which the job was last heard, once that is after `after_ms`."""
        deadline = Deadline.after(LIMIT_S)
        while (found := log.read_beats(job, deadline)).get(job, 0) <= after_ms:
            assert found.keys() <= {job}
            assert not deadline.passed, "the beat is heard"
            SYSTEM_CLOCK.sleep_s(0.01)
        return found[job]


class StateSuite(StateBasics, EventLogSuite):
    def test_state_of_a_dropped_step_never_stands(self, log: EventLog, job: JobId) -> None:
        """State records that an open or an aborted step writes or removes change nothing."""
        start = append(log, fact(job, "fact"))
        with closing(log.open_decisions(job)) as decisions:
            self.keep(decisions, {job: b"1", f"{job}/r": b"r1"})
            decisions.begin()
            decisions.write(decision(job, "dropped"))
            decisions.keep(StateRecord(job, b"2"))
            decisions.keep(StateRecord(f"{job}/r", None))
            decisions.keep(StateRecord(f"{job}/s", b"s2"))
            self.await_stall(log, job, decisions_first=start + 1)
            assert_stands(log, job, {job: b"1", f"{job}/r": b"r1"})
            decisions.abort()
            assert_stands(log, job, {job: b"1", f"{job}/r": b"r1"})
            self.keep(decisions, {job: b"3"})
            assert_stands(log, job, {job: b"3", f"{job}/r": b"r1"})

    def test_what_an_open_step_hides_is_waited_for(self, log: EventLog, job: JobId) -> None:
        """A reader of the whole state waits for another job's open step that hides our later
        commit."""
        other = same_partition(job, self.PARTITIONS)
        with (
            closing(log.open_decisions(other)) as theirs,
            closing(log.open_decisions(job)) as ours,
            ThreadPoolExecutor(1) as pool,
        ):
            theirs.begin()
            theirs.keep(StateRecord(other, b"theirs"))
            SYSTEM_CLOCK.sleep_s(0.2)  # time for the record to be on its way
            self.keep(ours, {job: b"ours"})
            found = pool.submit(log.read_state, job, Deadline.after(LIMIT_S), True)
            SYSTEM_CLOCK.sleep_s(0.5)
            theirs.commit(0)
            assert {job: b"ours"} == found.result(LIMIT_S)

    def test_state_and_decisions_are_one_step(self, log: EventLog, job: JobId) -> None:
        """A step's state and its decisions become visible together."""
        append(log, fact(job, "fact"))
        with (
            closing(log.open_decisions(job)) as decisions,
            closing(log.follow(job, None)) as follower,
        ):
            decisions.begin()
            decisions.keep(StateRecord(job, b"1"))
            decisions.write(decision(job, "d"))
            decisions.commit(1)
            assert names(read(follower, 2)) == ["fact", "d"]
            assert_stands(log, job, {job: b"1"})

    def test_a_fenced_holder_keeps_nothing(self, log: EventLog, job: JobId) -> None:
        """The successor's state stays, whatever a fenced holder still tries."""
        former = log.open_decisions(job)
        former.begin()
        former.keep(StateRecord(job, b"old"))
        with closing(log.open_decisions(job)) as successor:
            assert_stands(log, job, {})
            self.keep(successor, {job: b"new"})
            with pytest.raises(Fenced):
                self.keep_on(former, job)
            former.close()
            assert_stands(log, job, {job: b"new"})

    @staticmethod
    def keep_on(holder: Decisions, job: JobId) -> None:
        """Do the rest of a step as a holder that does not know yet that it is fenced."""
        holder.keep(StateRecord(f"{job}/r", b"old"))
        holder.commit(1)
