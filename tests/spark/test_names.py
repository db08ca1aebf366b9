"""An exchange has one name wherever it is shown."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from headgate import Headgate, Invalid
from headgate.connectors.spark.exchanges.progress import progress
from headgate.control.inquiry.spans import spans
from headgate.infra.cli import fields, views

from .cluster import recorded
from .conftest import setting

FILE = "test_names.py"


def descriptions(spark: SparkSession) -> list[str]:
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(at).description() for at in range(jobs.size())]
    return [str(each.get()) for each in described if each.isDefined()]


def plans(spark: SparkSession) -> list[str]:
    """Return the plans on Spark's SQL page."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    return [str(executions.apply(at).physicalPlanDescription()) for at in range(executions.size())]


def printed(*shown: object) -> str:
    console = Console(width=400)
    with console.capture() as capture:
        for each in shown:
            console.print(each)
    return capture.get()


def here() -> str:
    """Return the line of the caller, as labels have it."""
    return f"{FILE}:{sys._getframe(1).f_lineno}"


@pytest.mark.parametrize("offloads", [True, False])
def test_an_exchange_has_one_name(spark: SparkSession, hg: Headgate, offloads: bool) -> None:
    """Its result, the user's line and the partitioning, in this form and order."""
    rows = spark.range(0, 1000, 1, 2).select((F.col("id") % 7).alias("k"))
    if offloads:
        out, line = hg.offload(rows.groupBy("k").count()), here()
    else:
        out, line = hg.repartition(rows, 3, "k"), here()
    assert out.count() == (7 if offloads else 1000)
    report = hg.results()[-1]
    begin, _, partitioning = report.label.partition(": ")
    assert begin == line
    assert partitioning.startswith("HashPartitioning(k#" if offloads else "repartition(3, k)")
    name = f"{report.result} {report.label}"

    events = recorded(hg)
    state = hg._results.state
    assert name in printed(*[views.event_row(each, None) for each in events])
    assert progress(state.results[report.result], 1.0).startswith(name[:45])  # of a terminal's line
    assert f"headgate: write {name}" in descriptions(spark)
    assert f"Headgate exchange {name}" in "\n".join(plans(spark))
    in_cells = [report.result, report.label]
    assert in_cells in [list(row[:2]) for row in hg.results().table().rows]
    assert in_cells in [list(row[:2]) for row in hg.report().table().rows]
    assert report.label in printed(*views.report_tables(hg.report()))
    assert report.label in printed(views.state_table(state))
    assert report.label in [
        each["label"] for each in fields.report_fields(hg.report())["exchanges"]
    ]
    if offloads:
        assert f"(1) {name}: ran in Headgate, " in hg.explain(out)
    hg.release(out)
    traces = [span.name for trace in spans(recorded(hg)) for span in trace]
    assert f"exchange {name}" in traces
    with setting(spark, {"spark.headgate.budget": "1 requests"}), pytest.raises(Invalid) as refused:
        again(hg, rows, offloads)
    assert f": {partitioning} would bring the cost to " in str(refused.value)
    assert f" {FILE}:{again.__code__.co_firstlineno + 1}: " in str(refused.value)


def again(hg: Headgate, rows: DataFrame, offloads: bool) -> object:
    return hg.offload(rows.groupBy("k").count()) if offloads else hg.repartition(rows, 3, "k")
