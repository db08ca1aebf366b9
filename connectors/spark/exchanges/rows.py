"""Rows on their way between Spark and Arrow batches.

`JvmRows` takes whole batches out of the JVM as bytes and hands them back, and Spark knows the
partitioning of the rows that it reads. `PublicRows` uses mapInArrow both ways: the same rows in the
same partitions, on any PySpark. `StoredReader` reads the results of either. Few rows are read by
the driver: tasks then take them without a Python worker and without a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ....control.errors import HeadgateError
from ....control.events.types import BY_DRIVER, Consumed
from ....storage.format.manifest import Manifest
from ....storage.format.segment import Longs
from ....storage.reading.at_once import filled, read_at_once
from ....storage.stores.port import BlobStore
from .. import types
from ..jvm.catalyst import CatalystDoor, ExchangePlan, Lineage
from ..jvm.task_rdds import PublicMapStage
from ..tasks.exchange_tasks import SUBPARTITION, Part, ReaderTask, ReadTask
from ..tasks.frames import VOLUME, Frames, RunFrames, Volume
from ..tasks.shipping import ship
from .rerun import MapStage

_LOG = logging.getLogger("headgate")
_OBJECTS_MAX = 64
_ROWS_TIMES = 4  # rows without compression may take so many times as much as they do in the store
_WAIT_S = 5.0

FramesOf = Callable[[ReaderTask], Any]
"""Gives the RDD of a task's batches for the JVM."""


Scanned = tuple[DataFrame, int | None]
"""A DataFrame that reads stored rows, and the id of its RDD, None if only public calls made it."""


class WriterTask(Protocol):
    def write(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Volume]: ...


class JvmRows:
    def __init__(self, door: CatalystDoor, plan: ExchangePlan) -> None:
        self._door = door
        self.plan = plan
        self.schema = types.carried_schema(plan.rows)
        self._sent = self.schema.append(pa.field(SUBPARTITION, pa.int32()))
        self._layout = door.layout_of(self._sent)

    @cached_property
    def _batches(self) -> Any:
        """Return the map stage as an RDD of Arrow batches in bytes. With adaptive execution,
        planning it runs the stages before it."""
        if self._layout:
            return self._door.sorted_runs(self.plan.executed, self._layout)
        row_bytes = types.least_bytes(self.schema)
        return self._door.arrow_batches(self.plan.executed, row_bytes)

    def begin(self) -> None:
        """Run what the map stage needs: its subqueries and broadcasts."""
        _ = self._batches

    def require_slots(self) -> None:
        """Raise Spark's error if the map stage has a barrier and too few slots."""
        self._door.tasks.require_slots(self._batches)

    def lineage(self) -> Lineage:
        return self._door.lineage(self.plan.origin, self._batches)

    def writes(self, task: WriterTask) -> MapStage:
        sent = RunFrames(self._sent, self._layout) if self._layout else Frames(self._sent)
        return self._door.tasks.over(self._batches, ship(task.write), sent)

    def shown_now(self) -> Any:
        """Return the plan as Spark's SQL page shows it after adaptive execution."""
        return self._door.shown(self.plan.executed)

    def reads(self, task: ReaderTask, frames_of: FramesOf) -> Scanned:
        plan, batches = self.plan, frames_of(task)
        return self._door.scan(batches, plan.rows, plan.attributes, plan.given, plan.partitioning)


class PublicRows:
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

    def writes(self, task: WriterTask) -> MapStage:
        shipped = ship(task.write)

        def rows_written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict(
                {"rows": [volume.rows for volume in shipped(0, batches)]}
            )

        return PublicMapStage(self._carried.mapInArrow(rows_written, "rows long").rdd)

    def reads(self, task: ReaderTask, frames_of: FramesOf) -> Scanned:
        return _mapped(self._spark, task, self._stored, self._rows)


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

    def reads(self, task: ReaderTask, frames_of: FramesOf) -> Scanned:
        if self._door is not None:
            return self._door.load(frames_of(task), self._stored, self._rows)
        return _mapped(self._spark, task, self._stored, self._rows)


def _mapped(spark: SparkSession, task: ReaderTask, stored: StructType, rows: StructType) -> Scanned:
    read, numbers = ship(task.batches), spark.range(0, task.count, 1, task.count)
    frame = numbers.mapInArrow(lambda batches: read(0, batches), stored)
    return frame.select(*types.back_from_carried(rows)), None


def read_by_driver(
    task: ReaderTask, store: BlobStore, stored_max: int
) -> tuple[list[bytes], Consumed] | None:
    """Return the messages of the tasks, rows with the volume behind them or the volume alone, and
    the event for the log. Return None if the tasks are to read themselves: the result is not small,
    or cannot be read now. Tasks wait for partitions that are made again."""
    if not isinstance(task, ReadTask) or not isinstance(task.manifest, Manifest):
        return None
    manifest, sizes = task.manifest, task.manifest.sizes
    stored_bytes, rows = int(sizes.sum()), int(manifest.rows.sum())
    objects, rows_max = len(filled(manifest)), _ROWS_TIMES * stored_max
    is_small = (
        stored_bytes <= stored_max and rows * max(1, types.least_bytes(task.schema)) <= rows_max
    )
    is_whole = all(part.partitions is None for part in task.parts)
    if not stored_max or not is_small or not is_whole or objects > _OBJECTS_MAX:
        return None
    read: list[list[pa.RecordBatch]] = [[] for _ in range(manifest.count)]
    try:
        batches = read_at_once(manifest, task.schema, store, _WAIT_S)
        for subpartition, batch in batches:
            read[subpartition].append(batch)
            if (rows_max := rows_max - batch.nbytes) < 0:
                return None
    except (HeadgateError, RuntimeError, MemoryError) as exc:  # for example, no thread is left
        _LOG.info("tasks read result %s, which the driver cannot read: %s", manifest.result, exc)
        return None
    parts = task.parts or [Part(range(at, at + 1)) for at in range(manifest.count)]
    messages = [_message(read, part.subpartitions, sizes) for part in parts]
    consumed = Consumed(manifest.result, 0, manifest.count, BY_DRIVER, rows, stored_bytes, objects)
    return messages, consumed


def _message(read: Sequence[Sequence[pa.RecordBatch]], subpartitions: range, sizes: Longs) -> bytes:
    batches = [batch for at in subpartitions for batch in read[at]]
    rows = sum(batch.num_rows for batch in batches)
    volume = VOLUME.pack(rows, int(sizes[subpartitions.start : subpartitions.stop].sum()))
    return pa.concat_batches(batches).serialize().to_pybytes() + volume if rows else volume
