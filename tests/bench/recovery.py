"""The time in which a master takes up a job of a million events, with and without a snapshot.

One job on one partition of a real broker: exchanges of 1,000 map partitions read by 200 reducers.
Each exchange is released when ten later ones exist. The log is written as a master would have left
it, with a snapshot every 10,000 facts. The time covers everything until the next master may decide:
fencing, reading the state, following the log to its end.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator
from contextlib import closing

from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Deleted,
    Event,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    Recorded,
    Released,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.settings import KafkaSettings, TopicSettings
from headgate.control.log import Receipt
from headgate.control.master.announcer import Announcer
from headgate.control.master.job_steps import JobSteps
from headgate.control.model.replay import Derived, Replay
from headgate.control.snapshots.records import Standing, keep_all
from headgate.control.snapshots.schedule import SnapshotSchedule
from headgate.infra.devstack import stack

MAPS, REDUCERS, ALIVE = 1_000, 200, 10
INDEX_BYTES = 2_400  # the index of 200 subpartitions in an event
LIMIT_S = 600.0
JOB = JobId("recovery")


class Forgetful(KafkaEventLog):
    """A log in which a master finds no snapshot."""

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        return {}


def exchange(number: int, noise: random.Random) -> Iterator[Fact]:
    name = ResultId(f"1-{number:04d}")
    yield ResultRegistered(name, MAPS, REDUCERS, "", "repartition")
    yield PartitionRegistered(name, 0, MAPS)
    for index in range(MAPS):
        attempt = AttemptId(PartitionId(name, index), 1, number * MAPS + index)
        yield AttemptStarted(attempt, "host")
        segment = SegmentSummary(0, 1 << 20, 10_000, 1, noise.randbytes(INDEX_BYTES))
        yield Produced(attempt, (segment,), 1)
    for reducer in range(REDUCERS):
        yield Consumed(name, reducer, 1, reducer, 50_000, 1 << 20, 8)
    if number >= ALIVE:
        yield ReleaseRequested(ResultId(f"1-{number - ALIVE:04d}"), "asked for")


def facts(noise: random.Random) -> Iterator[Fact]:
    yield JobRegistered("per-job", "0", "bench")
    number = 0
    while True:
        yield from exchange(number, noise)
        number += 1


class Scribe:
    """A writer of everything that a driver, its tasks and its master would have written."""

    def __init__(self, log: KafkaEventLog) -> None:
        self._log = log
        self._decisions = log.open_decisions(JOB)
        self._announcer = Announcer(JOB, "bench")
        self._schedule = SnapshotSchedule(MasterSettings(), "", Standing(), 0, 0)
        self._replay = Replay(JOB)
        self._last: Receipt | None = None
        self.events = 0

    def write(self, fact: Fact) -> None:
        derived = self._append(self._announcer.fact(fact))
        for entry in derived:
            self._append(self._announcer.decision(entry))
        for entry in derived:
            if isinstance(entry.decision, Released):
                body = Deleted(entry.decision.result, entry.decision.attempts, MAPS)
                self._append(self._announcer.fact(body))
        snapshot = self._replay.snapshot(self.events)
        if not snapshot.due and self._schedule.is_due(snapshot, 0):
            self._confirm()
            self._schedule.begin(snapshot, 0)
            while self._schedule.is_writing:
                keep_all(self._decisions, self._schedule.step(), self.events)
                self._schedule.kept()

    def close(self) -> None:
        self._confirm()
        self._decisions.close()

    def _append(self, event: Event) -> tuple[Derived, ...]:
        while True:
            try:
                self._last = self._log.append(event)
                break
            except Unavailable:  # the client's queue is full
                self._confirm()
        recorded = Recorded(self.events, event)
        self.events += 1
        self._schedule.observe(recorded)
        return self._replay.observe(recorded)

    def _confirm(self) -> None:
        if self._last is not None:
            assert self._last.offset(Deadline.after(LIMIT_S)) == self.events - 1


def run(events: int) -> Table:
    state = stack.status()
    assert state is not None, "start the stack first: make stack"
    prefix, topic = f"bench-{time.time_ns()}", TopicSettings(1, 1, 86_400_000)
    settings = KafkaSettings(state.bootstrap, prefix, topic)
    table = Table("recovery", "events", "read", "seconds", "state MiB", "results")
    table.title = f"a master takes up a job; load average before {os.getloadavg()[0]:.1f}"
    try:
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            written = fill(log, events)
            for kind in (KafkaEventLog, Forgetful):
                table.add_row(*measured(kind(settings), written))
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([created.name for created in settings.topics]).values():
            deleted.result(LIMIT_S)
    return table


def fill(log: KafkaEventLog, events: int) -> int:
    noise = random.Random(7)
    with closing(Scribe(log)) as scribe:
        for fact in facts(noise):
            scribe.write(fact)
            if scribe.events >= events:
                return scribe.events
    raise AssertionError("facts do not end")


def measured(log: KafkaEventLog, events: int) -> tuple[str, ...]:
    gc.collect()
    with closing(log):
        state_bytes = sum(map(len, log.read_state(JOB, Deadline.after(LIMIT_S)).values()))
        began_s = time.perf_counter()
        with closing(JobSteps.open(log, Announcer(JOB, "next"), MasterSettings())) as steps:
            first = steps._follower.position()
            while (outcome := steps.step(1.0)).state is None:
                pass
        took_s = time.perf_counter() - began_s
    return (
        "from its snapshot" if first else "from the first event",
        f"{events:,}",
        f"{events - first:,}",
        f"{took_s:.1f}",
        f"{state_bytes / (1 << 20):.1f}",
        f"{len(outcome.state.results)}",
    )
