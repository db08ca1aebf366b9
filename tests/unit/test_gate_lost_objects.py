"""Indexes and manifests that only the store has: their loss is published, and does not fail a task
or the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import pytest

from headgate.connectors.spark.exchanges.placing import placed_now
from headgate.connectors.spark.exchanges.stored import StoredResult, StoredResults
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import Invalid, Lost
from headgate.control.events.types import Lost as LostFact
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.master.driver_master import DriverMaster
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format import manifest_shards
from headgate.storage.format.manifest import Manifest, announced_segments, place
from headgate.storage.format.manifest_shards import StoredManifest, encode, store_manifest
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.writing import writer

from ..doubles.jobs import JOB, RESULT, Job, bodies
from ..doubles.logs import FaultyLog
from ..doubles.stacks import (
    LAYOUT,
    LIMITS,
    PARTITIONS,
    ROWS,
    SCHEMA,
    SETTINGS,
    SUBPARTITIONS,
    Stack,
    produce,
    register,
    stack,
)

__all__ = ["stack"]
EVERY_ROW = list(range(PARTITIONS * ROWS))
Place: TypeAlias = Callable[[], Manifest]
T = TypeVar("T")


@dataclass
class Driver(Job):
    missing: dict[ResultId, frozenset[int]] = field(default_factory=dict)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        self.missing.update(missing)


@dataclass
class Written:
    """A complete result whose indexes are only in its objects."""

    stack: Stack
    driver: Driver
    master: DriverMaster
    environment: ObjectStoreEnvironment
    descriptor: ShuffleDescriptor
    goes_on: Callable[[ResultId], bool] = lambda result: False

    def names(self, partition: int) -> list[str]:
        state = self.master.await_complete(self.descriptor)
        segments = announced_segments(state, [partition])
        return [LAYOUT.segment(attempt, segment.number) for attempt, segment in segments]

    def lose(self, partition: int) -> None:
        self.stack.store.delete(self.names(partition))

    def damage(self, partition: int) -> None:
        for name in self.names(partition):
            body, write_id = self.stack.objects[name]
            self.stack.objects[name] = body[:-40] + bytes(30) + body[-10:], write_id

    def by_task(self) -> Manifest:
        """Place the result as a task that combines does."""
        state = self.master.await_complete(self.descriptor)
        segments = announced_segments(state, range(PARTITIONS))
        return self.environment.manifest_of_segments(self.descriptor, segments, 7)

    def stored(self) -> StoredManifest:
        """Store the manifest as the driver does."""
        state = self.master.await_complete(self.descriptor)
        segments = announced_segments(state, range(PARTITIONS))
        placed = place(self.descriptor, segments, LAYOUT, self.stack.store)
        stored = store_manifest(self.stack.store, LAYOUT, placed, state.totals.completions)
        if isinstance(stored, Manifest):
            return StoredManifest(stored, SUBPARTITIONS, ("gone",), (0,))
        return stored

    @property
    def reruns(self) -> Any:
        return SimpleNamespace(goes_on=self.goes_on)

    def by_driver(self) -> Manifest:
        """Place the result as the driver does."""
        store = self.stack.store
        placed, completions = placed_now(self.master, store, LAYOUT, self.reruns, self.descriptor)
        assert completions == self.master.state().results[RESULT].totals.completions
        return placed.part(0, SUBPARTITIONS)

    def after(self, losses: set[int], place: Callable[[], T]) -> T:
        """Return what is placed or read when lost partitions are made again, all of them at
        once."""
        with ThreadPoolExecutor(1) as pool:
            placing = pool.submit(place)
            deadline = Deadline.after(10.0)
            while self.driver.missing != {RESULT: losses} and not deadline.passed:
                assert not placing.done(), placing.exception()
                SYSTEM_CLOCK.sleep_s(0.01)
            for partition in losses:
                produce(self.stack, self.environment, self.descriptor, partition)
            return placing.result(10.0)

    def rows(self, manifest: Manifest) -> list[int]:
        deployment = InputGateDeployment(manifest, SCHEMA, manifest.first, manifest.count, 8)
        gate = self.environment.create_input_gate(deployment)
        return sorted(n for batch in gate for n in batch["n"].to_pylist())

    def stated(self) -> list[tuple[int, int]]:
        """Return the partition of each loss that was published, and the task that waits for it."""
        facts = [body for body in bodies(self.stack.inner) if isinstance(body, LostFact)]
        return [(fact.attempt.partition.index, fact.task) for fact in facts]


@contextmanager
def writing(stack: Stack, wait_ms: int = 10_000, limits: Limits = LIMITS) -> Iterator[Written]:
    driver = Driver()
    with stack.master(settings=replace(SETTINGS, wait_ms=wait_ms)) as master:
        master.register_job(driver)
        log = FaultyLog(stack.inner)
        environment = ObjectStoreEnvironment(
            JOB, log, stack.store, "root", limits, Runtime(wait_ms / 1000)
        )
        descriptor = register(master)
        for partition in range(PARTITIONS):
            produce(stack, environment, descriptor, partition)
        try:
            yield Written(stack, driver, master, environment, descriptor)
        finally:
            environment.close()


@pytest.fixture
def written(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.setattr(writer, "inline_bytes", lambda partition: 0)
    with writing(stack) as made:
        yield made


@pytest.fixture(params=["task", "driver"])
def place_it(request: pytest.FixtureRequest, written: Written) -> Place:
    return written.by_task if request.param == "task" else written.by_driver


def test_lost_indexes_are_made_again(written: Written, place_it: Place) -> None:
    """All losses are published before anything waits: whether an object is gone or damaged."""
    written.lose(0)
    written.damage(1)
    manifest = written.after({0, 1}, place_it)
    assert EVERY_ROW == written.rows(manifest)
    task = 7 if place_it == written.by_task else 0
    assert [(0, task), (1, task)] == written.stated()


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_made_again_may_be_lost_again(written: Written, reads: bool) -> None:
    """A reader that does not know of the first loss, and a task that places the first attempt,
    state the second one."""
    state = written.master.await_complete(written.descriptor)
    before = announced_segments(state, range(PARTITIONS))
    manifest = written.by_driver()
    written.lose(0)
    written.after({0}, written.by_driver)
    written.lose(0)
    written.driver.missing.clear()

    def read() -> list[int]:
        if reads:
            return written.rows(manifest)
        placed = written.environment.manifest_of_segments(written.descriptor, before, 7)
        return written.rows(placed)

    assert EVERY_ROW == written.after({0}, read)
    assert [(0, 0), (0, 8 if reads else 7)] == written.stated()


@pytest.mark.parametrize("fetch_bytes", [1, 300, 600, 1 << 20])
def test_a_task_that_combines_states_each_loss(stack: Stack, fetch_bytes: int) -> None:
    """Also where a subpartition, or a partition alone, has more bytes than the task may hold."""
    with writing(stack, limits=replace(LIMITS, fetch_bytes=fetch_bytes)) as written:
        manifest = written.by_task()
        deployment = InputGateDeployment(manifest, SCHEMA, 0, SUBPARTITIONS, 7)
        reader = written.environment.create_stretch_reader([deployment])

        def read() -> list[int]:
            groups = reader.groups(1)
            return sorted(n for group in groups for rows, _ in group for n in rows["n"].to_pylist())

        written.lose(1)
        assert EVERY_ROW == written.after({1}, read)
        assert [(1, 7)] == written.stated()


def test_a_segment_that_is_there_is_not_stated_as_lost(
    written: Written, place_it: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer of the store loses nothing: an object that is reported as lost is deleted."""
    get, wrong = type(written.stack.store).get, iter([True])

    def once(*given: Any) -> memoryview:
        if next(wrong, False):
            raise Lost("404")
        return get(*given)

    monkeypatch.setattr(type(written.stack.store), "get", once)
    assert EVERY_ROW == written.rows(place_it())
    assert [] == written.stated()


