"""The queries of one session: which exchanges run in Headgate, and how long their rows stay stored.

Guarantees that the stored rows of a query are released with its action, with the DataFrame that was
asked for, or when nothing in Spark can read them any more; if a release fails, a later query
repeats it, or the end of the job.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy

from pyspark.sql import DataFrame, SparkSession

from ....control.contract import ShuffleDescriptor
from ....control.errors import Closed, HeadgateError, Invalid
from ....control.ids import ResultId
from ..exchanges.answers import Answers
from ..exchanges.exchange import Exchanger
from ..exchanges.in_use import InUse
from ..exchanges.lifetimes import Lifetimes, NoReader, Results
from ..jvm.bridge import is_sparks
from ..jvm.caches import Cache, Reader
from ..jvm.catalyst import CatalystDoor
from ..jvm.held_executors import holds
from ..jvm.pages.query_page import QueryPage
from ..jvm.spark_shuffles import SparkShuffleCounter, accounted
from ..patches import actions
from ..patches.runs import Runs
from ..report import Hold
from .planner import Planner, Query
from .runner import FinishedQuery, QueryRunner

_LOG = logging.getLogger("headgate")
_REASON_CHARS = 200
_REASONS_MAX = 100
_OBJECT = re.compile(r"\bo\d+\.")  # py4j's object number, which would make one reason many


class SessionQueries:
    def __init__(self, exchanger: Exchanger, require_whole_log: Callable[[], None]) -> None:
        self._exchanger = exchanger
        self._require_whole_log = require_whole_log
        self.in_use = InUse(exchanger.job_context.epoch)
        self.finished = weakref.WeakKeyDictionary[DataFrame, FinishedQuery]()
        self.native: Counter[str] = Counter()
        self.lifetimes = Lifetimes(self.release_all)
        self._closed = threading.Event()
        self._filling = weakref.WeakValueDictionary[int, threading.Lock]()
        """A lock for each cache that is being filled."""
        self._beginning = threading.Lock()
        self._pauses: set[object] = set()
        self._unseen: SparkShuffleCounter | None = None
        self._answers = Answers(self.forget)
        self._runs = self._ways()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def enter(self) -> None:
        """Look up at each of the session's actions whether it runs in Headgate, from now on.

        Raises:
            Invalid: the actions are to run in Headgate, and this Spark has no private door.
        """
        self._are_on()
        actions.enter(self._exchanger.spark, self._runs)

    def leave(self) -> None:
        """Let Spark run the session's actions itself again."""
        actions.leave(self._exchanger.spark, self._runs)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let Spark run the session's actions itself as long as the block runs."""
        pause = object()
        self._pauses.add(pause)
        try:
            yield
        finally:
            self._pauses.remove(pause)

    def _ways(self) -> Runs:
        return Runs(
            self._running, self._asking, self._keeping, self._inside, self._active, self._are_on
        )

    def _are_on(self) -> bool:
        if (
            self.closed
            or self._pauses
            or not self._exchanger.job_context.current.look_up().sql_enabled
        ):
            return False
        self._door()
        with self._beginning:
            self._unseen = self._unseen or SparkShuffleCounter(self._exchanger.spark)
        return True

    def _active(self) -> AbstractContextManager[None]:
        return self._door().active(self._exchanger.spark._jsparkSession)

    @contextmanager
    def _inside(self, spark: SparkSession) -> Iterator[None]:
        """Run the actions of another session of this application in Headgate, too."""
        if not actions.is_entered(self._exchanger.spark, self._runs) or not self._are_on():
            yield
            return
        queries = self.of(self._exchanger.of(spark))
        queries._pauses = self._pauses
        queries.enter()
        try:
            yield
        finally:
            queries.leave()

    def of(self, exchanger: Exchanger) -> SessionQueries:
        """Return the queries of another session of this application. Their results have the same
        owner: only the session in which they are planned is another."""
        queries = copy(self)
        queries._exchanger = exchanger
        queries._runs, queries._pauses = queries._ways(), set()
        return queries

    def close(self) -> None:
        """Run no query any more, and release nothing: all of the job is about to be released."""
        self._closed.set()
        self.leave()
        self._answers.close()
        self.lifetimes.close()

    def left_to_spark(self) -> Counter[str]:
        """Return why shuffles ran in Spark, and how many for each reason."""
        unseen = self._unseen.count() if self._unseen and not self.closed else {}
        return self.native + Counter(unseen)

    def holds(self) -> tuple[Hold, ...]:
        """Return what keeps Spark from releasing executors, as far as the private door shows it."""
        door = self._exchanger.door
        return () if door is None or self.closed else holds(self._exchanger.spark, door.jvm)

    def offload(self, df: DataFrame) -> DataFrame:
        """Run the exchanges of a query now, and keep their rows until nothing can read them."""
        with self.in_use.query(), self._exchanger.page() as page:
            query = self.query(page)
            with query.active():
                self.fill(query, df)
                out = self.offload_by(query, df)
            self.keep(out, self.finished[out].results)
        return out

    def release(self, df: DataFrame) -> None:
        """Release the stored rows of a finished query, and forget it."""
        descriptors = self.finished[df].results
        self.release_all(descriptors)
        self.lifetimes.forget(descriptors)
        self.finished.pop(df, None)

    def release_all(self, descriptors: Iterable[ShuffleDescriptor]) -> None:
        for descriptor in descriptors:
            self._exchanger.job_context.master.release_partition_externally(descriptor)
            self._exchanger.job_context.forget(descriptor.result)

    def require_open(self) -> None:
        if self.closed:
            raise Closed("this headgate is closed; attach the session again")

    def offload_by(self, query: QueryRunner, df: DataFrame) -> DataFrame:
        frame, done = self._run(query, df)
        self.finished[frame] = done
        return frame

    def _run(self, query: QueryRunner, asked: Query) -> tuple[DataFrame, FinishedQuery]:
        self._require_whole_log()
        frame, done = query.run(asked)
        tally(self.native, (reason for _, reason in done.refused))
        return frame, done

    def keep(self, frame: DataFrame, results: Results) -> None:
        if results:
            with self._or_dropped(results):
                self.lifetimes.add(Reader(self._door(), frame), results)

    @contextmanager
    def _or_dropped(self, results: Results) -> Iterator[None]:
        """Release these results if the block inside fails, because then nobody can read them."""
        try:
            yield
        except BaseException:
            for descriptor in results:
                self._exchanger.drop(descriptor)
            raise

    def fill(self, query: QueryRunner, asked: Query) -> list[str]:
        """Run the exchanges of the caches that a query is the first to read, and return why some of
        them stay in Spark."""
        self.lifetimes.sweep()
        reasons: list[str] = []
        for filling, cache in self.fillings(query, asked):
            with self._filling_of(cache):
                if not cache.is_empty:
                    continue
                refusals = filling.refusals(cache, collected=False)
                if all(refusals):
                    tally(self.native, refusals)
                    reasons += refusals
                    continue
                frame, done = self._run(filling, cache)
                reasons += [why for _, why in done.refused]
                if done.results:
                    with self._or_dropped(done.results):
                        self.lifetimes.add(cache.fill(self._door(), frame), done.results)
        return reasons

    def _filling_of(self, cache: Cache) -> threading.Lock:
        """Return the lock of a cache. Caches are filled side by side, each of them once."""
        number = self._door().jvm.static("java.lang.System").identityHashCode(cache.builder)
        with self._beginning:
            return self._filling.setdefault(number, threading.Lock())

    def fillings(self, query: QueryRunner, asked: Query) -> Iterator[tuple[QueryRunner, Cache]]:
        """Yield the caches that a query has to fill, each after the caches that it reads."""
        for cache in query.empty_caches(asked):
            filling = self.query(query.page)
            yield from self.fillings(filling, cache)
            yield filling, cache

    @contextmanager
    def _running(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a new query that is asked for once. Its stored rows are released after the action, or
        with the job."""
        with self._instead(df, collected, refusal, True) as out:
            try:
                yield out
            finally:
                self.forget(out)

    @contextmanager
    def _asking(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a DataFrame of the user's, unless an earlier action has run it. Its stored rows are
        released with the DataFrame, or with the job."""
        answer = self._answers.get(df, collected)
        done = None if answer is None else self.finished.get(answer)
        read = [descriptor.result for descriptor in done.results] if done else []
        with self.in_use.query(read):
            if answer is not None and answer in self.finished and self._can_be_read(read):
                with self._exchanger.page():
                    yield answer
                return
        with self._instead(df, collected, refusal) as out:
            try:
                yield out
            except BaseException:
                self.forget(out)
                raise
            if (done := self.finished.get(out)) is not None:
                self._answers.add(df, out, collected if done.is_limited else None)

    def _can_be_read(self, results: Iterable[ResultId]) -> bool:
        state = self._exchanger.job_context.master.state(self._exchanger.job_context.worker.job)
        states = [state.results.get(result) for result in results]
        return all(result is not None and result.fate.released is None for result in states)

    def forget(self, out: DataFrame) -> None:
        """Release the stored rows of a query that nobody can ask for again. If that fails, a later
        query releases them."""
        try:
            if out in self.finished and not self.closed:
                self.release(out)
        except HeadgateError as exc:
            _LOG.warning("results of a query stay stored until a later query: %s", exc)
            self.lifetimes.add(NoReader(), self.finished[out].results)

    @contextmanager
    def _keeping(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a query whose stored rows stay until nothing in Spark can read them any more."""
        with self._instead(df, collected, refusal, is_read=False) as out:
            try:
                yield out
            finally:
                if (done := self.finished.pop(out, None)) is not None:
                    self.keep(out, done.results)

    @contextmanager
    def _instead(
        self,
        df: DataFrame,
        collected: bool,
        refusal: str,
        is_new: bool = False,
        is_read: bool = True,
    ) -> Iterator[DataFrame]:
        """Yield the DataFrame to run for a query: the query itself where Spark has to run it. Take
        `is_read` if its rows are read inside."""
        with self.in_use.query(), self._exchanger.page(is_read) as page:
            out, reasons = self._try_offload(df, page, collected, refusal, is_new)
            with accounted(self._exchanger.spark.sparkContext) if reasons else nullcontext():
                yield out

    def _try_offload(
        self, df: DataFrame, page: QueryPage, collected: bool, refusal: str, is_new: bool
    ) -> tuple[DataFrame, list[str]]:
        """Return the DataFrame to run for a query, and why Spark runs all or some of it."""
        if df.isStreaming:
            return df, []
        filled: list[str] = []
        try:
            query = self.query(page)
            with query.active():
                filled = self.fill(query, df)
                refusals = query.refusals(df, collected)
                if not all(refusals) and not refusal:
                    out = self.offload_by(query, df)
                    vars(out)["_session"] = df.sparkSession  # the user's, which lives as long
                    return out, filled + [why for _, why in self.finished[out].refused]
                reasons = refusals if all(refusals) else [refusal]
                is_outlived = not is_new and query.reads_cache(df)
            if is_outlived:
                df = df.select("*")  # planned anew: the user's plan could outlive the cache
        except Exception as exc:
            if is_sparks(exc):
                raise
            reasons = [_told(exc)]
            trace = _LOG.isEnabledFor(logging.DEBUG)
            _LOG.warning("Spark runs a query without Headgate: %s", reasons[0], exc_info=trace)
        tally(self.native, reasons)
        return df, filled + reasons

    def query(self, page: QueryPage | None = None) -> QueryRunner:
        planner = Planner(self._exchanger.spark, self._door())
        return QueryRunner(
            self._exchanger, planner, self.in_use.name, page or self._exchanger.page()
        )

    def _door(self) -> CatalystDoor:
        self.require_open()
        if self._exchanger.door is None:
            raise Invalid(
                "this needs a Spark that Headgate knows, and spark.headgate.catalyst=auto"
            )
        return self._exchanger.door


def tally(counts: Counter[str], reasons: Iterable[str]) -> None:
    """Count reasons. The text of an error may have figures, so that no two are alike: above a
    limit, new reasons are counted together."""
    for reason in reasons:
        is_listed = reason in counts or len(counts) < _REASONS_MAX
        counts[reason if is_listed else "other reasons"] += 1


def _told(error: Exception) -> str:
    """Return an error as a reason, in one line."""
    text = str(getattr(error, "java_exception", error)).partition("\n")[0]
    return f"{type(error).__name__}: {_OBJECT.sub('', text)[:_REASON_CHARS]}"
