"""The groups of masters against the suite of their port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.ids import JobId
from headgate.control.kafka import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import EventLog, partition_of
from headgate.control.memory import MemoryEventLog
from headgate.infra import stack

from .event_log_suite import LIMIT_S
from .master_group_suite import MasterGroupSuite

# Both at the broker's least: who does not poll for so long is given up.
SESSION = {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}


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
        """A topic and a group of this test alone."""
        found = stack.status()
        assert found is not None, "no real stack runs: start one first"
        prefix, topic = (
            f"test-{SYSTEM_CLOCK.now_ms()}",
            TopicSettings(self.PARTITIONS, 1, 3_600_000),
        )
        settings = KafkaSettings(found.bootstrap, prefix, topic, LIMIT_S, SESSION)
        log = KafkaEventLog(settings)
        log.prepare(Deadline.after(LIMIT_S))
        yield log
        log.close()
        admin = AdminClient({"bootstrap.servers": found.bootstrap})
        for deleted in admin.delete_topics([one.name for one in settings.topics]).values():
            deleted.result(LIMIT_S)

    def evict(self, log: EventLog, slot: str) -> None:
        """Nothing to do: who does not poll leaves, after a while."""

    def await_written(self, log: EventLog, job: JobId, beyond: int) -> None:
        assert isinstance(log, KafkaEventLog)
        admin = AdminClient({"bootstrap.servers": log._settings.bootstrap})
        place = TopicPartition(log._settings.events_topic, partition_of(job, self.PARTITIONS))
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        deadline = Deadline.after(LIMIT_S)
        while admin.list_offsets({place: latest})[place].result(LIMIT_S).offset <= beyond:
            assert not deadline.passed, "the open step's record never came"
