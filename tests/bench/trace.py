"""Trace one query of five exchanges: which step takes how long, and where it stands in time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from py4j.java_gateway import GatewayClient
from pyspark.sql import SparkSession
from rich.table import Table

from headgate import Headgate
from headgate.connectors.spark.exchanges import run as exchange_run
from headgate.connectors.spark.exchanges.rerun import Writing
from headgate.connectors.spark.exchanges.stored import StoredResults
from headgate.connectors.spark.jvm.scheduler import ended_jobs
from headgate.connectors.spark.queries.planner import Planner
from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.kafka.transactions import KafkaDecisions
from headgate.control.master.driver_master import DriverMaster

from . import spans
from .places import DATA, attached, session
from .spans import Span

_WARM = 10
_QUERY = """
    select r.c, count(*) n from
      (select a.k, b.c from
        (select id % 97 k, sum(id) s from range(3000) group by 1) a
        join (select id % 89 k, count(*) c from range(3000) group by 1) b on a.k = b.k) r
      join (select id % 7 + 30 c, max(id) m from range(3000) group by 1) d on r.c = d.c
    group by r.c order by r.c
"""
_STEPS = {  # in the order of the picture's legend
    "plan": "#8e6c8a",
    "plan again": "#b08900",
    "stage of rows": "#c9a227",
    "register": "#d1495b",
    "map stage": "#a8c5da",
    "task": "#1b6ca8",
    "write": "#bcd4e6",
    "rows from the JVM": "#6c757d",
    "sort": "#588157",
    "encode": "#3a5a40",
    "put": "#c8553d",
    "confirm": "#2a9d8f",
    "decide": "#264653",
    "await": "#e9c46a",
    "manifest": "#f4a261",
    "scan": "#9d4edd",
    "finish": "#5a189a",
    "get": "#e76f51",
    "read": "#457b9d",
    "last stage": "#cbd5d1",
}
_DRIVER = (
    (Planner, "plan", "plan"),
    (Planner, "plan_again", "plan again"),
    (Planner, "rows", "stage of rows"),
    (Planner, "scan", "scan"),
    (Planner, "finish", "finish"),
    (StoredResults, "place", "manifest"),
    (Writing, "run", "map stage"),
    (DriverMaster, "register_partition_with_producer", "register"),
    (DriverMaster, "await_complete", "await"),
    (exchange_run, "read_by_driver", "read"),
    (KafkaDecisions, "commit", "decide"),
)
_WIDTH, _EDGE, _ROW, _LINE = 1200, 90, 14, 16


@dataclass(frozen=True, slots=True)
class Traced:
    """One run of the query."""

    spans: list[Span]
    start_s: float
    end_s: float
    calls: int
    """Calls of the JVM through py4j."""

    @property
    def ms(self) -> float:
        return (self.end_s - self.start_s) * 1000


def run(rounds: int, file: Path) -> Table:
    """Trace the query in a session of its own, draw the median run, and return a table."""
    DATA.mkdir(exist_ok=True)
    here = Path(__file__).parents[2]
    os.environ[spans.SPANS_FILE] = str((DATA / "spans").absolute())
    os.environ["PYTHONPATH"] = str(here)
    spark = session({"spark.python.daemon.module": "tests.bench.traced_worker"})
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    for owner, name, step in _DRIVER:
        spans.trace(owner, name, "driver", step)
    with attached(spark, "real") as (hg, _):
        runs = [_once(spark, hg) for _ in range(rounds + _WARM)][_WARM:]
        own_ms = median(_own_ms(spark) for _ in range(rounds))
    spark.stop()
    runs.sort(key=lambda traced: traced.ms)
    file.write_text(drawn(runs[len(runs) // 2]))
    return _table(runs, own_ms)


def _once(spark: SparkSession, hg: Headgate) -> Traced:
    file = DATA / "spans"
    file.write_bytes(b"")
    seen = {job.jobId() for job in ended_jobs(spark)}
    offset_s = SYSTEM_CLOCK.now_ms() / 1000 - SYSTEM_CLOCK.monotonic_s()
    with _counted() as calls:
        start_s = SYSTEM_CLOCK.monotonic_s()
        out = hg.offload(spark.sql(_QUERY))
        last_s = SYSTEM_CLOCK.monotonic_s()
        out.collect()
        end_s = SYSTEM_CLOCK.monotonic_s()
    hg.release(out)
    recorded = [span for span in spans.read(file) if span.start_s < end_s]
    recorded.append(Span("driver", "0", "last stage", last_s, end_s))
    tasks = [Span("JVM", *task) for task in _tasks(spark, seen, offset_s)]
    return Traced(recorded + tasks, start_s, end_s, calls["calls"])


def _own_ms(spark: SparkSession) -> float:
    start_s = SYSTEM_CLOCK.monotonic_s()
    spark.sql(_QUERY).collect()
    return (SYSTEM_CLOCK.monotonic_s() - start_s) * 1000


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    calls: Counter[str] = Counter()
    send = GatewayClient.send_command

    def counted(client: Any, *given: Any, **named: Any) -> Any:
        calls["calls"] += 1
        return send(client, *given, **named)

    with patch.object(GatewayClient, "send_command", counted):
        yield calls


def _tasks(
    spark: SparkSession, seen: set[int], offset_s: float
) -> Iterator[tuple[str, str, float, float]]:
    """Yield thread, step, start and end of the tasks of new jobs. Spark tells milliseconds."""
    store = spark.sparkContext._jsc.sc().statusStore()
    for job in ended_jobs(spark):
        if job.jobId() in seen:
            continue
        for stage in job.stageIds().mkString(" ").split():
            tasks = store.taskList(int(stage), 0, 1_000)
            for at in range(tasks.size()):
                task = tasks.apply(at)
                start_s = task.launchTime().getTime() / 1000 - offset_s
                yield f"{at}", "task", start_s, start_s + task.duration().get() / 1000


def _table(runs: list[Traced], own_ms: float) -> Table:
    table = Table("step", "in", "times", "ms in all", "ms each")
    whole_ms, calls = median(traced.ms for traced in runs), median(t.calls for t in runs)
    table.title = (
        f"one query of five exchanges, median of {len(runs)}, warm: {whole_ms:.0f} ms, "
        f"Spark's own {own_ms:.0f} ms, {calls:.0f} py4j calls"
    )
    for step in _STEPS:
        each = [[span for span in traced.spans if span.step == step] for traced in runs]
        times = median(len(of_run) for of_run in each)
        ms = median(sum(span.ms for span in of_run) for of_run in each)
        where = ", ".join(sorted({span.process for of_run in each for span in of_run}))
        table.add_row(step, where, f"{times:.0f}", f"{ms:.1f}", f"{ms / max(times, 1):.1f}")
    return table


def drawn(traced: Traced) -> str:
    """Return a picture with a row for each thread, and a colour for each step."""
    threads = list(
        dict.fromkeys(
            (span.process, span.thread)
            for process in ("driver", "JVM", "worker")
            for span in sorted(traced.spans, key=lambda span: span.start_s)
            if span.process == process
        )
    )
    ms_of = (_WIDTH - 2 * _EDGE) / traced.ms
    below = _ROW * (len(threads) + 2)
    height = below + _LINE * (len(_STEPS) // 5 + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for at_ms in range(0, int(traced.ms) + 1, 50 * (1 + int(traced.ms) // 600)):
        x = _EDGE + at_ms * ms_of
        parts.append(f'<path d="M{x:.0f} {_ROW}V{below}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{_ROW - 3}">{at_ms} ms</text>')
    for at, (process, _) in enumerate(threads):
        parts.append(f'<text x="4" y="{_ROW * (at + 2) - 3}">{process}</text>')
    for span in sorted(traced.spans, key=lambda span: span.start_s - span.end_s):
        x = _EDGE + (span.start_s - traced.start_s) * 1000 * ms_of
        y = _ROW * (threads.index((span.process, span.thread)) + 1) + 1
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(span.ms * ms_of, 0.5):.1f}" '
            f'height="{_ROW - 2}" fill="{_STEPS[span.step]}">'
            f"<title>{span.step}: {span.ms:.1f} ms</title></rect>"
        )
    for at, (step, colour) in enumerate(_STEPS.items()):
        x, y = _EDGE + at % 5 * 200, below + _LINE * (at // 5 + 1)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{step}</text>')
    return "\n".join((*parts, "</svg>", ""))
