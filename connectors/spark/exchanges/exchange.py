"""Run one exchange: register it, write its rows now, read them whenever its DataFrame is used, or
now if they are few."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from ....control.contract import (
    PartitionDescriptor,
    ProducerDescriptor,
    ShuffleDescriptor,
)
from ....control.errors import Closed, Corrupt, Fenced, HeadgateError, Invalid, Unavailable
from ....control.events.types import WayChosen
from ....control.ids import ResultId, again_name, combined_name, exchange_name
from ....control.model.state import JobState, ResultState
from ....storage.format.segment import Longs
from ....storage.reading.ways import DIRECT, ExchangeSize, Prediction, Readers, choose, predict
from ..jvm.bridge import is_cancelled
from ..jvm.catalyst import CatalystDoor, open_door
from ..jvm.pages.query_page import QueryPage
from ..jvm.scheduler import task_slots
from ..jvm.task_settings import TaskSettings
from ..report import job_report
from ..settings import is_true
from ..tasks.combine_task import CombineTask, share
from ..tasks.exchange_tasks import MapTask
from ..tasks.shipping import ship
from ..types import check
from .budget import Cost, spent
from .combining import (
    CombineStage,
    check_combined,
    combined_parts,
    exchange_size,
)
from .job_context import JobContext, StoredExchange
from .placing import stored_now
from .rerun import MapStage, Writing
from .transport import (
    JvmTransport,
    MapInArrowTransport,
    PublicMapStage,
    StoredReader,
    Transport,
)

_LOG = logging.getLogger("headgate")
_COLUMN = re.compile(r"Column<'([\w.]+)'>")
_ADAPTIVE = "spark.sql.adaptive.enabled"
_LABEL_CHARS, _LINE_CHARS = 200, 60
_SCHEMA_CHARS = 100_000
_NAMED_MAX = 20
_UNKNOWN_BYTES = 1 << 60  # Spark's estimate of a size that it does not know is larger


@dataclass(frozen=True, slots=True)
class _Output:
    """The rows of an exchange, and what the log says of each result that holds them."""

    rows: pa.Schema
    schema: str
    """Spark's schema as JSON, empty if it is too large for the log."""
    label: str
    subpartitions: int
    inputs: tuple[ResultId, ...]
    ordered: bool
    """True if the map stage would give the same rows in the same order once more."""
    repeatable: bool
    """True if the map stage would give the same rows once more."""
    settings: TaskSettings


