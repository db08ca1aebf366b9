"""The measurements of queries on both sides, and their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from headgate import Headgate
from headgate.control.clock import SYSTEM_CLOCK, Deadline

_DELETED_S = 20


@dataclass(slots=True)
class Measured:
    """One query: its seconds in each round, its exchanges here and in Spark, its bytes and its
    error."""

    spark_s: list[float]
    ours_s: list[float]
    taken: int = 0
    refused: int = 0
    size_bytes: int = 0
    wrong: str = ""

    @property
    def ratio(self) -> float:
        return median(self.ours_s) / median(self.spark_s)


def total(measured: Mapping[int, Measured]) -> Measured:
    """Add up the queries; `wrong` becomes the number of wrong ones."""
    added = Measured([0.0], [0.0])
    for query in measured.values():
        added.spark_s[0] += median(query.spark_s)
        added.ours_s[0] += median(query.ours_s)
        added.taken += query.taken
        added.refused += query.refused
        added.size_bytes += query.size_bytes
    added.wrong = str(sum(bool(each.wrong) for each in measured.values()))
    return added


def table(measured: Mapping[int, Measured], title: str) -> Table:
    """Lay out the queries and their total."""
    made = Table(title=title)
    for column in ("query", "Spark s", "Headgate s", "ratio", "taken", "refused", "MB", "wrong"):
        made.add_column(column, justify="right")
    for number, query in measured.items():
        made.add_row(str(number), *_cells(query))
    made.add_row("all", *_cells(total(measured)))
    return made


def _cells(query: Measured) -> list[str]:
    times = [f"{median(query.spark_s):.2f}", f"{median(query.ours_s):.2f}", f"{query.ratio:.2f}"]
    return [
        *times,
        str(query.taken),
        str(query.refused),
        f"{query.size_bytes / 1e6:.1f}",
        query.wrong,
    ]


def left(hg: Headgate) -> str:
    """Return what the store still holds of released queries, or an empty text."""
    services, deadline = hg._services, Deadline.after(_DELETED_S)
    prefix = f"{services.worker.root}/{hg.job}/"
    while objects := [stat.name for stat in services.store.list(prefix)]:
        if deadline.passed:
            return f"{len(objects)} objects left, as {objects[0]}"
        SYSTEM_CLOCK.sleep_s(0.02)
    return ""
