"""Grouped functions by PySpark's own names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType


class Grouped:
    """The groups of a DataFrame, as `df.groupBy` gives them; what is made of them runs here."""

    def __init__(
        self, offload: Callable[[DataFrame], DataFrame], df: DataFrame, *columns: str | Column
    ) -> None:
        self._offload = offload
        self._groups = df.groupBy(*columns)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        """As PySpark's; the exchange runs now, the function when the DataFrame is used."""
        return self._offload(self._groups.applyInArrow(func, schema))
