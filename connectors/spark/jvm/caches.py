"""Spark's caches, behind the private door.

Spark keeps for each cache the plan that fills it, and runs that plan when the cache is first read.
Until then a plan that reads stored exchanges can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from .bridge import Jvm, link, name_of
from .catalyst import CatalystDoor

_RELATION, _ADAPTIVE = "InMemoryRelation", "AdaptiveSparkPlanExec"
_PLAN, _ROWS = "cachedPlan", "_cachedColumnBuffers"


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache, through the builder that Spark fills it with."""

    builder: Any

    @property
    def is_empty(self) -> bool:
        """Return True if nobody has begun to fill the cache and it may be filled through Headgate.
        A cache whose serializer takes columns is filled by Spark only."""
        return not self.is_built and not self.builder.supportsColumnarInput()

    @property
    def is_built(self) -> bool:
        """Return True once Spark has the RDD of the cache's rows. Until then all who read the cache
        wait for the same jobs."""
        return self._field(_ROWS).get(self.builder) is not None

    @property
    def is_fixed(self) -> bool:
        """Return True if Spark relies on the rows' partitioning before the cache is filled."""
        return name_of(self.builder.cachedPlan()) != _ADAPTIVE

    @property
    def logical(self) -> Any:
        """Return the optimized plan that fills the cache, None if Spark has no link to it."""
        node = self.builder.cachedPlan()
        if not self.is_fixed:
            node = node.inputPlan()
        while (linked := link(node)) is None and node.children().size() == 1:
            node = node.children().apply(0)
        return linked

    def may_be(self, plan: Any) -> bool:
        """Return True if this plan may fill the cache: Spark relies on no other partitioning."""
        before = self.builder.cachedPlan().outputPartitioning()
        return not self.is_fixed or bool(plan.outputPartitioning().equals(before))

    def fill(self, door: CatalystDoor, frame: DataFrame) -> Filled:
        """Let Spark fill the cache with the rows of a frame of the door when the cache is read."""
        filled = Filled(door, frame, self.builder)
        try:
            self.plan_by(frame._jdf.queryExecution().executedPlan())
            with door.executing():
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
    """Watches whether Spark may still read the rows of a frame of the door. The reference to the
    rows is weak."""

    def __init__(self, door: CatalystDoor, frame: DataFrame) -> None:
        self._rows = door.weakly(door.rows_behind(frame))

    def is_gone(self) -> bool:
        """Return True if nothing is left in Spark that could read the rows."""
        return bool(self._rows.refersTo(None))  # `get` would keep the rows for a while

    def close(self) -> None:
        """Stop Spark from reading the rows: they are about to be deleted."""


class Filled(Reader):
    """A cache that reads the rows until the user releases it. Then it gets its own plan back."""

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
        with suppress(Py4JError):  # Spark may have stopped before
            if self._plan and (cache := self._cache()):
                cache.plan_by(self._plan)
                cache.clear()

    def _cache(self) -> Cache | None:
        builder = self._builder.get()
        return None if builder is None else Cache(builder)


def caches(jvm: Jvm, logical: Any) -> Iterator[Cache]:
    """Yield the caches that a plan reads, each once."""
    relations = [leaf for name, leaf in jvm.named_leaves(logical) if name == _RELATION]
    builders: Any = jvm["same"]() if relations else None
    for leaf in relations:
        if builders.putIfAbsent(leaf.cacheBuilder(), True) is None:
            yield Cache(leaf.cacheBuilder())


def is_outdated(jvm: Jvm, execution: Any, plan: Callable[[Any], Any]) -> bool:
    """Return True if a query was planned with a cache that a new plan would not read: the user has
    released the cache, or Spark has built it again."""
    builders = jvm["same"]()
    if not (read := list(caches(jvm, execution.optimizedPlan()))):
        return False
    for cache in caches(jvm, plan(execution.analyzed()).withCachedData()):
        builders.put(cache.builder, True)
    return not all(builders.containsKey(cache.builder) for cache in read)
