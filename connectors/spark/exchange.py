"""One hash exchange: rows out of the JVM, into segments, and back as a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import FramedSerializer, read_int
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...control.contract import PartitionDescriptor, ProducerDescriptor, ShuffleDescriptor
from ...control.ids import ResultId
from ...control.master import DriverMaster
from ...storage.layout import Layout
from ...storage.manifest import Manifest, build
from .catalyst import CatalystDoor
from .settings import Settings
from .worker import MapTask, ReadTask, WorkerSettings

_SUBPARTITION = "headgate_subpartition"


class ArrowBytes(FramedSerializer):
    """Takes what the JVM sends as it is: a length and that many bytes, until the end mark."""

    def dumps(self, obj: Any) -> bytes:
        return bytes(obj)

    def loads(self, obj: bytes) -> bytes:
        return obj

    def load_stream(self, stream: Any) -> Any:
        while True:
            try:
                length = read_int(stream)
            except EOFError:
                return
            if length < 0:
                return
            yield stream.read(length)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A finished exchange and the DataFrame that reads it."""

    descriptor: ShuffleDescriptor
    manifest: Manifest
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class Exchanger:
    """Runs exchanges of one job."""

    spark: SparkSession
    master: DriverMaster
    worker: WorkerSettings
    settings: Settings
    door: CatalystDoor

    def hash(self, repartitioned: DataFrame, result: ResultId) -> Exchange:
        """Run what `df.repartition(n, keys)` would: write now, read whenever the frame is used."""
        names = [f"c{at}" for at in range(len(repartitioned.columns))]
        plan = self.door.hash_plan(repartitioned, names, _SUBPARTITION)
        batches = self.door.arrow_batches(plan.rows, self.settings.batch_rows)
        carried = self.door.arrow_schema(plan.rows)
        descriptor = self._register(
            result, batches.getNumPartitions(), plan.partitioning.numPartitions()
        )
        task = MapTask(
            self.worker, descriptor, carried.serialize().to_pybytes(), self.settings.codec
        )
        RDD(batches, self.spark.sparkContext, ArrowBytes()).mapPartitionsWithIndex(task).collect()
        state = self.master.await_complete(descriptor)
        manifest = build(descriptor, state, Layout(self.worker.root, self.worker.job), None)
        schema = plan.rows.drop(_SUBPARTITION).schema
        frame = self.door.scan(self._reader(manifest, carried, schema), plan)
        return Exchange(descriptor, manifest, frame)

    def _register(
        self, result: ResultId, partitions: int, subpartitions: int
    ) -> ShuffleDescriptor:
        partition = PartitionDescriptor(result, partitions, subpartitions, "", "repartition")
        producer = ProducerDescriptor(0, partitions)
        future = self.master.register_partition_with_producer(self.worker.job, partition, producer)
        return future.result(self.worker.wait_s)

    def _reader(self, manifest: Manifest, carried: pa.Schema, schema: StructType) -> DataFrame:
        stored = pa.schema(list(carried)[:-1])
        task = ReadTask(self.worker, manifest, stored.serialize().to_pybytes())
        numbers = self.spark.range(0, manifest.count, 1, manifest.count)
        return numbers.mapInArrow(lambda batches: task(batches), schema)
