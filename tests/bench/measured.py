"""The measurements of queries on both sides, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from headgate import Headgate
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.storage.format.layout import Layout

TIMES = ("Spark s", "Headgate s", "ratio", "cold ratio")
_DELETED_S = 20


@dataclass(slots=True)
class Measured:
    """One query: its seconds in each round, its exchanges here and in Spark, its bytes and its
    error. The first round is cold; the others are warm, or the first where it is the only one."""

    spark_s: list[float]
    ours_s: list[float]
    taken: int = 0
    refused: int = 0
    size_bytes: int = 0
    wrong: str = ""

    @property
    def cold_ratio(self) -> float:
        return self.ours_s[0] / self.spark_s[0]

    @property
    def ratio(self) -> float:
        return _warm(self.ours_s) / _warm(self.spark_s)

    @property
    def times(self) -> list[str]:
        warm_s = [f"{_warm(seconds):.2f}" for seconds in (self.spark_s, self.ours_s)]
        return [*warm_s, f"{self.ratio:.2f}", f"{self.cold_ratio:.2f}"]


def _warm(seconds: Sequence[float]) -> float:
    return median(seconds[1:] or seconds)


def total(measured: Mapping[int, Measured]) -> Measured:
    """Add up the queries, cold and warm; `wrong` becomes the number of wrong ones."""
    added = Measured([0.0, 0.0], [0.0, 0.0])
    for query in measured.values():
        for sums, seconds in (added.spark_s, query.spark_s), (added.ours_s, query.ours_s):
            sums[0] += seconds[0]
            sums[1] += _warm(seconds)
        added.taken += query.taken
        added.refused += query.refused
        added.size_bytes += query.size_bytes
    added.wrong = str(sum(bool(each.wrong) for each in measured.values()))
    return added


def table(measured: Mapping[int, Measured], title: str) -> Table:
    """Lay out the queries and their total."""
    made = Table(title=title)
    for column in ("query", *TIMES, "taken", "refused", "MB", "wrong"):
        made.add_column(column, justify="right")
    for number, query in measured.items():
        made.add_row(str(number), *_cells(query))
    made.add_row("all", *_cells(total(measured)))
    return made


def _cells(query: Measured) -> list[str]:
    return [
        *query.times,
        str(query.taken),
        str(query.refused),
        f"{query.size_bytes / 1e6:.1f}",
        query.wrong,
    ]


def left(hg: Headgate) -> str:
    """Return what the store still holds of released queries, or an empty text. The marker of the
    driver stays as long as its job."""
    services, deadline = hg._services, Deadline.after(_DELETED_S)
    layout = Layout(services.worker.root, hg.job)

    def stored() -> list[str]:
        names = (stat.name for stat in services.store.list(layout.prefix))
        return [name for name in names if layout.driver_of(name) is None]

    while objects := stored():
        if deadline.passed:
            return f"{len(objects)} objects left, as {objects[0]}"
        SYSTEM_CLOCK.sleep_s(0.02)
    return ""
