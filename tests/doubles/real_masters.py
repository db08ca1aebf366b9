"""Jobs on real Kafka, and what is waited for there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Unavailable
from headgate.control.events.types import Recorded
from headgate.control.ids import JobId, ResultId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import StateRecord
from headgate.infra.devstack import stack

from ..link import Link
from .loads import steady

PARTITIONS = 2
LIMIT_S = 30.0


def wait_for(done: Callable[[], bool], what: str) -> None:
    deadline = Deadline.after(LIMIT_S)
    while not done():
        assert not deadline.passed, what
        SYSTEM_CLOCK.sleep_s(0.05)


@dataclass
class Context:
    job_id: JobId
    application: str = "tests"

    def on_fatal_error(self, error: BaseException) -> None:
        raise AssertionError(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        """Do nothing: nothing is lost here."""


@contextmanager
def prepared_log() -> Iterator[KafkaEventLog]:
    """Prepare topics and a group, and delete the topics afterwards."""
    state = stack.status()
    assert state is not None, "`make stack` starts it"
    prefix = f"test-masters-{os.urandom(4).hex()}"
    settings = KafkaSettings(state.bootstrap, prefix, TopicSettings(PARTITIONS, 1, 3_600_000))
    with closing(KafkaEventLog(settings)) as log:
        log.prepare(Deadline.after(LIMIT_S))
        yield log
    admin = AdminClient({"bootstrap.servers": state.bootstrap})
    for deleted in admin.delete_topics([topic.name for topic in settings.topics]).values():
        deleted.result(LIMIT_S)


@pytest.fixture
def log() -> Iterator[KafkaEventLog]:
    """Return a log for one test."""
    with prepared_log() as log:
        yield log


def events_of(log: KafkaEventLog, job: JobId) -> list[Recorded]:
    return [r for r in log.read_all(Deadline.after(LIMIT_S)) if r.event.job == job]


def hurry(transactions: object) -> None:
    """Let the calls of an open holder of transactions wait for a short time only."""
    vars(transactions)["_deadline"] = lambda: Deadline.after(0.3)


def give_up_steps(settings: KafkaSettings, link: Link) -> None:
    """Lose the broker inside of several steps, and assert that none leaves anything behind, though
    their errors are kept."""
    errors = []
    with closing(KafkaEventLog(settings)) as log:

        def give_up(job: str) -> None:
            decisions = log.open_decisions(JobId(job))
            hurry(decisions)
            decisions.begin()
            link.cut()
            decisions.keep(StateRecord(job, b"unsent"))
            with pytest.raises(Unavailable) as caught:
                decisions.commit(0)
            errors.append(caught.value)
            link.mend()
            decisions.close()

        give_up("first")
        with steady():
            for number in range(5):
                give_up(f"job-{number}")
