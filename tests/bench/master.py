"""Measure the events a second of one session master on a real broker, and a thousand small jobs.

The master holds its partitions and has read them to their end when the facts come. The time runs
from the first fact until every decision is committed and read back. For comparison, a loop that
decodes and decides nothing takes the same records: it consumes them and produces as many records as
there are decisions, in transactions of the same size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Fact,
    JobRegistered,
    JobUnregistered,
    PartitionRegistered,
    Produced,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.settings import KafkaSettings, TopicSettings
from headgate.control.log import partition_of
from headgate.control.master.announcer import Announcer
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.model.replay import Replay
from headgate.control.model.state import JobState, ResultState
from headgate.infra import master_command
from headgate.infra.devstack import stack

from .core import EXCHANGES, MAPS, REDUCERS, Taken, facts, in_core, index_of

PARTITIONS, DELETERS = 4, 4
JOBS, SMALL = 1_000, 4
LIMIT_S = 600.0
COPY_BYTES = 120  # about the size of a decision
_NAME = ResultId("1-0001")


class _Nothing:
    """A storage whose deletions take no time."""

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        return len(attempts)

    def sweep(self, closed: JobState) -> int:
        return 0


def run(rounds: int, places: list[str]) -> Table:
    table = Table("place", "events", "events/s", "µs CPU an event", "of the bare loop")
    table.title = f"one session master; load average before {os.getloadavg()[0]:.1f}"
    measured = {"core": [in_core() for _ in range(rounds)]}
    if "real" in places:
        bodies = [list(facts(EXCHANGES, MAPS, REDUCERS))]
        measured |= {"kafka": [], "bare loop": []}
        for _ in range(rounds):
            measured["kafka"].append(on_kafka(bodies, _decided))
            measured["bare loop"].append(on_kafka(bodies, _copied))
    bare = median(sample.rate for sample in measured.get("bare loop", measured["core"]))
    for place, taken in measured.items():
        rate = median(sample.rate for sample in taken)
        cpu_us = median(sample.cpu_s / sample.events * 1e6 for sample in taken)
        share = f"{rate / bare:.0%}" if "bare loop" in measured else ""
        table.add_row(place, f"{taken[0].events:,}", f"{rate:,.0f}", f"{cpu_us:.1f}", share)
    return table


def small_jobs(rounds: int) -> Table:
    """Run many jobs at once, each from its registration until nothing of it is left."""
    table = Table("jobs", "seconds", "events", "events/s", "decisions", "decisions/s")
    table.title = f"small jobs on one master; load average before {os.getloadavg()[0]:.1f}"
    ended = [on_kafka([list(life()) for _ in range(JOBS)], _ended) for _ in range(rounds)]
    took_s = median(sample.took_s for sample in ended)
    decisions = JOBS * (SMALL + 4)  # accepted twice, each consumable, complete, released
    expected = decisions + JOBS * (len(list(life())) + 1)  # and a fact for each deletion
    assert {sample.events for sample in ended} == {expected}, "each job says all of its events"
    table.add_row(
        f"{JOBS:,}",
        f"{took_s:.2f}",
        f"{expected:,}",
        f"{expected / took_s:,.0f}",
        f"{decisions:,}",
        f"{decisions / took_s:,.0f}",
    )
    return table


def life() -> Iterator[Fact]:
    """Yield the facts that the driver and the tasks of a small job state."""
    yield JobRegistered(SESSION, "0", "bench")
    yield ResultRegistered(_NAME, SMALL, SMALL, "", "repartition")
    yield PartitionRegistered(_NAME, 0, SMALL)
    for number in range(SMALL):
        attempt = AttemptId(PartitionId(_NAME, number), 1, number)
        yield AttemptStarted(attempt, "host")
        yield Produced(attempt, (SegmentSummary(0, 1 << 20, 10_000, 1, index_of(SMALL)),), 1)
    for reader in range(SMALL):
        yield Consumed(_NAME, reader, 1, reader, 50_000, 1 << 20, 8)
    yield ReleaseRequested(_NAME, "asked for", 1)
    yield JobUnregistered("closed", 1)


def on_kafka(
    bodies: list[list[Fact]], measure: Callable[[KafkaEventLog, Callable[[], int]], Taken]
) -> Taken:
    """Call `measure` with a log, and with a function that fills the log with the facts of every
    job."""
    state = stack.status()
    assert state is not None, "start the stack first: make stack"
    prefix, topic = f"bench-{time.time_ns()}", TopicSettings(PARTITIONS, 1, 86_400_000)
    settings = KafkaSettings(state.bootstrap, prefix, topic)

    def fill() -> int:
        with closing(KafkaEventLog(settings)) as filled:
            _fill(filled, bodies)
        return sum(map(len, bodies))

    try:
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            return measure(log, fill)
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap, "log_level": 2})
        for deleted in admin.delete_topics([created.name for created in settings.topics]).values():
            deleted.result(LIMIT_S)


def _fill(log: KafkaEventLog, bodies: list[list[Fact]]) -> None:
    authors = [Announcer(JobId(f"job-{number}"), "driver") for number in range(len(bodies))]
    receipts = []
    for turn in zip(*bodies, strict=True):
        for announcer, body in zip(authors, turn, strict=True):
            event = announcer.fact(body)
            try:
                receipts.append(log.append(event))
            except Unavailable:  # the client's queue is full
                receipts[-1].offset(Deadline.after(LIMIT_S))
                receipts.append(log.append(event))
    for receipt in receipts:
        receipt.offset(Deadline.after(LIMIT_S))


def _decided(log: KafkaEventLog, fill: Callable[[], int]) -> Taken:
    with closing(_steps(log)) as steps:
        expected = fill()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while not _rests(steps, expected):
            steps.step(1.0)
        return _taken(steps, began_s, began_cpu_s)


def _ended(log: KafkaEventLog, fill: Callable[[], int]) -> Taken:
    """Drive the jobs to their end, with deletions beside the steps, as in a master."""
    with closing(_steps(log)) as steps, ThreadPoolExecutor(DELETERS) as deleter:
        expected = fill() + JOBS
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while not _rests(steps, expected):
            for deletion in steps.step(1.0):
                deleter.submit(deletion.run, _Nothing(), log, Deadline.after(LIMIT_S))
        taken = _taken(steps, began_s, began_cpu_s)
        states = steps.states.values()
        assert JOBS == len(states), "a job was forgotten"
        assert all(
            state.closed and not state.results[_NAME].production.attempts for state in states
        )
        return taken


def _steps(log: KafkaEventLog) -> GroupSteps:
    """Return the steps of a master that may decide in every partition."""
    settings = MasterSettings(step_events_max=master_command.STEP_EVENTS_MAX)
    steps = GroupSteps(log, MasterIdentity("0", "bench", SYSTEM_CLOCK, ""), settings)
    while len(steps._held) < PARTITIONS or not all(h.recovered for h in steps._held.values()):
        steps.step(0.1)
    master_command.spare_collector()
    return steps


def _rests(steps: GroupSteps, facts: int) -> bool:
    """Return True if this many facts are read, and every decision on them is committed and read
    back."""
    replays = _replays(steps)
    return sum(replay.facts for replay in replays) == facts and not any(
        replay.due for replay in replays
    )


def _replays(steps: GroupSteps) -> list[Replay]:
    cases = (decider for partition in steps._held.values() for decider in partition.jobs.values())
    return [decider.ledger._replay for decider in cases]


def _taken(steps: GroupSteps, began_s: float, began_cpu_s: float) -> Taken:
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return Taken(sum(replay.facts + replay.decisions for replay in _replays(steps)), took_s, cpu_s)


def _copied(log: KafkaEventLog, fill: Callable[[], int]) -> Taken:
    """Copy every second record, so that there are as many copies as there would be decisions."""
    settings, group = log.settings, "bench-bare"
    place = TopicPartition(settings.events_topic, partition_of(JobId("job-0"), PARTITIONS), 0)
    with closing(Consumer(settings.reading(group))) as consumer:
        producer = Producer(settings.deciding(group, 10_000))
        producer.init_transactions(LIMIT_S)
        consumer.assign([place])
        expected = fill() * 3 // 2
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        seen = copied = 0
        while seen < expected:
            messages = [
                m for m in consumer.consume(master_command.STEP_EVENTS_MAX, 0.1) if not m.error()
            ]
            seen += len(messages)
            originals = [message for message in messages if message.key() is not None]
            if not originals:
                continue
            producer.begin_transaction()
            for number, message in enumerate(originals, copied):
                if number % 2:
                    record = (message.value() or b"")[:COPY_BYTES]
                    producer.produce(place.topic, record, partition=place.partition)
                    producer.poll(0)
            copied += len(originals)
            offset = max(message.offset() or 0 for message in messages) + 1
            positions = [TopicPartition(place.topic, place.partition, offset)]
            producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), LIMIT_S
            )
            producer.commit_transaction(LIMIT_S)
        return Taken(seen, time.perf_counter() - began_s, time.process_time() - began_cpu_s)
