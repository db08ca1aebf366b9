"""Measure how long the check of rewritten plans takes, over all stages of one query."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from rich.table import Table

from headgate.connectors.spark.queries.scan_places import ScanPlaces

from .places import attached

_WARM = 10
_EXCHANGES = 5
QUERY = """
    select r.c, count(*) n from
      (select a.k, b.c from
        (select id % 97 k, sum(id) s from range(3000) group by 1) a
        join (select id % 89 k, count(*) c from range(3000) group by 1) b on a.k = b.k) r
      join (select id % 7 + 30 c, max(id) m from range(3000) group by 1) d on r.c = d.c
    group by r.c order by r.c
"""


def run(spark: SparkSession, rounds: int) -> Table:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    checked_ms: list[float] = []
    whole_ms: list[float] = []

    def timed(called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            begun_s = time.perf_counter()
            result = called(*given)
            checked_ms[-1] += (time.perf_counter() - begun_s) * 1000
            return result

        return call

    with (
        attached(spark, "real") as (hg, _),
        patch.multiple(ScanPlaces, scan=timed(ScanPlaces.scan), check=timed(ScanPlaces.check)),
    ):
        for _ in range(rounds + _WARM):
            checked_ms.append(0.0)
            begun_s = time.perf_counter()
            out = hg.offload(spark.sql(QUERY))
            out.collect()
            whole_ms.append((time.perf_counter() - begun_s) * 1000)
            assert len(hg._queries.finished[out].exchanges) == _EXCHANGES
            hg.release(out)
    table = Table("exchanges", "check ms", "least", "most", "whole query ms")
    table.title = f"the check of a query's rewritten plans, median of {rounds}, warm"
    warm = checked_ms[_WARM:]
    figures = [median(warm), min(warm), max(warm), median(whole_ms[_WARM:])]
    table.add_row(str(_EXCHANGES), *(f"{figure:.1f}" for figure in figures))
    return table
