"""Print every table, or the tables that are named: `python -m tests.bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from . import (
    among,
    check,
    core,
    elastic,
    exchange,
    first,
    fixed,
    master,
    memory,
    operators,
    recovery,
    scale,
    tpcds,
    tpch,
    trace,
    transfer,
    unchanged,
    values,
    ways,
)
from .places import session

_ALL = ["exchange", "fixed", "check", "transfer", "memory", "recovery", "master"]
_ALONE = {
    "transfer",
    "recovery",
    "among",
    "master",
    "values",
    "first",
    "trace",
    "scale",
    "unchanged",
    "elastic",
}  # no session


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("tables", nargs="*", default=_ALL, metavar="table", help=", ".join(_ALL))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", nargs="+", default=["real", "embedded"])
    parser.add_argument("--counts", nargs="+", type=int, default=[32, 200])
    parser.add_argument("--scale", type=float, default=1, help="of TPC-H, lineitem, TPC-DS")
    parser.add_argument("--queries", nargs="+", type=int, default=[], help="of TPC-H and TPC-DS")
    parser.add_argument("--settings", nargs="+", default=[], help="of TPC-DS: parts of their names")
    parser.add_argument("--cases", nargs="+", default=[], help="of operators, elastic: some names")
    parser.add_argument("--conf", nargs="+", default=[], metavar="KEY=VALUE", help="of the session")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--picture", type=Path, default=Path("docs/trace.svg"), help="of trace")
    parser.add_argument("--page", type=Path, default=Path("docs/scale.md"), help="of scale")
    chosen = parser.parse_args()
    console = Console(width=120)
    if "transfer" in chosen.tables:
        console.print(transfer.run(chosen.rounds, tuple(chosen.counts)))
    if "recovery" in chosen.tables:
        console.print(recovery.run(chosen.events))
    if "scale" in chosen.tables:
        console.print(*scale.run(chosen.page))
    if "among" in chosen.tables:
        console.print(among.run(chosen.events))
    if "master" in chosen.tables:
        console.print(master.run(chosen.rounds, chosen.places))
        console.print(core.by_type())
        if "real" in chosen.places:
            console.print(master.small_jobs(chosen.rounds))
    if "values" in chosen.tables:
        console.print(values.run(chosen.rounds))
    if "first" in chosen.tables:
        console.print(first.run(chosen.rounds))
    if "unchanged" in chosen.tables:
        console.print(*unchanged.run(chosen.scale))
    if "elastic" in chosen.tables:
        console.print(elastic.run(chosen.cases))
    if "trace" in chosen.tables:
        console.print(trace.run(chosen.rounds * 4, chosen.picture))
    if set(chosen.tables) <= _ALONE:
        return
    spark = session()
    for pair in chosen.conf:
        spark.conf.set(*pair.split("=", 1))
    if "exchange" in chosen.tables:
        console.print(exchange.narrow(spark, chosen.rounds, chosen.places, chosen.counts))
    if "lineitem" in chosen.tables:
        wide = exchange.wide(spark, chosen.rounds, chosen.places, chosen.counts, chosen.scale)
        console.print(wide)
    if "ways" in chosen.tables:
        console.print(ways.run(spark))
    if "shapes" in chosen.tables:
        console.print(ways.shapes(spark))
    if "fixed" in chosen.tables:
        console.print(fixed.run(spark, chosen.rounds * 4, chosen.places))
    if "check" in chosen.tables:
        console.print(check.run(spark, chosen.rounds * 4))
    if "memory" in chosen.tables:
        console.print(memory.run(spark))
    if "tpch" in chosen.tables:
        console.print(tpch.run(spark, chosen.scale, chosen.rounds, chosen.queries))
    runs = []
    if "tpcds" in chosen.tables:
        for run in tpcds.run(spark, chosen.scale, chosen.rounds, chosen.queries, chosen.settings):
            console.print(run.table())
            runs.append(run)
        console.print(tpcds.summary(runs))
    if "operators" in chosen.tables:
        console.print(operators.run(spark, chosen.rounds, chosen.cases))
    spark.stop()
    sys.exit(not all(each.is_right for each in runs))


if __name__ == "__main__":
    main()
