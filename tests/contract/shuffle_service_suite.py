"""The contract of every shuffle service, from a job's registration until nothing of it is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import (
    MasterSettings,
    ShuffleDescriptor,
    ShuffleMasterContext,
    TaskInputsOutputsDescriptor,
)
from headgate.control.errors import Fenced, HeadgateError, Invalid, Lost
from headgate.control.events.types import JobRegistered, ResultRegistered
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.master.driver_master import DriverMaster
from headgate.storage.contract import (
    InputGateDeployment,
    ResultPartitionDeployment,
    ShuffleEnvironmentContext,
)
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import Manifest, build
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.services import StorageFactory
from headgate.storage.stores.port import BlobStore
from headgate.storage.streaming.partition_updates import known

WAIT_S = 20.0
LIMITS = Limits(segment_bytes=200, fetch_parallel=2)
SCHEMA = pa.schema([("n", pa.int64())])
PARTITIONS, SUBPARTITIONS, ROWS = 3, 4, 40
RESULT, OTHER = ResultId("r1"), ResultId("r2")

_numbers = count()


@dataclass
class Job:
    """A driver's side of the contract."""

    job_id: JobId
    application: str = "suite"
    errors: list[BaseException] = field(default_factory=list)
    missing: dict[ResultId, frozenset[int]] = field(default_factory=dict)

    def on_fatal_error(self, error: BaseException) -> None:
        self.errors.append(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        self.missing.update(missing)


@dataclass
class Service:
    """One factory, and everything that it made, which is closed at the end."""

    factory: StorageFactory
    made: ExitStack

    def master(self) -> DriverMaster:
        settings = MasterSettings(wait_ms=int(WAIT_S * 1000))
        context = ShuffleMasterContext(settings, f"driver {next(_numbers)}", "0")
        master = self.factory.create_shuffle_master(context)
        self.made.callback(master.close)
        master.start()
        return master

    def environment(self, job: JobId) -> ObjectStoreEnvironment:
        context = ShuffleEnvironmentContext(job, Runtime(WAIT_S))
        environment = self.factory.create_shuffle_environment(context)
        self.made.callback(environment.close)
        return environment

    def store(self) -> tuple[BlobStore, str]:
        with closing(self.factory.open_log()) as log:
            return self.factory.open_store(log)

    def objects(self, job: JobId) -> list[str]:
        store, root = self.store()
        prefix = Layout(root, job).prefix
        names = [stat.name for stat in store.list(prefix)]
        names += [upload.name for upload in store.uploads(prefix)]
        store.close()
        return names

    def delete(self, names: Iterable[str]) -> None:
        with closing(self.store()[0]) as store:
            store.delete(list(names))

    def stores(self, job: JobId) -> list[str]:
        """Return the store of each registration of the job, in order."""
        with closing(self.factory.open_log()) as log:
            bodies = [
                record.event.body
                for record in log.read_all(Deadline.after(WAIT_S))
                if record.event.job == job
            ]
        return [body.store for body in bodies if isinstance(body, JobRegistered)]


def register(
    master: DriverMaster,
    result: ResultId = RESULT,
    partitions: int = PARTITIONS,
    inputs: tuple[ResultId, ...] = (),
    broadcast: bool = False,
) -> ShuffleDescriptor:
    subpartitions = 1 if broadcast else SUBPARTITIONS
    registered = ResultRegistered(result, partitions, subpartitions, "", "suite", inputs)
    return master.register_partition_with_producer(registered, broadcast).result(WAIT_S)


def rows_of(partition: int) -> list[int]:
    return list(range(partition * ROWS, (partition + 1) * ROWS))


def attempt_of(descriptor: ShuffleDescriptor, partition: int) -> AttemptId:
    return AttemptId(PartitionId(descriptor.result, partition), descriptor.epoch, next(_numbers))


def write(
    environment: ObjectStoreEnvironment,
    descriptor: ShuffleDescriptor,
    partitions: Collection[int],
    step: int = 1,
) -> None:
    """Write the rows of partitions; a step of -1 writes them from the last row on."""
    for partition in partitions:
        count = descriptor.subpartitions
        deployment = ResultPartitionDeployment(
            attempt_of(descriptor, partition), count, SCHEMA, "lz4"
        )
        writer = environment.create_result_partition_writer(deployment, "host")
        numbers = np.array(rows_of(partition))[::step]
        for at in range(0, ROWS, 10):
            part = numbers[at : at + 10]
            writer.write(pa.record_batch([part], schema=SCHEMA), part % count)
        writer.finish()


def manifest_of(service: Service, master: DriverMaster, it: ShuffleDescriptor) -> Manifest:
    state, (store, root) = master.await_complete(it), service.store()
    manifest = build(it, state, Layout(root, it.job), store)
    store.close()
    return manifest


def complete(
    service: Service, job: JobId
) -> tuple[Job, DriverMaster, Callable[..., None], Manifest]:
    """Write a result of a new driver; return also a function that writes partitions again."""
    driver, master, environment = Job(job), service.master(), service.environment(job)
    master.register_job(driver)
    descriptor = register(master)
    again = partial(write, environment, descriptor)
    again(range(PARTITIONS))
    return driver, master, again, manifest_of(service, master, descriptor)


def names_of(manifest: Manifest, partition: int) -> list[str]:
    return [it.name for it in manifest.sources if it.attempt.partition.index == partition]


def read(environment: ObjectStoreEnvironment, manifest: Manifest) -> list[int]:
    deployment = InputGateDeployment(manifest, SCHEMA, 0, manifest.count, next(_numbers))
    gate = environment.create_input_gate(deployment)
    return sorted(n for batch in gate for n in batch["n"].to_pylist())


def await_that(true: Callable[[], bool], what: str) -> None:
    deadline = Deadline.after(WAIT_S)
    while not true():
        assert not deadline.passed, what
        SYSTEM_CLOCK.sleep_s(0.01)


EVERY_ROW = [n for partition in range(PARTITIONS) for n in rows_of(partition)]


@pytest.mark.usefixtures("no_thread_stays")
class ShuffleServiceSuite:
    @pytest.fixture
    def factory(self) -> StorageFactory:
        raise NotImplementedError

    @pytest.fixture
    def service(self, factory: StorageFactory) -> Iterator[Service]:
        with ExitStack() as made:
            yield Service(factory, made)

    @pytest.fixture
    def job(self) -> JobId:
        return JobId(f"suite-{SYSTEM_CLOCK.now_ms()}-{next(_numbers)}")

    def test_a_job_from_its_registration_to_nothing(self, service: Service, job: JobId) -> None:
        """A job registers, writes, completes, reads twice, releases and unregisters: each read
        gives every row, and nothing is left."""
        master, environment = service.master(), service.environment(job)
        master.register_job(Job(job))
        assert service.stores(job) == [service.factory.address]
        descriptor = register(master)
        write(environment, descriptor, range(PARTITIONS))
        manifest = manifest_of(service, master, descriptor)
        assert read(environment, manifest) == EVERY_ROW
        assert read(service.environment(job), manifest) == EVERY_ROW
        master.release_partition_externally(descriptor)
        await_that(lambda: service.objects(job) == [], "a released result is deleted")
        master.unregister_job()
        assert service.objects(job) == []

    def test_unregistering_leaves_nothing_of_the_job_only(
        self, service: Service, job: JobId
    ) -> None:
        """Unregistering deletes consumable and unannounced objects of the job; another job's
        objects stay."""
        other = JobId(f"{job}-other")
        master, others = service.master(), service.master()
        for owner, owned in ((job, master), (other, others)):
            owned.register_job(Job(owner))
            write(service.environment(owner), register(owned), range(PARTITIONS))
        store, root = service.store()
        stray = AttemptId(PartitionId(RESULT, 0), 1, 10_000)
        store.put(Layout(root, job).segment(stray, 0), b"of a zombie", "w")
        store.close()
        before = service.objects(other)
        master.unregister_job()
        assert service.objects(job) == []
        assert service.objects(other) == before
        others.unregister_job()
        assert service.objects(other) == []

    def test_a_gate_waits_for_what_is_not_written_yet(self, service: Service, job: JobId) -> None:
        """A reader that starts with one known partition gets the others as they are written."""
        master, environment = service.master(), service.environment(job)
        master.register_job(Job(job))
        descriptor = register(master)
        write(environment, descriptor, [1])
        await_that(lambda: master.is_available(RESULT, 1), "the partition is available")
        store, root = service.store()
        layout = Layout(root, job)
        now = known(descriptor, master.state().results[RESULT], layout, store)
        store.close()
        assert len(now.unknown) == PARTITIONS - 1
        deployment = InputGateDeployment(
            now.manifest, SCHEMA, 0, SUBPARTITIONS, 1, now.unknown, now.told, 0
        )
        batches = iter(service.environment(job).create_input_gate(deployment))
        rows = [n for _ in range(SUBPARTITIONS) for n in next(batches)["n"].to_pylist()]
        assert set(rows) <= set(rows_of(1))
        writer = threading.Thread(target=lambda: write(environment, descriptor, [0, 2]))
        writer.start()
        rows += [n for batch in batches for n in batch["n"].to_pylist()]
        writer.join()
        assert sorted(rows) == EVERY_ROW
        master.unregister_job()

    def test_a_lost_partition_is_made_again(self, service: Service, job: JobId) -> None:
        """A reader reports a missing object, the master tells the job which partition is lost, and
        after that partition is written again the reader ends with every row."""
        driver, master, again, manifest = complete(service, job)
        service.delete(names_of(manifest, 1))
        rows: list[int] = []
        shuffle = service.environment(job)
        reader = threading.Thread(target=lambda: rows.extend(read(shuffle, manifest)))
        reader.start()
        await_that(lambda: driver.missing == {RESULT: frozenset({1})}, "the job is told")
        assert not master.is_available(RESULT, 1)
        assert master.is_available(RESULT, 0)
        again([1])
        reader.join()
        assert rows == EVERY_ROW
        assert master.is_available(RESULT)
        master.unregister_job()

    @pytest.mark.parametrize("fetch_bytes", [1, LIMITS.fetch_bytes])
    def test_a_partition_comes_again_in_another_order(
        self, service: Service, job: JobId, fetch_bytes: int
    ) -> None:
        """A lost partition may be written again in another order, and so in other segments.

        A reader that has given none of its rows reads the new segments. A reader that has given
        some fails instead of mixing them, and gets every row when it begins again.
        """
        driver, master, again, manifest = complete(service, job)
        names = names_of(manifest, 1)
        assert len(names) > 1
        service.delete(names[-1:])
        limits = replace(service.factory.limits, fetch_bytes=fetch_bytes, join_bytes=0)
        few = Service(replace(service.factory, limits=limits), service.made)
        shuffle = few.environment(job)
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read, shuffle, manifest)
            await_that(lambda: driver.missing == {RESULT: frozenset({1})}, "the job is told")
            again([1], step=-1)
            failure = reader.exception(WAIT_S)
        if fetch_bytes == 1:
            assert isinstance(failure, Lost)
            assert "start the reader again" in str(failure)
        else:
            assert failure is None
            assert reader.result() == EVERY_ROW
        await_that(lambda: not set(names) & set(service.objects(job)), "what was replaced goes")
        assert read(shuffle, manifest) == EVERY_ROW
        master.unregister_job()

    def test_other_rows_are_never_taken_for_those_that_were_lost(
        self, service: Service, job: JobId
    ) -> None:
        """A reader fails with an error when a lost partition is replaced by one with other rows."""
        driver, master, again, manifest = complete(service, job)
        service.delete(names_of(manifest, 1))
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read, service.environment(job), manifest)
            await_that(lambda: driver.missing == {RESULT: frozenset({1})}, "the job is told")
            again([1], step=-2)
            assert "made again with other rows" in str(reader.exception(WAIT_S))
        master.unregister_job()

    def test_every_consumer_reads_all_of_a_broadcast_result(
        self, service: Service, job: JobId
    ) -> None:
        """A broadcast result is written once, and concurrent gates read all of it, even a gate that
        misses an object while others are done. It stays until every registered consumer is
        complete, and is deleted when it is released."""
        driver, master, environment = Job(job), service.master(), service.environment(job)
        master.register_job(driver)
        descriptor = register(master, broadcast=True)
        assert (descriptor.broadcast, descriptor.subpartitions) == (True, 1)
        with pytest.raises(Invalid, match="needs 1 subpartition"):
            master.register_partition_with_producer(ResultRegistered(OTHER, 1, 2, "", ""), True)
        write(environment, descriptor, range(PARTITIONS))
        manifest = manifest_of(service, master, descriptor)
        stored = service.objects(job)
        consumer = register(master, OTHER, 1, (RESULT,))
        with ThreadPoolExecutor(4) as four:
            gates = [four.submit(read, service.environment(job), manifest) for _ in range(4)]
            assert [EVERY_ROW] * 4 == [gate.result(WAIT_S) for gate in gates]
            assert master.remove_unused(()) == ()
            assert stored == service.objects(job)
            service.delete([manifest.sources[0].name])
            late = four.submit(read, service.environment(job), manifest)
            await_that(lambda: RESULT in driver.missing, "the job is told")
            write(environment, descriptor, driver.missing[RESULT])
            assert late.result(WAIT_S) == EVERY_ROW
        write(environment, consumer, [0])
        master.await_complete(consumer)
        assert set(master.remove_unused(())) == {RESULT, OTHER}
        await_that(lambda: service.objects(job) == [], "what was released is deleted")
        with pytest.raises(Lost):
            read(service.environment(job), manifest)
        master.unregister_job()

    def test_a_fatal_error_reaches_the_job(self, service: Service, job: JobId) -> None:
        """A fenced master reports the error to its job, and to every later caller."""
        first, fenced = service.master(), Job(job)
        first.register_job(fenced)
        descriptor = register(first)
        second = service.master()
        second.register_job(Job(job))
        with pytest.raises(HeadgateError):
            first.release_partition_externally(descriptor)
        await_that(lambda: fenced.errors != [], "the job hears of its master's end")
        assert isinstance(fenced.errors[0], Fenced)
        second.unregister_job()

    def test_memory_of_a_task(self, service: Service) -> None:
        """A task needs three segments of memory per written partition, the fetched bytes per gate,
        and the cache once if it reads at all."""
        master = service.master()

        def bytes_of(inputs: int, outputs: int) -> int:
            task = TaskInputsOutputsDescriptor(inputs, outputs)
            return master.compute_shuffle_memory_size_for_task(task)

        limits = service.factory.limits
        assert bytes_of(0, 0) == 0
        assert bytes_of(0, 2) == 6 * limits.segment_bytes
        assert bytes_of(2, 0) == 2 * limits.fetch_bytes + limits.cache_bytes
        assert bytes_of(1, 1) == bytes_of(1, 0) + bytes_of(0, 1)

    @pytest.mark.parametrize("promoted", [True, False])
    def test_a_cluster_partition_outlives_its_job(
        self, service: Service, job: JobId, promoted: bool
    ) -> None:
        """A result that is promoted, or no longer tracked, is listed, outlives its job, and can be
        read and released later. Everything else of the job is deleted."""
        master, environment = service.master(), service.environment(job)
        master.register_job(Job(job))
        kept, gone = register(master), register(master, OTHER)
        with pytest.raises(Invalid, match=RESULT):
            master.promote_partitions(kept, 0)
        for descriptor in (kept, gone):
            write(environment, descriptor, range(PARTITIONS))
        manifest = manifest_of(service, master, kept)
        if promoted:
            master.promote_partitions(kept, 0)
        else:
            master.stop_tracking_partitions(kept, "handed over")
            with pytest.raises(Invalid, match=RESULT):
                master.stop_tracking_partitions(kept, "again")
        assert master.cluster_partitions() == (RESULT,)
        master.unregister_job()
        assert {source.name for source in manifest.sources} == set(service.objects(job))
        assert read(service.environment(job), manifest) == EVERY_ROW
        heir = service.master()
        heir.register_job(Job(job))
        assert heir.cluster_partitions() == (RESULT,)
        heir.release_partition_externally(kept)
        heir.unregister_job()
        assert service.objects(job) == []

    def test_an_executor_may_go_when_nothing_of_it_is_lost(
        self, service: Service, job: JobId
    ) -> None:
        """An executor may not be released while an attempt runs on its host. It may be released
        after that, and everything it produced stays available."""
        master, environment = service.master(), service.environment(job)
        master.register_job(Job(job))
        descriptor = register(master, partitions=1)
        deployment = ResultPartitionDeployment(
            attempt_of(descriptor, 0), SUBPARTITIONS, SCHEMA, "none"
        )
        writer = environment.create_result_partition_writer(deployment, "host")
        await_that(lambda: not master.may_release_executor("host"), "the attempt is known")
        assert master.may_release_executor("another")
        assert not master.is_available(RESULT)
        assert not master.is_available(RESULT, 0)
        writer.finish()
        await_that(lambda: master.is_available(RESULT), "the result is available")
        assert master.is_available(RESULT, 0)
        assert not master.is_available(OTHER)
        assert master.may_release_executor("host")
        master.unregister_job()

    def test_what_is_unused_goes(self, service: Service, job: JobId) -> None:
        """`remove_unused` releases complete results that are not in use; results in use, and
        results that are still being written, stay."""
        master, environment = service.master(), service.environment(job)
        master.register_job(Job(job))
        results = [ResultId(f"r{at}") for at in range(3)]
        used, idle, written = (register(master, result) for result in results)
        for descriptor in (used, idle):
            write(environment, descriptor, range(PARTITIONS))
            master.await_complete(descriptor)
        write(environment, written, [0])
        assert master.remove_unused({used.result}) == (idle.result,)
        assert master.remove_unused({used.result}) == ()
        assert read(environment, manifest_of(service, master, used)) == EVERY_ROW
        store, root = service.store()
        store.close()
        layout = Layout(root, job)
        await_that(
            lambda: (
                {layout.result_of(name) for name in service.objects(job)}
                == {used.result, written.result}
            ),
            "what is unused is deleted, and nothing else",
        )
        master.unregister_job()
