"""Print every table, or the tables that are named: `python -m tests.bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console, RenderableType

from . import (
    core,
    elastic,
    exchange,
    exporter,
    fixed,
    joins,
    master,
    memory,
    operators,
    recovery,
    scale,
    tpcds,
    tpch,
    trace,
    unchanged,
    ways,
)
from .places import session

_ALL = ["exchange", "fixed", "memory", "recovery", "master"]
_ALONE: dict[str, Callable[[argparse.Namespace], Iterable[RenderableType]]] = {
    "recovery": lambda chosen: [
        recovery.run(chosen.events),
        recovery.ended(chosen.events // 10),
    ],
    "scale": lambda chosen: scale.run(chosen.page),
    "exporter": lambda chosen: [exporter.run(chosen.events)],
    "master": lambda chosen: [
        master.run(chosen.rounds, chosen.places),
        core.by_type(),
        *([master.small_jobs(chosen.rounds)] if "real" in chosen.places else []),
    ],
    "joins": lambda chosen: joins.run(range(chosen.start, chosen.start + chosen.rounds * 10)),
    "unchanged": lambda chosen: unchanged.run(chosen.scale),
    "elastic": lambda chosen: [elastic.run(chosen.cases)],
    "trace": lambda chosen: [trace.run(chosen.rounds * 4, chosen.picture)],
}
"""The tables that need no session, by name."""


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
    parser.add_argument("--start", type=int, default=0, help="of joins: the first seed")
    parser.add_argument("--picture", type=Path, default=Path("docs/trace.svg"), help="of trace")
    parser.add_argument("--page", type=Path, default=Path("docs/scale.md"), help="of scale")
    chosen = parser.parse_args()
    console = Console(width=120)
    for name, tables in _ALONE.items():
        if name in chosen.tables:
            console.print(*tables(chosen))
    if set(chosen.tables) <= _ALONE.keys():
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
