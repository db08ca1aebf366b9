"""The headgate of an attached session: run exchanges, report on them, release them, close."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from pyspark.sql import Column, DataFrame, SparkSession

from ...control.errors import Closed, Invalid, OutcomeUnknown, Retryable
from ...control.ids import JobId, ResultId
from ...control.kafka.settings import KafkaSettings
from . import explain
from .exchanges.run import Exchanger
from .exchanges.stored import StoredResult
from .grouped import Grouped
from .jvm.pages.query_page import end_pages
from .jvm.scheduler import session_name
from .operations import Operations
from .queries.runner import FinishedQuery
from .queries.session_queries import SessionQueries
from .report import Hold, JobReport, Results, job_report
from .services import JobServices
from .tables import Explanation, numbered
from .warm_up import WarmUp

_open: dict[str, list[Headgate]] = {}
"""The headgates of each session that are not closed, the last attached last."""


def current(spark: SparkSession | None) -> Headgate:
    """Return the headgate that was attached to a session last and is not closed; without a session,
    that of the active one.

    Raises:
        Invalid: none is attached, or no session is active.
    """
    if (session := spark or SparkSession.getActiveSession()) is None:
        raise Invalid("no session of Spark is active in this thread: name one")
    if opened := _open.get(session_name(session)):
        return opened[-1]
    raise Invalid("no headgate is attached to this session: call headgate.attach(spark)")


class Headgate:
    """Runs exchanges of one Spark session through Kafka and object storage."""

    def __init__(
        self,
        exchanger: Exchanger,
        queries: SessionQueries,
        services: JobServices,
        warm_up: WarmUp | None = None,
        is_guest: bool = False,
    ) -> None:
        """Run the exchanges of a job. A guest leaves it to the job's own headgate to end it."""
        self._exchanger = exchanger
        self._queries = queries
        self._services = services
        self._warm_up = warm_up
        self._results = exchanger.results
        self._is_guest = is_guest
        self._ended = False

    def begin(self) -> Headgate:
        """Look up at each of the session's actions whether it runs in Headgate, from now on.

        Raises:
            Invalid: the actions are to run in Headgate, and the user allows public PySpark only.
        """
        self._queries.enter()
        _open.setdefault(session_name(self._exchanger.spark), []).append(self)
        return self

    def of(self, spark: SparkSession) -> Headgate | None:
        """Return a headgate of another session of this application, for the same job: closing it
        releases nothing. Return None if its settings ask for another one."""
        exchanger = self._exchanger.of(spark)
        if not exchanger.current.is_like(self._exchanger.current):
            return None
        queries = self._queries.of(exchanger)
        return Headgate(exchanger, queries, self._services, is_guest=True).begin()

    @property
    def ops(self) -> Operations:
        """Questions of an operator about this job."""
        queries = self._queries
        return Operations(self._results, self._services, queries.require_open)

    @property
    def job(self) -> JobId:
        """The name under which the log holds this session's exchanges."""
        return self._results.worker.job

    def repartition(self, df: DataFrame, n: int, *columns: str | Column) -> DataFrame:
        """Return the rows of `df` in `n` partitions, each row where `df.repartition` puts it.

        The rows are written now and read whenever the returned DataFrame is used, or now if they
        are few.

        Raises:
            Invalid: `n`, a column or its type cannot be used; nothing has run.
            Unavailable: no decision came in time; the message names the missing decision.
        """
        self._queries.require_open()
        columns = _listed(columns)
        if not isinstance(n, int) or n < 1 or not columns:
            raise Invalid(f"repartition needs n of 1 or more and a column, not n={n}, {columns}")
        self._services.require_whole_log()
        self._look_up()
        with self._results.query():
            return self._exchanger.repartition(df, n, columns)

    def offload(self, df: DataFrame) -> DataFrame:
        """Return the rows of `df`, in its order and with its schema, and run the exchanges of its
        plan in Headgate.

        The exchanges run now, like those under a checkpoint. The last stage runs whenever the
        returned DataFrame is used. Exchanges that Headgate cannot run stay in Spark, and `report`
        says why. The stored rows are deleted by `release`, or when nothing can read them any more.

        Raises:
            Invalid: this Spark lacks what queries need.
        """
        self._look_up()
        return self._queries.offload(df)

    def group_by(self, df: DataFrame, *columns: str | Column) -> Grouped:
        """Return the groups of `df` for grouped functions: `df.groupBy`, with its exchange in
        Headgate."""
        return Grouped(self.offload, df.groupBy(*columns))

    def explain(self, df: DataFrame) -> Explanation:
        """Return the plan of a query and, for each of its exchanges, whether it runs in Headgate.
        For a DataFrame that `offload` returned, add rows, bytes, requests, seconds and skew.

        Raises:
            Invalid: this Spark lacks what queries need.
        """
        if isinstance(done := self._results.rows_of(df), FinishedQuery):
            return explain.ran(done, self.results())
        self._look_up()
        query = self._queries.query()
        return explain.planned(query, df, self._queries.fillings(query, df))

    def read(self, result: str) -> DataFrame:
        """Return the rows of a complete result of this job. An earlier driver of the same
        `spark.headgate.job.id` may have written the result; `results` has the names.

        Raises:
            Invalid: there is no such result, it is released, or not complete.
        """
        self._queries.require_open()
        return self._exchanger.read(ResultId(result))

    def results(self) -> Results:
        """Return a report on each exchange of the job, in the order of registration; those that the
        master has forgotten are left out.

        Raises:
            Closed: the headgate is closed.
        """
        return self._report({}).results

    def report(self) -> JobReport:
        """Return the rows, bytes, requests and price of the job's exchanges, as the log has them,
        the shuffles that Spark ran itself, and what keeps Spark from releasing executors.

        Raises:
            Closed: the headgate is closed.
        """
        return self._report(self._queries.left_to_spark(), self._queries.holds())

    def last_words(self) -> str:
        """Return in one line what the job has exchanged, and the command that shows more of it."""
        report, kafka = self.report(), self._results.worker.kafka
        more = "no more is kept without spark.headgate.broker and spark.headgate.store"
        if not kafka.embedded:
            more = f"for more: headgate report --job {self.job} --broker {kafka.bootstrap}"
            if kafka.topic_prefix != KafkaSettings("").topic_prefix:
                more += f" --prefix {kafka.topic_prefix}"
        native = f", {numbered(sum(report.native.values()), 'shuffle')} in Spark"
        return f"job {self.job}: {report.summary()}{native}; {more}"

    def release(self, df: DataFrame) -> None:
        """Delete the stored rows of a DataFrame that `repartition`, `read` or `offload` returned.

        Raises:
            Invalid: none of them returned the DataFrame, or it was released before.
            Unavailable: no decision came in time; call it again.
        """
        self._queries.require_open()
        if not self._results.release_frame(df):
            raise Invalid(
                "this takes a DataFrame that repartition, read or offload returned and that is not "
                "released"
            )

    def promote(self, df: DataFrame, expires_ms: int = 0) -> ResultId:
        """Let the stored rows of a DataFrame outlive this job, until a point in time (milliseconds
        since 1970) or, with 0, for ever. Return the name of the result: by this name a later driver
        of the same `spark.headgate.job.id` reads and releases it.

        Raises:
            Invalid: neither `repartition` nor `read` returned the DataFrame, or it was released, or
                the time is past.
        """
        descriptor = self._stored_of(df).descriptor
        self._results.master.promote_partitions(descriptor, expires_ms)
        return descriptor.result

    def remove_unused(self, *in_use: DataFrame) -> tuple[ResultId, ...]:
        """Release the complete results that nothing needs, and return their names.

        Promoted results are needed, and the results of the named DataFrames, of rows that Spark
        may still read and of running queries, with the inputs of all four. A DataFrame that was
        derived from an unnamed one can no longer be read.

        Raises:
            Invalid: neither `repartition` nor `read` returned the DataFrame, or it was released.
        """
        self._queries.require_open()
        needed = [self._stored_of(df).descriptor.result for df in in_use]
        return self._results.remove_unused(needed)

    def paused(self) -> AbstractContextManager[None]:
        """Let Spark run the session's actions itself as long as the block runs: those of all its
        threads, and of no other session. `repartition` and `offload` go on running in Headgate."""
        return self._queries.paused()

    def detach(self) -> None:
        """Let Spark run the session's actions itself for good; stored rows stay."""
        self._queries.leave()

    def close(self) -> None:
        """Release every result of the job except promoted ones, and wait until their objects are
        deleted, as long as the deletion makes progress.

        Raises:
            Unavailable, Invalid: the deletion has stopped, or the store has refused it; call it
                again to go on waiting.
        """
        if self._ended:
            return
        if self._is_guest:
            self.detach()
            return self._end()
        if self._warm_up:
            self._warm_up.close()
        self._queries.close()
        end_pages(self._exchanger.spark.sparkContext)
        try:
            self._results.master.unregister_job()
            self._end()
        except (Retryable, OutcomeUnknown, Invalid):  # a refusal of the store may pass, too
            raise
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for name, opened in list(_open.items()):
            _open[name] = [other for other in opened if other is not self]
            if not _open[name]:
                del _open[name]
        if self._is_guest:
            return
        self._results.master.close()
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

    def _look_up(self) -> None:
        self._exchanger.current.look_up()

    def _report(self, native: Mapping[str, int], holds: tuple[Hold, ...] = ()) -> JobReport:
        if self._queries.closed and (self._ended or self._is_guest):
            raise Closed(f"job {self.job} is closed: ask for results and reports before")
        requests = self._results.store.requests
        return job_report(self._results.state, dict(native), requests, holds)

    def _stored_of(self, df: DataFrame) -> StoredResult:
        self._queries.require_open()
        if not isinstance(stored := self._results.rows_of(df), StoredResult):
            raise Invalid(
                "this takes a DataFrame that repartition or read returned and that is not released"
            )
        return stored


def _listed(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the columns of a list, which PySpark takes in the place of columns."""
    is_list = len(columns) == 1 and isinstance(columns[0], list | tuple)
    return tuple(columns[0]) if is_list else columns
