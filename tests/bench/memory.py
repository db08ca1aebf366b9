"""The peak memory of a map task and of a reduce task, and whether the settings bound it.

The figure is the resident size of a Python worker above its idle size after a small exchange. Each
figure comes from a worker that has done nothing larger before.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.table import Table

from headgate import Headgate
from headgate.storage.format.batches import BATCH_BYTES
from headgate.storage.limits import Limits

from ..processes import descendants
from .measure import peak_bytes
from .places import attached, consume, rows

COUNTS = (1_000_000, 10_000_000)
END_WAIT_S = 10.0
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge of the Python workers under a JVM."""

    spark: SparkSession
    hg: Headgate
    jvm: int

    def above_idle_bytes(self, work: Callable[[], object]) -> int:
        """Run the work and return the largest growth of any worker above its idle size."""
        self._end_workers()
        idle = self._idle_bytes()
        work()
        least = min(idle.values())
        return max(peak_bytes(pid) - idle.get(pid, least) for pid in self._workers())

    def _idle_bytes(self) -> dict[int, int]:
        """Start workers, let them load everything they need, and return their sizes with their
        peaks reset."""
        made = self.hg.repartition(self.spark.range(0, 100, 1, 2), 2, "id")
        consume(made)
        self.hg.release(made)
        for pid in self._workers():
            Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
        return {pid: peak_bytes(pid) for pid in self._workers()}

    def _end_workers(self) -> None:
        """End all workers: a used worker keeps freed memory, and would seem to need less."""
        for pid in self._workers():
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + END_WAIT_S
        while self._workers():
            assert time.monotonic() < deadline_s, "workers end when they are told to"
            time.sleep(0.05)

    def _workers(self) -> list[int]:
        """Return the workers that daemons under the JVM have forked."""
        daemons = descendants(self.jvm)
        return [pid for daemon in daemons for pid in descendants(daemon)]


def run(spark: SparkSession) -> Table:
    limits, mib = Limits(), 1 << 20
    allowed = {
        "map": 3 * limits.segment_bytes + BATCH_BYTES,
        "reduce": limits.fetch_bytes + limits.cache_bytes + BATCH_BYTES,
    }
    table = Table("task", "rows", "peak above idle MiB", "allowed MiB", "stays under")
    table.title = "memory of one task, by the size of its partition"
    spark.conf.set("spark.headgate.driver.read.bytes", "0")  # idle workers, too, have read
    with attached(spark, "real") as (hg, meter):
        gauge = Gauge(spark, hg, meter.jvm)
        for task, measure in (("map", map_bytes), ("reduce", reduce_bytes)):
            for count in COUNTS:
                peak = measure(gauge, count)
                figures = f"{peak / mib:.0f}", f"{allowed[task] / mib:.0f}"
                table.add_row(
                    task, f"{count:,}", *figures, "yes" if peak <= allowed[task] else "NO"
                )
    return table


def map_bytes(gauge: Gauge, count: int) -> int:
    """Return the peak of one task that writes every row."""
    frame = rows(gauge.spark, count).coalesce(1)
    made = []
    peak = gauge.above_idle_bytes(lambda: made.append(gauge.hg.repartition(frame, 200, "k")))
    gauge.hg.release(made[0])
    return peak


def reduce_bytes(gauge: Gauge, count: int) -> int:
    """Return the peak of one task that reads every row."""
    made = gauge.hg.repartition(rows(gauge.spark, count), 1, "k")
    peak = gauge.above_idle_bytes(lambda: consume(made))
    gauge.hg.release(made)
    return peak
