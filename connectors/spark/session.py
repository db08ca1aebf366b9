"""The headgate of an attached session: run exchanges, report on them, release them, close."""

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
_OBJECT = re.compile(r"\bo\d+\.")  # py4j's object number, which would make one reason many


class Headgate:
    """Runs exchanges of one Spark session through Kafka and object storage."""

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
        """Return the rows of `df` in `n` partitions, each row where `df.repartition` puts it.

        The rows are written now and read whenever the returned DataFrame is used.

        Raises:
            Invalid: `n`, a column or its type cannot be used; nothing has run.
            Unavailable: no decision came in time; the message names the missing decision.
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
        """Return the rows of `df`, in its order and with its schema, and run the exchanges of its
        plan in Headgate.

        The exchanges run now, like those under a checkpoint. The last stage runs whenever the
        returned DataFrame is used. Exchanges that Headgate cannot run stay in Spark, and `report`
        says why. The stored rows are deleted by `release`, or when nothing can read them any more.

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
        """Return the groups of `df` for grouped functions: `df.groupBy`, with its exchange here."""
        return Grouped(self.offload, df, *columns)

    def map_partitions_in_arrow(
        self, df: DataFrame, func: Batches, schema: StructType | str
    ) -> DataFrame:
        """Return `df.mapInArrow(func, schema)` for a DataFrame that `repartition` or `read`
        returned. The tasks that read the stored rows call the function, and no stored row goes
        through the JVM.

        Raises:
            Invalid: neither returned the DataFrame, it was released, or a column has a type that
                cannot be passed to functions as PySpark does it.
        """
        return self._exchanger.mapped(self._written_of(df), df.schema, func, schema)

    def explain(self, df: DataFrame) -> str:
        """Return the plan of a query and, for each of its exchanges, whether it runs here. For a
        DataFrame that `offload` returned, add rows, bytes, requests, seconds and skew.

        Raises:
            Invalid: this Spark has no private door.
        """
        if (done := self._offloaded.get(df)) is not None:
            return explain.ran(done, self.results())
        query = self._query()
        return explain.planned(query, df, self._fillings(query, df))

    def read(self, result: str) -> DataFrame:
        """Return the rows of a complete result of this job. An earlier driver of the same
        `spark.headgate.job.id` may have written the result; `results` has the names.

        Raises:
            Invalid: there is no such result, it is released, or not complete.
        """
        self._require_open()
        exchange = self._exchanger.read(ResultId(result))
        self._written[exchange.frame] = exchange.written
        return exchange.frame

    def results(self) -> tuple[ResultReport, ...]:
        """Return a report on each exchange of the job, in the order of registration; those that the
        master has forgotten are left out."""
        return self._report({}).results

    def report(self) -> JobReport:
        """Return the rows, bytes, requests and price of the job's exchanges, as the log states
        them, and the shuffles that Spark ran itself."""
        unseen = self._unseen.count() if self._unseen and not self._closed else {}
        return self._report(self._native + Counter(unseen))

    def release(self, df: DataFrame) -> None:
        """Delete the stored rows of a DataFrame that `repartition`, `read` or `offload` returned.

        Raises:
            Invalid: none of them returned the DataFrame, or it was released before.
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
        """Let the stored rows of a DataFrame outlive this job, until a point in time (milliseconds
        since 1970) or, with 0, for ever. Return the name of the result: by this name a later driver
        of the same `spark.headgate.job.id` reads and releases it.

        Raises:
            Invalid: neither `repartition` nor `read` returned the DataFrame, or it was released.
        """
        descriptor = self._descriptor_of(df)
        self._exchanger.job_context.master.promote_partitions(descriptor, expires_ms)
        return descriptor.result

    def stop_tracking(self, df: DataFrame, reason: str) -> ResultId:
        """Leave the stored rows of a DataFrame to another owner, who has to delete them.

        Raises:
            Invalid: as for `promote`.
        """
        descriptor = self._descriptor_of(df)
        self._exchanger.job_context.master.stop_tracking_partitions(descriptor, reason)
        return descriptor.result

    def is_available(self, result: str, partition: int | None = None) -> bool:
        """Return True if a whole result, or one whole partition of it, can be read now."""
        return self._exchanger.job_context.master.is_available(
            self.job, ResultId(result), partition
        )

    def may_release_executor(self, host: str) -> bool:
        """Return True if this job loses nothing with the executors of a host."""
        return self._exchanger.job_context.master.may_release_executor(self.job, host)

    def remove_unused(self, *in_use: DataFrame) -> tuple[ResultId, ...]:
        """Release the complete results that nothing needs, and return their names.

        Promoted results are needed. So are the results of the named DataFrames, of rows that Spark
        may still read and of running queries, with the inputs of all three. A DataFrame that was
        derived from an unnamed one can no longer be read.

        Raises:
            Invalid: as for `promote`.
        """
        self._require_open()
        needed = self._kept.results | self._in_use.results
        needed |= {self._descriptor_of(df).result for df in in_use}
        return self._exchanger.job_context.master.remove_unused(self.job, needed)

    def why(self, result: str, partition: int) -> tuple[Made, ...]:
        """Return every attempt at a partition, with its reason and its outcome.

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
        """Let Spark run the session's actions itself again; stored rows stay."""
        if self._runs:
            actions.leave(self._exchanger.spark, self._runs)

    def close(self) -> None:
        """Release every result of the job except promoted ones, and wait until their objects are
        deleted, as long as the deletion makes progress.

        Raises:
            Unavailable: the deletion has stopped; call it again to go on waiting.
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
        """Close, but wait no longer if the deletion stops: a sweep deletes the rest after the lease
        has ended."""
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
        """Release these results if the block inside fails, because then nobody can read them."""
        try:
            yield
        except BaseException:
            for descriptor in results:
                self._exchanger.drop(descriptor)
            raise

    def _fill(self, query: QueryRunner, asked: Query) -> list[str]:
        """Run the exchanges of the caches that a query is the first to read, and return why some of
        them stay in Spark."""
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
        """Yield the caches that a query has to fill, each after the caches that it reads."""
        for cache in query.empty_caches(asked):
            filling = self._query()
            yield from self._fillings(filling, cache)
            yield filling, cache

    @contextmanager
    def _running(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a query that is asked for once. Its stored rows are released after the action, or
        with the job."""
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            finally:
                self._forget(out)

    @contextmanager
    def _asking(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a DataFrame of the user's, unless an earlier action has run it. Its stored rows are
        released with the DataFrame, or with the job."""
        assert self._answers is not None
        answer = self._answers.get(df, collected)
        read = self._results_of(answer)
        with self._in_use.query(read):
            if answer is not None and answer in self._offloaded and self._can_be_read(read):
                yield answer
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
        return [descriptor.result for descriptor in done.results] if done else []

    def _can_be_read(self, results: Iterable[ResultId]) -> bool:
        state = self._exchanger.job_context.master.state(self.job)
        states = [state.results.get(result) for result in results]
        return all(result is not None and result.released is None for result in states)

    def _forget(self, out: DataFrame) -> None:
        """Release the stored rows of a query that nobody can ask for again. If that fails, a later
        query releases them."""
        try:
            if out in self._offloaded and not self._closed:
                self.release(out)
        except HeadgateError as exc:
            _LOG.warning("what a query has stored stays until a later one: %s", exc)
            self._kept.add(NoReader(), self._offloaded[out].results)

    @contextmanager
    def _keeping(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a query whose stored rows stay until nothing in Spark can read them any more."""
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            finally:
                if (done := self._offloaded.pop(out, None)) is not None:
                    self._keep(out, done.results)

    @contextmanager
    def _instead(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Yield the DataFrame to run for a query: the query itself where Spark has to run it."""
        with self._in_use.query():
            out, reasons = self._try_offload(df, collected, refusal)
            with accounted(self._exchanger.spark.sparkContext) if reasons else nullcontext():
                yield out

    def _try_offload(
        self, df: DataFrame, collected: bool, refusal: str
    ) -> tuple[DataFrame, list[str]]:
        """Return the DataFrame to run for a query, and why Spark runs all or some of it."""
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
                df = df.select("*")  # planned anew: the user's plan could outlive the cache
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
    """Return an error as a reason, in one line."""
    text = str(getattr(error, "java_exception", error)).partition("\n")[0]
    return f"{type(error).__name__}: {_OBJECT.sub('', text)[:_REASON_CHARS]}"
