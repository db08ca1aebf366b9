"""The contract of every event log, as tests.

A subclass gives the fixture `log`, and damages the log where the port cannot: `put_garbage` and
`expire`. A log that confirms decisions before it has them also waits in `await_stall`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from ..control.clock import SYSTEM_CLOCK, Deadline
from ..control.errors import Fenced, Invalid, Lost
from ..control.ids import JobId
from ..control.log import Decisions, EventLog, StateRecord, coverage_of
from .event_log_basics import (
    LIMIT_S,
    QUIET_S,
    SUCCESSION_S_MAX,
    EventLogBasics,
    append,
    assert_stands,
    decision,
    fact,
    names,
    oversized,
    read,
    read_all,
    read_to_end,
    same_partition,
    tail_to_end,
    tail_until,
)


class EventLogSuite(EventLogBasics):
    def expire(self, log: EventLog, job: JobId, before: int) -> None:
        """Remove the job's partition up to an offset, as retention does."""
        raise NotImplementedError

    def test_a_commit_makes_decisions_visible(self, log: EventLog, job: JobId) -> None:
        """A step's decisions are invisible before its commit, and all visible after it."""
        at = append(log, fact(job, "fact"))
        with (
            closing(log.follow(job, None)) as follower,
            closing(log.open_decisions(job)) as decisions,
        ):
            read_to_end(follower)
            decisions.begin()
            decisions.write(decision(job, "d0", at))
            decisions.write(decision(job, "d1", at))
            assert follower.poll(10, QUIET_S) == []
            decisions.commit(at + 1)
            assert names(read(follower, 2)) == ["d0", "d1"]
            assert read_to_end(follower) == []
            assert follower.end() == follower.position()

    def test_an_open_step_stalls_readers(self, log: EventLog, job: JobId) -> None:
        """A fact after an open step is invisible until the step ends, and `end` stays before
        it."""
        append(log, fact(job, "before"))
        with (
            closing(log.follow(job, None)) as follower,
            closing(log.open_decisions(job)) as decisions,
        ):
            read_to_end(follower)
            decisions.begin()
            decisions.write(decision(job, "d"))
            self.await_stall(log, job, decisions_first=follower.position())
            append(log, fact(job, "behind"))
            assert follower.poll(10, QUIET_S) == []
            assert follower.position() == follower.end()
            decisions.abort()
            assert names(read(follower, 1)) == ["behind"]

    def await_stall(self, log: EventLog, job: JobId, decisions_first: int) -> None:
        """Wait until the log holds the open step's first record."""

    def test_aborted_decisions_are_never_seen(self, log: EventLog, job: JobId) -> None:
        """Aborted decisions stay invisible and take offsets, and the next step works as usual."""
        start = append(log, fact(job, "fact"))
        with (
            closing(log.follow(job, None)) as follower,
            closing(log.open_decisions(job)) as decisions,
        ):
            decisions.begin()
            decisions.write(decision(job, "dropped"))
            self.await_stall(log, job, decisions_first=start + 1)
            decisions.abort()
            decisions.begin()
            decisions.write(decision(job, "kept"))
            decisions.commit(start + 1)
            events = read(follower, 2)
            assert names(events) == ["fact", "kept"]
            assert start + 3 == events[1].offset
            assert read_to_end(follower) == []

    def test_an_empty_step_commits(self, log: EventLog, job: JobId) -> None:
        """A step without decisions takes no offset, and the next step works."""
        start = append(log, fact(job, "fact"))
        with (
            closing(log.follow(job, None)) as follower,
            closing(log.open_decisions(job)) as decisions,
        ):
            decisions.begin()
            decisions.commit(start + 1)
            decisions.begin()
            decisions.abort()
            decisions.begin()
            decisions.write(decision(job, "d"))
            decisions.commit(start + 1)
            assert [start, start + 1] == [recorded.offset for recorded in read(follower, 2)]

    def test_closing_drops_the_open_step(self, log: EventLog, job: JobId) -> None:
        """A holder that closes within a step leaves nothing visible and stalls no reader."""
        append(log, fact(job, "before"))
        decisions = log.open_decisions(job)
        decisions.begin()
        decisions.write(decision(job, "dropped"))
        decisions.close()
        append(log, fact(job, "after"))
        with closing(log.follow(job, None)) as follower:
            assert names(read(follower, 2)) == ["before", "after"]

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_successor_fences_the_former_holder(
        self, log: EventLog, job: JobId, begun: bool
    ) -> None:
        """After the decisions are opened again, the former holder can commit nothing."""
        append(log, fact(job, "fact"))
        former = log.open_decisions(job)
        if begun:
            former.begin()
            former.write(decision(job, "dropped"))
        with closing(log.open_decisions(job)) as successor:
            with pytest.raises(Fenced):
                self.step(former, job, begun)
            with pytest.raises(Fenced):
                former.begin()
            former.close()
            successor.begin()
            successor.write(decision(job, "kept"))
            successor.commit(1)
        with closing(log.follow(job, None)) as follower:
            assert names(read_all(follower, 2)) == ["fact", "kept"]

    @staticmethod
    def step(holder: Decisions, job: JobId, begun: bool) -> None:
        """Do the rest of a step as a holder that does not know yet that it is fenced."""
        if not begun:
            holder.begin()
        holder.write(decision(job, "too late"))
        holder.commit(1)

    def test_a_tail_shows_committed_decisions(self, log: EventLog, job: JobId) -> None:
        """A tail shows no open or aborted decisions, and passes the markers that end a step."""
        at = append(log, fact(job, "fact"))
        with closing(log.tail()) as tail, closing(log.open_decisions(job)) as decisions:
            for name, end in (("dropped", decisions.abort), ("kept", partial(decisions.commit, 1))):
                decisions.begin()
                decisions.write(decision(job, name, at))
                assert name not in names([it.recorded for it in tail_to_end(tail)])
                end()
            assert "kept" == tail_until(tail, job).event.id
            tail_to_end(tail)
            assert {n: there.stop for n, there in tail.offsets().items()} == tail.positions()

    def test_a_successor_ends_the_dead_step_at_once(self, log: EventLog, job: JobId) -> None:
        """A fact after a dead holder's step is visible as soon as a successor opens the
        decisions."""
        append(log, fact(job, "before"))
        former = log.open_decisions(job)
        with closing(log.follow(job, None)) as follower:
            read_to_end(follower)
            former.begin()
            former.write(decision(job, "dropped"))
            self.await_stall(log, job, decisions_first=follower.position())
            append(log, fact(job, "behind"))
            before = SYSTEM_CLOCK.monotonic_s()
            with closing(log.open_decisions(job)):
                assert names(read(follower, 1)) == ["behind"]
            assert SYSTEM_CLOCK.monotonic_s() - before < SUCCESSION_S_MAX
        former.close()

    def test_jobs_do_not_fence_each_other(self, log: EventLog, job: JobId) -> None:
        """Two jobs of one partition have separate holders."""
        other = same_partition(job, self.PARTITIONS)
        with closing(log.open_decisions(job)) as mine, closing(log.open_decisions(other)) as theirs:
            for holder, name in ((mine, job), (theirs, other)):
                holder.begin()
                holder.write(decision(name, f"of {name}"))
                holder.commit(0)
        for name in (job, other):
            with closing(log.follow(name)) as follower:
                assert [f"of {name}"] == names(read_all(follower, 1))

    def test_a_successor_is_told_of_decisions_behind_an_open_step(
        self, log: EventLog, job: JobId
    ) -> None:
        """`written` counts the decisions of a former holder, even while another job's open step
        hides them from readers."""
        at = append(log, fact(job, "fact"))
        with closing(log.open_decisions(same_partition(job, self.PARTITIONS))) as theirs:
            theirs.begin()
            theirs.write(decision(same_partition(job, self.PARTITIONS), "open"))
            self.await_stall(log, job, decisions_first=at + 1)
            with closing(log.open_decisions(job)) as former:
                former.begin()
                former.write(decision(job, "kept", at))
                former.commit(at + 1)
            with (
                closing(log.open_decisions(job)),
                closing(log.follow(job, None)) as follower,
            ):
                end = log.written(job)
                assert names(read_to_end(follower)) == ["fact"]
                assert follower.position() < end
                theirs.abort()
                assert names(read(follower, 1)) == ["kept"]

    def test_an_oversized_decision_is_refused(self, log: EventLog, job: JobId) -> None:
        """A decision over the size limit is `Invalid`, and the step may continue without it."""
        with closing(log.open_decisions(job)) as decisions:
            decisions.begin()
            with pytest.raises(Invalid, match="over"):
                decisions.write(oversized(decision(job, "huge")))
            decisions.write(decision(job, "small"))
            decisions.commit(0)
        with closing(log.follow(job, None)) as follower:
            assert names(read_all(follower, 1)) == ["small"]

    def test_an_expired_head_is_lost(self, log: EventLog, job: JobId) -> None:
        """A follower before the oldest kept offset raises `Lost` at each call, and the error names
        both offsets. A follower from the oldest kept event reads on."""
        for n in range(3):
            at = append(log, fact(job, f"f{n}"))
        self.expire(log, job, at)
        with closing(log.follow(job, at - 1)) as follower:
            for _ in range(2):
                with pytest.raises(Lost) as caught:
                    follower.poll(1, LIMIT_S)
                assert (at - 1,) == caught.value.offsets
                for offset in (at - 1, at):
                    assert str(offset) in str(caught.value)
        with closing(log.follow(job, None)) as follower:
            assert names(read_to_end(follower)) == ["f2"]

    def test_a_tail_begins_at_the_oldest_event(self, log: EventLog, job: JobId) -> None:
        """A tail shows nothing that retention has removed, and everything after that."""
        append(log, fact(job, "gone"))
        self.expire(log, job, append(log, fact(job, "kept")))
        with closing(log.tail()) as tail:
            placed = [it.recorded for it in tail_to_end(tail)]
            assert tail.offsets()[log.partition(job)].start == log.oldest(job)
        assert ["kept"] == names([it for it in placed if it.event.job == job])

    def test_a_position_behind_the_end_is_lost(self, log: EventLog, job: JobId) -> None:
        """A follower at an offset that the log has never reached raises `Lost`: it is another
        log."""
        at = append(log, fact(job, "f"))
        with closing(log.follow(job, at + 100)) as follower, pytest.raises(Lost):
            read(follower, 1)

    def test_read_all_shows_what_followers_see(self, log: EventLog, job: JobId) -> None:
        """`read_all` shows committed decisions, and no aborted or open ones."""
        append(log, fact(job, "fact"))
        with closing(log.open_decisions(job)) as decisions:
            for name, end in (("dropped", decisions.abort), ("kept", lambda: decisions.commit(1))):
                decisions.begin()
                decisions.write(decision(job, name))
                end()
            with closing(log.follow(job, None)) as follower:
                assert names(read(follower, 2)) == ["fact", "kept"]  # Kafka shows commits later
            decisions.begin()
            decisions.write(decision(job, "open"))
            all_events = log.read_all(Deadline.after(LIMIT_S))
            seen = [r.event.id for r in all_events if r.event.job == job]
        assert seen == ["fact", "kept"]

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
            answer = pool.submit(log.read_state, job, Deadline.after(LIMIT_S), True)
            SYSTEM_CLOCK.sleep_s(0.5)
            theirs.commit(0)
            assert {job: b"ours"} == answer.result(LIMIT_S)

    def test_a_coverage_is_no_state_of_a_job(self, log: EventLog, job: JobId) -> None:
        """A partition's coverage has a name of its own, and is not in the state of all jobs."""
        coverage = coverage_of(log.partition(job))
        with closing(log.open_decisions(job)) as decisions:
            self.keep(decisions, {job: b"1", coverage: b"c"})
        deadline = Deadline.after(LIMIT_S)
        assert log.partition(coverage) == log.partition(job)
        assert {coverage: b"c"} == log.read_state(coverage, deadline, whole=True)
        assert {job: b"1"} == log.read_state(job, deadline, whole=True)
        everything = log.read_state(None, deadline, whole=True)
        assert job in everything
        assert coverage not in everything

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
