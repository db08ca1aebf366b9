"""Replace PySpark's actions, so that the queries of entered sessions run in Headgate automatically.

The methods of PySpark's DataFrame and of its writers are replaced while any session is entered
here. When none is, the original objects are put back. DataFrames of other sessions act as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as Classic

from ..jvm.scheduler import session_name
from .writers import saves

Run = Callable[[DataFrame, bool, str], AbstractContextManager[DataFrame]]

COLLECTED = ("collect", "tail")
RUN = ("toPandas", "toArrow", "foreach", "foreachPartition")
CHECKPOINTS = ("checkpoint", "localCheckpoint")
_lock = threading.Lock()
_entered: dict[str, list[Runs]] = {}
_replaced: dict[tuple[type, str], Any] = {}
_within = threading.local()


@dataclass(frozen=True, slots=True)
class Runs:
    """The ways in which a session runs queries.

    Each takes the query, whether the driver collects its rows (a limit then needs no exchange), and
    why Spark has to run the whole query, empty when it need not.
    """

    once: Run
    """Run a query that is asked for once."""
    again: Run
    """Run a DataFrame of the user's, whose rows later actions may ask for."""
    keep: Run
    """Run a query whose rows stay readable after the action."""


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


def _methods() -> dict[tuple[type, str], Any]:
    methods = {name: _whole(Classic.__dict__[name], True) for name in COLLECTED}
    methods |= {name: _whole(Classic.__dict__[name]) for name in RUN}
    methods |= {name: _checkpoint(Classic.__dict__[name]) for name in CHECKPOINTS}
    methods["count"] = _count(Classic.__dict__["count"])
    methods["show"] = _first(Classic.__dict__["show"], 20, 1)
    methods["isEmpty"] = _first(Classic.__dict__["isEmpty"], 1, 0)
    methods["toLocalIterator"] = _iterated(Classic.__dict__["toLocalIterator"])
    methods["rdd"] = _kept(Classic.__dict__["rdd"])
    return {(Classic, name): methods[name] for name in methods} | saves(_run, _is_entered)


def _whole(original: Callable[..., Any], collected: bool = False) -> Callable[..., Any]:
    @wraps(original)
    def action(self: DataFrame, *args: Any, **more: Any) -> Any:
        with _run(self, self, collected) as out:
            return original(out, *args, **more)

    return action


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a checkpoint. A lazy checkpoint reads later the rows that are stored now."""

    @wraps(original)
    def checkpoint(self: DataFrame, eager: bool = True, *args: Any, **more: Any) -> Any:
        if (runs := _runs_of(self)) is None:
            return original(self, eager, *args, **more)
        with _alone(), (runs.again if eager else runs.keep)(self, False, "") as out:
            return original(out, eager, *args, **more)

    return checkpoint


def _count(original: Callable[[DataFrame], int]) -> Callable[[DataFrame], int]:
    """Replace `count` by an aggregate, which needs no column of the last exchange."""

    @wraps(original)
    def count(self: DataFrame) -> int:
        if not _is_entered(self):
            return original(self)
        with _run(self, self.groupBy().count(), True) as out:
            return int(out.collect()[0][0])

    return count


def _first(original: Callable[..., Any], usual: int, more_rows: int) -> Callable[..., Any]:
    """Replace an action that shows its first rows by one on a limit."""

    @wraps(original)
    def action(self: DataFrame, *args: Any, **more: Any) -> Any:
        n = args[0] if args else more.get("n", usual)
        if not _is_entered(self) or type(n) is not int or n < 0:
            return original(self, *args, **more)
        with _run(self, self.limit(n + more_rows), True) as out:
            return original(out, *args, **more)

    return action


def _iterated(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(original)
    def iterate(self: DataFrame, *args: Any, **more: Any) -> Iterator[Any]:
        if not _is_entered(self):
            return original(self, *args, **more)
        return rows(self, *args, **more)

    def rows(self: DataFrame, *args: Any, **more: Any) -> Iterator[Any]:
        with ExitStack() as running:
            with _run_in(running, self) as out:
                iterator = original(out, *args, **more)
            yield from iterator

    return iterate


def _kept(original: Any) -> Any:
    def rdd(self: DataFrame) -> Any:
        if (runs := _runs_of(self)) is None:
            return original.func(self)
        with _alone(), runs.keep(self, False, "") as out:
            return original.func(out)

    replacement = cached_property(wraps(original.func)(rdd))
    replacement.__set_name__(Classic, "rdd")
    return replacement


@contextmanager
def _run(
    of: DataFrame, query: DataFrame, collected: bool = False, refusal: str = ""
) -> Iterator[DataFrame]:
    if (runs := _runs_of(of)) is None:
        yield query
        return
    run = runs.again if query is of else runs.once
    with _alone(), run(query, collected, refusal) as out:
        yield out


@contextmanager
def _run_in(running: ExitStack, df: DataFrame) -> Iterator[DataFrame]:
    """Run a DataFrame, and keep its results until `running` is closed; other actions of this thread
    go on meanwhile. Spark runs the query if the session has left since the user asked for rows."""
    if (runs := _runs_of(df)) is None:
        yield df
        return
    with _alone():
        yield running.enter_context(runs.again(df, False, ""))


@contextmanager
def _alone() -> Iterator[None]:
    """Leave actions that an action runs inside to Spark."""
    _within.active = True
    try:
        yield
    finally:
        _within.active = False


def _runs_of(df: DataFrame) -> Runs | None:
    """Return how the queries of a DataFrame's session run; None where Spark runs them."""
    if getattr(_within, "active", False):
        return None
    name = session_name(df.sparkSession)
    with _lock:
        entered = _entered.get(name)
        return entered[-1] if entered else None


def _is_entered(df: DataFrame) -> bool:
    return _runs_of(df) is not None
