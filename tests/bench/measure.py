"""Measure a stretch of work: wall time, and CPU time by the group of processes that spent it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import psutil

from ..processes import descendants


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    jvm_s: float
    python_s: float
    store_s: float
    broker_s: float

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of Spark's and our processes, without the services."""
        return self.jvm_s + self.python_s

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.wall_s - other.wall_s,
            self.jvm_s - other.jvm_s,
            self.python_s - other.python_s,
            self.store_s - other.store_s,
            self.broker_s - other.broker_s,
        )


@dataclass(frozen=True, slots=True)
class Meter:
    """The processes whose CPU time counts, by group."""

    jvm: int
    stores: tuple[int, ...]
    brokers: tuple[int, ...]

    def measure(self, work: Callable[[], object]) -> Cost:
        """Return the cost of a stretch of work. Its wall time is without the time that it takes to
        look at all processes, which is some milliseconds."""
        before = self._spent()
        start_s = time.monotonic()
        work()
        wall_s = time.monotonic() - start_s
        return replace(self._spent() - before, wall_s=wall_s)

    def _spent(self) -> Cost:
        own = sum(os.times()[:2])
        return Cost(
            0.0,
            cpu_s(self.jvm),
            own + sum(cpu_s(pid) for pid in descendants(self.jvm)),
            sum(cpu_s(pid) for pid in self.stores),
            sum(cpu_s(pid) for pid in self.brokers),
        )


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process and of its ended children."""
    with suppress(psutil.NoSuchProcess):
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    return 0.0


def peak_bytes(pid: int) -> int:
    """Return the largest resident size that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def middle(costs: list[Cost]) -> Cost:
    """Return the median of each figure."""
    return Cost(
        median(c.wall_s for c in costs),
        median(c.jvm_s for c in costs),
        median(c.python_s for c in costs),
        median(c.store_s for c in costs),
        median(c.broker_s for c in costs),
    )
