"""Run one exchange: register it, write its rows now, and find out how they are read."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....control.errors import Closed, Corrupt, Fenced, Unavailable
from ....control.events.types import ResultRegistered, WayChosen
from ....control.ids import ResultId, again_name, combined_name, exchange_name
from ....control.model.state import ResultState
from ....storage.format.segment import Longs
from ....storage.reading.ways import DIRECT, ExchangeSize, Prediction, Readers, choose, predict
from ..jvm.bridge import is_cancelled
from ..jvm.catalyst import CatalystDoor
from ..jvm.features import open_door
from ..jvm.names import Features
from ..jvm.pages.query_page import QueryPage
from ..jvm.scheduler import task_slots
from ..jvm.task_settings import TaskSettings
from ..report import job_report
from ..settings import is_true
from ..tasks.exchange_tasks import MapTask, ReaderTask
from ..tasks.shipping import ship
from ..types import check
from .budget import Cost, spent
from .combining import CombinedRows, Source, check_combined, combined_parts, exchange_size
from .current_settings import CurrentSettings
from .progress import Progress
from .rerun import MapStage, Writing
from .rows import JvmRows, PublicRows, StoredReader, read_by_driver
from .spec import ExchangeSpec, label_of, schema_text
from .stored import Pending, StoredResult, StoredResults, readable

_LOG = logging.getLogger("headgate")
_COLUMN = re.compile(r"Column<'([\w.]+)'>")
_ADAPTIVE = "spark.sql.adaptive.enabled"
_UNKNOWN_BYTES = 1 << 60  # Spark's estimate of a size that it does not know is larger


@dataclass(frozen=True, slots=True)
class Exchanger:
    """Runs the exchanges of one session."""

    spark: SparkSession
    features: Features
    door: CatalystDoor | None
    current: CurrentSettings
    results: StoredResults
    progress: Progress

    def of(self, spark: SparkSession) -> Exchanger:
        """Return the same job's exchanger for another session of the application."""
        door, current = open_door(spark, self.features), self.current.of(spark)
        return Exchanger(spark, self.features, door, current, self.results, self.progress)

    def repartition(self, df: DataFrame, n: int, columns: Sequence[str | Column]) -> DataFrame:
        """Run the exchange of `df.repartition(n, *columns)`, and return the DataFrame that reads
        its stored rows."""
        check(df.schema)
        settings, result = TaskSettings(self.spark, self.features), self.results.name()
        text = f"repartition({n}, {', '.join(map(_public, columns))})"
        estimate = partial(self.door.estimate_bytes, df) if self.door else lambda: inf
        with self.results.pending() as pending:
            with self.page() as page:
                label = label_of(text, settings, page)
                if self.door is not None:
                    page.begin(settings.hide)
                with settings.carried(f"headgate: prepare {exchange_name(result, label)}"):
                    if self.door is None:
                        rows: JvmRows | PublicRows = PublicRows(self.spark, df, n, columns)
                    else:
                        rows = JvmRows(self.door, self.door.exchange_plan(df, n, columns))
                        page.stage(result, label, rows.plan.shown)
                        if is_true(self.spark.conf.get(_ADAPTIVE)):  # else Spark waits for slots
                            rows.require_slots()
                    schema = schema_text(df.schema, settings)
                    spec = ExchangeSpec(result, label, rows, schema, n, settings, self.readers)
                    stored = ExchangeRun(self, spec).run(pending, estimate)
                if isinstance(rows, JvmRows) and rows.plan.is_adaptive:
                    page.stage(result, label, rows.shown_now())
            frame = self._frame(rows, stored)
            pending.remove(stored.descriptor)
        return frame

    def read(self, result: ResultId) -> DataFrame:
        """Return a DataFrame that reads a complete result of the job, from the log and the store.
        Spark does not know its partitioning.

        Raises:
            Invalid: there is no such result, or it cannot be read.
        """
        registered = readable(self.results.state, result).registered
        rows = StoredReader(
            self.spark, self.door, StructType.fromJson(json.loads(registered.schema))
        )
        descriptor = self.results.descriptor(
            result, registered.partitions, registered.subpartitions
        )
        readers = self.readers(np.zeros(registered.subpartitions, np.int64))
        stored = self.results.place(descriptor, rows.schema, False, readers.executors)
        return self._frame(rows, stored)

    def frames_of(self, task: ReaderTask) -> Any:
        """Return an RDD of the batches of each task, as the messages that the JVM loads."""
        assert self.door is not None
        takes_messages = self.door.tasks.takes_messages()
        stored_max = self.current.exchanges.driver_read_bytes if takes_messages else 0
        if (read := read_by_driver(task, self.results.store, stored_max)) is not None:
            messages, consumed = read
            self.results.master.announce(consumed)
            return self.door.tasks.of_messages(messages)
        return self.door.tasks.without_input(task.count, ship(task.frames))

    def page(self, is_read: bool = False) -> QueryPage:
        """Return the place of a new query on Spark's SQL page; see `QueryPage` for `is_read`."""
        return QueryPage(self.spark, self.features, lambda: self.results.state.results, is_read)

    def readers(self, sizes: Longs, firsts_of: Callable[[Longs], Longs] | None = None) -> Readers:
        """Return the tasks that will read subpartitions of these bytes, in the places that Spark
        has now. `firsts_of` gives the first subpartition of each; without it each reads one."""
        slots, executors = task_slots(self.spark.sparkContext)
        firsts = np.arange(len(sizes)) if firsts_of is None else firsts_of(sizes)
        return Readers(firsts, slots, executors if self.results.worker.limits.files else slots)

    def _frame(self, rows: JvmRows | PublicRows | StoredReader, stored: StoredResult) -> DataFrame:
        frame, scan = rows.reads(stored.read, self.frames_of)
        if scan is not None:
            self.results.read_by(scan, [stored])
        self.results.add(frame, replace(stored, largest={}))
        return frame


