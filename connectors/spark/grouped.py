"""Grouped functions by PySpark's own names: exchanges run now, functions when the DataFrame that
is returned is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructType

Offloads = Callable[[DataFrame], DataFrame]


class Grouped:
    """The groups of a DataFrame, as `df.groupBy` gives them; what is made of them runs here."""

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
    """The groups of two DataFrames, side by side."""

    def __init__(self, offload: Offloads, left: GroupedData, right: GroupedData) -> None:
        self._offload = offload
        self._groups = left.cogroup(right)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInArrow(func, schema))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        return self._offload(self._groups.applyInPandas(func, schema))