@dataclass(frozen=True, slots=True)
class Exchanger:
    """Runs the exchanges of one job."""

    spark: SparkSession
    job_context: JobContext
    door: CatalystDoor | None

    def of(self, spark: SparkSession) -> Exchanger:
        """Return the same job's exchanger for another session of the application."""
        context = replace(self.job_context, current=self.job_context.current.of(spark))
        return Exchanger(spark, context, self.door and open_door(spark))

    def run(
        self, df: DataFrame, n: int, columns: Sequence[str | Column], result: ResultId
    ) -> tuple[DataFrame, StoredExchange]:
        """Run the exchange of `df.repartition(n, *columns)`, and return the DataFrame that reads
        its stored rows."""
        check(df.schema)
        settings = TaskSettings(self.spark)
        with self.page() as page:
            text = f"repartition({n}, {', '.join(map(_public, columns))})"
            label = label_of(text, settings, page)
            described = f"headgate: prepare {exchange_name(result, label)}"
            if self.door is not None:
                page.begin(settings.hide)
            with settings.carried(described):
                if self.door is None:
                    transport: Transport = MapInArrowTransport(self.spark, df, n, columns)
                else:
                    plan = self.door.exchange_plan(df, n, columns)
                    page.stage(result, label, plan.shown)
                    transport = JvmTransport(self.spark, self.door, plan)
                    if is_true(self.spark.conf.get(_ADAPTIVE)):  # without, Spark waits for slots
                        transport.require_slots()
                written = self.write(
                    transport,
                    df.schema,
                    n,
                    label,
                    result,
                    settings,
                    estimate=lambda: inf if self.door is None else self.door.estimate_bytes(df),
                )
            if self.door is not None and plan.is_adaptive:
                page.stage(result, label, self.door.shown(plan.executed))
        try:
            frame, scan = transport.reads(written.read, self.job_context)
            self._note(scan, written)
        except BaseException:
            self.drop(written.descriptor)
            raise
        return frame, written

    def page(self, is_read: bool = False) -> QueryPage:
        """Return the place of a new query on Spark's SQL page; see `QueryPage` for `is_read`."""
        master, job = self.job_context.master, self.job_context.worker.job
        return QueryPage(self.spark, lambda: master.state(job).results, is_read)

    def write(
        self,
        transport: Transport,
        named: StructType,
        n: int,
        label: str,
        result: ResultId,
        settings: TaskSettings,
        firsts_of: Callable[[Longs], Longs] | None = None,
        estimate: Callable[[], float] = lambda: inf,
    ) -> StoredExchange:
        """Write all rows into `n` subpartitions, and wait until they may be read. A later `read`
        shows the schema `named`. The caller carries `settings` to the tasks; reruns of lost
        partitions carry them too. `firsts_of` gives the first subpartition of each reading task,
        by the bytes of all; without it each task reads one.

        Raises:
            Invalid: the exchange would exceed a limit of the budget. `estimate` gives its bytes as
                far as they are known before.
        """
        context, hide = self.job_context, settings.hide
        columns = [StructField(hide(f.name), f.dataType, f.nullable, f.metadata) for f in named]
        schema = StructType(columns).json()
        lineage = transport.lineage()
        inputs, ordered = context.known.inputs(lineage)
        output = _Output(
            transport.schema,
            schema if len(schema) <= _SCHEMA_CHARS else "",  # then only the segments have it
            label,
            n,
            inputs,
            ordered,
            lineage.repeatable,
            settings,
        )
        task = self._map_task(result, output)
        stage = transport.writes(task.write)
        if context.budget.is_limited and (estimate_bytes := estimate()) < _UNKNOWN_BYTES:
            name = exchange_name(result, label)
            context.budget.check_least(name, self._spent(), stage.count, estimate_bytes)
        descriptor, state = self._write(result, stage, output)
        try:
            size = exchange_size(state, partial(self._readers, firsts_of or _one_by_one))
            prediction = self._check(exchange_name(result, label), size)
            self._state_way(result, prediction)
        except BaseException:
            self.drop(descriptor)
            raise
        if prediction.way == DIRECT:
            return self._stored(descriptor, output, size.readers)
        return self._combined(descriptor, state, transport, output, size, prediction)

    def _readers(self, firsts_of: Callable[[Longs], Longs], sizes: Longs) -> Readers:
        """Return the tasks that will read subpartitions of these bytes, in the places that Spark
        has now."""
        slots, executors = task_slots(self.spark.sparkContext)
        shares_files = self.job_context.worker.limits.files
        return Readers(firsts_of(sizes), slots, executors if shares_files else slots)

    def _spent(self) -> Cost:
        context = self.job_context
        return spent(job_report(context.master.state(context.worker.job)), context.budget.costs)

    def _state_way(self, result: ResultId, prediction: Prediction) -> None:
        """State the way of a result, and the costs of the tasks that read it next."""
        gets, took_s = prediction.combining.gets, prediction.combining_s
        if prediction.way == DIRECT:
            gets, took_s = prediction.reading.gets, prediction.reading_s
        chosen = WayChosen(result, str(prediction.way), gets, round(took_s * 1000))
        self.job_context.master.announce(self.job_context.worker.job, chosen)

    def _check(self, name: str, size: ExchangeSize) -> Prediction:
        """Choose the way of an exchange that is written, and check its cost.

        Raises:
            Invalid: the exchange would exceed a limit.
        """
        limits, budget = self.job_context.worker.limits, self.job_context.budget
        if self.job_context.settings.combine:
            prediction = choose(size, limits, budget.costs)
        else:
            prediction = predict(size, DIRECT, limits, budget.costs)
        if budget.is_limited:
            writing = budget.writing(size.objects, size.stored_bytes)
            copied_bytes = 0 if prediction.way == DIRECT else size.stored_bytes
            reading = Cost(prediction.usd, prediction.requests, copied_bytes)
            budget.check(name, writing + reading, self._spent() + reading)
        return prediction

    def _map_task(self, result: ResultId, output: _Output) -> MapTask:
        context = self.job_context
        return MapTask(
            context.worker,
            result,
            context.epoch,
            output.subpartitions,
            output.rows,
            context.settings.codec,
            output.ordered,
        )

    def _write(
        self, result: ResultId, stage: MapStage, output: _Output
    ) -> tuple[ShuffleDescriptor, ResultState]:
        """Register a result, write it, and wait until it may be read."""
        context = self.job_context
        job, partitions = context.worker.job, stage.count
        partition = PartitionDescriptor(
            result,
            partitions,
            output.subpartitions,
            output.schema,
            output.label,
            output.inputs,
            output.repeatable,
        )
        descriptor = ShuffleDescriptor(job, result, partitions, output.subpartitions, context.epoch)
        writing = Writing(stage, output.settings)
        try:
            with context.progress.of(result, context.reruns.state_of):
                # the log has the registration when this returns, so tasks may begin
                registered = context.master.register_partition_with_producer(
                    job, partition, ProducerDescriptor(0, partitions)
                )
                rows = writing.run(exchange_name(result, output.label))
                self._await_registered(registered, result)
                state = context.master.await_complete(descriptor)
            check_rows(state, rows)
            context.reruns.keep(result, writing)
        except BaseException:
            self.drop(descriptor)
            raise
        return descriptor, state

    def _combined(
        self,
        first: ShuffleDescriptor,
        state: ResultState,
        transport: Transport,
        output: _Output,
        size: ExchangeSize,
        prediction: Prediction,
    ) -> StoredExchange:
        """Return the exchange with its rows in fewer objects. If combining fails, its readers read
        the objects of the map stage."""
        name, context = combined_name(first.result), self.spark.sparkContext
        limits, costs = self.job_context.worker.limits, self.job_context.budget.costs
        parts = combined_parts(state, size, prediction.way, limits)
        again = count(1)
        label = f"{prediction.way}: {output.label}"
        copy = replace(output, label=label, ordered=False)

        def copied(descriptor: ShuffleDescriptor, state: ResultState) -> MapStage:
            task = ship(CombineTask(descriptor, self._map_task(name, copy)).write)
            shares: Any = context.parallelize([share(part, state) for part in parts], len(parts))
            if self.door is None:
                return PublicMapStage(shares.mapPartitionsWithIndex(task))
            return self.door.tasks.over(shares._jrdd.rdd(), task, shares._jrdd_deserializer)

        @contextmanager
        def made_again() -> Iterator[MapStage]:
            other = again_name(first.result, next(again))
            stage = transport.writes(self._map_task(other, output).write)
            source = self._write(other, stage, output)
            try:
                yield copied(*source)
            finally:
                self.drop(source[0])

        try:
            stage = CombineStage(copied(first, state), made_again)
            descriptor, copies = self._write(name, stage, copy)
            try:
                check_combined(state, copies)
                combined = exchange_size(copies, lambda _: size.readers)
                self._state_way(name, predict(combined, DIRECT, limits, costs))
            except BaseException:
                self.drop(descriptor)
                raise
        except Exception as exc:  # Spark may raise anything
            if isinstance(exc, Fenced | Closed) or is_cancelled(exc):
                self.drop(first)
                raise
            _LOG.warning("result %s is read as its map stage wrote it: %s", first.result, exc)
            self._state_way(first.result, predict(size, DIRECT, limits, costs))
            return self._stored(first, output, size.readers)
        except BaseException:
            self.drop(first)
            raise
        self.drop(first)
        return self._stored(descriptor, copy, size.readers)

    def drop(self, descriptor: ShuffleDescriptor) -> None:
        """Release a result that nobody will read. Errors are suppressed: the caller raises the
        error that came before."""
        self.job_context.forget(descriptor.result)
        with suppress(HeadgateError):
            self.job_context.master.release_partition_externally(descriptor)

    def read(self, result: ResultId) -> tuple[DataFrame, StoredExchange]:
        """Return a DataFrame that reads a complete result of the job, from the log and the store.
        Spark does not know its partitioning.

        Raises:
            Invalid: there is no such result, or it cannot be read.
        """
        master, job = self.job_context.master, self.job_context.worker.job
        registered = readable(master.state(job), result).registered
        rows = StructType.fromJson(json.loads(registered.schema))
        transport = StoredReader(self.spark, self.door, rows)
        size = registered.partitions, registered.subpartitions
        descriptor = ShuffleDescriptor(job, result, *size, self.job_context.epoch)
        executors = self._readers(_one_by_one, np.zeros(size[1], np.int64)).executors
        written = stored_now(self.job_context, descriptor, transport.schema, False, executors)
        frame, scan = transport.reads(written.read, self.job_context)
        self._note(scan, written)
        return frame, written

    def plain_bytes(self, written: StoredExchange) -> int:
        """Return the size of an exchange's rows without compression. A task of an older version
        does not state it: its stored bytes count."""
        state = self.job_context.master.state(self.job_context.worker.job)
        result = state.results[written.descriptor.result]
        produced = map(result.produced, range(written.descriptor.partitions))
        return sum(each.plain_bytes or each.size_bytes for each in produced)

    def _note(self, scan: int | None, written: StoredExchange) -> None:
        if scan is not None:
            self.job_context.known.add(scan, [written])

    def _await_registered(self, registered: Future[ShuffleDescriptor], result: ResultId) -> None:
        worker = self.job_context.worker
        try:
            registered.result(worker.wait_s)
        except TimeoutError as exc:
            raise Unavailable(
                f"no master has answered the registration of result {result} of job {worker.job} "
                f"within {worker.wait_s:g} s"
            ) from exc

    def _stored(
        self, descriptor: ShuffleDescriptor, output: _Output, readers: Readers
    ) -> StoredExchange:
        """Return a result that was just written with the task that reads it. Drop it if that is not
        possible."""
        rows, ordered, executors = output.rows, output.ordered, readers.executors
        try:
            return stored_now(self.job_context, descriptor, rows, ordered, executors)
        except BaseException:
            self.drop(descriptor)
            raise


