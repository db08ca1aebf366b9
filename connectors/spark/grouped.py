"""Grouped functions under PySpark's own method names.

The exchanges run when a method is called. The user's functions run when the returned DataFrame is
used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructType

Offloads = Callable[[DataFrame], DataFrame]


class _Groups:
    """Calls functions for groups; each method runs the exchanges of its query in Headgate."""

    def __init__(self, offload: Offloads, groups: Any) -> None:
        self._offload = offload
        self._groups = groups

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInArrow(func, schema))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInPandas(func, schema))


class Cogrouped(_Groups):
    """Pairs the groups of two DataFrames that have the same key."""


class Grouped(_Groups):
    """Groups a DataFrame like `df.groupBy`."""

    def agg(self, *exprs: Column | dict[str, str]) -> DataFrame:
        return self._offload(self._groups.agg(*exprs))

    def cogroup(self, other: Grouped | GroupedData) -> Cogrouped:
        theirs = other._groups if isinstance(other, Grouped) else other
        return Cogrouped(self._offload, self._groups.cogroup(theirs))
