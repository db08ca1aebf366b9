"""A session's headgate: attach, exchange, look, release, close."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from types import TracebackType
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from ...control.clock import Deadline
from ...control.contract import ShuffleDescriptor
from ...control.errors import Closed, HeadgateError, Invalid, Retryable, Unavailable
from ...control.ids import JobId, PartitionId, ResultId
from ...control.inquiry.history import Made, why
from ...control.snapshots.resume import follow_all
from . import explain
from .exchanges.answers import Answers
from .exchanges.exchange import Exchanger, StoredExchange
from .exchanges.in_use import InUse
from .exchanges.lifetimes import Lifetimes, NoReader, Results
from .exchanges.transport import Batches
from .grouped import Grouped
from .jvm.bridge import is_sparks
from .jvm.caches import Cache, Reader
from .jvm.catalyst import CatalystDoor
from .jvm.spark_shuffles import SparkShuffleCounter, accounted
from .patches import actions
from .queries.planner import Planner, Query, open_plans
from .queries.runner import FinishedQuery, QueryRunner
from .report import JobReport, ResultReport, job_report
from .services import JobServices

_LOG = logging.getLogger("headgate")
_EVENTS_MAX = 500
_POLL_S = 0.5
_REASON_CHARS = 200
_OBJECT = re.compile(r"\bo\d+\.")  # py4j's number of it, which makes one reason many


class Headgate:
    """Hands exchanges of one Spark session to Kafka and object storage."""

    def __init__(self, exchanger: Exchanger, services: JobServices) -> None:
        self._exchanger = exchanger
        self._services = services
        self._in_use = InUse(exchanger.job_context.epoch)
        self._written: weakref.WeakKeyDictionary[DataFrame, StoredExchange] = (
            weakref.WeakKeyDictionary()
        )
        self._offloaded: weakref.WeakKeyDictionary[DataFrame, FinishedQuery]
        self._offloaded = weakref.WeakKeyDictionary()
        self._native: Counter[str] = Counter()
        self._kept = Lifetimes(self._release)
        self._filling = threading.Lock()
        self._closed = self._ended = False
        self._unseen: SparkShuffleCounter | None = None
        self._answers: Answers | None = None
        self._runs: actions.Runs | None = None
        if exchanger.job_context.settings.sql_enabled:
            self._plans()
            self._unseen = SparkShuffleCounter(exchanger.spark)
            self._answers = Answers(self._forget)
            self._runs = actions.Runs(self._running, self._asking, self._keeping)
            actions.enter(exchanger.spark, self._runs)

    @property
    def job(self) -> JobId:
        """The name under which the log holds this session's exchanges."""
        return self._exchanger.job_context.worker.job

    def repartition(self, df: DataFrame, n: int, *columns: str | Column) -> DataFrame:
        """The rows of `df` in exactly `n` partitions, each row where `df.repartition` puts it.

        The rows are written now and read whenever the returned DataFrame is used.

        Raises:
            Invalid: `n`, a column or its type cannot be used; nothing has run.
            Unavailable: no decision came in time; names what was waited for.
        """
        self._require_open()
        if n < 1 or not columns:
            raise Invalid(f"repartition needs n of 1 or more and a column, not n={n}, {columns}")
        self._services.require_whole_log()
        with self._in_use.query():
            exchange = self._exchanger.run(df, n, columns, self._in_use.name())
            self._written[exchange.frame] = exchange.written
        return exchange.frame

    def offload(self, df: DataFrame) -> DataFrame:
        """The rows of `df`, in its order and with its schema; each exchange of its plan runs here.

        The exchanges run now, as those under a checkpoint; the last stage runs whenever the
        returned DataFrame is used. What cannot be taken runs in Spark, and `report` says why.
        What is stored goes with `release`, or when nothing can read it any more.

        Raises:
            Invalid: this Spark has no private door.
        """
        query = self._query()
        with self._in_use.query():
            self._fill(query, df)
            out = self._offload(query, df)
            self._keep(out, self._offloaded[out].results)
        return out

    def group_by(self, df: DataFrame, *columns: str | Column) -> Grouped:
        """The groups of `df`, for a function of the user's: `df.groupBy` with its exchange here."""
        return Grouped(self.offload, df, *columns)

    def map_partitions_in_arrow(
        self, df: DataFrame, func: Batches, schema: StructType | str
    ) -> DataFrame:
        """`df.mapInArrow` of a DataFrame that `repartition` or `read` returned: the function is
        called by the tasks that read what is stored, and no row of it goes through the JVM.

        Raises:
            Invalid: the DataFrame is none of these, was released, or has columns of a type that
                functions are given in another form.
        """
        return self._exchanger.mapped(self._written_of(df), df.schema, func, schema)

    def explain(self, df: DataFrame) -> str:
        """The plan of a query and, for each of its exchanges, whether it runs here; of what
        `offload` returned also rows, bytes, requests, seconds and skew.

        Raises:
            Invalid: this Spark has no private door.
        """
        if (done := self._offloaded.get(df)) is not None:
            return explain.ran(done, self.results())
        query = self._query()
        return explain.planned(query, df, self._fillings(query, df))

    def read(self, result: str) -> DataFrame:
        """The rows of a complete result of this job, also one that an earlier driver has written
        under the same `spark.headgate.job.id`; `results` has the names.

        Raises:
            Invalid: there is no such result, it is released, or not complete.
        """
        self._require_open()
        exchange = self._exchanger.read(ResultId(result))
        self._written[exchange.frame] = exchange.written
        return exchange.frame

    def results(self) -> tuple[ResultReport, ...]:
        """Every exchange of the job, in the order in which they were made."""
        return self._report({}).results

    def report(self) -> JobReport:
        """Rows, bytes, requests and price of the job's exchanges, as the log has them."""
        unseen = self._unseen.count() if self._unseen and not self._closed else {}
        return self._report(self._native + Counter(unseen))

    def release(self, df: DataFrame) -> None:
        """Delete what is stored for a DataFrame that `repartition`, `read` or `offload` returned.

        Raises:
            Invalid: the DataFrame is none of these, or was released before.
            Unavailable: no decision came in time; call it again.
        """
        self._require_open()
        offloaded = self._offloaded.get(df)
        descriptors = offloaded.results if offloaded else (self._descriptor_of(df),)
        self._release(descriptors)
        self._kept.forget(descriptors)
        self._offloaded.pop(df, None)
        self._written.pop(df, None)

    def promote(self, df: DataFrame, expires_ms: int = 0) -> ResultId:
        """Let what is stored for a DataFrame outlive this job, until a point in time (milliseconds
        since 1970) or for ever; a later driver of the same `spark.headgate.job.id` reads it by the
        name that is returned, and releases it.

        Raises:
            Invalid: the DataFrame is none that `repartition` or `read` returned, or was released.
        """
        descriptor = self._descriptor_of(df)
        self._exchanger.job_context.master.promote_partitions(descriptor, expires_ms)
        return descriptor.result

    def stop_tracking(self, df: DataFrame, reason: str) -> ResultId:
        """Leave what is stored for a DataFrame to somebody else, who has to delete it.

        Raises:
            Invalid: as for `promote`.
        """
        descriptor = self._descriptor_of(df)
        self._exchanger.job_context.master.stop_tracking_partitions(descriptor, reason)
        return descriptor.result

    def is_available(self, result: str, partition: int | None = None) -> bool:
        """Whether a result, or one partition of it, can be read whole now."""
        return self._exchanger.job_context.master.is_available(
            self.job, ResultId(result), partition
        )

    def may_release_executor(self, host: str) -> bool:
        """Whether this job loses nothing with the executors of a host."""
        return self._exchanger.job_context.master.may_release_executor(self.job, host)

    def remove_unused(self, *in_use: DataFrame) -> tuple[ResultId, ...]:
        """Release every result but those of these DataFrames, what these were made from, what was
        promoted, and what a query of this session writes or reads just now; returns which. What was
        derived from a DataFrame that is not named can no longer be read.

        Raises:
            Invalid: as for `promote`.
        """
        self._require_open()
        held = self._kept.results | self._in_use.results
        held |= {self._descriptor_of(df).result for df in in_use}
        return self._exchanger.job_context.master.remove_unused(self.job, held)

    def why(self, result: str, partition: int) -> tuple[Made, ...]:
        """Every attempt at a partition: why it was made, and what became of it.

        Raises:
            Unavailable: the log was not read in time.
        """
        self._require_open()
        deadline = Deadline.after(self._exchanger.job_context.settings.wait_ms / 1000)
        with closing(follow_all(self._services.log, self.job, deadline)) as follower:
            records, end = [], follower.end()
            while follower.position() < end:
                if deadline.passed:
                    at = follower.position()
                    raise Unavailable(f"the log of job {self.job} was read up to {at} of {end}")
                records += follower.poll(_EVENTS_MAX, min(_POLL_S, deadline.left_s))
        return why(records, PartitionId(ResultId(result), partition))

    def detach(self) -> None:
        """Let the session's actions be Spark's own again; what is stored stays."""
        if self._runs:
            actions.leave(self._exchanger.spark, self._runs)

    def close(self) -> None:
        """Release all that the job has but what was promoted, and wait until it is deleted, for as
        long as objects go.

        Raises:
            Unavailable: nothing went any more; call it again to wait on.
        """
        if self._ended:
            return
        self._closed = True
        self.detach()
        if self._answers:
            self._answers.close()
        self._kept.close()
        self._exchanger.job_context.repairs.close()
        try:
            self._exchanger.job_context.master.unregister_job(self.job)
            self._end()
        except Retryable:
            raise
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._exchanger.job_context.master.close()
        self._services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What is not deleted when nothing goes any more is left to a sweep: the lease ends."""
        try:
            self.close()
        finally:
            self._end()

    def _report(self, native: Mapping[str, int]) -> JobReport:
        return job_report(self._exchanger.job_context.master.state(self.job), dict(native))

    def _release(self, descriptors: Iterable[ShuffleDescriptor]) -> None:
        for descriptor in descriptors:
            self._exchanger.job_context.master.release_partition_externally(descriptor)
            self._exchanger.job_context.repairs.forget(descriptor.result)

    def _offload(self, query: QueryRunner, df: DataFrame) -> DataFrame:
        frame, done = self._run(query, df)
        self._offloaded[frame] = done
        return frame

    def _run(self, query: QueryRunner, asked: Query) -> tuple[DataFrame, FinishedQuery]:
        self._services.require_whole_log()
        frame, done = query.run(asked)
        self._native.update(reason for _, reason in done.refused)
        return frame, done

    def _keep(self, frame: DataFrame, results: Results) -> None:
        if results:
            with self._or_dropped(results):
                self._kept.add(Reader(self._door(), frame), results)

    @contextmanager
    def _or_dropped(self, results: Results) -> Iterator[None]:
        """Release what was stored for rows that in the end nobody can read."""
        try:
            yield
        except BaseException:
            for one in results:
                self._exchanger.drop(one)
            raise

    def _fill(self, query: QueryRunner, asked: Query) -> list[str]:
        """Run the exchanges of the caches that a query is the first to read; why some are Spark's
        own."""
        self._kept.sweep()
        reasons: list[str] = []
        for filling, cache in self._fillings(query, asked):
            with self._filling:
                if not cache.is_empty:
                    continue
                refusals = filling.refusals(cache, collected=False)
                if all(refusals):
                    self._native.update(refusals)
                    reasons += refusals
                    continue
                frame, done = self._run(filling, cache)
                reasons += [why for _, why in done.refused]
                if done.results:
                    with self._or_dropped(done.results):
                        self._kept.add(cache.fill(self._door(), frame), done.results)
        return reasons

    def _fillings(self, query: QueryRunner, asked: Query) -> Iterator[tuple[QueryRunner, Cache]]:
        """The caches that are to be filled for a query, each behind those that it reads."""
        for cache in query.empty_caches(asked):
            filling = self._query()
            yield from self._fillings(filling, cache)
            yield filling, cache

    @contextmanager
    def _running(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a query that is asked for once; what it stored goes with the action, or with the
        job."""
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            finally:
                self._forget(out)

    @contextmanager
    def _asking(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a DataFrame of the user's, unless an earlier action has; what it stored goes with
        the DataFrame, or with the job."""
        assert self._answers is not None
        known = self._answers.get(df, collected)
        read = self._results_of(known)
        with self._in_use.query(read):
            if known is not None and known in self._offloaded and self._can_be_read(read):
                yield known
                return
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            except BaseException:
                self._forget(out)
                raise
            if (done := self._offloaded.get(out)) is not None:
                self._answers.add(df, out, collected if done.is_limited else None)

    def _results_of(self, out: DataFrame | None) -> list[ResultId]:
        done = None if out is None else self._offloaded.get(out)
        return [one.result for one in done.results] if done else []

    def _can_be_read(self, results: Iterable[ResultId]) -> bool:
        state = self._exchanger.job_context.master.state(self.job)
        found = [state.results.get(one) for one in results]
        return all(one is not None and one.released is None for one in found)

    def _forget(self, out: DataFrame) -> None:
        """Release what was stored for rows that nobody can ask for again; a later query does what
        fails."""
        try:
            if out in self._offloaded and not self._closed:
                self.release(out)
        except HeadgateError as exc:
            _LOG.warning("what a query has stored stays until a later one: %s", exc)
            self._kept.add(NoReader(), self._offloaded[out].results)

    @contextmanager
    def _keeping(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """A query for whoever may come back to it, as long as anybody can."""
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            finally:
                if (done := self._offloaded.pop(out, None)) is not None:
                    self._keep(out, done.results)

    @contextmanager
    def _instead(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """What runs instead of a query; Spark runs it where we cannot."""
        with self._in_use.query():
            out, reasons = self._try_offload(df, collected, refusal)
            with accounted(self._exchanger.spark.sparkContext) if reasons else nullcontext():
                yield out

    def _try_offload(
        self, df: DataFrame, collected: bool, refusal: str
    ) -> tuple[DataFrame, list[str]]:
        """What runs instead of a query, and why some or all of it is Spark's own."""
        if df.isStreaming:
            return df, []
        filled: list[str] = []
        try:
            query = self._query()
            filled = self._fill(query, df)
            refusals = query.refusals(df, collected)
            if not all(refusals) and not refusal:
                out = self._offload(query, df)
                return out, filled + [why for _, why in self._offloaded[out].refused]
            reasons = refusals if all(refusals) else [refusal]
            if query.reads_cache(df):
                df = df.select("*")  # planned anew, for the user's plan could outlive what it reads
        except Exception as exc:
            if is_sparks(exc):
                raise
            reasons = [_told(exc)]
            trace = _LOG.isEnabledFor(logging.DEBUG)
            _LOG.warning("Spark runs a query instead: %s", reasons[0], exc_info=trace)
        self._native.update(reasons)
        return df, filled + reasons

    def _query(self) -> QueryRunner:
        return QueryRunner(self._exchanger, self._plans(), self._in_use.name)

    def _plans(self) -> Planner:
        return open_plans(self._exchanger.spark, self._door())

    def _door(self) -> CatalystDoor:
        self._require_open()
        if self._exchanger.door is None:
            raise Invalid(
                "this needs a Spark whose plans are known, and spark.headgate.catalyst=auto"
            )
        return self._exchanger.door

    def _descriptor_of(self, df: DataFrame) -> ShuffleDescriptor:
        return self._written_of(df).descriptor

    def _written_of(self, df: DataFrame) -> StoredExchange:
        self._require_open()
        if (written := self._written.get(df)) is None:
            raise Invalid(
                "this takes a DataFrame that repartition or read returned and that is not released"
            )
        return written

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this headgate is closed; attach the session again")


def _told(error: Exception) -> str:
    """An error as a reason, in one line."""
    text = str(getattr(error, "java_exception", error)).partition("\n")[0]
    return f"{type(error).__name__}: {_OBJECT.sub('', text)[:_REASON_CHARS]}"