def _one_by_one(sizes: Longs) -> Longs:
    """Return the first subpartitions of tasks that read one each."""
    return np.arange(len(sizes))


def label_of(text: str, settings: TaskSettings, page: QueryPage) -> str:
    """Return the label of an exchange: the user's line and its partitioning, redacted as Spark
    redacts its plans."""
    return f"{settings.hide(page.line)[-_LINE_CHARS:]}: {settings.hide(text)[:_LABEL_CHARS]}"


def _public(column: str | Column) -> str:
    """Return a column's name for the log and Spark's pages. Expressions are not shown, because they
    may hold secret values."""
    named = _COLUMN.fullmatch(str(column))
    return column if isinstance(column, str) else named[1] if named else "an expression"


def readable(state: JobState, name: ResultId) -> ResultState:
    """Return a result that is complete, not released, and whose schema the log has.

    Raises:
        Invalid: the result does not exist, is released or incomplete, or has no schema in the log.
    """
    result = state.results.get(name)
    if result is None:
        complete = [
            other
            for other, candidate in state.results.items()
            if candidate.complete and candidate.fate.released is None
        ]
        there = ", ".join(complete[-_NAMED_MAX:]) or "none"
        raise Invalid(f"job {state.job} has no result {name!r}; its complete results are: {there}")
    if result.fate.released is not None:
        raise Invalid(f"result {name} was released: {result.fate.released}")
    if not result.complete:
        whole, wanted = len(result.production.winners), result.registered.partitions
        progress = f"{whole} of {wanted} partitions are there"
        raise Invalid(f"result {name} is not complete: {progress}")
    if not result.registered.schema:
        raise Invalid(f"the schema of result {name} was too large for the log")
    return result


def check_rows(state: ResultState, counted: Sequence[int]) -> None:
    """Compare the announced row counts with those of Spark's successful attempts. They differ when
    the process that fed an attempt died, and the attempt took the cut for the end of its input.

    Raises:
        Corrupt: an announced attempt has another number of rows.
    """
    for number, rows in enumerate(counted):
        announced = state.produced(number)
        if announced.rows != rows:
            raise Corrupt(
                f"attempt {announced.attempt} has announced {announced.rows} rows, but Spark's "
                f"successful attempt wrote {rows}: run the exchange again"
            )
