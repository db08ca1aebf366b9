"""Explain in words where each exchange of a query runs or ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from pyspark.sql import DataFrame

from ...control.ids import ResultId
from ...storage.format.segment import Longs
from .exchanges.combining import source_name
from .jvm.caches import Cache
from .queries.exchange_nodes import Shuffle
from .queries.runner import FinishedExchange, FinishedQuery, QueryRunner
from .report import ResultReport


def planned(
    query: QueryRunner, df: DataFrame, fillings: Iterable[tuple[QueryRunner, Cache]]
) -> str:
    """Describe a query that has not run: its plan and where each exchange will run. `fillings` are
    the caches that the query is the first to read, and the queries that fill them."""
    plan = query.plan(df)
    lines = [_told_before(query, shuffle) for shuffle in plan.shuffles]
    for filling, cache in fillings:
        shuffles = filling.plan(cache, collected=False).shuffles
        lines += [f"{_told_before(filling, shuffle)}, for a cache" for shuffle in shuffles]
    return _page(plan.root.toString(), lines)


def ran(query: FinishedQuery, reports: Iterable[ResultReport]) -> str:
    """Describe a query whose exchanges have run, with the cost of each exchange so far."""
    report_of = {report.result: report for report in reports}
    lines = [_told(done, report_of) for done in query.exchanges]
    lines += [f"{label}: stayed in Spark: {reason}" for label, reason in query.refused]
    if query.reused:
        lines.append(f"{query.reused} more reused the rows of another one")
    return _page(query.plan, lines)


def _told_before(query: QueryRunner, shuffle: Shuffle) -> str:
    if reason := query.refusal(shuffle):
        return f"{shuffle.node.label}: stays in Spark: {reason}"
    caller = shuffle.reading.caller
    called = caller is not None and not any(map(query.refusal, caller.shuffles))
    return f"{shuffle.node.label}: runs here{', with the function over it' if called else ''}"


def _told(done: FinishedExchange, report_of: Mapping[ResultId, ResultReport]) -> str:
    report = report_of[done.written.descriptor.result]
    names = {report.result, source_name(report.result)}
    both = [report_of[name] for name in names if name in report_of]
    puts, gets, predicted_gets = (
        sum(getattr(each, name) for each in both) for name in ("puts", "gets", "predicted_gets")
    )
    throttled = sum(each.throttled_puts + each.throttled_gets for each in both)
    return (
        f"{done.label}: {report.result}, {report.partitions} x {report.subpartitions}, "
        f"{report.rows:,} rows, {report.stored_bytes:,} bytes, {puts} PUT, "
        f"{gets} GET ({predicted_gets} predicted), {f'{throttled} throttled, ' * (throttled > 0)}"
        f"{done.took_s:.2f} s{_skew(done.written.rows)}"
    )


def _skew(rows: Longs) -> str:
    """Return the ratio of the largest subpartition to the median of those that have rows; empty
    when fewer than two have rows."""
    some = rows[rows > 0]
    if len(some) < 2:
        return ""
    return f", largest {some.max() / np.median(some):.1f} x the median"


def _page(plan: str, lines: list[str]) -> str:
    numbered = [f"({number}) {line}" for number, line in enumerate(lines, 1)]
    return "\n".join([plan.rstrip(), "", *(numbered or ["no exchange"])])
