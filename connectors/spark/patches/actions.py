"""Actions of sessions whose queries run through their headgate without being told to.

The methods of PySpark's DataFrame and of its writers are replaced while any session is entered
here, and are the very same objects again when none is. A DataFrame of another session does what it
always did.
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
    """How queries run: one that is asked for `once`, a DataFrame of the user's that may be asked
    for `again`, and one whose rows somebody is to `keep`. Each is told whether the driver collects
    the rows, and so brings those of a limit together, and why Spark has to run it as a whole, if
    so."""

    once: Run
    again: Run
    keep: Run


def enter(spark: SparkSession, runs: Runs) -> None:
    """Let a session's actions go another way. Of several the last one to enter has them."""
    with _lock:
        _entered.setdefault(session_name(spark), []).append(runs)
        if not _replaced:
            for (kind, name), made in _methods().items():
                _replaced[kind, name] = kind.__dict__[name]
                setattr(kind, name, made)


def leave(spark: SparkSession, runs: Runs) -> None:
    """End what was entered, if it was."""
    with _lock:
        name = session_name(spark)
        others = [one for one in _entered.pop(name, []) if one != runs]
        if others:
            _entered[name] = others
        if not _entered:
            for (kind, name), original in _replaced.items():
                setattr(kind, name, original)
            _replaced.clear()


def _methods() -> dict[tuple[type, str], Any]:
    made = {name: _whole(Classic.__dict__[name], True) for name in COLLECTED}
    made |= {name: _whole(Classic.__dict__[name]) for name in RUN}
    made |= {name: _checkpoint(Classic.__dict__[name]) for name in CHECKPOINTS}
    made["count"] = _count(Classic.__dict__["count"])
    made["show"] = _first(Classic.__dict__["show"], 20, 1)
    made["isEmpty"] = _first(Classic.__dict__["isEmpty"], 1, 0)
    made["toLocalIterator"] = _iterated(Classic.__dict__["toLocalIterator"])
    made["rdd"] = _kept(Classic.__dict__["rdd"])
    return {(Classic, name): made[name] for name in made} | saves(_run, _is_entered)


def _whole(original: Callable[..., Any], collected: bool = False) -> Callable[..., Any]:
    @wraps(original)
    def action(self: DataFrame, *args: Any, **more: Any) -> Any:
        with _run(self, self, collected) as out:
            return original(out, *args, **more)

    return action


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """One that is made later reads then what is stored now."""

    @wraps(original)
    def checkpoint(self: DataFrame, eager: bool = True, *args: Any, **more: Any) -> Any:
        if (runs := _runs_of(self)) is None:
            return original(self, eager, *args, **more)
        with _alone(), (runs.again if eager else runs.keep)(self, False, "") as out:
            return original(out, eager, *args, **more)

    return checkpoint


def _count(original: Callable[[DataFrame], int]) -> Callable[[DataFrame], int]:
    """Rows are counted behind the last exchange, of which no column is needed."""

    @wraps(original)
    def count(self: DataFrame) -> int:
        if not _is_entered(self):
            return original(self)
        with _run(self, self.groupBy().count(), True) as out:
            return int(out.collect()[0][0])

    return count


def _first(original: Callable[..., Any], usual: int, more_rows: int) -> Callable[..., Any]:
    """Only so many rows are asked for."""

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
        with ExitStack() as held:
            with _run_in(held, self) as out:
                found = original(out, *args, **more)
            yield from found

    return iterate


def _kept(original: Any) -> Any:
    def rdd(self: DataFrame) -> Any:
        if (runs := _runs_of(self)) is None:
            return original.func(self)
        with _alone(), runs.keep(self, False, "") as out:
            return original.func(out)

    made = cached_property(wraps(original.func)(rdd))
    made.__set_name__(Classic, "rdd")
    return made


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
def _run_in(held: ExitStack, df: DataFrame) -> Iterator[DataFrame]:
    """Keep what has run until `held` ends, but other actions of this thread need not wait. The
    session may have left since its user asked for the rows: Spark runs the query then."""
    if (runs := _runs_of(df)) is None:
        yield df
        return
    with _alone():
        yield held.enter_context(runs.again(df, False, ""))


@contextmanager
def _alone() -> Iterator[None]:
    """Actions inside of an action are the session's own."""
    _within.active = True
    try:
        yield
    finally:
        _within.active = False


def _runs_of(df: DataFrame) -> Runs | None:
    """Return how the session's queries run; None where they are Spark's own."""
    if getattr(_within, "active", False):
        return None
    name = session_name(df.sparkSession)
    with _lock:
        entered = _entered.get(name)
        return entered[-1] if entered else None


def _is_entered(df: DataFrame) -> bool:
    return _runs_of(df) is not None
