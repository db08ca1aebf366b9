"""Gates over partitions that become known while they are read give every row once, or an error."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.contract import ShuffleDescriptor, UnknownShuffleDescriptor
from headgate.control.errors import Closed, Corrupt, HeadgateError, Lost, Unavailable
from headgate.control.events.types import Consumed, Produced, ResultRegistered
from headgate.control.ids import AttemptId, PartitionId
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import Production, ResultState
from headgate.storage.contract import InputGate, InputGateDeployment, PartitionInfo
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.manifest import locate
from headgate.storage.limits import Limits
from headgate.storage.reading.gate import SegmentGate
from headgate.storage.reading.read_plan import Slice, alone
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.streaming.channels import Channels
from headgate.storage.streaming.partition_updates import known
from headgate.storage.streaming.stream_gate import StreamGate

from ..doubles.segments import JOB, LAYOUT, RESULT, Part, produce

pytestmark = pytest.mark.usefixtures("no_thread_stays")

PARTITIONS, SUBPARTITIONS = 4, 3
SCHEMA = pa.schema([("n", pa.int64())])
LIMITS = Limits(segment_bytes=120, fetch_bytes=200, fetch_parallel=2)
EMPTY = PARTITIONS - 1  # this partition is announced without rows


def attempt(partition: int, task: int) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), 1, task)


def numbers(partition: int, task: int) -> list[int]:
    """Return the rows of an attempt. No two attempts share a row, so that mixed attempts are
    noticed."""
    rows = 0 if partition == EMPTY else 40 + partition
    return [partition * 1_000_000 + task * 1_000 + at for at in range(rows)]


@cache
def written() -> tuple[Objects, dict[AttemptId, Produced]]:
    """Write two attempts at every partition, each in several segments."""
    objects: Objects = {}
    store = MemoryBlobStore(objects)
    environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", LIMITS, Runtime(5.0))
    produced = {}
    for partition in range(PARTITIONS):
        for task in range(2):
            n = np.array(numbers(partition, task), np.int64)
            part = Part(
                pa.record_batch([n], schema=SCHEMA), n % SUBPARTITIONS, tuple(range(9, len(n), 9))
            )
            it = attempt(partition, task)
            produced[it] = produce(environment, it, SUBPARTITIONS, SCHEMA, part, "lz4")
    environment.close()
    assert min(len(produced[attempt(at, 0)].segments) for at in range(EMPTY)) > 2
    return objects, produced


@dataclass
class Told:
    """A source of updates that gives a waiting gate the next one, and nothing when none is left."""

    infos: list[PartitionInfo]
    closed: int = 0

    def hear(self, timeout_s: float) -> list[PartitionInfo]:
        return [self.infos.pop(0)] if self.infos else []

    def close(self) -> None:
        self.closed += 1


@dataclass
class Reader:
    """A reader of the result; some partitions are in its manifest from the start."""

    environment: ObjectStoreEnvironment
    channels: Channels = field(init=False)  # of the newest gate

    def gate(
        self,
        early: set[int],
        updates: list[PartitionInfo] | Told,
        first: int = 0,
        count: int = SUBPARTITIONS,
        wait_s: float = 0.02,
        limits: Limits = LIMITS,
    ) -> StreamGate:
        deployment = self.deployment(early, first, count)
        source = updates if isinstance(updates, Told) else Told(updates)
        made = self.environment
        clients = replace(made._clients, limits=limits, runtime=Runtime(wait_s))
        self.channels = Channels(deployment, clients, source)
        return StreamGate(self.channels, clients, made._range_cache, made._view)

    def deployment(self, early: set[int], first: int, count: int) -> InputGateDeployment:
        _, attempts = written()
        winners = PersistentMap({at: attempt(at, 0) for at in early})
        registered = ResultRegistered(RESULT, PARTITIONS, SUBPARTITIONS, "", "")
        production = Production(attempts=PersistentMap(attempts), winners=winners)
        state = ResultState(registered, production)
        descriptor = ShuffleDescriptor(JOB, RESULT, PARTITIONS, SUBPARTITIONS, 1)
        partitions = known(descriptor, state, LAYOUT, MemoryBlobStore(written()[0]))
        assert set(range(PARTITIONS)) - early == {
            unknown.partition.index for unknown in partitions.unknown
        }
        return InputGateDeployment(partitions.manifest, SCHEMA, first, count, 7, partitions.unknown)

    @property
    def consumed(self) -> list[Consumed]:
        """Return what the gates have published; nothing else is in this log."""
        with closing(self.environment._clients.log.follow(JOB)) as follower:
            bodies = [recorded.event.body for recorded in follower.poll(100, 0.0)]
        assert all(isinstance(body, Consumed) for body in bodies)
        return [body for body in bodies if isinstance(body, Consumed)]


@contextmanager
def reading() -> Iterator[Reader]:
    objects, _ = written()
    store = MemoryBlobStore(dict(objects))
    environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", LIMITS, Runtime(0.3))
    try:
        yield Reader(environment)
    finally:
        environment.close()


def rows(gate: InputGate) -> list[int]:
    return sorted(n for batch in gate for n in batch["n"].to_pylist())


def streamed(gate: InputGate) -> tuple[list[int], HeadgateError | None]:
    """Return the rows that a gate gives, and the error that ends them."""
    values: list[int] = []
    try:
        for batch in gate:
            values += batch["n"].to_pylist()
    except HeadgateError as exc:
        return values, exc
    return values, None


def expected(tasks: dict[int, int], first: int = 0, count: int = SUBPARTITIONS) -> list[int]:
    every = [n for at, task in tasks.items() for n in numbers(at, task)]
    return sorted(n for n in every if first <= n % SUBPARTITIONS < first + count)


def whole(partition: int, task: int = 0) -> PartitionInfo:
    produced = written()[1][attempt(partition, task)]
    return PartitionInfo(produced.attempt, produced.segments, whole=True)


def pieces(partition: int, task: int = 0) -> list[PartitionInfo]:
    produced = written()[1][attempt(partition, task)]
    return [PartitionInfo(produced.attempt, (segment,)) for segment in produced.segments]


@st.composite
def stories(draw: st.DrawFn) -> tuple[set[int], list[PartitionInfo], dict[int, int]]:
    """Draw the partitions that a gate knows from the start, the updates that it gets in any order
    of partitions, and the attempt that wins each partition. Another attempt may fail, but only
    before it is read."""
    early = draw(st.sets(st.integers(0, PARTITIONS - 1)))
    lines: list[list[PartitionInfo]] = []
    tasks = dict.fromkeys(range(PARTITIONS), 0)
    for partition in sorted(set(range(PARTITIONS)) - early):
        tasks[partition] = draw(st.integers(0, 1))
        winner, loser = tasks[partition], 1 - tasks[partition]
        some = draw(
            st.lists(st.sampled_from(pieces(partition, winner) or [whole(partition, winner)]))
        )
        line = [update for update in some if not update.whole] + [whole(partition, winner)]
        if draw(st.booleans()):
            failed = PartitionInfo(attempt(partition, loser), failed="killed")
            line.insert(draw(st.integers(0, len(line))), failed)
        if draw(st.booleans()):
            line += [draw(st.sampled_from(line)), whole(partition, winner)]
        lines.append(line)
    updates: list[PartitionInfo] = []
    while any(lines):
        line = draw(st.sampled_from([line for line in lines if line]))
        updates.append(line.pop(0))
    return early, updates, tasks


RANGES = st.sampled_from([(0, SUBPARTITIONS), (0, 1), (1, 2), (2, 1)])


@given(stories(), RANGES, st.lists(st.integers(0, 3), max_size=12))
def test_every_row_comes_once_however_it_is_told(
    story: tuple[set[int], list[PartitionInfo], dict[int, int]],
    span: tuple[int, int],
    pushes: list[int],
) -> None:
    """A gate gives each row of each partition once, and announces all of them as consumed. Updates
    may come in any order, repeatedly, while the gate waits or while it streams."""
    early, updates, tasks = story
    with reading() as reader:
        gate = reader.gate(early, updates, *span)
        values: list[int] = []
        for batch in gate:
            values += batch["n"].to_pylist()
            pushed = [updates.pop(0) for _ in range(pushes.pop(0) if pushes else 0) if updates]
            reader.channels.update(pushed)
        assert expected(tasks, *span) == sorted(values)
        assert [len(values)] == [consumed.rows for consumed in reader.consumed]


@given(st.sets(st.integers(0, PARTITIONS - 1), min_size=1), st.data())
def test_unknown_is_never_empty(unknown: set[int], data: st.DataObject) -> None:
    """A gate without all of a partition streams the rest, waits, and names the missing
    partition."""
    early = set(range(PARTITIONS)) - unknown
    missing = data.draw(st.sampled_from(sorted(unknown)))
    updates = [whole(at) for at in sorted(unknown - {missing})] + pieces(missing)
    dropped = data.draw(st.integers(0, len(pieces(missing))))
    updates = updates[: len(updates) - dropped]
    with reading() as reader:
        values, error = streamed(reader.gate(early, updates))
        others = dict.fromkeys(set(range(PARTITIONS)) - {missing}, 0)
        assert isinstance(error, Unavailable)
        assert [f"{RESULT}/{missing}"] == re.findall(rf"{RESULT}/\d+(?=: )", str(error))
        assert set(expected(others)) <= set(values)
        assert len(set(values)) == len(values)
        assert reader.consumed == []


@given(st.data())
def test_attempts_are_never_mixed(data: st.DataObject) -> None:
    """A gate gives the rows of the winning attempt or an error, whatever both attempts announce
    before."""
    winner = data.draw(st.integers(0, 1))
    lines = [data.draw(st.lists(st.sampled_from(pieces(0, task)))) for task in range(2)]
    failed = PartitionInfo(attempt(0, 1 - winner), failed="another was first")
    lines[1 - winner] += data.draw(st.sampled_from([[], [failed]]))
    lines[winner].append(whole(0, winner))
    updates: list[PartitionInfo] = []
    while any(lines):
        updates.append(data.draw(st.sampled_from([line for line in lines if line])).pop(0))
    with reading() as reader:
        values, error = streamed(reader.gate(set(range(1, PARTITIONS)), updates))
        every = expected(dict.fromkeys(range(PARTITIONS), 0) | {0: winner})
        assert (every == sorted(values)) if error is None else isinstance(error, Lost)


OTHERS = [whole(at) for at in range(1, PARTITIONS)]


@pytest.mark.parametrize("taken", range(1, 4))
def test_a_half_read_attempt_that_fails_is_an_error(taken: int) -> None:
    """A reader that has read segments of a failed attempt gets an error and must begin again; it
    never mixes rows."""
    failed = PartitionInfo(attempt(0, 0), failed="killed")
    for end in ([failed, whole(0, 1)], [whole(0, 1)], [whole(0, 1), failed]):
        with reading() as reader:
            with pytest.raises(Lost, match=f"{RESULT}/0.*start again"):
                rows(reader.gate(set(), [*pieces(0)[:taken], *OTHERS, *end]))
            assert reader.consumed == []


def test_an_attempt_that_failed_unread_is_forgotten() -> None:
    """An attempt of which a reader has read nothing may fail, or lose to another attempt."""
    failed = PartitionInfo(attempt(0, 0), failed="killed")
    for updates in (
        [failed, *pieces(0), whole(0, 1)],
        [failed, whole(0, 1), whole(0, 0)],
        [*pieces(0, 1), whole(0, 1), failed],
        [whole(0, 1), *pieces(0)],
    ):
        with reading() as reader:
            assert expected({0: 1, 1: 0, 2: 0, 3: 0}) == rows(
                reader.gate(set(), [*updates, *OTHERS])
            )


def test_a_whole_attempt_that_is_read_may_go() -> None:
    """A reader that has read a partition to its end does not need the attempt any more."""
    gone = PartitionInfo(attempt(0, 0), failed="its executor is lost")
    with reading() as reader:
        updates = [whole(0), gone, whole(0, 1), *OTHERS]
        assert expected(dict.fromkeys(range(PARTITIONS), 0)) == rows(reader.gate(set(), updates))


CONTRADICTIONS = {
    "two contents of a segment": lambda updates: [
        updates[0],
        replace(updates[0], segments=(replace(updates[0].segments[0], checksum=1),)),
    ],
    "a segment more than all": lambda updates: [
        *updates,
        PartitionInfo(updates[0].attempt, updates[0].segments, whole=True),
    ],
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_an_attempt_that_contradicts_itself_is_corrupt(what: str) -> None:
    """An attempt whose announcements contradict each other is `Corrupt` for its reader."""
    updates = CONTRADICTIONS[what](pieces(0))
    with reading() as reader, pytest.raises(Corrupt, match=f"{RESULT}/0"):
        rows(reader.gate(set(), [*updates, *OTHERS]))


def test_every_open_gate_is_told() -> None:
    """`update_partition_infos`, called from another thread, reaches all waiting gates, and no
    others."""
    with reading() as reader:
        shuffle = reader.environment
        deployment = reader.deployment({1, 2, 3}, 0, SUBPARTITIONS)
        results: list[list[int]] = []
        gates = [shuffle.create_input_gate(deployment) for _ in range(3)]
        readers = [
            threading.Thread(target=lambda gate=gate: results.append(rows(gate))) for gate in gates
        ]
        for thread in readers:
            thread.start()
        shuffle.update_partition_infos([whole(0)])
        for thread in readers:
            thread.join()
        every = expected(dict.fromkeys(range(PARTITIONS), 0))
        assert [every] * 3 == results
        late = shuffle.create_input_gate(deployment)
        with pytest.raises(Unavailable, match=f"{RESULT}/0"):
            rows(late)


def test_what_was_not_known_is_read_from_its_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that became known later, and then lost a segment, is read whole from the attempt
    that replaced its own."""

    def replacement(self: SegmentGate, piece: Slice, failure: Exception) -> list[Slice]:
        other, store = attempt(piece.source.attempt.partition.index, 1), self._clients.store
        segments = written()[1][other].segments
        sources = [locate(LAYOUT, store, other, segment, SUBPARTITIONS) for segment in segments]
        return [slice for source in sources for slice in alone(source, piece.subpartition, 1)]

    monkeypatch.setattr(SegmentGate, "_replaced", replacement)
    with reading() as reader:
        reader.environment._clients.store.delete([LAYOUT.segment(attempt(0, 0), 1)])
        gate = reader.gate({1, 2, 3}, [whole(0)], limits=replace(LIMITS, fetch_bytes=1 << 20))
        assert rows(gate) == expected({0: 1, 1: 0, 2: 0, 3: 0})


