"""Transports between Spark's rows and Arrow batches.

`JvmTransport` takes whole batches out of the JVM as bytes and hands them back, and Spark knows the
partitioning of the rows that it reads. `MapInArrowTransport` uses mapInArrow both ways: the same
rows in the same partitions, on any PySpark. `StoredReader` reads the results of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from .. import types
from ..jvm.catalyst import CatalystDoor, ExchangePlan, Lineage
from ..jvm.task_settings import require_carried
from ..tasks.exchange_tasks import SUBPARTITION, ReaderTask
from ..tasks.frames import Frames, RunFrames, Volume, layout_of
from ..tasks.shipping import ship
from .driver_reads import read_by_driver
from .job_context import JobContext
from .rerun import MapStage

Write = Callable[[int, Iterable[pa.RecordBatch]], Iterator[Volume]]
Scanned = tuple[DataFrame, int | None]
"""A DataFrame that reads stored rows, and the id of its RDD, None if only public calls made it."""


class Transport(Protocol):
    @property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the stored rows."""

    def lineage(self) -> Lineage:
        """Return how far the map stage can be trusted to give the same rows again."""

    def writes(self, write: Write) -> MapStage: ...

    def reads(self, task: ReaderTask, context: JobContext) -> Scanned:
        """Return the DataFrame that reads the rows."""


class JvmTransport:
    def __init__(self, spark: SparkSession, door: CatalystDoor, plan: ExchangePlan) -> None:
        self._spark = spark
        self._door = door
        self._plan = plan
        self.rows = plan.rows
        self.shown = plan.shown
        self.schema = types.carried_schema(self.rows)
        self._sent = self.schema.append(pa.field(SUBPARTITION, pa.int32()))
        self._layout = layout_of(self._sent)

    @cached_property
    def _batches(self) -> Any:
        """Return the map stage as an RDD of Arrow batches in bytes. With adaptive execution,
        planning it runs the stages before it."""
        if self._layout:
            return self._door.sorted_runs(self._plan.executed, self._layout)
        row_bytes = types.least_bytes(self.schema)
        return self._door.arrow_batches(self._plan.executed, row_bytes)

    def begin(self) -> None:
        """Run what the map stage needs: its subqueries and broadcasts."""
        _ = self._batches

    def require_slots(self) -> None:
        """Raise Spark's error if the map stage has a barrier and too few slots."""
        self._door.tasks.require_slots(self._batches)

    def lineage(self) -> Lineage:
        return self._door.lineage(self._plan.origin, self._batches)

    def writes(self, write: Write) -> MapStage:
        sent = RunFrames(self._sent, self._layout) if self._layout else Frames(self._sent)
        return self._door.tasks.over(self._batches, ship(write), sent)

    def reads(self, task: ReaderTask, context: JobContext) -> Scanned:
        plan, batches = self._plan, read_frames(self._door, task, context)
        return self._door.scan(batches, self.rows, plan.attributes, plan.given, plan.partitioning)


class MapInArrowTransport:
    def __init__(
        self, spark: SparkSession, df: DataFrame, n: int, columns: Sequence[str | Column]
    ) -> None:
        self._spark = spark
        self._rows = df.schema
        types.check_public(df.schema)
        types.check_public_keys(df.select(*columns).schema)
        number = F.pmod(F.hash(*columns), F.lit(n)).alias(SUBPARTITION)
        numbered = df.select("*", number)
        renamed = numbered.toDF(*[f"c{at}" for at in range(len(df.columns))], SUBPARTITION)
        self._carried = renamed.select(*types.to_carried(df.schema), SUBPARTITION)
        self._stored = StructType(self._carried.schema.fields[:-1])
        self.schema = types.carried_schema(self._stored)

    def lineage(self) -> Lineage:
        """Return a lineage that promises nothing: public PySpark does not tell."""
        return Lineage()

    def writes(self, write: Write) -> MapStage:
        shipped = ship(write)

        def rows_written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict(
                {"rows": [volume.rows for volume in shipped(0, batches)]}
            )

        return PublicMapStage(self._carried.mapInArrow(rows_written, "rows long").rdd)

    def reads(self, task: ReaderTask, context: JobContext) -> Scanned:
        frame = _mapped(self._spark, task, self._stored)
        return frame.select(*types.back_from_carried(self._rows)), None


@dataclass(frozen=True, slots=True)
class PublicMapStage:
    """A map stage that calls public PySpark only."""

    volumes: RDD[Any]

    @property
    def count(self) -> int:
        return self.volumes.getNumPartitions()

    def run(self) -> list[int]:
        require_carried()
        return [volume.rows for volume in self.volumes.collect()]

    def run_again(self, partitions: list[int]) -> None:
        require_carried()
        if self.volumes._jrdd.rdd().isBarrier():  # Spark runs no part of such a stage
            self.run()
            return
        self.volumes.context.runJob(self.volumes, lambda volumes: volumes, partitions)


class StoredReader:
    """Reads the rows that either transport has written, and needs only their schema."""

    def __init__(self, spark: SparkSession, door: CatalystDoor | None, rows: StructType) -> None:
        self._spark = spark
        self._door = door
        self._rows = rows
        if door is None:
            types.check_public(rows)
        self._stored = types.stored_schema(rows)
        self.schema = types.carried_schema(self._stored)

    def reads(self, task: ReaderTask, context: JobContext) -> Scanned:
        if self._door is not None:
            batches = read_frames(self._door, task, context)
            return self._door.load(batches, self._stored, self._rows)
        frame = _mapped(self._spark, task, self._stored)
        return frame.select(*types.back_from_carried(self._rows)), None


def read_frames(door: CatalystDoor, task: ReaderTask, context: JobContext) -> Any:
    """Return an RDD of the batches of each task, as the messages that the JVM loads."""
    if (messages := read_by_driver(context, task)) is not None:
        return door.tasks.of_messages(messages)
    return door.tasks.without_input(task.count, ship(task.frames))


def _mapped(spark: SparkSession, task: ReaderTask, stored: StructType) -> DataFrame:
    read = ship(task.batches)
    return spark.range(0, task.count, 1, task.count).mapInArrow(lambda rows: read(0, rows), stored)
