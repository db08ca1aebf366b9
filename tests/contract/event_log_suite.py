"""The contract of every event log, as tests; subclassed once per implementation.

`EventLogBasics` holds for a log without isolation too; `EventLogSuite` is the whole port.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Closed, Fenced, Invalid, Lost
from headgate.control.events.types import (
    AttemptFailed,
    Event,
    JobAccepted,
    JobUnregistered,
    Recorded,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.log import Decisions, EventLog, Follower, partition_of

LIMIT_S = 20.0
QUIET_S = 0.3
SUCCESSION_S_MAX = 2.0
_NUMBERS = count()


def fact(job: JobId, name: str, reason: str = "") -> Event:
    return Event(name, job, "", 0, "test", None, JobUnregistered(reason))


def decision(job: JobId, name: str, basis: int = 0) -> Event:
    return Event(name, job, "", 0, "test", basis, JobAccepted(1))


def append(log: EventLog, event: Event) -> int:
    return log.append(event).offset(Deadline.after(LIMIT_S))


def names(events: list[Recorded]) -> list[str]:
    return [recorded.event.id for recorded in events]


def read(follower: Follower, number: int) -> list[Recorded]:
    """Return the next events, as many as asked for."""
    deadline, found = Deadline.after(LIMIT_S), list[Recorded]()
    while len(found) < number:
        assert not deadline.passed, f"{len(found)} of {number} events came in time"
        found += follower.poll(number - len(found), deadline.left_s)
    return found


def read_to_end(follower: Follower) -> list[Recorded]:
    """Return all events that can be read now."""
    deadline, found = Deadline.after(LIMIT_S), list[Recorded]()
    while follower.position() < follower.end():
        assert not deadline.passed, f"the reader stands at {follower.position()}"
        found += follower.poll(100, deadline.left_s)
    return found


def same_partition(job: JobId, partitions: int) -> JobId:
    """Return another job that shares the partition of the first one."""
    others = (JobId(f"{job}-{number}") for number in count())
    return next(o for o in others if partition_of(o, partitions) == partition_of(job, partitions))


class EventLogBasics:
    PARTITIONS = 4
    RETENTION_MS = 3_600_000
    TELLS_TIME = True

    @pytest.fixture
    def log(self) -> EventLog:
        raise NotImplementedError

    @pytest.fixture
    def job(self) -> JobId:
        """Return a name that no other test of this run uses."""
        return JobId(f"job-{next(_NUMBERS)}-{SYSTEM_CLOCK.now_ms()}")

    def put_garbage(self, log: EventLog, job: JobId, header: str | None, record: bytes) -> None:
        """Put a record that is no event into the job's partition."""
        raise NotImplementedError

    def test_events_come_in_the_order_of_appends(self, log: EventLog, job: JobId) -> None:
        """A follower sees a job's facts in the order of their appends, at the offsets promised."""
        receipts = [log.append(fact(job, f"f{n}")) for n in range(50)]
        offsets = [receipt.offset(Deadline.after(LIMIT_S)) for receipt in receipts]
        with closing(log.follow(job, None)) as follower:
            events = read(follower, 50)
        assert [f"f{n}" for n in range(50)] == names(events)
        assert offsets == [recorded.offset for recorded in events]
        assert sorted(set(offsets)) == offsets

    def test_an_event_comes_back_whole(self, log: EventLog, job: JobId) -> None:
        """An event that is read equals the appended event, field by field."""
        attempt = AttemptId(PartitionId(ResultId("r"), 3), 2, 17)
        event = Event("id", job, "cause", 123, "who", None, AttemptFailed(attempt, "ünïcode"))
        offset = append(log, event)
        with closing(log.follow(job, None)) as follower:
            assert [Recorded(offset, event)] == read(follower, 1)

    def test_the_log_says_when_it_took_an_event(self, log: EventLog, job: JobId) -> None:
        """Every reader gets the time at which the log took an event, by the log's clock and not the
        author's."""
        append(log, fact(job, "fact"))
        with closing(log.follow(job, None)) as follower:
            found = read(follower, 1)
        found += [r for r in log.read_all(Deadline.after(LIMIT_S)) if r.event.job == job]
        there_ms = SYSTEM_CLOCK.now_ms() if self.TELLS_TIME else 0
        assert [True, True] == [abs(r.at_ms - there_ms) < 60_000 for r in found]

    def test_a_follower_starts_at_a_position(self, log: EventLog, job: JobId) -> None:
        """A follower from an offset sees the event there and all later ones, and no earlier one."""
        offsets = [append(log, fact(job, f"f{n}")) for n in range(3)]
        with closing(log.follow(job, offsets[1])) as follower:
            assert names(read(follower, 2)) == ["f1", "f2"]
            assert offsets[2] + 1 == follower.position()

    def test_poll_respects_its_limit(self, log: EventLog, job: JobId) -> None:
        """`poll` gives at most `limit` events, and the next call continues behind them."""
        offsets = [append(log, fact(job, f"f{n}")) for n in range(5)]
        with closing(log.follow(job, None)) as follower:
            assert names(read(follower, 2)) == ["f0", "f1"]
            assert offsets[1] + 1 == follower.position()
            assert names(read(follower, 3)) == ["f2", "f3", "f4"]

    def test_poll_waits_no_longer_than_told(self, log: EventLog, job: JobId) -> None:
        """A `poll` without events returns an empty list when its time is over."""
        append(log, fact(job, "f"))
        with closing(log.follow(job, None)) as follower:
            read_to_end(follower)
            before = SYSTEM_CLOCK.monotonic_s()
            assert follower.poll(10, 0.2) == []
            assert 0.15 < SYSTEM_CLOCK.monotonic_s() - before < 2.0

    def test_a_waiting_poll_sees_a_new_fact(self, log: EventLog, job: JobId) -> None:
        """A waiting `poll` returns as soon as a fact is appended."""
        append(log, fact(job, "first"))
        with closing(log.follow(job, None)) as follower, ThreadPoolExecutor(1) as pool:
            read_to_end(follower)
            waiting = pool.submit(read, follower, 1)
            SYSTEM_CLOCK.sleep_s(0.1)
            append(log, fact(job, "second"))
            assert names(waiting.result(LIMIT_S)) == ["second"]

    def test_other_jobs_are_skipped(self, log: EventLog, job: JobId) -> None:
        """Events of another job in the partition are skipped, and the position passes them."""
        other = same_partition(job, self.PARTITIONS)
        append(log, fact(other, "theirs"))
        mine = append(log, fact(job, "mine"))
        last = append(log, fact(other, "theirs too"))
        with closing(log.follow(job, None)) as follower:
            assert [(mine, "mine")] == [(r.offset, r.event.id) for r in read_to_end(follower)]
            assert last < follower.position() == follower.end()
            assert follower.rejected == 0

    @pytest.mark.parametrize(
        ("own", "record"), [(True, b"no event"), (True, b""), (False, b"no key")]
    )
    def test_garbage_is_counted_and_skipped(
        self, log: EventLog, job: JobId, own: bool, record: bytes
    ) -> None:
        """A record that is no event is counted and skipped."""
        append(log, fact(job, "before"))
        with closing(log.follow(job, None)) as follower:
            read_to_end(follower)
            rejected = follower.rejected
            self.put_garbage(log, job, job if own else None, record)
            append(log, fact(job, "after"))
            assert names(read(follower, 1)) == ["after"]
            assert follower.rejected - rejected == 1

    def test_an_oversized_event_is_refused(self, log: EventLog, job: JobId) -> None:
        """An event over the size limit is `Invalid`, and nothing of it reaches the log."""
        with pytest.raises(Invalid, match="over"):
            log.append(fact(job, "huge", "x" * 600_000))
        append(log, fact(job, "small"))
        with closing(log.follow(job, None)) as follower:
            assert names(read_to_end(follower)) == ["small"]

    def test_threads_append_at_once(self, log: EventLog, job: JobId) -> None:
        """Facts of concurrent threads are all there once, in the order of each thread."""

        def run(thread: int) -> list[int]:
            return [append(log, fact(job, f"{thread}-{n}")) for n in range(20)]

        with ThreadPoolExecutor(6) as pool:
            offsets = list(pool.map(run, range(6)))
        with closing(log.follow(job, None)) as follower:
            events = read_to_end(follower)
        assert 120 == len(events) == len({recorded.offset for recorded in events})
        for thread, own in enumerate(offsets):
            seen = [r.offset for r in events if r.event.id.startswith(f"{thread}-")]
            assert own == seen

    def test_read_all_knows_every_job(self, log: EventLog, job: JobId) -> None:
        """`read_all` gives the events of every job, each job's in order."""
        jobs = [JobId(f"{job}-{n}") for n in range(6)]
        for name in ("a", "b"):
            for one in jobs:
                append(log, fact(one, name))
        found = [r.event for r in log.read_all(Deadline.after(LIMIT_S))]
        for one in jobs:
            assert [event.id for event in found if event.job == one] == ["a", "b"]

    def test_prepare_may_be_repeated(self, log: EventLog) -> None:
        """Preparing an existing log with the same settings succeeds and changes nothing."""
        log.prepare(Deadline.after(LIMIT_S))

    def test_the_log_says_how_long_it_keeps_events(self, log: EventLog) -> None:
        assert log.retention_ms(Deadline.after(LIMIT_S)) == self.RETENTION_MS

    def test_the_log_has_one_identity(self, log: EventLog, job: JobId) -> None:
        """The log's identity does not change when events are written; snapshots are compared by
        it."""
        before = log.identity(Deadline.after(LIMIT_S))
        log.append(fact(job, "f")).offset(Deadline.after(LIMIT_S))
        assert before == log.identity(Deadline.after(LIMIT_S))

    def test_a_closed_log_takes_nothing(self, log: EventLog, job: JobId) -> None:
        """Every use after `close` raises `Closed`."""
        log.close()
        uses: list[Callable[[], object]] = [
            lambda: log.append(fact(job, "f")),
            lambda: log.follow(job, None),
            lambda: log.open_decisions(job),
            lambda: log.read_state(job, Deadline.after(LIMIT_S)),
            lambda: log.beat(job),
            lambda: log.read_beats(job, Deadline.after(LIMIT_S)),
        ]
        for use in uses:
            with pytest.raises(Closed):
                use()


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
        """A fact behind an open step is invisible until the step ends, and `end` stays before
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
            assert names(read_to_end(follower)) == ["fact", "kept"]

    @staticmethod
    def step(holder: Decisions, job: JobId, begun: bool) -> None:
        """Do the rest of a step as a holder that does not know yet that it is fenced."""
        if not begun:
            holder.begin()
        holder.write(decision(job, "too late"))
        holder.commit(1)

    def test_a_successor_ends_the_dead_step_at_once(self, log: EventLog, job: JobId) -> None:
        """A fact behind a dead holder's step is visible as soon as a successor opens the
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
                assert [f"of {name}"] == names(read_to_end(follower))

    def test_a_successor_is_told_of_decisions_behind_an_open_step(
        self, log: EventLog, job: JobId
    ) -> None:
        """A successor's `end` lies behind the decisions of a former holder, even while another
        job's open step makes them unreadable."""
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
                decisions.write(decision(job, "x" * 600_000))
            decisions.write(decision(job, "small"))
            decisions.commit(0)
        with closing(log.follow(job, None)) as follower:
            assert names(read_to_end(follower)) == ["small"]

    def test_an_expired_head_is_lost(self, log: EventLog, job: JobId) -> None:
        """A follower before the oldest kept offset raises `Lost` at each call, and the error names
        both offsets. A follower from the oldest kept event reads on."""
        for n in range(3):
            at = append(log, fact(job, f"f{n}"))
        self.expire(log, job, at)
        with closing(log.follow(job, at - 1)) as follower:
            for _ in range(2):
                with pytest.raises(Lost, match=f"offsets {at} to {at + 1}, not {at - 1}") as caught:
                    follower.poll(1, LIMIT_S)
                assert (at - 1,) == caught.value.offsets
        with closing(log.follow(job, None)) as follower:
            assert names(read_to_end(follower)) == ["f2"]

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
            found = [r.event.id for r in all_events if r.event.job == job]
        assert found == ["fact", "kept"]
