"""The contract that an event log without isolation keeps too: order, positions, state, heartbeats.

`EventLogSuite` is the whole contract. The broker of the embedded stack keeps only this part of it,
because its transactions hide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest

from ..control.clock import SYSTEM_CLOCK, Deadline
from ..control.errors import Closed, Invalid
from ..control.events.types import (
    AttemptFailed,
    Event,
    JobAccepted,
    JobUnregistered,
    Produced,
    Recorded,
    Reproduce,
    ResultRegistered,
    SegmentSummary,
)
from ..control.ids import AttemptId, JobId, PartitionId, ResultId
from ..control.log import Decisions, EventLog, Follower, Placed, StateRecord, Tail, partition_of
from ..control.snapshots.resume import begin, follow_all, take_up

LIMIT_S = 20.0
QUIET_S = 0.3
SUCCESSION_S_MAX = 2.0
_NUMBERS = count()


def fact(job: JobId, name: str) -> Event:
    return Event(name, job, "", 0, "test", None, JobUnregistered(""))


def decision(job: JobId, name: str, basis: int = 0) -> Event:
    return Event(name, job, "", 0, "test", basis, JobAccepted(1))


def oversized(event: Event) -> Event:
    """Return a fact or a decision that fits no record."""
    if event.basis is not None:
        return replace(event, body=Reproduce(ResultId("r"), (1_000,) * 600_000, ""))
    segment = SegmentSummary(0, 600_000, 1, 0, bytes(600_000))
    return replace(event, body=Produced(AttemptId(PartitionId(ResultId("r"), 0), 1, 1), (segment,)))


def append(log: EventLog, event: Event) -> int:
    return log.append(event).offset(Deadline.after(LIMIT_S))


def names(events: list[Recorded]) -> list[str]:
    return [recorded.event.id for recorded in events]


def read(follower: Follower, number: int) -> list[Recorded]:
    """Return the next events, as many as asked for."""
    deadline, events = Deadline.after(LIMIT_S), list[Recorded]()
    while len(events) < number:
        assert not deadline.passed, f"{len(events)} of {number} events came in time"
        events += follower.poll(number - len(events), deadline.left_s)
    return events


def read_to_end(follower: Follower) -> list[Recorded]:
    """Return all events that can be read now."""
    deadline, events = Deadline.after(LIMIT_S), list[Recorded]()
    while follower.position() < follower.end():
        assert not deadline.passed, f"the reader stands at {follower.position()}"
        events += follower.poll(100, deadline.left_s)
    return events


def read_all(follower: Follower, number: int) -> list[Recorded]:
    """Wait for so many events, and return them with all others that can be read then. A commit is
    confirmed a moment before its decisions can be read."""
    return [*read(follower, number), *read_to_end(follower)]


def tail_to_end(tail: Tail) -> list[Placed]:
    """Return all events of all jobs that can be read now."""
    deadline, ends, events = Deadline.after(LIMIT_S), tail.offsets(), list[Placed]()
    while any(position < ends[number].stop for number, position in tail.positions().items()):
        assert not deadline.passed, f"the reader stands at {tail.positions()}"
        events += tail.poll(100, deadline.left_s)
    return events


def tail_until(tail: Tail, job: JobId) -> Recorded:
    """Wait for an event of a job, and return it."""
    deadline = Deadline.after(LIMIT_S)
    while not deadline.passed:
        for placed in tail.poll(100, deadline.left_s):
            if placed.recorded.event.job == job:
                return placed.recorded
    raise AssertionError(f"no event of {job} came in time")


def same_partition(job: JobId, partitions: int) -> JobId:
    """Return another job that shares the partition of the first one."""
    others = (JobId(f"{job}-{number}") for number in count())
    return next(o for o in others if partition_of(o, partitions) == partition_of(job, partitions))


def standing(log: EventLog, job: JobId | None) -> dict[str, bytes]:
    return log.read_state(job, Deadline.after(LIMIT_S))


def assert_stands(log: EventLog, job: JobId | None, expected: dict[str, bytes]) -> None:
    """Wait for the expected state: a commit is confirmed a moment before its records can be
    read."""
    deadline = Deadline.after(LIMIT_S)
    while standing(log, job) != expected and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.01)
    assert expected == standing(log, job)


class EventLogBasics:
    PARTITIONS = 4
    """The partitions of the log, by which the suite knows jobs that share one."""
    RETENTION_MS = 3_600_000
    """The time for which the log keeps events."""
    TELLS_TIME = True
    """False for a log that does not say when it took an event."""

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
            recorded = read(follower, 1)
        recorded += [r for r in log.read_all(Deadline.after(LIMIT_S)) if r.event.job == job]
        there_ms = SYSTEM_CLOCK.now_ms() if self.TELLS_TIME else 0
        assert [abs(r.at_ms - there_ms) < 60_000 for r in recorded] == [True, True]

    def test_a_follower_starts_at_a_position(self, log: EventLog, job: JobId) -> None:
        """A follower from an offset sees the event there and all later ones, and no earlier one."""
        offsets = [append(log, fact(job, f"f{n}")) for n in range(3)]
        with closing(log.follow(job, offsets[1])) as follower:
            assert names(read(follower, 2)) == ["f1", "f2"]
            assert offsets[2] + 1 == follower.position()

    def test_poll_respects_its_limit(self, log: EventLog, job: JobId) -> None:
        """`poll` gives at most `limit` events, and the next call continues after them."""
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
            log.append(oversized(fact(job, "huge")))
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
            for each in jobs:
                append(log, fact(each, name))
        events = [r.event for r in log.read_all(Deadline.after(LIMIT_S))]
        for each in jobs:
            assert [event.id for event in events if event.job == each] == ["a", "b"]

    def test_a_tail_goes_on_with_every_job(self, log: EventLog, job: JobId) -> None:
        """`tail` gives the events of every job, each job's in order, and the new ones as they
        come."""
        jobs = [JobId(f"{job}-{n}") for n in range(6)]
        with closing(log.tail()) as tail:
            for name in ("a", "b"):
                for each in jobs:
                    append(log, fact(each, name))
                placed = tail_to_end(tail)
                for each in jobs:
                    own = [it for it in placed if it.recorded.event.job == each]
                    assert [name] == names([it.recorded for it in own])
                    assert {log.partition(each)} == {it.partition for it in own}
            assert tail_to_end(tail) == []

    def test_a_tail_leaves_out_what_is_known(self, log: EventLog, job: JobId) -> None:
        """Only the registrations of results come again of the events that are known."""
        registered = ResultRegistered(ResultId("r"), 1, 1, "", "")
        append(log, fact(job, "known"))
        append(log, Event("registration", job, "", 0, "test", None, registered))
        position = append(log, fact(job, "new"))
        with closing(log.tail({job: position})) as tail:
            placed = [it.recorded for it in tail_to_end(tail)]
        assert ["registration", "new"] == names([it for it in placed if it.event.job == job])

    def test_prepare_may_be_repeated(self, log: EventLog) -> None:
        """Preparing an existing log with the same settings succeeds and changes nothing."""
        log.prepare(Deadline.after(LIMIT_S))

    def test_the_log_says_how_long_it_keeps_events(self, log: EventLog) -> None:
        """The log's retention is the one that the subclass names."""
        assert log.retention_ms(Deadline.after(LIMIT_S)) == self.RETENTION_MS

    def test_the_log_has_one_identity(self, log: EventLog, job: JobId) -> None:
        """The log's identity does not change when events are written. A snapshot names the log that
        it is of by this identity."""
        before = log.identity(Deadline.after(LIMIT_S))
        log.append(fact(job, "f")).offset(Deadline.after(LIMIT_S))
        assert before == log.identity(Deadline.after(LIMIT_S))

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
        for each in (job, *others):
            assert partition_of(each, self.PARTITIONS) == log.partition(each)
            with closing(log.open_decisions(each)) as decisions:
                self.keep(decisions, {each: each.encode(), f"{each}/r": b"r"})
        for each in (job, *others):
            assert_stands(log, each, {each: each.encode(), f"{each}/r": b"r"})
        everything = standing(log, None)
        assert {each: each.encode() for each in (job, *others)}.items() <= everything.items()

    def test_a_job_begins_behind_what_others_did(self, log: EventLog, job: JobId) -> None:
        """`begin` stores a start position after other jobs' events, once, and the job's log is read
        from there."""
        other = same_partition(job, self.PARTITIONS)
        last = [append(log, fact(other, f"fact {n}")) for n in range(20)][-1]
        begin(log, job, Deadline.after(LIMIT_S))
        first = append(log, fact(job, "first"))
        begin(log, job, Deadline.after(LIMIT_S))
        for start in (None, 0):
            deadline = Deadline.after(LIMIT_S)
            with closing(take_up(log, job, deadline, start).follower) as follower:
                assert last < follower.position() <= first
                assert names(read(follower, 1)) == ["first"]
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
        assert log.read_beats(job, Deadline.after(LIMIT_S)) == {}
        before = SYSTEM_CLOCK.now_ms()
        for each in (job, *others):
            log.beat(each)
        first = self.heard(log, job, before - 1_000)
        SYSTEM_CLOCK.sleep_s(0.005)
        log.beat(job)
        assert abs(self.heard(log, job, first) - SYSTEM_CLOCK.now_ms()) < 5_000
        for each in others:
            assert self.heard(log, each, 0) > 0
        assert {job, *others} <= log.read_beats(None, Deadline.after(LIMIT_S)).keys()

    @staticmethod
    def heard(log: EventLog, job: JobId, after_ms: int) -> int:
        """Wait for a heartbeat of the job after `after_ms`, and return its time."""
        deadline = Deadline.after(LIMIT_S)
        while (beats := log.read_beats(job, deadline)).get(job, 0) <= after_ms:
            assert beats.keys() <= {job}
            assert not deadline.passed, "the beat is heard"
            SYSTEM_CLOCK.sleep_s(0.01)
        return beats[job]

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
