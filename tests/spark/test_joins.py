"""Joins of many tables have no cliff: see `joins.py`. `python -m tests.bench joins` asks more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate

from .joins import ask, tables

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SEEDS = (0, 1, 2, 3)
ROWS = 60_000


@pytest.fixture(scope="module", autouse=True)
def made(spark: SparkSession) -> Iterator[None]:
    with tables(spark, ROWS):
        yield


@pytest.mark.parametrize("seed", SEEDS)
def test_joins_have_no_cliff(spark: SparkSession, hg: Headgate, seed: int) -> None:
    """The rows are Spark's, and come in less than ten times Spark's time."""
    ask(spark, hg, seed)
