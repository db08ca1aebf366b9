"""Random joins of many tables, by Spark alone and through Headgate.

No query may take more than twice Spark's time. One that takes ten times as long is ended, and ends
the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.table import Table

from ..spark.joins import SLOW, SMALL_S, ask, tables
from .places import attached, session

_ROWS = 2_000_000
_SHOWN = 10


def run(seeds: range) -> Iterator[Table]:
    """Ask the queries of these seeds, and show the slowest.

    Raises:
        SystemExit: one of them was slow.
    """
    spark = session({"spark.sql.warehouse.dir": ".bench/joins"})
    with attached(spark, "real") as (hg, _), tables(spark, _ROWS):
        timed = [ask(spark, hg, seed) for seed in seeds]
    timed.sort(key=lambda each: -each.times)
    table = Table("seed", "Spark s", "here s", "times", "exchanges", "query")
    for each in timed[:_SHOWN]:
        numbers = f"{each.spark_s:.2f}", f"{each.here_s:.2f}", f"{each.times:.2f}"
        table.add_row(str(each.seed), *numbers, str(each.exchanges), each.query.text)
    whole = sum(each.here_s for each in timed) / sum(each.spark_s for each in timed)
    ran_here = sum(each.exchanges > 0 for each in timed)
    table.title = (
        f"{len(timed)} queries, {ran_here} with exchanges here: {whole:.2f} times Spark's time; "
        f"the slowest, less {SMALL_S} s"
    )
    yield table
    if timed[0].times > SLOW:
        sys.exit(f"seed {timed[0].seed} takes {timed[0].times:.1f} times as long as in Spark")
