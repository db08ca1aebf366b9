"""The time in which a master takes up a job of a million events, with and without a snapshot, and
the time in which a session master takes up jobs that have ended.

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
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count

from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Deleted,
    Event,
    Fact,
    JobRegistered,
    JobUnregistered,
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
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.master.job_steps import JobSteps
from headgate.control.model.replay import Derived, Replay
from headgate.control.snapshots.records import Standing, keep_all, write
from headgate.control.snapshots.schedule import SnapshotSchedule
from headgate.infra.devstack import stack

from ..doubles.loads import load_of

MAPS, REDUCERS, ALIVE, PARTITIONS = 1_000, 200, 10, 16
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


@contextmanager
def topics(partitions: int) -> Iterator[KafkaSettings]:
    state = stack.status()
    assert state is not None, "start the stack first: make stack"
    prefix, topic = f"bench-{time.time_ns()}", TopicSettings(partitions, 1, 86_400_000)
    settings = KafkaSettings(state.bootstrap, prefix, topic)
    try:
        yield settings
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([created.name for created in settings.topics]).values():
            deleted.result(LIMIT_S)


def run(events: int) -> Table:
    table = Table("recovery", "events", "read", "seconds", "state MiB", "results")
    table.title = f"a master takes up a job; load average before {os.getloadavg()[0]:.1f}"
    with topics(1) as settings, closing(KafkaEventLog(settings)) as log:
        log.prepare(Deadline.after(LIMIT_S))
        written = fill(log, events)
        for kind in (KafkaEventLog, Forgetful):
            table.add_row(*measured(kind(settings), written))
    return table


def ended(jobs: int) -> Table:
    """Measure until a master decides for the first partition, and for all."""
    table = Table("ended jobs", "state MiB", "first s", "all s", "CPU s", "MiB more")
    load = os.getloadavg()[0]
    table.title = f"a master takes up ended jobs of ten exchanges; load average before {load:.1f}"
    with topics(PARTITIONS) as settings, closing(KafkaEventLog(settings)) as log:
        log.prepare(Deadline.after(LIMIT_S))
        state_bytes = bury(log, jobs)
        gc.collect()
        before, cpu_s, began_s = load_of(os.getpid()), time.process_time(), time.perf_counter()
        me, took_s = MasterIdentity("one", "bench", SYSTEM_CLOCK, ""), list[float]()
        with closing(GroupSteps(log, me, MasterSettings())) as steps:
            while len(took_s) < PARTITIONS:
                steps.step(0.1)
                decided = sum(partition.recovered for partition in steps._held.values())
                took_s += [time.perf_counter() - began_s] * (decided - len(took_s))
            cpu_s, after = time.process_time() - cpu_s, load_of(os.getpid())
        mib = after.mib - before.mib if before and after else 0.0
    table.add_row(
        f"{jobs:,}",
        f"{state_bytes / (1 << 20):.1f}",
        *(f"{figure:.1f}" for figure in (took_s[0], took_s[-1], cpu_s, mib)),
    )
    return table


def bury(log: KafkaEventLog, jobs: int) -> int:
    """Write the last snapshots of jobs, and one event to each partition. Return their bytes."""
    receipts, numbers = dict[int, Receipt](), count()
    while len(receipts) < PARTITIONS:
        alive = JobId(f"alive-{next(numbers)}")
        if log.partition(alive) not in receipts:
            registered = JobRegistered("per-job", "0", "bench")
            receipts[log.partition(alive)] = log.append(Announcer(alive, "bench").fact(registered))
    for receipt in receipts.values():
        receipt.offset(Deadline.after(LIMIT_S))
    snapshot = replace(past().snapshot(1), first=0, log=log.identity(Deadline.after(LIMIT_S)))
    state_bytes = 0
    with closing(log.open_decisions(JobId("bury"))) as decisions:
        for start in range(0, jobs, 500):
            decisions.begin()
            for number in range(start, min(jobs, start + 500)):
                state = replace(snapshot.state, job=JobId(f"nightly-{number}"))
                for record in write(replace(snapshot, state=state), Standing())[0]:
                    state_bytes += len(record.body or b"")
                    decisions.keep(record)
            decisions.commit(0)
    return state_bytes


def past() -> Replay:
    """Return the life of a job of ten exchanges, each of which was released."""
    replay, offsets = Replay(JOB), count()

    def observe(fact: Fact) -> None:
        for derived in replay.observe(Recorded(next(offsets), Announcer(JOB, "bench").fact(fact))):
            replay.observe(Recorded(next(offsets), Announcer(JOB, "bench").decision(derived)))

    observe(JobRegistered("session", "0", "bench"))
    for number in range(10):
        name = ResultId(f"1-{number:04d}")
        attempts = [AttemptId(PartitionId(name, index), 1, index) for index in range(4)]
        observe(ResultRegistered(name, 4, 4, "", f"repartition(4, column_{number})"))
        observe(PartitionRegistered(name, 0, 4))
        for attempt in attempts:
            observe(Produced(attempt, (SegmentSummary(0, 1 << 20, 10_000, 1, b""),), 1))
        for reducer in range(4):
            observe(Consumed(name, reducer, 1, reducer, 10_000, 1 << 20, 4))
        observe(ReleaseRequested(name, "asked for"))
        observe(Deleted(name, tuple(attempts), 4))
    observe(JobUnregistered("closed"))
    return replay


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
