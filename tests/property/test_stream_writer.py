"""Gates that read while writers write, over one log, give every row once or an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.clock import Deadline
from headgate.control.contract import ShuffleDescriptor, UnknownShuffleDescriptor
from headgate.control.errors import HeadgateError, Lost
from headgate.control.events.types import (
    AttemptFailed,
    Body,
    Consumed,
    Event,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    Recorded,
    Reproduce,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    Superseded,
    TrackingStopped,
)
from headgate.control.events.types import Lost as LostFact
from headgate.control.ids import AttemptId, JobId, PartitionId
from headgate.control.log import (
    Decisions,
    Follower,
    Holder,
    MasterGroup,
    Membership,
    Receipt,
    Tail,
)
from headgate.control.master.announcer import Announcer
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay
from headgate.control.model.state import ResultState
from headgate.storage.contract import (
    InputGate,
    InputGateDeployment,
    PartitionInfo,
    ResultPartitionDeployment,
)
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.manifest import Manifest
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.streaming.partition_updates import Fold, known
from headgate.storage.writing.writer import SegmentWriter

from ..doubles.segments import JOB, LAYOUT, RESULT

pytestmark = pytest.mark.usefixtures("no_thread_stays")

PARTITIONS, SUBPARTITIONS, BATCHES = 2, 2, 4
SCHEMA = pa.schema([("n", pa.int64())])
LIMITS = Limits(segment_bytes=1, fetch_bytes=400, fetch_parallel=2)
TURNS_MAX = 2_000


def rows_of(attempt: AttemptId) -> list[int]:
    """Return the rows of an attempt. No two attempts share a row, so that mixed attempts are
    noticed."""
    first = attempt.partition.index * 1_000_000 + attempt.task * 1_000
    return list(range(first, first + 10 * BATCHES))


@dataclass
class Task:
    """A map task that writes one batch, and so one segment, at each turn."""

    attempt: AttemptId
    writer: SegmentWriter
    dies_at: int | None
    written: int = 0
    ended: bool = False

    def turn(self, world: World) -> None:
        if self.dies_at == self.written:
            self.ended = True
            self.writer._close()
            world.state(AttemptFailed(self.attempt, "killed"))
        elif self.written == BATCHES:
            self.ended = True
            self.writer.finish()
        else:
            numbers = np.array(rows_of(self.attempt)[self.written * 10 : self.written * 10 + 10])
            self.writer.write(pa.record_batch([numbers], schema=SCHEMA), numbers % SUBPARTITIONS)
            self.writer._settle()
            self.written += 1


@dataclass
class World:
    """One log and one bucket, with tasks and a master that take turns as drawn. Each poll of the
    log lets them take a turn, so that they go on while a reader waits."""

    choices: list[int]
    deaths: list[int | None]
    pipelined: bool
    speculates: bool = False
    log: MemoryEventLog = field(default_factory=MemoryEventLog)
    objects: Objects = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    turns: int = 0

    def __post_init__(self) -> None:
        self.announcer = Announcer(JOB, "driver")
        self.replay = Replay(JOB)
        self.follower = self.log.follow(JOB)
        self.decisions = self.log.open_decisions(JOB)
        store = MemoryBlobStore(self.objects)
        self.shuffle = ObjectStoreEnvironment(
            JOB, Watched(self), store, "root", LIMITS, Runtime(20.0)
        )
        registered = ResultRegistered(
            RESULT, PARTITIONS, SUBPARTITIONS, "", "", pipelined=self.pipelined
        )
        for fact in (JobRegistered("", "", ""), registered):
            self.state(fact)
        self.state(PartitionRegistered(RESULT, 0, PARTITIONS))
        self.decide()
        for index in range(PARTITIONS if self.speculates else 0):
            self.start(index)

    def state(self, fact: Fact) -> None:
        self.log.append(self.announcer.fact(fact))

    def start(self, index: int) -> None:
        attempt = AttemptId(PartitionId(RESULT, index), 1, next(self.numbers))
        deployment = ResultPartitionDeployment(
            attempt, SUBPARTITIONS, SCHEMA, "none", self.pipelined
        )
        writer = self.shuffle.create_result_partition_writer(deployment, str(attempt))
        dies_at = self.deaths.pop(0) if self.deaths else None
        self.tasks.append(Task(attempt, writer, dies_at))

    def turn(self) -> None:
        """Let one task or the master take its turn."""
        self.turns += 1
        assert self.turns < TURNS_MAX, "the world does not come to an end"
        running = [task for task in self.tasks if not task.ended]
        which = self.choices.pop(0) if self.choices else self.turns
        chosen = which % (len(running) + 1)
        if chosen < len(running):
            running[chosen].turn(self)
        else:
            self.decide()

    def decide(self) -> None:
        """Let the master decide on all facts, and let the driver start the partitions ordered
        again."""
        while records := self.follower.poll(100, 0.0):
            derived = [entry for record in records for entry in self.replay.observe(record)]
            if not derived:
                continue
            self.decisions.begin()
            for entry in derived:
                self.decisions.write(self.announcer.decision(entry))
            self.decisions.commit(self.follower.position())
            for entry in derived:
                if isinstance(entry.decision, Reproduce):
                    for index in entry.decision.partitions:
                        self.start(index)
        ended = {task.attempt.partition.index for task in self.tasks if not task.ended}
        for index in set(range(PARTITIONS)) - ended - set(self.result.production.winners):
            self.start(index)  # as Spark retries a task

    @property
    def result(self) -> ResultState:
        return self.replay.state.results[RESULT]

    def read(self, count: int) -> list[int]:
        """Return the rows that a reader task gets when it is given what is known now."""
        return sorted(n for batch in self.gate(count) for n in batch["n"].to_pylist())

    def gate(self, count: int) -> InputGate:
        descriptor = ShuffleDescriptor(JOB, RESULT, PARTITIONS, SUBPARTITIONS, 1)
        partitions = known(descriptor, self.result, LAYOUT, MemoryBlobStore(self.objects))
        deployment = InputGateDeployment(
            partitions.manifest,
            SCHEMA,
            0,
            count,
            7,
            partitions.unknown,
            partitions.told,
            self.follower.position(),
        )
        return self.shuffle.create_input_gate(deployment)

    def winners(self, count: int) -> list[int]:
        """Return the rows of the winning attempts of a complete result."""
        assert self.result.complete
        every = [n for attempt in self.result.production.winners.values() for n in rows_of(attempt)]
        return sorted(n for n in every if n % SUBPARTITIONS < count)


@dataclass
class Watched:
    """The world's log for its executors. All attempts get one fingerprint, so that the master takes
    them for equal; readers must not mix their rows all the same."""

    world: World

    def append(self, fact: Event) -> Receipt:
        body = fact.body
        if isinstance(body, Produced):
            fact = replace(fact, body=replace(body, fingerprint=1))
        return self.world.log.append(fact)

    def follow(self, job: JobId, position: int | None = 0) -> Follower:
        return WatchedFollower(self.world, self.world.log.follow(job, position))

    def prepare(self, deadline: Deadline) -> None:
        raise AssertionError("no executor does this")

    def identity(self, deadline: Deadline) -> str:
        return ""

    def retention_ms(self, deadline: Deadline) -> int:
        raise AssertionError("no executor does this")

    def written(self, job: JobId) -> int:
        raise AssertionError("no executor decides")

    def open_decisions(self, job: JobId) -> Decisions:
        raise AssertionError("no executor decides")

    def join(self, slot: str, holder: Holder) -> Membership:
        raise AssertionError("no executor decides")

    def group(self, deadline: Deadline) -> MasterGroup:
        raise AssertionError("no executor asks for the group")

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        return self.world.log.read_all(deadline, known)

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> Tail:
        raise AssertionError("no executor follows all jobs")

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        return self.world.log.read_state(job, deadline)

    def partition(self, job: JobId) -> int:
        raise AssertionError("no executor asks where a job is")

    def oldest(self, job: JobId) -> int:
        raise AssertionError("no executor asks what is left of a log")

    def beat(self, job: JobId) -> Receipt:
        raise AssertionError("no executor speaks for a job")

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        raise AssertionError("no executor takes a job up")

    def close(self) -> None:
        """Do nothing: the world still uses its log."""


@dataclass
class WatchedFollower:
    world: World
    inner: Follower
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        self.world.turn()
        return self.inner.poll(limit, 0.0)

    def position(self) -> int:
        return self.inner.position()

    def end(self) -> int:
        return self.inner.end()

    def close(self) -> None:
        self.inner.close()


@contextmanager
def living(world: World) -> Iterator[World]:
    try:
        yield world
    finally:
        for task in world.tasks:
            with suppress(HeadgateError):
                task.writer._close()
        world.shuffle.close()


WORLDS = st.builds(
    World,
    st.lists(st.integers(0, 5), max_size=60),
    st.lists(st.none() | st.integers(0, BATCHES), max_size=4),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.slow
@given(st.data(), st.integers(0, 12), st.sampled_from([1, SUBPARTITIONS]))
@settings(max_examples=80)
def test_a_gate_reads_while_writers_write(data: st.DataObject, head: int, count: int) -> None:
    """A reader that starts at any time gets the final rows of its partitions, or an error after
    which it reads again, while tasks write, die and are retried and the master decides."""
    with living(data.draw(WORLDS)) as world:
        for _ in range(head):
            world.turn()
        deaths = len(world.deaths)
        for _ in range(deaths + 3):
            try:
                values = world.read(count)
            except Lost:
                continue
            break
        assert world.winners(count) == values
        bodies = [recorded.event.body for recorded in world.log.read_all(Deadline.after(1.0))]
        assert [len(values)] == [body.rows for body in bodies if isinstance(body, Consumed)]
        assert world.pipelined == any(isinstance(body, SegmentProduced) for body in bodies)


@contextmanager
def half_written(deaths: list[int | None]) -> Iterator[World]:
    """Yield a world in which the first partition has two segments, the second one is whole, and the
    master knows that."""
    with living(World([], deaths, True)) as world:
        first, second = world.tasks
        for _ in range(2):
            first.turn(world)
        while not second.ended:
            second.turn(world)
        world.decide()
        yield world


def test_what_is_announced_is_read_at_once() -> None:
    """A reader that starts in the middle gets all announced segments, and each later one as soon as
    it is announced."""
    with half_written([]) as world:
        first, second = world.tasks
        batches = iter(world.gate(1))
        values = [n for _ in range(BATCHES + 2) for n in next(batches)["n"].to_pylist()]
        here = rows_of(first.attempt)[:20] + rows_of(second.attempt)
        assert sorted(values) == sorted(n for n in here if n % SUBPARTITIONS == 0)
        world.choices += [0]
        assert rows_of(first.attempt)[20:30:2] == next(batches)["n"].to_pylist()
        assert not first.ended
        rest = [n for batch in batches for n in batch["n"].to_pylist()]
        assert rows_of(first.attempt)[30::2] == rest


def test_a_half_read_attempt_that_dies_ends_its_readers() -> None:
    """Readers of an attempt that dies end with `Lost` as soon as the master decides, and wait for
    no other attempt."""
    with living(World([], [1], True)) as world:
        first = world.tasks[0]
        first.turn(world)
        world.decide()
        batches = iter(world.gate(1))
        assert rows_of(first.attempt)[:10:2] == next(batches)["n"].to_pylist()
        world.choices += [0, 1]  # the task dies, and the master decides on it
        with pytest.raises(Lost, match=f"attempt {first.attempt} failed"):
            next(batches)
        assert not world.result.complete


def test_a_reader_of_a_restarted_region_begins_again() -> None:
    """A reader that took a partition for whole gets an error when its region is restarted."""
    with half_written([2]) as world:
        second = world.tasks[1].attempt
        gate = world.gate(1)
        world.choices += [0, 1]  # the first task dies, and the master restarts the region
        with pytest.raises(Lost, match=f"attempt {second} failed"):
            list(gate)
        assert second in world.result.production.superseded


def end_all(world: World) -> None:
    """Let every writing task end, and let the master decide on it."""
    while running := [task for task in world.tasks if not task.ended]:
        running[0].turn(world)
    world.decide()


def test_what_was_whole_is_not_mixed_with_what_comes_after_a_restart() -> None:
    """A reader that learns at once that its result was complete and that its region was restarted
    gets an error, and does not read a partition that was made again."""
    with living(World([], [], True)) as world:
        first, second = world.tasks
        for _ in range(BATCHES):
            first.turn(world)
        world.decide()
        batches = iter(world.gate(1))
        values = [n for _ in range(BATCHES) for n in next(batches)["n"].to_pylist()]
        assert rows_of(first.attempt)[::2] == sorted(values)
        end_all(world)
        assert world.result.complete
        world.state(LostFact(second.attempt, LAYOUT.segment(second.attempt, 0), "404"))
        world.decide()
        end_all(world)
        assert world.result.complete
        assert first.attempt not in world.result.production.winners.values()
        with pytest.raises(Lost, match=f"attempt {first.attempt} failed"):
            list(batches)


def test_an_empty_partition_that_is_restarted_is_heard_of() -> None:
    """A gate gets an error for a restarted partition even if that was empty, because it may have
    rows now."""
    manifest = Manifest(JOB, RESULT, 1, 0, SUBPARTITIONS, ())
    other = UnknownShuffleDescriptor(JOB, PartitionId(RESULT, 1), SUBPARTITIONS, True)
    fold = Fold(InputGateDeployment(manifest, SCHEMA, 0, 1, 7, (other,)))
    empty = AttemptId(PartitionId(RESULT, 0), 1, 3)
    restarted = TrackingStopped(RESULT, (empty,), "it was lost")
    with pytest.raises(Lost, match=f"attempt {empty} failed: it was lost"):
        fold.observe(Recorded(9, Event("9", JOB, "", 0, "", 8, restarted)))


def test_what_is_announced_behind_the_basis_is_not_part_of_what_was_whole() -> None:
    """A result is complete at the fact that its decision follows from.

    After a restart of the region, another attempt may be whole in the log before that decision. It
    counts when the result is complete for the next time.
    """
    log: list[Recorded] = []

    def say(body: Body, basis: int | None = None) -> list[PartitionInfo]:
        event = Event(str(len(log)), JOB, "", 0, "", basis, body)
        log.append(Recorded(len(log), event))
        return [update for update in fold.observe(log[-1]) if update.whole]

    def attempt(index: int, task: int) -> AttemptId:
        return AttemptId(PartitionId(RESULT, index), 1, task)

    unknown = tuple(
        UnknownShuffleDescriptor(JOB, PartitionId(RESULT, index), SUBPARTITIONS, True)
        for index in range(2)
    )
    manifest = Manifest(JOB, RESULT, 1, 0, SUBPARTITIONS, ())
    fold = Fold(InputGateDeployment(manifest, SCHEMA, 0, 1, 7, unknown))
    for attempt_id in (attempt(0, 1), attempt(1, 2), attempt(1, 3)):
        assert [] == say(Produced(attempt_id, ()))
    complete = ResultComplete(RESULT)
    assert [attempt(0, 1), attempt(1, 2)] == [update.attempt for update in say(complete, 1)]
    for attempt_id in (attempt(0, 1), attempt(1, 2)):
        say(Superseded(attempt_id, "it was lost"), 1)
    assert [] == say(Produced(attempt(0, 4), ()))
    assert [attempt(1, 3), attempt(0, 4)] == [
        update.attempt for update in say(complete, len(log) - 1)
    ]
