"""The suite of event logs on every implementation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Fenced, Invalid, Lost, Unavailable
from headgate.control.ids import JobId
from headgate.control.kafka import state as kafka_state
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import Decisions, EventLog, StateRecord, partition_of
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Snapshot
from headgate.control.model.state import JobState
from headgate.control.snapshots import records
from headgate.control.snapshots.records import Standing, keep_all
from headgate.infra.devstack import stack
from headgate.infra.embedded import EmbeddedStack, start_embedded
from headgate.testing.event_log_basics import (
    LIMIT_S,
    EventLogBasics,
    append,
    decision,
    fact,
    tail_until,
)
from headgate.testing.event_log_suite import EventLogSuite


def produce_garbage(
    settings: KafkaSettings, place: TopicPartition, key: str | None, record: bytes
) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap})
    producer.produce(place.topic, record, key, partition=place.partition)
    assert producer.flush(LIMIT_S) == 0


def place_of(log: KafkaEventLog, job: JobId, partitions: int) -> TopicPartition:
    return TopicPartition(log.settings.events_topic, partition_of(job, partitions))


@pytest.fixture(scope="module")
def settings() -> Iterator[KafkaSettings]:
    """Return settings for a log of this run on the real stack, whose topics are deleted at the
    end."""
    state = stack.status()
    assert state is not None, "no real stack runs: start one first"
    prefix, topic = f"test-{SYSTEM_CLOCK.now_ms()}", TopicSettings(4, 1, 3_600_000)
    made = KafkaSettings(state.bootstrap, prefix, topic, LIMIT_S)
    yield made
    admin = AdminClient({"bootstrap.servers": state.bootstrap})
    for deleted in admin.delete_topics([topic.name for topic in made.topics]).values():
        deleted.result(LIMIT_S)


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedStack]:
    with start_embedded() as running:
        yield running


class TestMemoryEventLog(EventLogSuite):
    @pytest.fixture
    def log(self) -> EventLog:
        return MemoryEventLog(self.PARTITIONS, retention_ms=self.RETENTION_MS)

    def put_garbage(self, log: EventLog, job: JobId, header: str | None, record: bytes) -> None:
        assert isinstance(log, MemoryEventLog)
        log.put_record(job, header, record)

    def expire(self, log: EventLog, job: JobId, before: int) -> None:
        assert isinstance(log, MemoryEventLog)
        log.expire(job, before)


class KafkaFaults:
    """The damage that tests do to Kafka without going through the port."""

    PARTITIONS = 4

    def put_garbage(self, log: EventLog, job: JobId, header: str | None, record: bytes) -> None:
        assert isinstance(log, KafkaEventLog)
        place = place_of(log, job, self.PARTITIONS)
        produce_garbage(log.settings, place, header, record)

    def test_state_under_no_key_of_ours_is_skipped(
        self, log: EventLog, job: JobId, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Foreign records, and records in another partition than their job's, belong to no job.
        Otherwise a master would take them for damaged snapshots and read the whole log again."""
        assert isinstance(log, KafkaEventLog)
        settings, known = log.settings, log.read_state(None, Deadline.after(LIMIT_S))
        place = place_of(log, job, self.PARTITIONS)
        elsewhere = TopicPartition(settings.state_topic, (place.partition + 1) % self.PARTITIONS)
        for key in (None, "", "/x", "two words", str(job), f"{job}/r"):
            produce_garbage(settings, elsewhere, key, b"garbage")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert known == log.read_state(None, Deadline.after(LIMIT_S))
        assert [f"{settings.state_topic}[{elsewhere.partition}]"] == [
            record.getMessage().split()[0] for record in caplog.records
        ]

    def test_a_beat_is_read_once(
        self, log: EventLog, job: JobId, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each heartbeat is read once, however often it is asked for, so that drivers do not all
        read each other's."""
        read: list[int | None] = []
        to_end = kafka_state._to_end

        def watched(*asked: Any) -> Iterator[Message]:
            for message in to_end(*asked):
                read.append(message.offset())
                yield message

        monkeypatch.setattr(kafka_state, "_to_end", watched)
        for _ in range(5):
            log.beat(job).offset(Deadline.after(LIMIT_S))
            while job not in log.read_beats(job, Deadline.after(LIMIT_S)):
                pass
        assert len(set(read)) == len(read)


@pytest.mark.real
class TestKafkaEventLog(KafkaFaults, EventLogSuite):
    @pytest.fixture
    def log(self, settings: KafkaSettings) -> Iterator[EventLog]:
        log = KafkaEventLog(settings)
        log.prepare(Deadline.after(LIMIT_S))
        yield log
        log.close()

    def expire(self, log: EventLog, job: JobId, before: int) -> None:
        assert isinstance(log, KafkaEventLog)
        place = place_of(log, job, self.PARTITIONS)
        place.offset = before
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        for answer in admin.delete_records([place]).values():
            answer.result(LIMIT_S)

    def await_stall(self, log: EventLog, job: JobId, decisions_first: int) -> None:
        """Wait until the broker has the step's record, so that a later fact lies behind it."""
        assert isinstance(log, KafkaEventLog)
        admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
        place = place_of(log, job, self.PARTITIONS)
        deadline = Deadline.after(LIMIT_S)
        while self.written(admin, place) <= decisions_first:
            assert not deadline.passed, "the open step's record never came"

    @staticmethod
    def written(admin: AdminClient, place: TopicPartition) -> int:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return int(admin.list_offsets({place: latest})[place].result(LIMIT_S).offset)

    def test_a_tail_is_lost_with_its_events(
        self, log: EventLog, job: JobId, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tail whose next events the log has forgotten says so at each call."""
        assert isinstance(log, KafkaEventLog)
        at = append(log, fact(job, "gone"))
        self.expire(log, job, at + 1)
        clients, offsets = log._clients, log._clients.offsets
        monkeypatch.setattr(clients, "offsets", lambda places: [range(at)] * len(places))
        with closing(log.tail()) as tail:
            monkeypatch.setattr(clients, "offsets", offsets)
            for _ in range(2):
                with pytest.raises(Lost, match="no longer holds offset 0"):
                    tail_until(tail, JobId("never"))

    def test_a_topic_made_anew_is_another_log(self, settings: KafkaSettings) -> None:
        """A topic that was deleted and made again has another identity, so that old snapshots do
        not count."""
        admin, topic = AdminClient({"bootstrap.servers": settings.bootstrap}), settings.events_topic
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            before = log.identity(Deadline.after(LIMIT_S))
            admin.delete_topics([topic])[topic].result(LIMIT_S)
            log.prepare(Deadline.after(LIMIT_S))
            after = log.identity(Deadline.after(LIMIT_S))
        assert "" not in (before, after)
        assert before != after

    def test_other_settings_of_the_topic_are_reported(self, settings: KafkaSettings) -> None:
        """A topic with other settings is `Invalid`, and the error names each setting with both
        values."""
        KafkaEventLog(settings).prepare(Deadline.after(LIMIT_S))
        other = TopicSettings(6, 1, 7_200_000)
        log = KafkaEventLog(KafkaSettings(settings.bootstrap, settings.topic_prefix, other))
        with pytest.raises(Invalid) as caught:
            log.prepare(Deadline.after(LIMIT_S))
        assert "partitions is 4, not 6" in str(caught.value)
        assert "retention.ms is 3600000, not 7200000" in str(caught.value)

    def test_a_topic_that_forgets_by_size_is_refused(self, settings: KafkaSettings) -> None:
        """A topic with retention by size is refused, because other jobs' events would push out a
        job's own."""
        by_hand = replace(settings, topic_prefix=f"{settings.topic_prefix}-forgets")
        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        (events, *_), made = by_hand.topics, settings.topic
        config = {**events.config, "retention.bytes": "1000000"}
        new = NewTopic(events.name, made.partitions, made.replication, config=config)
        admin.create_topics([new])[events.name].result(LIMIT_S)
        with pytest.raises(Invalid, match=r"retention\.bytes is 1000000, not -1"):
            KafkaEventLog(by_hand).prepare(Deadline.after(LIMIT_S))
        admin.delete_topics([events.name])[events.name].result(LIMIT_S)

    def test_an_older_topic_is_taken(
        self, settings: KafkaSettings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A topic whose records have their authors' time is accepted with a warning, and its events
        have no time of the log."""
        by_hand = replace(settings, topic_prefix=f"{settings.topic_prefix}-older")
        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        (events, *_), made = by_hand.topics, settings.topic
        new = NewTopic(events.name, made.partitions, made.replication, config=dict(events.config))
        admin.create_topics([new])[events.name].result(LIMIT_S)
        log = KafkaEventLog(by_hand)
        log.prepare(Deadline.after(LIMIT_S))
        assert "message.timestamp.type is CreateTime, not LogAppendTime" in caplog.text
        append(log, fact(JobId("job"), "fact"))
        assert [0] == [recorded.at_ms for recorded in log.read_all(Deadline.after(LIMIT_S))]
        log.close()
        for deleted in admin.delete_topics([topic.name for topic in by_hand.topics]).values():
            deleted.result(LIMIT_S)

    def test_state_is_compacted(self, settings: KafkaSettings) -> None:
        """A state topic that is not compacted, such as one made by hand, is `Invalid`."""
        KafkaEventLog(settings).prepare(Deadline.after(LIMIT_S))
        prefix = f"{settings.topic_prefix}-by-hand"
        by_hand = replace(settings, topic_prefix=prefix)
        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        created = admin.create_topics([NewTopic(by_hand.state_topic, 4)])
        created[by_hand.state_topic].result(LIMIT_S)
        with pytest.raises(Invalid, match=r"cleanup\.policy is delete, not compact"):
            KafkaEventLog(by_hand).prepare(Deadline.after(LIMIT_S))
        for deleted in admin.delete_topics([topic.name for topic in by_hand.topics]).values():
            deleted.result(LIMIT_S)

    def test_what_state_replaces_goes_soon(
        self, settings: KafkaSettings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The state topic has small segments, and an older topic with large ones gives a warning.

        The broker compacts only closed segments, and every start of a job reads its whole
        partition: a segment of default size holds a week of snapshots, or a gibibyte.
        """
        log = KafkaEventLog(settings)
        log.prepare(Deadline.after(LIMIT_S))
        (*_, state) = settings.topics
        options = log._clients._configured(state.name, Deadline.after(LIMIT_S))
        assert (16 << 20) == int(options["segment.bytes"])
        by_hand = replace(settings, topic_prefix=f"{settings.topic_prefix}-large")
        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        new = NewTopic(by_hand.state_topic, 4, config={"cleanup.policy": "compact"})
        admin.create_topics([new])[by_hand.state_topic].result(LIMIT_S)
        KafkaEventLog(by_hand).prepare(Deadline.after(LIMIT_S))
        assert "segment.bytes is 1073741824, not 16777216" in caplog.text
        for deleted in admin.delete_topics([topic.name for topic in by_hand.topics]).values():
            deleted.result(LIMIT_S)

    def test_an_open_step_hides_no_snapshot_from_a_master(self, log: EventLog, job: JobId) -> None:
        """A master starts at the newest snapshot of its job, also where a step of another job that
        is still open hides the snapshot from other readers."""
        names = (JobId(f"{job}-{number}") for number in range(100))
        other = next(name for name in names if log.partition(name) == log.partition(job))
        with closing(log.open_decisions(other)) as left:
            left.begin()
            self.hide(log, job, left)
            with closing(log.open_decisions(job)) as decisions:
                nothing = Snapshot(JobState(job), (), 0, 0)
                keep_all(decisions, records.write(nothing, Standing())[0], 0)
            assert {} == log.read_state(job, Deadline.after(LIMIT_S))
            end = Timer(1.0, left.close)
            end.start()
            with closing(JobSteps.open(log, Announcer(job, "master"), MasterSettings())) as steps:
                assert {job} == steps._schedule._kept.standing.keys
            end.join()

    def hide(self, log: EventLog, job: JobId, decisions: Decisions) -> None:
        """Let an open step hide all later states of a job's partition."""
        assert isinstance(log, KafkaEventLog)
        (place,) = log._clients.places(log.settings.state_topic, job)
        before, deadline = log._clients.written_offset(place), Deadline.after(LIMIT_S)
        decisions.keep(StateRecord(job, None))
        while log._clients.written_offset(place) == before:
            assert not deadline.passed, "the open step's record never came"

    def test_the_position_is_kept_with_the_decisions(self, log: EventLog, job: JobId) -> None:
        """A commit's position is stored as the offset of a consumer group, where Kafka's own tools
        find it. A commit is confirmed a moment before that."""
        assert isinstance(log, KafkaEventLog)
        decisions = log.open_decisions(job)
        at = append(log, fact(job, "fact"))
        decisions.begin()
        decisions.write(decision(job, "d", at))
        decisions.commit(at + 1)
        decisions.close()
        deadline = Deadline.after(LIMIT_S)
        while (committed := self.committed(log, job)) == [] and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.01)
        assert [at + 1] == committed

    def committed(self, log: KafkaEventLog, job: JobId) -> list[int]:
        settings = log.settings
        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        group = ConsumerGroupTopicPartitions(settings.group(job))
        answer = admin.list_consumer_group_offsets([group])[group.group_id].result(LIMIT_S)
        return [int(place.offset) for place in answer.topic_partitions]

    def test_another_log_fences_quietly(
        self,
        log: EventLog,
        settings: KafkaSettings,
        job: JobId,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """A holder that another log object fences gets `Fenced`, and the client prints nothing to
        stderr."""
        former, other = log.open_decisions(job), KafkaEventLog(settings)
        other.open_decisions(job).close()
        former.begin()
        with pytest.raises(Fenced):
            former.commit(0)
        other.close()
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        "options",
        [
            {"security.protocol": "ssl"},
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "somebody",
                "sasl.password": "hunter2",
            },
        ],
    )
    def test_a_wrong_protocol_is_one_clear_error(
        self, settings: KafkaSettings, options: dict[str, str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A broker with another protocol gives one error in time. It names what was tried, shows no
        secret, and nothing is printed to stderr."""
        log = KafkaEventLog(KafkaSettings(settings.bootstrap, options=options))
        before = SYSTEM_CLOCK.monotonic_s()
        with pytest.raises((Invalid, Unavailable)) as caught:
            log.prepare(Deadline.after(3.0))
        assert SYSTEM_CLOCK.monotonic_s() - before < 15.0
        assert settings.bootstrap in str(caught.value)
        assert options["security.protocol"].upper() in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert capfd.readouterr() == ("", "")


class TestEmbeddedEventLog(KafkaFaults, EventLogBasics):
    TELLS_TIME = False

    @pytest.fixture
    def log(self, embedded: EmbeddedStack) -> Iterator[EventLog]:
        topic = TopicSettings(retention_ms=self.RETENTION_MS)
        log = KafkaEventLog(KafkaSettings(embedded.bootstrap, topic=topic, embedded=True))
        log.prepare(Deadline.after(LIMIT_S))
        yield log
        log.close()
