"""Explain in words where each exchange of a query runs or ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame
from rich.filesize import decimal

from ...control.ids import ResultId, exchange_name, original
from ...storage.format.segment import Longs
from .jvm.caches import Cache
from .queries.exchange_nodes import Shuffle
from .queries.runner import FinishedExchange, FinishedQuery, QueryRunner
from .report import ResultReport
from .tables import Explanation, Table, counted

_WORDS = ("", "exchange", "where")
_NUMBERS = ("size", "rows", "stored", "PUT", "GET", "predicted", "throttled", "seconds", "skew")


@dataclass(frozen=True, slots=True)
class _Line:
    exchange: str
    where: str
    numbers: tuple[str, ...] = ("",) * len(_NUMBERS)
    """The cells of a table."""
    cost: str = ""
    """The same in words."""


def planned(
    query: QueryRunner, df: DataFrame, fillings: Iterable[tuple[QueryRunner, Cache]]
) -> Explanation:
    """Describe a query that has not run: its plan and where each exchange will run. `fillings` are
    the caches that the query is the first to read, and the queries that fill them."""
    plan = query.plan(df)
    lines = [_line_before(query, shuffle) for shuffle in plan.shuffles]
    for filling, cache in fillings:
        shuffles = filling.plan(cache, collected=False).shuffles
        lines += [_line_before(filling, shuffle, ", for a cache") for shuffle in shuffles]
    return _page(str(plan.root.toString()), lines)


def ran(query: FinishedQuery, reports: Iterable[ResultReport]) -> Explanation:
    """Describe a query whose exchanges have run, with the cost of each exchange so far."""
    report_of = {report.result: report for report in reports}
    lines = [_line(done, report_of) for done in query.exchanges]
    lines += [_Line(label, f"stayed in Spark: {reason}") for label, reason in query.refused]
    more = f"{query.reused} more reused the rows of another one" if query.reused else ""
    return _page(query.plan, lines, more)


def _line_before(query: QueryRunner, shuffle: Shuffle, purpose: str = "") -> _Line:
    label = shuffle.node.public_label
    if reason := query.refusal(shuffle):
        return _Line(label, f"stays in Spark: {reason}{purpose}")
    caller = shuffle.reading.caller
    called = caller is not None and not any(map(query.refusal, caller.shuffles))
    function = ", and its readers call the function" if called else ""
    return _Line(label, f"runs in Headgate{function}{purpose}")


def _line(done: FinishedExchange, report_of: Mapping[ResultId, ResultReport]) -> _Line:
    report = report_of[done.stored.descriptor.result]
    names = {report.result, original(report.result)}
    both = [report_of[name] for name in names if name in report_of]
    puts, gets, predicted_gets = (
        sum(getattr(each, name) for each in both) for name in ("puts", "gets", "predicted_gets")
    )
    throttled = sum(each.throttled_puts + each.throttled_gets for each in both)
    size, rows = f"{report.partitions} x {report.subpartitions}", f"{report.rows:,}"
    took, skew = f"{done.took_s:.2f}", _skew(done.stored.rows)
    cost = (
        f", {size}, {rows} rows, {report.stored_bytes:,} bytes, {puts} PUT, "
        f"{gets} GET ({predicted_gets} predicted), {f'{throttled} throttled, ' * (throttled > 0)}"
        f"{took} s{f', largest {skew} x the median' if skew else ''}"
    )
    requests = (f"{puts:,}", f"{gets:,}", f"{predicted_gets:,}", counted(throttled))
    numbers = (size, rows, decimal(report.stored_bytes), *requests, took, skew)
    return _Line(exchange_name(report.result, report.label), "ran in Headgate", numbers, cost)


def _skew(rows: Longs) -> str:
    """Return the ratio of the largest subpartition to the median of those that have rows; empty
    when fewer than two have rows."""
    some = rows[rows > 0]
    return f"{some.max() / np.median(some):.1f}" if len(some) > 1 else ""


def _page(plan: str, lines: list[_Line], more: str = "") -> Explanation:
    texts = [f"{line.exchange}: {line.where}{line.cost}" for line in lines] + [more] * bool(more)
    numbered = [f"({number}) {text}" for number, text in enumerate(texts, 1)] or ["no exchange"]
    rows = [(f"({n})", line.exchange, line.where, *line.numbers) for n, line in enumerate(lines, 1)]
    feet = tuple(numbered[len(lines) :])
    return Explanation(plan, "\n".join(numbered), Table(_WORDS, _NUMBERS, rows, feet=feet))
