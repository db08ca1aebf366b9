"""Spark's caches, behind the private door.

Spark holds for each cache the plan that fills it, and runs that plan when the cache is read for the
first time. A plan that reads what is stored here can take its place until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from ..queries.exchange_finder import link
from .bridge import Jvm, name_of
from .catalyst import CatalystDoor

_RELATION, _ADAPTIVE = "InMemoryRelation", "AdaptiveSparkPlanExec"
_PLAN, _ROWS = "cachedPlan", "_cachedColumnBuffers"


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache by what Spark builds it with."""

    builder: Any

    @property
    def is_empty(self) -> bool:
        """Whether nobody has begun to fill it; with columns, which somebody's own serializer takes,
        only Spark does."""
        rows = self._field(_ROWS).get(self.builder)
        return rows is None and not self.builder.supportsColumnarInput()

    @property
    def is_fixed(self) -> bool:
        """Whether Spark relies on how the rows are partitioned before they are there."""
        return name_of(self.builder.cachedPlan()) != _ADAPTIVE

    @property
    def logical(self) -> Any:
        """The optimized plan that the cache is filled with, None where Spark does not tell."""
        node = self.builder.cachedPlan()
        if not self.is_fixed:
            node = node.inputPlan()
        while (found := link(node)) is None and node.children().size() == 1:
            node = node.children().apply(0)
        return found

    def may_be(self, plan: Any) -> bool:
        """Whether nobody relies on more than what another plan gives."""
        before = self.builder.cachedPlan().outputPartitioning()
        return not self.is_fixed or bool(plan.outputPartitioning().equals(before))

    def fill(self, door: CatalystDoor, frame: DataFrame) -> Filled:
        """Let Spark fill it with the rows of a frame of the door, when it reads it."""
        filled = Filled(door, frame, self.builder)
        try:
            self.plan_by(frame._jdf.queryExecution().executedPlan())
            self.builder.cachedColumnBuffers()
        except BaseException:
            filled.close()
            raise
        return filled

    def plan_by(self, plan: Any) -> None:
        self._field(_PLAN).set(self.builder, plan)

    def clear(self) -> None:
        self.builder.clearCache(False)

    def _field(self, name: str) -> Any:
        field = self.builder.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field


class Reader:
    """What Spark may read of a frame of the door. Neither this nor what made it holds the rows."""

    def __init__(self, door: CatalystDoor, frame: DataFrame) -> None:
        self._rows = door.weakly(door.rows_behind(frame))

    def is_gone(self) -> bool:
        """Whether nothing is left in Spark that could read the rows."""
        return bool(self._rows.refersTo(None))  # to ask what it refers to would hold that a while

    def close(self) -> None:
        """The rows are about to go."""


class Filled(Reader):
    """A cache that reads them, until the user lets it go: then it has its own plan again."""

    def __init__(self, door: CatalystDoor, frame: DataFrame, builder: Any) -> None:
        super().__init__(door, frame)
        self._builder = door.weakly(builder)
        self._plan = builder.cachedPlan()

    def is_gone(self) -> bool:
        if self._plan and (cache := self._cache()) and cache.is_empty:
            cache.plan_by(self._plan)
            self._plan = None
        return super().is_gone()

    def close(self) -> None:
        with suppress(Py4JError):  # Spark may have gone before
            if self._plan and (cache := self._cache()):
                cache.plan_by(self._plan)
                cache.clear()

    def _cache(self) -> Cache | None:
        builder = self._builder.get()
        return None if builder is None else Cache(builder)


def caches(jvm: Jvm, logical: Any) -> Iterator[Cache]:
    """The caches that a plan reads."""
    plans, seen = [logical, *jvm.items(logical.subqueriesAll())], jvm["same"]()
    for leaf in (leaf for plan in plans for leaf in jvm.items(plan.collectLeaves())):
        if name_of(leaf) == _RELATION and seen.putIfAbsent(leaf.cacheBuilder(), True) is None:
            yield Cache(leaf.cacheBuilder())


def is_outdated(jvm: Jvm, execution: Any, plan: Callable[[Any], Any]) -> bool:
    """Whether a query was planned with a cache that it would not be planned with now: the user has
    let it go, or Spark has made it anew."""
    known = jvm["same"]()
    if not (read := list(caches(jvm, execution.optimizedPlan()))):
        return False
    for cache in caches(jvm, plan(execution.analyzed()).withCachedData()):
        known.put(cache.builder, True)
    return not all(known.containsKey(cache.builder) for cache in read)