@dataclass(slots=True)
class ExchangeRun:
    """The life of one exchange. It ends with a complete result, or with an error."""

    exchanger: Exchanger
    spec: ExchangeSpec
    _inputs: tuple[ResultId, ...] = ()
    _ordered: bool = False
    """True if the map stage would give the same rows in the same order once more."""
    _repeatable: bool = False
    """True if it would give the same rows once more."""
    _again: Iterator[int] = field(default_factory=lambda: count(1))

    def run(self, pending: Pending, estimate: Callable[[], float] = lambda: inf) -> StoredResult:
        """Plan the exchange, check its least cost, register it, write it, await its completion,
        choose the way to its readers, combine its rows if that is the way, and place them.

        The results that it writes are on `pending`: the caller takes off the returned one.
        `estimate` gives the bytes as far as they are known before. It is not kept: it reads the
        user's query, and a rerun may come as long as the result is stored.
        """
        results, spec = self.exchanger.results, self.spec
        stage = self._plan()  # 1
        self._check_least(stage, estimate)  # 2
        source = self._write(spec.result, stage, pending)  # 3 register, 4 write, 5 complete
        size = exchange_size(source[1], spec.readers_of)
        prediction = self._choose(size)  # 6
        if prediction.way != DIRECT and (
            stored := self._combine(source, size, prediction, pending)  # 7
        ):
            return stored
        readers = size.readers.executors
        return results.place(source[0], spec.rows.schema, self._ordered, readers)  # 8

    def _plan(self) -> MapStage:
        """Find out what the map stage reads, and how far it gives the same rows again."""
        lineage = self.spec.rows.lineage()
        self._inputs, self._ordered = self.exchanger.results.inputs(lineage)
        self._repeatable = lineage.repeatable
        return self.spec.rows.writes(self._task(self.spec.result))

    def _task(self, result: ResultId) -> MapTask:
        results, spec = self.exchanger.results, self.spec
        return MapTask(
            results.worker,
            result,
            results.epoch,
            spec.subpartitions,
            spec.rows.schema,
            self.exchanger.current.exchanges.codec,
            self._ordered,
        )

    def _check_least(self, stage: MapStage, estimate: Callable[[], float]) -> None:
        """Check what the exchange costs at least, as far as its size is known before.

        Raises:
            Invalid: it would exceed a limit.
        """
        budget = self.exchanger.current.budget
        if budget.is_limited and (size_bytes := estimate()) < _UNKNOWN_BYTES:
            budget.check_least(self.spec.name, self._spent(), stage.count, size_bytes)

    def _spent(self) -> Cost:
        report = job_report(self.exchanger.results.state)
        return spent(report, self.exchanger.current.budget.costs)

    def _write(self, result: ResultId, stage: MapStage, pending: Pending) -> Source:
        """Register a result, write it, and wait until it may be read."""
        spec, results = self.spec, self.exchanger.results
        registration = ResultRegistered(
            result,
            stage.count,
            spec.subpartitions,
            spec.schema,
            spec.label,
            self._inputs,
            self._repeatable,
        )
        descriptor = results.descriptor(result, stage.count, spec.subpartitions)
        writing = Writing(stage, spec.settings)
        pending.append(descriptor)
        with self.exchanger.progress.of(result, results.state_of):
            # the log has the registration when this returns, so tasks may begin
            registered = results.master.register_partition_with_producer(registration)
            rows = writing.run(exchange_name(result, spec.label))
            try:
                registered.result(results.worker.wait_s)
            except TimeoutError as exc:
                raise Unavailable(
                    f"no master has answered the registration of result {result} of job "
                    f"{results.worker.job} within {results.worker.wait_s:g} s"
                ) from exc
            state = results.master.await_complete(descriptor)
        check_rows(state, rows)
        if spec.copied is not None:
            check_combined(spec.copied, state)
        results.made_by(result, writing)
        return descriptor, state

    def _choose(self, size: ExchangeSize) -> Prediction:
        """Choose the way to the readers, check the cost of the exchange, and publish the way.

        Raises:
            Invalid: it would exceed a limit.
        """
        spec, current = self.spec, self.exchanger.current
        limits, budget = self.exchanger.results.worker.limits, current.budget
        if current.exchanges.combine and spec.copied is None:
            prediction = choose(size, limits, budget.costs)
        else:
            prediction = predict(size, DIRECT, limits, budget.costs)
        if budget.is_limited and spec.copied is None:
            writing = budget.writing(size.objects, size.stored_bytes)
            copied_bytes = 0 if prediction.way == DIRECT else size.stored_bytes
            reading = Cost(prediction.usd, prediction.requests, copied_bytes)
            budget.check(spec.name, writing + reading, self._spent() + reading)
        self._announce(prediction)
        return prediction

    def _announce(self, prediction: Prediction) -> None:
        """Publish the way of the result, and the costs of the tasks that read it next."""
        gets, took_s = prediction.combining.gets, prediction.combining_s
        if prediction.way == DIRECT:
            gets, took_s = prediction.reading.gets, prediction.reading_s
        way = WayChosen(self.spec.result, str(prediction.way), gets, round(took_s * 1000))
        self.exchanger.results.master.announce(way)

    def _combine(
        self, source: Source, size: ExchangeSize, prediction: Prediction, pending: Pending
    ) -> StoredResult | None:
        """Return the exchange with its rows in fewer objects: a second run, whose rows are those of
        the first result. Return None if it fails: readers then read the objects of the map
        stage."""
        spec, way = self.spec, prediction.way
        limits = self.exchanger.results.worker.limits
        rows = CombinedRows(
            self.exchanger.spark.sparkContext,
            self.exchanger.door,
            spec.rows,
            source,
            combined_parts(source[1], size, way, limits),
            self._made_again,
        )
        copy = replace(
            spec,
            result=combined_name(spec.result),
            label=f"{way}: {spec.label}",
            rows=rows,
            readers_of=lambda _: size.readers,
            copied=source[1],
        )
        try:
            stored = ExchangeRun(self.exchanger, copy).run(pending)
        except Exception as exc:  # Spark may raise anything
            if isinstance(exc, Fenced | Closed) or is_cancelled(exc):
                raise
            _LOG.warning("result %s is read as its map stage wrote it: %s", spec.result, exc)
            costs = self.exchanger.current.budget.costs
            self._announce(predict(size, DIRECT, limits, costs))
            return None
        self.exchanger.results.drop([source[0]])
        pending.remove(source[0])
        return stored

    @contextmanager
    def _made_again(self) -> Iterator[Source]:
        """Write the rows once more as another result, which is dropped at the end."""
        other = again_name(self.spec.result, next(self._again))
        with self.exchanger.results.pending() as pending:
            yield self._write(other, self.spec.rows.writes(self._task(other)), pending)


def _public(column: str | Column) -> str:
    """Return a column's name for the log and Spark's pages. Expressions are not shown, because they
    may hold secret values."""
    named = _COLUMN.fullmatch(str(column))
    return column if isinstance(column, str) else named[1] if named else "an expression"


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
