"""Replace PySpark's actions, so that the queries of entered sessions run in Headgate automatically.

The methods of PySpark's DataFrame and of its writers are replaced while any session is entered.
When none is, the original objects are put back. DataFrames of other sessions act as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial, wraps
from inspect import unwrap
from operator import attrgetter
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as Classic
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ..jvm.pages.query_page import leave_page
from ..jvm.scheduler import session_name
from .commands import run_sql
from .runs import Runs
from .writers import SAVES, save

Original = Callable[..., Any]
Action = Callable[..., Any]  # takes `Runs`, the original, and the arguments of the original

COLLECTED = ("collect", "tail")
RUN = ("toPandas", "toArrow", "foreach", "foreachPartition")
CHECKPOINTS = ("checkpoint", "localCheckpoint")
_ROWS_MAX = 2**31 - 1  # of a limit
_SESSION, _WRITERS_SESSION = attrgetter("sparkSession"), attrgetter("_spark")
_lock = threading.Lock()
_entered: dict[str, list[Runs]] = {}
_replaced: dict[tuple[type, str], Any] = {}
_within = threading.local()


def enter(spark: SparkSession, runs: Runs) -> None:
    """Run a session's actions through `runs`. The last to enter a session wins."""
    with _lock:
        _entered.setdefault(session_name(spark), []).append(runs)
        if not _replaced:
            for (kind, name), replacement in _methods().items():
                _replaced[kind, name] = kind.__dict__[name]
                setattr(kind, name, replacement)


def leave(spark: SparkSession, runs: Runs) -> None:
    """Undo `enter`, and do nothing if `runs` were not entered."""
    with _lock:
        name = session_name(spark)
        others = [other for other in _entered.pop(name, []) if other != runs]
        if others:
            _entered[name] = others
        if not _entered:
            for (kind, name), original in _replaced.items():
                setattr(kind, name, original)
            _replaced.clear()


def is_entered(spark: SparkSession, runs: Runs) -> bool:
    """Return True if `runs` were entered and not left."""
    with _lock:
        return runs in _entered.get(session_name(spark), ())


def _methods() -> dict[tuple[type, str], Any]:
    """Return the replacement of each method."""
    acts: dict[str, Action] = {
        **dict.fromkeys(COLLECTED, partial(_whole, True)),
        **dict.fromkeys(RUN, partial(_whole, False)),
        **dict.fromkeys(CHECKPOINTS, _checkpoint),
        "count": _count,
        "show": _show,
        "isEmpty": _is_empty,
        "toLocalIterator": _iterate,
    }
    rdd = cached_property(_replacement(Classic.__dict__["rdd"].func, _rdd))
    rdd.__set_name__(Classic, "rdd")
    return {
        **{(Classic, name): _replacement(Classic.__dict__[name], acts[name]) for name in acts},
        **{
            (kind, name): _replacement(kind.__dict__[name], save, _WRITERS_SESSION)
            for kind, names in SAVES.items()
            for name in names
        },
        (DataStreamWriter, "foreachBatch"): _replacement(
            DataStreamWriter.foreachBatch, _foreach_batch, _WRITERS_SESSION
        ),
        (SparkSession, "sql"): _replacement(SparkSession.sql, run_sql, lambda spark: spark),
        (Classic, "rdd"): rdd,
    }


def _replacement(
    original: Original, action: Action, session_of: Callable[[Any], SparkSession] = _SESSION
) -> Callable[..., Any]:
    """Return a method that calls `action` where a session is entered, else the original. Actions
    that an action runs inside are left to Spark."""

    def method(self: Any, *args: Any, **more: Any) -> Any:
        if (runs := _runs_of(session_of(self))) is None:
            return original(self, *args, **more)
        with _alone():
            return action(runs, original, self, *args, **more)

    # Spark's pages show the name and the line of the first call that is not in PySpark's files
    place = unwrap(original).__code__
    method.__code__ = method.__code__.replace(
        co_name=original.__name__,
        co_filename=place.co_filename,
        co_firstlineno=place.co_firstlineno,
    )
    return wraps(original)(method)


def _whole(
    collected: bool, runs: Runs, original: Original, df: DataFrame, *args: Any, **more: Any
) -> Any:
    with runs.again(df, collected, "") as out:
        return original(out, *args, **more)


def _checkpoint(
    runs: Runs, original: Original, df: DataFrame, eager: bool = True, *args: Any, **more: Any
) -> Any:
    """Make a checkpoint. A lazy checkpoint reads later the rows that are stored now."""
    with (runs.again if eager else runs.keep)(df, False, "") as out:
        return original(out, eager, *args, **more)


def _count(runs: Runs, original: Original, df: DataFrame) -> int:
    """Count by an aggregate, which needs no column of the last exchange."""
    with runs.once(df.groupBy().count(), True, "") as out:
        return int(out.collect()[0][0])


def _show(runs: Runs, original: Original, df: DataFrame, *args: Any, **more: Any) -> Any:
    """Show the first rows, of a limit. One more row tells Spark that there are more."""
    n = args[0] if args else more.get("n", 20)
    if type(n) is not int or n < 0:
        return original(df, *args, **more)
    with runs.once(df.limit(min(n, _ROWS_MAX - 1) + 1), True, "") as out:
        return original(out, *args, **more)


def _is_empty(runs: Runs, original: Original, df: DataFrame) -> Any:
    with runs.once(df.limit(1), True, "") as out:
        return original(out)


def _iterate(_: Runs, original: Original, df: DataFrame, *args: Any, **more: Any) -> Iterator[Any]:
    """Run a DataFrame when its first row is asked for, and keep its results until the last; other
    actions of this thread go on meanwhile. Spark runs the query if the session has left since the
    user asked for rows."""
    with ExitStack() as running:
        if (runs := _runs_of(df.sparkSession)) is not None:
            with _alone():
                df = running.enter_context(runs.again(df, False, ""))
        rows = original(df, *args, **more)
        if runs is not None:
            leave_page()
        yield from rows


_iterate.__code__ = _iterate.__code__.replace(co_name="toLocalIterator")


def _rdd(runs: Runs, original: Original, df: DataFrame) -> Any:
    with runs.keep(df, False, "") as out:
        return original(out)


def _foreach_batch(
    runs: Runs, original: Original, writer: Any, func: Callable[[DataFrame, int], Any]
) -> Any:
    """Let a stream call `func` for each batch, with the session of the batch entered, which the
    stream has made."""

    session = writer._spark  # which must live as long as the stream: its headgate lives no longer

    @wraps(func)
    def entered(batch: DataFrame, number: int) -> None:
        assert session is not None
        with runs.inside(batch.sparkSession):
            func(batch, number)

    return original(writer, entered)


@contextmanager
def _alone() -> Iterator[None]:
    """Leave actions that an action runs inside to Spark."""
    _within.active = True
    try:
        yield
    finally:
        _within.active = False


def _runs_of(spark: SparkSession) -> Runs | None:
    """Return how the queries of a session run; None where Spark runs them."""
    if getattr(_within, "active", False):
        return None
    name = session_name(spark)
    with _lock:
        entered = _entered.get(name)
    return entered[-1] if entered and entered[-1].are_on() else None