def test_a_replacement_with_more_rows_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is read from another attempt with more rows is an error that names both
    numbers."""

    def replacement(self: SegmentGate, piece: Slice, failure: Exception) -> list[Slice]:
        others = [attempt(0, 1), attempt(1, 1)]
        segments = [
            (other, segment) for other in others for segment in written()[1][other].segments
        ]
        store = self._clients.store
        sources = [locate(LAYOUT, store, *segment, SUBPARTITIONS) for segment in segments]
        return [slice for source in sources for slice in alone(source, piece.subpartition, 1)]

    monkeypatch.setattr(SegmentGate, "_replaced", replacement)
    with reading() as reader:
        reader.environment._clients.store.delete([LAYOUT.segment(attempt(0, 0), 0)])
        gate = reader.gate({1, 2, 3}, [whole(0)], limits=replace(LIMITS, fetch_bytes=1 << 20))
        _, error = streamed(gate)
    assert isinstance(error, Corrupt)
    read, announced = map(int, re.findall(r"(\S+) rows were read, (\S+) were", str(error))[0])
    assert read > announced > 0


def test_a_gate_is_read_once() -> None:
    """Reading a gate a second time raises `Closed`, so that it does not look like an empty
    partition."""
    with reading() as reader:
        gate = reader.gate(set(range(PARTITIONS)), [])
        assert rows(gate) == expected(dict.fromkeys(range(PARTITIONS), 0))
        with pytest.raises(Closed):
            rows(gate)


def test_a_second_reader_does_not_end_the_first() -> None:
    """A gate that is refused to a second reader still hears the news that its first one needs."""
    source = Told([whole(at) for at in range(PARTITIONS)])
    with reading() as reader:
        gate = reader.gate(set(), source)
        batches = iter(gate)
        values = next(batches)["n"].to_pylist()
        with pytest.raises(Closed):
            rows(gate)
        assert source.closed == 0
        values += [n for batch in batches for n in batch["n"].to_pylist()]
        assert sorted(values) == expected(dict.fromkeys(range(PARTITIONS), 0))
        assert source.closed == 1


def test_a_result_of_unknown_partitions_only_names_a_few() -> None:
    """An error about many unknown partitions names ten of them and counts the others."""
    with reading() as reader:
        deployment = reader.deployment(set(), 0, 1)
        many = tuple(
            UnknownShuffleDescriptor(JOB, PartitionId(RESULT, at), SUBPARTITIONS)
            for at in range(30)
        )
        gate = reader.environment.create_input_gate(replace(deployment, unknown=many))
        with pytest.raises(Unavailable, match="and 20 more"):
            rows(gate)
