"""TPC-DS: each of the 99 queries in Spark, through `offload`, and as an action, in turn.

All run in one session, and actions run with `spark.headgate.sql.enabled`. All answers and DuckDB's
must be the same. There are eight runs: both ways through Headgate, with and without adaptive
execution, with and without broadcast joins. Spark's own answer is made once for both ways, under
the same configuration. Most queries take less than a second, so one slow round of three may decide:
a query that seems to be much slower or faster here than in Spark gets more rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import repeat

from pyspark.sql import Row, SparkSession
from rich.table import Table

from headgate import Headgate

from ..spark.cluster import findings, recorded
from ..spark.conftest import setting
from ..spark.entered import by_spark_alone, entered
from .answers import differs_in_order, near
from .measured import TIMES, Measured, left, table, total
from .places import attached
from .tpcds_data import Answer, answers, in_spark, queries, tables, views

_ADAPTIVE = {
    "aqe": {"spark.sql.adaptive.enabled": "true"},
    # Without adaptive execution, the tasks of 200 partitions would be all that is measured.
    "static": {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "8"},
}
_JOINS = {"broadcast": {}, "merge": {"spark.sql.autoBroadcastJoinThreshold": "-1"}}
_TOLD = 300
_DOUBTFUL, _MORE_ROUNDS = 1.5, 6

Collected = Callable[[SparkSession, Headgate, str], AbstractContextManager[list[Row]]]


@contextmanager
def _by_spark(spark: SparkSession, hg: Headgate, text: str) -> Iterator[list[Row]]:
    with by_spark_alone(hg):
        yield spark.sql(text).collect()


@contextmanager
def _by_offload(spark: SparkSession, hg: Headgate, text: str) -> Iterator[list[Row]]:
    out = hg.offload(spark.sql(text))
    try:
        yield out.collect()
    finally:
        hg.release(out)


@contextmanager
def _by_action(spark: SparkSession, hg: Headgate, text: str) -> Iterator[list[Row]]:
    with entered(hg, spark):
        yield spark.sql(text).collect()


_SPARK = "spark"
_SIDES: dict[str, Collected] = {_SPARK: _by_spark, "offload": _by_offload, "sql": _by_action}


@dataclass(slots=True)
class Run:
    """One of the eight runs: its queries, and the number of fsck's findings after the last
    query."""

    name: str
    measured: dict[int, Measured]
    findings: int = 0

    @property
    def right(self) -> int:
        return sum(not query.wrong for query in self.measured.values())

    @property
    def is_right(self) -> bool:
        return self.right == len(self.measured) and not self.findings

    def table(self) -> Table:
        return table(self.measured, f"TPC-DS, {self.name}; fsck has {self.findings} findings")


@dataclass(slots=True)
class _Answered:
    """The answer of one side: its rows or its error, its seconds without the release, and its
    exchanges."""

    rows: list[Row] = field(default_factory=list)
    took_s: float = 0.0
    error: str = ""
    taken: int = 0
    refused: int = 0
    size_bytes: int = 0


def run(
    spark: SparkSession, scale: float, rounds: int, chosen: Sequence[int], named: Sequence[str]
) -> Iterator[Run]:
    """Yield each run as it ends; `named` selects runs by parts of their names."""
    folder = tables(scale)
    views(spark, folder)
    texts = {number: text for number, text in queries().items() if not chosen or number in chosen}
    correct = answers(folder, texts)
    for adaptive, how in _ADAPTIVE.items():
        for joins, more in _JOINS.items():
            names = {side: f"{side}-{adaptive}-{joins}" for side in _SIDES if side != _SPARK}
            runs = {
                side: Run(name, {number: Measured([], []) for number in texts})
                for side, name in names.items()
                if not named or any(part in name for part in named)
            }
            if runs:
                with _attached(spark, f"{adaptive}-{joins}", how | more) as hg:
                    for turn, numbers in enumerate(_turns(rounds, list(texts), runs.values())):
                        for at, number in enumerate(numbers):
                            notes = {
                                side: of_side.measured[number] for side, of_side in runs.items()
                            }
                            text = in_spark(texts[number])
                            _measure(spark, hg, text, correct[number], notes, turn + at)
                    count = len(findings(hg._services, recorded(hg)).found)
                for each_run in runs.values():
                    each_run.findings = count
                    yield each_run


def _turns(rounds: int, numbers: Sequence[int], runs: Collection[Run]) -> Iterator[Sequence[int]]:
    """Yield the queries of each round: all, and then, where warm rounds count, those in doubt."""
    yield from repeat(numbers, rounds)
    if rounds > 1:
        measured = [(at, each_run.measured[at].ratio) for at in numbers for each_run in runs]
        doubtful = [at for at, ratio in measured if not 1 / _DOUBTFUL < ratio < _DOUBTFUL]
        yield from repeat(list(dict.fromkeys(doubtful)), _MORE_ROUNDS)


@contextmanager
def _attached(spark: SparkSession, name: str, conf: Mapping[str, str]) -> Iterator[Headgate]:
    """Attach a job that has the queries of one setting alone, and leave the session's actions to
    Spark."""
    job = {"spark.headgate.job.id": f"{spark.sparkContext.applicationId}-{name}"}
    with setting(spark, {**conf, **job}), attached(spark, "real") as (hg, _):
        yield hg


def _measure(
    spark: SparkSession,
    hg: Headgate,
    text: str,
    correct: Answer,
    notes: Mapping[str, Measured],
    turn: int,
) -> None:
    """Let each side answer, starting with another side in each turn, and compare the answers."""
    sides = [_SPARK, *notes]
    first = turn % len(sides)
    given = {
        side: _answered(spark, hg, _SIDES[side], text) for side in sides[first:] + sides[:first]
    }
    theirs = given[_SPARK]
    not_correct = theirs.error or differs_in_order(correct, theirs.rows, near)
    for side, note in notes.items():
        ours = given[side]
        note.spark_s.append(theirs.took_s)
        note.ours_s.append(ours.took_s)
        note.taken, note.refused, note.size_bytes = ours.taken, ours.refused, ours.size_bytes
        wrong = ours.error or differs_in_order(theirs.rows, ours.rows)
        if not_correct:
            wrong = f"{wrong} Spark: {not_correct}"
        note.wrong = note.wrong or wrong[:_TOLD]


def _answered(spark: SparkSession, hg: Headgate, collected: Collected, text: str) -> _Answered:
    answer, before, native = _Answered(), len(hg.results()), hg._queries.native.total()
    begun_s = time.monotonic()
    try:
        with collected(spark, hg, text) as answer.rows:
            answer.took_s = time.monotonic() - begun_s
    except Exception as exc:  # measure the others all the same
        answer.took_s = time.monotonic() - begun_s
        answer.error = f"{type(exc).__name__}: {exc}"
    results = hg.results()[before:]
    answer.taken, answer.refused = len(results), hg._queries.native.total() - native
    answer.size_bytes = sum(result.stored_bytes for result in results)
    answer.error = answer.error or left(hg)
    return answer


def summary(runs: Sequence[Run]) -> Table:
    """Lay out the runs, one per line."""
    made = Table(title="TPC-DS")
    for column in ("run", "right", *TIMES, "worst ratio", "findings"):
        made.add_column(column, justify="right")
    for each_run in runs:
        added = total(each_run.measured)
        worst = max(each_run.measured, key=lambda number: each_run.measured[number].ratio)
        made.add_row(
            each_run.name,
            f"{each_run.right} of {len(each_run.measured)}",
            *added.times,
            f"{each_run.measured[worst].ratio:.2f} (query {worst})",
            str(each_run.findings),
        )
    return made
