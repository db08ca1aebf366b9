"""One hash exchange: register, write now, read whenever the DataFrame is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from ...control.contract import PartitionDescriptor, ProducerDescriptor, ShuffleDescriptor
from ...control.ids import ResultId
from ...control.master import DriverMaster
from ...storage.blobs import BlobStore
from ...storage.layout import Layout
from ...storage.manifest import Manifest, build
from ...storage.shards import StoredManifest, store_manifest
from .catalyst import CatalystDoor
from .roads import PrivateRoad, PublicRoad, Road
from .settings import Settings
from .shipping import cause
from .types import check, has_maps
from .worker import MapTask, ReadTask, WorkerSettings

_DESCRIPTION = "spark.job.description"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A finished exchange and the DataFrame that reads it."""

    descriptor: ShuffleDescriptor
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class Means:
    """What the exchanges of a job work with."""

    master: DriverMaster
    store: BlobStore
    worker: WorkerSettings
    settings: Settings
    epoch: int


@dataclass(frozen=True, slots=True)
class Exchanger:
    """Runs the exchanges of one job."""

    spark: SparkSession
    means: Means
    door: CatalystDoor | None

    def run(
        self, df: DataFrame, n: int, columns: Sequence[str | Column], result: ResultId
    ) -> Exchange:
        """Do what `df.repartition(n, *columns)` would."""
        check(df.schema)
        road = self._road(df, n, columns)
        means = self.means
        task = MapTask(means.worker, result, means.epoch, n, road.schema, means.settings.codec)
        with self._described(f"headgate: write {result}, {n} by {', '.join(map(str, columns))}"):
            write = road.writes(task)
            descriptor = self._register(result, write.partitions, n)
            try:
                write.run()
                manifest = self._manifest(descriptor)
                read = ReadTask(means.worker, manifest, road.schema)
                return Exchange(descriptor, road.reads(read))
            except BaseException as exc:
                means.master.release_partition_externally(descriptor)
                ours = cause(exc) if isinstance(exc, PySparkException) else None
                if ours is None:
                    raise
                raise ours from exc

    def _road(self, df: DataFrame, n: int, columns: Sequence[str | Column]) -> Road:
        if self.door is None:
            return PublicRoad(self.spark, df, n, columns)
        plan = self.door.exchange_plan(df.repartition(n, *columns), has_maps(df.schema))
        return PrivateRoad(self.spark, self.door, plan, self.means.settings.batch_rows)

    def _register(self, result: ResultId, partitions: int, subpartitions: int) -> ShuffleDescriptor:
        partition = PartitionDescriptor(result, partitions, subpartitions, "", "repartition")
        worker = self.means.worker
        future = self.means.master.register_partition_with_producer(
            worker.job, partition, ProducerDescriptor(0, partitions)
        )
        return future.result(worker.wait_s)

    def _manifest(self, descriptor: ShuffleDescriptor) -> Manifest | StoredManifest:
        state = self.means.master.await_complete(descriptor)
        layout, store = Layout(self.means.worker.root, descriptor.job), self.means.store
        return store_manifest(store, layout, build(descriptor, state, layout, store))

    @contextmanager
    def _described(self, text: str) -> Iterator[None]:
        """Jobs that start inside carry this text in Spark's own pages."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, text)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