def test_a_partition_that_came_again_is_not_stated_as_lost(written: Written) -> None:
    """A task that places what was replaced meanwhile takes what is there now."""
    state = written.master.await_complete(written.descriptor)
    before = announced_segments(state, range(PARTITIONS))
    written.lose(0)
    written.after({0}, written.by_driver)
    manifest = written.environment.manifest_of_segments(written.descriptor, before, 7)
    assert EVERY_ROW == written.rows(manifest)
    assert [(0, 0)] == written.stated()


def test_a_wide_result_is_placed_once(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a result again sends no request for its manifest, until a partition of the result
    is made again."""
    monkeypatch.setattr(manifest_shards, "_INLINE_BYTES_MAX", 0)
    kind, asked = type(written.stack.store), list[str]()
    worker: Any = SimpleNamespace(root=LAYOUT.root, job=JOB)
    results = StoredResults(written.master, written.stack.store, worker, 1, written.reruns)
    get, put = kind.get, kind.put

    def noting(store: Any, name: str, *given: Any) -> Any:
        asked.append(name)
        return (put if len(given) == 2 else get)(store, name, *given)

    def stored() -> StoredResult:
        return results.place(written.descriptor, SCHEMA, False, 1)

    monkeypatch.setattr(kind, "get", noting)
    monkeypatch.setattr(kind, "put", noting)
    first, sent = stored(), len(asked)
    again = stored()
    assert sent == len(asked) > 0
    assert (first.read, first.rows.tolist()) == (again.read, again.rows.tolist())
    written.lose(0)
    written.after({0}, written.by_driver)
    sent = len(asked)
    assert again.read.manifest != stored().read.manifest
    assert sent < len(asked)


def released(written: Written) -> None:
    written.master.release_partition_externally(written.descriptor)


def closed(written: Written) -> None:
    written.master.unregister_job()
    written.master.register_job(written.driver)


def failed(written: Written) -> None:
    """Let partition 0 be made again with other rows, which fails the job."""
    with ThreadPoolExecutor(1) as pool:
        written.lose(0)
        placing = pool.submit(written.by_driver)
        deadline = Deadline.after(10.0)
        while not written.driver.missing and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.01)
        partition = PartitionId(RESULT, 0)
        attempt = AttemptId(partition, written.descriptor.epoch, 1_000)
        written.environment.create_result_partition_writer(
            ResultPartitionDeployment(attempt, SUBPARTITIONS, SCHEMA, "none")
        ).finish()
        assert isinstance(placing.exception(10.0), Lost)


@pytest.mark.parametrize("end", [released, closed, failed])
def test_nothing_is_stated_of_what_is_over(
    written: Written, end: Callable[[Written], None]
) -> None:
    """The objects of a result that is over are gone for good."""
    state = written.master.await_complete(written.descriptor)
    segments = announced_segments(state, range(PARTITIONS))
    stored = written.stored()
    end(written)
    stated = written.stated()
    written.stack.objects.clear()
    with pytest.raises(Lost, match=r"again: the (result|job) (was|has) |no object"):
        written.environment.manifest_of_segments(written.descriptor, segments, 7)
    with pytest.raises(Lost):
        written.environment.manifest_of(stored, 0, 7)
    with pytest.raises((Lost, Invalid)):
        written.by_driver()
    assert stated == written.stated()


@pytest.fixture
def hasty(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.setattr(writer, "inline_bytes", lambda partition: 0)
    with writing(stack, 400) as made:
        yield made


def test_what_nobody_makes_again_is_an_error(hasty: Written) -> None:
    """The error names the object, when no rerun goes on and the wait is over."""
    name = hasty.names(1)[-1]
    hasty.lose(1)
    with pytest.raises(Lost, match=f"{name}.* not made again in time"):
        hasty.by_driver()
    assert [(1, 0)] == hasty.stated()


def test_the_driver_waits_while_it_makes_partitions_again(hasty: Written) -> None:
    """A rerun may take longer than the wait for a decision."""
    hasty.lose(1)
    turns = count()

    def goes_on(result: ResultId) -> bool:
        if next(turns) == 2:
            produce(hasty.stack, hasty.environment, hasty.descriptor, 1)
        return True

    hasty.goes_on = goes_on
    assert EVERY_ROW == hasty.rows(hasty.by_driver())


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every manifest be stored, with a shard for each subpartition."""
    monkeypatch.setattr(manifest_shards, "_INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(manifest_shards, "_SHARD_BYTES", 1)


def gone(written: Written, stored: StoredManifest) -> None:
    written.stack.store.delete(stored.names)


def damaged(written: Written, stored: StoredManifest) -> None:
    for name in stored.names:
        body, write_id = written.stack.objects[name]
        written.stack.objects[name] = bytes(len(body)), write_id


@pytest.mark.usefixtures("sharded")
@pytest.mark.parametrize("lose", [gone, damaged])
def test_a_manifest_that_cannot_be_read_is_made_from_the_log(
    written: Written, lose: Callable[[Written, StoredManifest], None]
) -> None:
    """A reader needs no object to find out where its rows are."""
    stored, expected = written.stored(), written.by_driver()
    assert SUBPARTITIONS == len(stored.names)
    lose(written, stored)
    for at in range(SUBPARTITIONS):
        shard = written.environment.manifest_of(stored, at, 7)
        assert encode(expected.part(at, 1)) == encode(shard)
        assert (at, 1) == (shard.first, shard.count)
    assert [] == written.stated()


@pytest.mark.usefixtures("sharded")
def test_a_manifest_is_made_after_what_it_lists(written: Written) -> None:
    """When objects are gone too, their partition is made again first, and other tasks wait for it
    as well."""
    stored = written.stored()
    gone(written, stored)
    written.lose(1)
    manifest = written.after({1}, lambda: written.environment.manifest_of(stored, 2, 7))
    assert [(1, 7)] == written.stated()
    assert [n for n in EVERY_ROW if n % SUBPARTITIONS == 2] == written.rows(manifest)
    name = written.names(0)[0]
    attempt = written.master.state().results[RESULT].production.winners[0]
    written.driver.missing.clear()
    written.master.report_lost(LostFact(attempt, name, "tests"))
    manifest = written.after({0}, lambda: written.environment.manifest_of(stored, 1, 8))
    assert [n for n in EVERY_ROW if n % SUBPARTITIONS == 1] == written.rows(manifest)
