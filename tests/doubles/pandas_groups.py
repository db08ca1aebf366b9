"""Functions for groups of pandas frames."""

from __future__ import annotations

import functools

from pyspark.sql import DataFrame


def together(queries: list[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.union, queries)
