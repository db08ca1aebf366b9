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


class Grouped:
    """Groups a DataFrame like `df.groupBy`; each method runs the exchanges of its query here."""

    def __init__(self, offload: Offloads, df: DataFrame, *columns: str | Column) -> None:
        self._offload = offload
        self._groups: GroupedData = df.groupBy(*columns)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInArrow(func, schema))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInPandas(func, schema))

    def agg(self, *exprs: Column | dict[str, str]) -> DataFrame:
        return self._offload(self._groups.agg(*exprs))  # type: ignore[arg-type]

    def cogroup(self, other: Grouped | GroupedData) -> Cogrouped:
        theirs = other._groups if isinstance(other, Grouped) else other
        return Cogrouped(self._offload, self._groups, theirs)


class Cogrouped:
    """Pairs the groups of two DataFrames that have the same key."""

    def __init__(self, offload: Offloads, left: GroupedData, right: GroupedData) -> None:
        self._offload = offload
        self._groups = left.cogroup(right)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInArrow(func, schema))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInPandas(func, schema))
