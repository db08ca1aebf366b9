"""The contract of the group of masters in every event log, as tests.

A subclass gives the fixture `log`, and makes the group give up a member in `evict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest

from ..control.clock import SYSTEM_CLOCK, Deadline
from ..control.errors import Closed, Conflict, Fenced, Invalid
from ..control.events.types import Event
from ..control.ids import JobId
from ..control.log import EventLog, Grant, Membership, Placed, StateRecord, partition_of
from .event_log_basics import (
    LIMIT_S,
    QUIET_S,
    SUCCESSION_S_MAX,
    append,
    decision,
    fact,
    names,
    oversized,
    read,
    read_all,
    read_to_end,
)

POLL_S = 0.1


@dataclass
class Member:
    """A member, the grants and revocations that it got, and the events that it has read."""

    log: EventLog
    slot: str
    changes: list[tuple[str, str, int]] = field(default_factory=list)
    read: dict[int, list[Placed]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    grants: dict[int, Grant] = field(default_factory=dict)
    membership: Membership = field(init=False)

    def __post_init__(self) -> None:
        self.membership = self.log.join(self.slot, self)

    def granted(self, grant: Grant) -> int:
        partition = grant.partition
        assert partition not in self.read, "nothing is granted twice"
        self.changes.append(("granted", self.slot, partition))
        self.read[partition] = []
        self.grants[partition] = grant
        return self.starts.get(partition, grant.offsets.start)

    def revoked(self, partition: int) -> None:
        self.changes.append(("revoked", self.slot, partition))
        del self.read[partition]

    def poll(self, limit: int = 100, timeout_s: float = POLL_S) -> list[Placed]:
        events = self.membership.poll(limit, timeout_s)
        for placed in events:
            self.read[placed.partition].append(placed)
        return events

    @property
    def may_decide(self) -> bool:
        """Return True if every partition that the member holds is read to its end."""
        ends = {number: self.membership.end(number) for number in self.read}
        positions = {number: self.membership.position(number) for number in self.read}
        return all(end is not None and end <= positions[number] for number, end in ends.items())

    @property
    def events(self) -> list[str]:
        return [
            placed.recorded.event.id for number in sorted(self.read) for placed in self.read[number]
        ]


def wait_for(done: Callable[[], bool], *members: Member) -> None:
    """Let members poll until a condition is true."""
    deadline = Deadline.after(4 * LIMIT_S)
    while not done():
        assert not deadline.passed, [member.changes for member in members]
        for member in members:
            member.poll()


def holds(member: Member, *partitions: int) -> Callable[[], bool]:
    return lambda: sorted(member.read) == sorted(partitions) and member.may_decide


def commit(member: Member, event: Event, positions: Mapping[int, int]) -> None:
    """Commit a decision. While the group shares its partitions anew, a member that has not heard of
    the end of that is fenced. It drops the step, polls and tries again, as a master does."""
    deadline = Deadline.after(LIMIT_S)
    while True:
        member.membership.begin()
        member.membership.write(event)
        try:
            return member.membership.commit(positions)
        except Fenced:
            assert not deadline.passed, "the member was fenced again and again"
            member.membership.abort()
            member.poll()


class MasterGroupSuite:
    PARTITIONS = 2

    @pytest.fixture
    def log(self) -> EventLog:
        raise NotImplementedError

    @pytest.fixture
    def jobs(self) -> tuple[JobId, JobId]:
        """Return a job in each of the two partitions."""
        names = [JobId(f"job-{number}") for number in range(20)]
        return (
            next(job for job in names if partition_of(job, self.PARTITIONS) == 0),
            next(job for job in names if partition_of(job, self.PARTITIONS) == 1),
        )

    @pytest.fixture
    def opened(self) -> Iterator[ExitStack]:
        with ExitStack() as opened:
            yield opened

    def member(self, opened: ExitStack, log: EventLog, slot: str) -> Member:
        member = Member(log, slot)
        opened.callback(member.membership.close)
        return member

    def evict(self, log: EventLog, slot: str) -> None:
        """Make the group give up a member that does not poll. It may take until others poll."""
        raise NotImplementedError

    def await_written(self, log: EventLog, job: JobId, beyond: int) -> None:
        """Wait until the log holds records of an open step after an offset."""

    def test_a_member_reads_every_job(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """The only member is granted every partition, and reads each from its oldest event."""
        for name in ("a", "b"):
            for job in jobs:
                append(log, fact(job, f"{job} {name}"))
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0, 1), member)
        assert [f"{job} {name}" for job in jobs for name in ("a", "b")] == member.events
        assert [member.membership.position(p) for p in (0, 1)] == [2, 2]
        append(log, fact(jobs[1], "later"))
        wait_for(lambda: "later" in member.events, member)

    def test_poll_respects_its_limit(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """`poll` gives at most `limit` events, and skips none."""
        for number in range(5):
            append(log, fact(jobs[0], f"f{number}"))
        member = self.member(opened, log, "one")
        deadline = Deadline.after(LIMIT_S)
        while len(member.events) < 5:
            assert not deadline.passed
            assert len(member.poll(limit=2)) <= 2
        assert [f"f{number}" for number in range(5)] == member.events

    def test_a_step_spans_partitions(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A step's decisions in several partitions become visible together, or never if it is
        aborted."""
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0, 1), member)
        for name, end in (
            ("dropped", member.membership.abort),
            ("kept", lambda: member.membership.commit({0: 1, 1: 1})),
        ):
            member.membership.begin()
            for job in jobs:
                member.membership.write(decision(job, name))
            for job in jobs:
                with closing(log.follow(job)) as follower:
                    assert follower.poll(10, QUIET_S) == []
            end()
        for job in jobs:
            with closing(log.follow(job)) as follower:
                assert names(read_all(follower, 1)) == ["kept"]

    def test_an_oversized_decision_is_refused(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A decision over the size limit is `Invalid`, and the step may continue without it."""
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0, 1), member)
        member.membership.begin()
        with pytest.raises(Invalid, match="over"):
            member.membership.write(oversized(decision(jobs[0], "huge")))
        member.membership.write(decision(jobs[0], "small"))
        member.membership.commit({0: 0})
        with closing(log.follow(jobs[0])) as follower:
            assert names(read(follower, 1)) == ["small"]

    def test_a_partition_is_taken_up_with_what_stands_there(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A grant carries the state that committed steps kept in this partition, and no other. The
        member then reads from the offset that it answers."""
        for name in ("a", "b", "c"):
            append(log, fact(jobs[0], name))
        former = self.member(opened, log, "one")
        wait_for(holds(former, 0, 1), former)
        assert {n: grant.state for n, grant in former.grants.items()} == {0: {}, 1: {}}
        assert range(0, 3) == former.grants[0].offsets
        for body, end in (
            (b"dropped", former.membership.abort),
            (b"first", lambda: former.membership.commit({0: 3})),
            (b"kept", lambda: former.membership.commit({0: 3})),
        ):
            former.membership.begin()
            former.membership.keep(StateRecord(jobs[0], body))
            former.membership.keep(StateRecord(f"{jobs[1]}/r", body + b" there"))
            end()
        former.membership.close()
        next_one = self.member(opened, log, "one")
        next_one.starts[0] = 2
        wait_for(holds(next_one, 0, 1), next_one)
        assert {jobs[0]: b"kept"} == next_one.grants[0].state
        assert {f"{jobs[1]}/r": b"kept there"} == next_one.grants[1].state
        assert next_one.events == ["c"]
        assert next_one.membership.position(0) >= 3
        append(log, fact(jobs[0], "d"))
        wait_for(lambda: next_one.events == ["c", "d"], next_one)

    def test_partitions_are_shared(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A second member is granted a partition only after it was revoked from the first. The
        first member continues with the partitions that it keeps, and the partitions of a leaving
        member go to the other."""
        for job in jobs:
            append(log, fact(job, f"of {job}"))
        first = self.member(opened, log, "one")
        wait_for(holds(first, 0, 1), first)
        second = Member(log, "two", first.changes)
        both = (first, second)
        wait_for(lambda: [1, 1] == [len(m.read) for m in both] and second.may_decide, *both)
        moved, kept = next(iter(second.read)), next(iter(first.read))
        assert [("revoked", "one", moved), ("granted", "two", moved)] == first.changes[2:]
        assert [f"of {jobs[moved]}"] == second.events
        commit(first, decision(jobs[kept], "still ours"), {kept: 1})
        second.membership.close()
        assert ("revoked", "two", moved) == first.changes[-1]
        wait_for(holds(first, 0, 1), first)
        assert "still ours" in first.events

    def test_the_group_is_seen_from_outside(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A log tells the members, their partitions and how far they have come; who asks does
        not become a member. A step that is open or dropped does not count."""
        append(log, fact(jobs[0], "fact"))
        before = log.group(Deadline.after(LIMIT_S))
        assert ((), {}) == (before.members, before.decided)
        members = [self.member(opened, log, slot) for slot in ("two", "one")]
        wait_for(lambda: all(m.read and m.may_decide for m in members), *members)
        deciding = next(member for member in members if 0 in member.read)
        deciding.membership.begin()
        deciding.membership.write(decision(jobs[0], "decision"))
        assert {} == log.group(Deadline.after(LIMIT_S)).decided
        deciding.membership.abort()
        assert {} == log.group(Deadline.after(LIMIT_S)).decided
        commit(deciding, decision(jobs[0], "decision"), {0: 1})
        deadline = Deadline.after(LIMIT_S)
        while {0: 1} != (group := log.group(deadline)).decided:
            assert not deadline.passed, "the committed position is not seen"
        shares = {member.slot: member.partitions for member in group.members}
        assert ["one", "two"] == list(shares)
        assert {m.slot: tuple(sorted(m.read)) for m in members} == shares
        assert (log.written(jobs[0]), 0) == (group.ends[0], group.ends[1])
        for member in members:
            member.poll()
        assert shares == {member.slot: tuple(sorted(member.read)) for member in members}

    def test_a_paused_member_is_fenced(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """A member that the group has given up commits nothing and gets `Fenced`, and its step
        stays invisible. Its partitions are revoked, and it is granted partitions again."""
        append(log, fact(jobs[0], "fact"))
        paused, other = self.member(opened, log, "one"), self.member(opened, log, "two")
        wait_for(lambda: len(paused.read) == 1 and paused.may_decide, paused, other)
        (partition,) = paused.read
        at = paused.membership.position(partition)
        paused.membership.begin()
        paused.membership.write(decision(jobs[partition], "too late"))
        self.await_written(log, jobs[partition], at)
        self.evict(log, "one")
        wait_for(lambda: len(other.read) == 2, other)
        with pytest.raises(Fenced):
            paused.membership.commit({partition: 1})
        paused.membership.abort()
        wait_for(holds(other, 0, 1), other)
        other.membership.begin()
        other.membership.write(decision(jobs[partition], "in time"))
        other.membership.commit({partition: 1})
        again = self.after_fencing(opened, paused)
        assert ("revoked", "one", partition) in paused.changes
        wait_for(lambda: len(again.read) == 1 and again.may_decide, other, again)
        with closing(log.follow(jobs[partition])) as follower:
            decided = [r.event.id for r in read_to_end(follower) if r.event.basis is not None]
        assert decided == ["in time"]

    def test_a_slot_that_is_joined_again_ends_the_dead_step(
        self, log: EventLog, jobs: tuple[JobId, JobId], opened: ExitStack
    ) -> None:
        """Joining a slot again ends the open step of its dead member, so that no reader waits for
        it. The former member commits nothing, and learns that its slot is taken."""
        former = self.member(opened, log, "one")
        wait_for(holds(former, 0, 1), former)
        with closing(log.follow(jobs[0])) as follower:
            former.membership.begin()
            former.membership.write(decision(jobs[0], "dropped"))
            self.await_written(log, jobs[0], 0)
            append(log, fact(jobs[0], "behind"))
            assert follower.poll(10, QUIET_S) == []
            begun = SYSTEM_CLOCK.monotonic_s()
            again = self.member(opened, log, "one")
            assert names(follower.poll(10, LIMIT_S)) == ["behind"]
            assert SYSTEM_CLOCK.monotonic_s() - begun < SUCCESSION_S_MAX
        wait_for(holds(again, 0, 1), again)
        with pytest.raises(Fenced):
            former.membership.commit({0: 1})
        with pytest.raises(Conflict, match="slot one"):
            self.poll_until_told(former)
        again.membership.begin()
        again.membership.write(decision(jobs[0], "kept"))
        again.membership.commit({0: 3})
        wait_for(lambda: again.events == ["behind", "kept"], again)

    def after_fencing(self, opened: ExitStack, member: Member) -> Member:
        """Poll as a fenced member does, and join again when the group says that the member is
        fenced."""
        before = len(member.changes)
        try:
            wait_for(lambda: len(member.changes) > before, member)
            return member
        except Fenced:
            member.membership.close()
            return self.member(opened, member.log, member.slot)

    @staticmethod
    def poll_until_told(member: Member) -> None:
        deadline = Deadline.after(LIMIT_S)
        while not deadline.passed:
            try:
                member.poll()
            except Fenced:  # this ends the step; a later poll reports the slot
                continue

    def test_a_closed_log_lets_nobody_join(self, log: EventLog) -> None:
        """Joining after `close` raises `Closed`."""
        log.close()
        with pytest.raises(Closed):
            Member(log, "one")
