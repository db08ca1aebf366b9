"""The suite of master groups on every event log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from threading import Event
from typing import TypeAlias

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from headgate.control.clock import SYSTEM_CLOCK, Deadline, ProgressDeadline
from headgate.control.errors import HeadgateError, Invalid, Unavailable
from headgate.control.ids import JobId
from headgate.control.kafka.clients import KafkaClients
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.kafka.membership import KafkaMembership
from headgate.control.kafka.records import Place
from headgate.control.log import EventLog, Grant, StateRecord, partition_of
from headgate.control.memory.log import MemoryEventLog
from headgate.infra.devstack import stack
from headgate.testing.event_log_basics import LIMIT_S, append, decision, fact
from headgate.testing.master_group_suite import MasterGroupSuite, Member, commit, holds, wait_for

# The broker's minimum for both: a member that does not poll for that long is given up.
OPEN_S = 5.0
SESSION = {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}

Jobs: TypeAlias = tuple[JobId, JobId]


class Slow(Member):
    """A member whose steps the broker leaves open for a minute."""

    def __post_init__(self) -> None:
        assert isinstance(self.log, KafkaEventLog)
        self.membership = KafkaMembership(self.slot, self, self.log._clients, 60_000)


class TestMemoryMasterGroup(MasterGroupSuite):
    @pytest.fixture
    def log(self) -> EventLog:
        return MemoryEventLog(self.PARTITIONS)

    def evict(self, log: EventLog, slot: str) -> None:
        assert isinstance(log, MemoryEventLog)
        log.evict(slot)


@pytest.mark.real
class TestKafkaMasterGroup(MasterGroupSuite):
    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        """Prepare a topic and a group for one test, and delete the topics afterwards."""
        state = stack.status()
        assert state is not None, "no real stack runs: start one first"
        prefix, topic = (
            f"test-{SYSTEM_CLOCK.now_ms()}",
            TopicSettings(self.PARTITIONS, 1, 3_600_000),
        )
        settings = KafkaSettings(state.bootstrap, prefix, topic, LIMIT_S, options=SESSION)
        log = KafkaEventLog(settings)
        log.prepare(Deadline.after(LIMIT_S))
        yield log
        log.close()
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([created.name for created in settings.topics]).values():
            deleted.result(LIMIT_S)

    def evict(self, log: EventLog, slot: str) -> None:
        """Do nothing: a member that does not poll leaves after a while."""

    def await_written(self, log: EventLog, job: JobId, beyond: int) -> None:
        assert isinstance(log, KafkaEventLog)
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        place = TopicPartition(log.settings.events_topic, partition_of(job, self.PARTITIONS))
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        deadline = Deadline.after(LIMIT_S)
        while admin.list_offsets({place: latest})[place].result(LIMIT_S).offset <= beyond:
            assert not deadline.passed, "the open step's record never came"

    def await_assigned(self, log: EventLog) -> None:
        """Wait until the group's only member, which does not poll, is assigned all partitions."""
        assert isinstance(log, KafkaEventLog)
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        name, deadline = log.settings.masters_group, Deadline.after(LIMIT_S)
        assigned = 0
        while assigned < self.PARTITIONS:
            assert not deadline.passed, "the group never assigned its partitions"
            group = admin.describe_consumer_groups([name])[name].result(LIMIT_S)
            assigned = sum(len(member.assignment.topic_partitions) for member in group.members)

    def test_a_member_ends_whatever_the_group_has_said(
        self, log: EventLog, opened: ExitStack
    ) -> None:
        """A member that closes answers every assignment and revocation that it has not read yet. It
        never hangs, and its granted partitions are revoked."""
        unread = self.member(opened, log, "unread")
        self.await_assigned(log)
        away = self.member(opened, log, "away")
        wait_for(lambda: len(away.read) == 2, away)
        SYSTEM_CLOCK.sleep_s(float(SESSION["max.poll.interval.ms"]) / 1000 + 1)
        opened.close()
        assert [{}, {}] == [unread.read, away.read]
        assert [] == unread.changes
        assert {"granted", "revoked"} == {what for what, *_ in away.changes}

    def test_a_partition_that_is_away_holds_up_no_other(
        self, log: EventLog, jobs: Jobs, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A partition without a leader is taken up when it is back; meanwhile the member reads and
        decides for the others."""
        written_offset = KafkaClients.written_offset
        away, tries = Event(), list[Place]()
        away.set()

        def asked(self: KafkaClients, place: Place) -> int:
            if place.partition == 1 and away.is_set():
                tries.append(place)
                raise Unavailable("the partition has no leader")
            return written_offset(self, place)

        monkeypatch.setattr(KafkaClients, "written_offset", asked)
        for job in jobs:
            append(log, fact(job, f"{job}"))
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0), member)
        member.membership.begin()
        member.membership.write(decision(jobs[0], "taken"))
        member.membership.commit({0: 1})
        wait_for(lambda: len(member.read[0]) == 2 and len(tries) > 2, member)
        away.clear()
        wait_for(holds(member, 0, 1), member)
        assert jobs[1] in member.events
        append(log, fact(jobs[1], "later"))
        wait_for(lambda: "later" in member.events, member)
        opened.close()
        assert {} == member.read

    def test_a_partition_is_decided_while_another_is_taken_up(
        self, log: EventLog, jobs: Jobs, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A member decides for each partition as soon as its state is read."""
        grant, may_grant = KafkaMembership._grant, Event()

        def granted(self: KafkaMembership, number: int, deadline: ProgressDeadline) -> Grant:
            assert number == 0 or may_grant.wait(LIMIT_S)
            return grant(self, number, deadline)

        monkeypatch.setattr(KafkaMembership, "_grant", granted)
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0), member)
        commit(member, decision(jobs[0], "taken"), {0: member.membership.position(0)})
        may_grant.set()
        wait_for(holds(member, 0, 1), member)
        wait_for(lambda: bool(member.events), member)
        assert ["taken"] == member.events

    def test_a_decision_of_its_own_is_not_decoded(
        self, log: EventLog, jobs: Jobs, opened: ExitStack
    ) -> None:
        """A member reads back the very event that it wrote, even behind an aborted step."""
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0, 1), member)
        dropped, taken = decision(jobs[0], "dropped"), decision(jobs[0], "taken")
        member.membership.begin()
        member.membership.write(dropped)
        member.membership.abort()
        member.membership.begin()
        member.membership.write(taken)
        member.membership.commit({0: member.membership.position(0)})
        wait_for(lambda: len(member.read[0]) == 1, member)
        assert taken is member.read[0][0].recorded.event

    def test_a_record_larger_than_its_topic_takes_is_refused(
        self, log: EventLog, jobs: Jobs, opened: ExitStack
    ) -> None:
        """A step with a record that is too large is `Invalid`, and at most one more step is
        `Unavailable`, because the client has left a gap in its sequence. Later steps work."""
        assert isinstance(log, KafkaEventLog)
        self.limit(log, 1_000)
        member = self.member(opened, log, "one")
        wait_for(holds(member, 0, 1), member)
        self.keep(member, jobs[0], 5_000, Invalid)
        self.keep(member, jobs[0], 400, Unavailable)
        self.keep(member, jobs[0], 500)
        assert {jobs[0]: bytes(500)} == log.read_state(jobs[0], Deadline.after(LIMIT_S))

    @staticmethod
    def keep(member: Member, job: JobId, size: int, *errors: type[HeadgateError]) -> None:
        """Commit one state record, which may end with one of these errors."""
        member.membership.begin()
        with suppress(*errors):
            member.membership.keep(StateRecord(job, bytes(size)))
            member.membership.commit({0: member.membership.position(0)})
            assert Invalid not in errors, "a record that is too large was taken"
        member.membership.abort()

    def limit(self, log: KafkaEventLog, record_bytes: int) -> None:
        """Limit the record size of the state topic."""
        resource = ConfigResource(
            ResourceType.TOPIC,
            log.settings.state_topic,
            incremental_configs=[
                ConfigEntry(
                    "max.message.bytes",
                    str(record_bytes),
                    incremental_operation=AlterConfigOpType.SET,
                )
            ],
        )
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)

    def test_a_step_that_may_still_commit_is_waited_for(
        self, log: EventLog, jobs: Jobs, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the group gives a member up within its commit, the next holder is granted the
        partition only after that step has ended, with all that the step has kept, and decides when
        its decisions are read."""
        for job in jobs:
            append(log, fact(job, "fact"))
        slow = Slow(log, "one")
        opened.callback(slow.membership.close)
        other = self.member(opened, log, "two")
        wait_for(lambda: len(slow.read) == 1 and slow.may_decide, slow, other)
        (partition,) = slow.read
        with monkeypatch.context() as paused:
            paused.setattr(KafkaMembership, "_end", lambda *_: None)
            slow.membership.begin()
            slow.membership.write(decision(jobs[partition], "taken"))
            slow.membership.commit({partition: 1})
        assert isinstance(slow.membership, KafkaMembership)
        assert isinstance(other.membership, KafkaMembership)
        later = other.membership._later
        wait_for(lambda: partition in later, other)  # it is assigned
        deadline = Deadline.after(OPEN_S)
        while not deadline.passed:
            other.poll()
            assert partition not in other.read
        slow.membership.keep(StateRecord(jobs[partition], b"kept"))
        slow.membership._end(Deadline.after(LIMIT_S))
        wait_for(holds(other, 0, 1), other)
        assert "taken" in other.events
        assert {jobs[partition]: b"kept"} == other.grants[partition].state

    def test_an_open_step_hides_no_state_from_the_next_holder(
        self, log: EventLog, jobs: Jobs, opened: ExitStack
    ) -> None:
        """A driver has left a step open in the topic of states. Records that a master has kept
        behind it are in the grant of the next master, which waits for the end of that step."""
        assert isinstance(log, KafkaEventLog)
        first = self.member(opened, log, "one")
        wait_for(holds(first, 0, 1), first)
        names = (JobId(f"driver-{number}") for number in range(20))
        driver = next(job for job in names if log.partition(job) == 0)
        state, deadline = Place(log.settings.state_topic, 0), Deadline.after(LIMIT_S)
        with closing(log.open_decisions(driver)) as decisions:
            before = log._clients.written_offset(state)
            decisions.begin()
            decisions.keep(StateRecord(driver, b"open"))
            while log._clients.written_offset(state) == before:
                assert not deadline.passed, "the open step's record never came"
            self.keep(first, jobs[0], 400)
            first.membership.close()
            second = self.member(opened, log, "one")
            wait_for(lambda: 1 in second.read, second)
        wait_for(holds(second, 0, 1), second)
        assert {jobs[0]: bytes(400)} == second.grants[0].state

    def test_more_partitions_change_no_job(
        self, log: EventLog, jobs: Jobs, opened: ExitStack, caplog: pytest.LogCaptureFixture
    ) -> None:
        """When the topic of events gets more partitions, the jobs stay where they are. Once all
        topics have more, a master says what was changed, and decides nothing in a wrong place. One
        such event may be a mistake, or hostile: it stops neither the master nor other jobs."""
        assert isinstance(log, KafkaEventLog)
        self.grow(log, log.settings.events_topic)
        append(log, fact(jobs[0], "fact"))
        second = opened.enter_context(closing(KafkaEventLog(log.settings)))
        member = self.member(opened, second, "one")
        wait_for(holds(member, 0, 1), member)
        commit(member, decision(jobs[0], "taken"), {0: member.membership.position(0)})
        wait_for(lambda: member.events == ["fact", "taken"], member)

        self.grow(log, log.settings.state_topic)
        self.grow(log, log.settings.heartbeats_topic)
        third = opened.enter_context(closing(KafkaEventLog(log.settings)))
        names = (JobId(f"moved-{number}") for number in range(20))
        moved = next(job for job in names if log.partition(job) != third.partition(job))
        stays = next(job for job in names if log.partition(job) == third.partition(job))
        append(log, fact(moved, "misplaced"))
        append(log, fact(moved, "misplaced"))
        late = self.member(opened, third, "two")
        append(third, fact(stays, "in its place"))
        wait_for(lambda: "in its place" in (*member.events, *late.events), member, late)
        wait_for(lambda: late.membership.rejected > 1, member, late)
        assert "misplaced" not in late.events
        lines = [line for line in caplog.messages if f"an event of job {moved}" in line]
        assert 1 == len(lines)
        assert "the number of partitions" in lines[0]

    def grow(self, log: KafkaEventLog, topic: str) -> None:
        """Give a topic twice as many partitions."""
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        more = NewPartitions(topic, 2 * self.PARTITIONS)
        admin.create_partitions([more])[topic].result(LIMIT_S)
        deadline = Deadline.after(LIMIT_S)
        while len(admin.list_topics(topic, LIMIT_S).topics[topic].partitions) == self.PARTITIONS:
            assert not deadline.passed, "the topic did not grow"
            deadline.pause()
