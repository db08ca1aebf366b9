"""A log whose decisions have times, and what is scraped of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headgate.control.clock import Clock
from headgate.control.ids import JobId
from headgate.control.log import Placed
from headgate.control.memory.log import MemoryEventLog, MemoryTail
from headgate.infra.metrics.families import OF_A_JOB, MetricValues
from headgate.infra.metrics.log_numbers import LogNumbersReader

from .scripted_jobs import TimedLog

Scraped = Mapping[tuple[str, ...], float]
"""Values by the name of a sample and the values of its labels, sorted by the labels' names."""


class _DatedTail(MemoryTail):
    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        return [
            replace(it, recorded=replace(it.recorded, at_ms=it.recorded.event.time_ms))
            for it in super().poll(limit, timeout_s)
        ]


class DatedLog(TimedLog):
    """A log that says when it took a decision, too."""

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> MemoryTail:
        return _DatedTail(self.partitions, self._changed, known)


def reading(log: MemoryEventLog, clock: Clock | None = None) -> LogNumbersReader:
    """Return a reader that has read the log to its end, by the log's clock or another."""
    reader = LogNumbersReader(log, clock or log._clock)
    catch_up(reader)
    return reader


def catch_up(reader: LogNumbersReader) -> None:
    """Read to the end, and look at the heartbeats and the end of the log again."""
    reader._look_due_s = reader._beats_due_s = 0.0
    for _ in range(3):
        reader.step(0.0)


def values(metrics: list[Metric]) -> Scraped:
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): float(sample.value)
        for metric in metrics
        for sample in metric.samples
    }


def scraped(reader: LogNumbersReader, made: MetricValues | None = None) -> Scraped:
    numbers = reader.numbers()
    assert numbers is not None, "the log was read to its end"
    return values((made or MetricValues()).collect(numbers, None))


def of_text(text: str) -> Scraped:
    return values(list(text_string_to_metric_families(text)))


def of_jobs(scrape: Scraped, *names: str) -> Scraped:
    """Return the samples of some jobs, or of all jobs: those that follow from the log alone."""
    families = {family.name for family in OF_A_JOB}
    return {
        key: value
        for key, value in scrape.items()
        if key[0] in families and (not names or set(names) & set(key[1:]))
    }
