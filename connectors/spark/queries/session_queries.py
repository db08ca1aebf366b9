"""The queries of one session: which exchanges run in Headgate, and when their rows may be released.

The stored rows of a query are released with its action, with the DataFrame that was asked for, or
when nothing in Spark can read them any more.
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
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from ....control.errors import Closed, Invalid
from ..exchanges.run import Exchanger
from ..jvm.bridge import is_sparks
from ..jvm.caches import Cache, Reader
from ..jvm.catalyst import CatalystDoor
from ..jvm.held_executors import holds
from ..jvm.names import Feature
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
    def __init__(
        self, exchanger: Exchanger, require_whole_log: Callable[[], None], is_public: bool
    ) -> None:
        """Take `is_public` if the user has limited the session to public PySpark."""
        self._exchanger = exchanger
        self._is_public = is_public
        self._require_whole_log = require_whole_log
        self._results = exchanger.results
        self.native: Counter[str] = Counter()
        self._filling = weakref.WeakValueDictionary[int, threading.Lock]()
        """A lock for each cache that is being filled."""
        self._beginning = threading.Lock()
        self._pauses: set[object] = set()
        self._unseen: SparkShuffleCounter | None = None
        self._runs = self._ways()

    @property
    def closed(self) -> bool:
        return self._results.closed.is_set()

    def enter(self) -> None:
        """Look up at each of the session's actions whether it runs in Headgate, from now on. None
        does where this Spark lacks what that needs.

        Raises:
            Invalid: the actions are to run in Headgate, and the user has limited the session to
                public PySpark.
        """
        self._are_on()
        if self._is_public or Feature.QUERIES in self._exchanger.features:
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
        if self.closed or self._pauses or not self._exchanger.current.look_up().sql_enabled:
            return False
        features = self._exchanger.features
        if not self._is_public and Feature.QUERIES not in features:
            return False
        self._door()
        if Feature.REPORT in features:
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
        self.leave()
        self._results.close()

    def left_to_spark(self) -> Counter[str]:
        """Return why shuffles ran in Spark, and how many for each reason."""
        unseen = self._unseen.count() if self._unseen and not self.closed else {}
        return self.native + Counter(unseen)

    def holds(self) -> tuple[Hold, ...]:
        """Return what keeps Spark from releasing executors, as far as this Spark tells."""
        is_known = Feature.REPORT in self._exchanger.features and not self.closed
        return holds(self._exchanger.spark) if is_known else ()

    def offload(self, df: DataFrame) -> DataFrame:
        """Run the exchanges of a query now, and keep their rows until nothing can read them."""
        with self._results.query(), self._exchanger.page() as page:
            query = self.query(page)
            with query.active():
                self.fill(query, df)
                out, done = self._run(query, df)
            self._results.add(out, done)
            self._keep(out, done)
        return out

    def require_open(self) -> None:
        if self.closed:
            raise Closed("this headgate is closed; attach the session again")

    def _run(self, query: QueryRunner, asked: Query) -> tuple[DataFrame, FinishedQuery]:
        self._require_whole_log()
        frame, done = query.run(asked)
        tally(self.native, (reason for _, reason in done.refused))
        return frame, done

    def _keep(self, frame: DataFrame, done: FinishedQuery) -> None:
        """Keep the rows of a query until nothing in Spark can read them any more."""
        if done.results:
            self._results.hold(done.results, lambda: Reader(self._door(), frame))

    def fill(self, query: QueryRunner, asked: Query) -> list[str]:
        """Run the exchanges of the caches that a query is the first to read, and return why some of
        them stay in Spark."""
        self._results.sweep()
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
                    self._results.hold(done.results, partial(cache.fill, self._door(), frame))
        return reasons

    def _filling_of(self, cache: Cache) -> threading.Lock:
        """Return the lock of a cache. Caches are filled side by side, each of them once."""
        number = self._door().jvm["system"].identityHashCode(cache.builder)
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
        with self._instead(df, collected, refusal, True) as (out, done):
            try:
                yield out
            finally:
                if done is not None:
                    self._results.end(done.results)

    @contextmanager
    def _asking(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a DataFrame of the user's, unless an earlier action has run it. Its stored rows are
        released with the DataFrame, or with the job."""
        with self._results.reading(df, collected) as answer:
            if answer is not None:
                with self._exchanger.page():
                    yield answer
                return
        with self._instead(df, collected, refusal) as (out, done):
            try:
                yield out
            except BaseException:
                if done is not None:
                    self._results.end(done.results)
                raise
            if done is not None:
                served = (collected,) if done.is_limited else (True, False)
                self._results.keep_answer(df, served, out, done.results)

    @contextmanager
    def _keeping(self, df: DataFrame, collected: bool, refusal: str) -> Iterator[DataFrame]:
        """Run a query whose stored rows stay until nothing in Spark can read them any more."""
        with self._instead(df, collected, refusal, is_read=False) as (out, done):
            try:
                yield out
            finally:
                if done is not None:
                    self._keep(out, done)

    @contextmanager
    def _instead(
        self,
        df: DataFrame,
        collected: bool,
        refusal: str,
        is_new: bool = False,
        is_read: bool = True,
    ) -> Iterator[tuple[DataFrame, FinishedQuery | None]]:
        """Yield the DataFrame to run for a query, and the query that is done for it: the user's own
        and None where Spark has to run it. Take `is_read` if its rows are read inside."""
        with self._results.query(), self._exchanger.page(is_read) as page:
            out, done, reasons = self._try_offload(df, page, collected, refusal, is_new)
            with accounted(self._exchanger.spark.sparkContext) if reasons else nullcontext():
                yield out, done

    def _try_offload(
        self, df: DataFrame, page: QueryPage, collected: bool, refusal: str, is_new: bool
    ) -> tuple[DataFrame, FinishedQuery | None, list[str]]:
        """Return the DataFrame to run for a query, the query that is done for it, and why Spark
        runs all or some of it."""
        if df.isStreaming:
            return df, None, []
        filled: list[str] = []
        try:
            query = self.query(page)
            with query.active():
                filled = self.fill(query, df)
                refusals = query.refusals(df, collected)
                if not all(refusals) and not refusal:
                    out, done = self._run(query, df)
                    vars(out)["_session"] = df.sparkSession  # the user's, which lives as long
                    return out, done, filled + [why for _, why in done.refused]
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
        return df, None, filled + reasons

    def query(self, page: QueryPage | None = None) -> QueryRunner:
        planner = Planner(self._exchanger.spark, self._exchanger.features, self._door())
        return QueryRunner(self._exchanger, planner, page or self._exchanger.page())

    def _door(self) -> CatalystDoor:
        self.require_open()
        if self._exchanger.door is None or Feature.QUERIES not in self._exchanger.features:
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
