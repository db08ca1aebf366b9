"""Bugs that are put into the product: random queries have wrong rows, and that is seen."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate

from .grammar import tables
from .planted import PLANTED, SHOWN_BY
from .queries import find


@pytest.mark.real
@pytest.mark.timeout(600)
def test_planted_bugs_are_seen(spark: SparkSession, hg: Headgate) -> None:
    """A bug of each kind gives wrong rows to one of the queries that are known to show it, where
    the product's own checks are left out."""
    tables(spark)
    assert [] == find(spark, hg, list(PLANTED), SHOWN_BY), "look for seeds with make queries"
