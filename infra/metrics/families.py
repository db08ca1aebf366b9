"""The metrics, and their values. `docs/metrics.md` has the same list; a test compares the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ...connectors.spark.report import job_report
from ...control.events.types import Body
from ...control.ids import JobId
from ...control.inquiry.listing import JobCondition, ListedJob, phases, reads, written
from ...control.model.state import JobState
from ...storage.upkeep.fsck import Kind
from .log_numbers import LATENCIES_S, JobNumbers, LogNumbers
from .regular_fsck import FsckNumbers

_STATES = ("pending", "writing", "consumable", "again", "released")
Sample: TypeAlias = tuple[str, tuple[str, ...], float]
"""The name of a metric, the values of its labels, and its value."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    name: str
    type: str
    labels: str
    meaning: str

    def empty(self) -> Metric:
        labels = self.labels.split()
        if self.type == "counter":
            return CounterMetricFamily(self.name, self.meaning, labels=labels)
        if self.type == "histogram":
            return HistogramMetricFamily(self.name, self.meaning, labels=labels)
        return GaugeMetricFamily(self.name, self.meaning, labels=labels)


def _counter(name: str, labels: str, meaning: str) -> MetricFamily:
    return MetricFamily(f"headgate_{name}_total", "counter", labels, meaning)


def _gauge(name: str, labels: str, meaning: str) -> MetricFamily:
    return MetricFamily(f"headgate_{name}", "gauge", labels, meaning)


OF_A_JOB = (
    _counter("written_bytes", "job_name", "bytes of all partitions that became consumable"),
    _counter("written_rows", "job_name", "rows of all partitions that became consumable"),
    _counter("written_objects", "job_name", "objects of all partitions that became consumable"),
    _counter("read_bytes", "job_name", "bytes that readers have announced"),
    _counter("read_rows", "job_name", "rows that readers have announced"),
    _counter("get_requests", "job_name", "requests that readers have announced"),
    _counter("throttled_requests", "job_name class", "answers that asked for fewer requests"),
    _counter("superseded_attempts", "job_name", "attempts that were superseded"),
    _counter("deleted_objects", "job_name", "objects that were deleted"),
    _counter("exchanges", "job_name", "exchanges that were registered"),
    _gauge("estimated_put_requests", "job_name", "requests that stored the consumable partitions"),
    _gauge("estimated_price_dollars", "job_name", "price of these puts and gets"),
    _gauge("stored_bytes", "job_name", "bytes of the objects that may be there now"),
    _gauge("partitions", "job_name state", "partitions of results that are not deleted"),
    _gauge(
        "oldest_unreleased_result_timestamp_seconds",
        "job_name",
        "time at which the oldest result that is not released was registered",
    ),
    _gauge("due_decisions", "job_name", "decisions that follow from facts and are not in the log"),
    _gauge(
        "oldest_due_fact_timestamp_seconds",
        "job_name",
        "time of the fact that has waited longest for its decision",
    ),
    _gauge("driver_heard_timestamp_seconds", "job_name", "time at which the driver was last heard"),
    _gauge("lease_seconds", "job_name", "silence after which a driver may be taken for dead"),
    _gauge("job_condition", "job_name condition", "1 for the condition that the job is in"),
    _gauge("job_info", "job_name application mode version", "1 for the newest driver of the job"),
)
OF_THE_LOG = (
    _gauge("jobs", "condition", "jobs of the log"),
    _counter("events", "kind", "events since the exporter began"),
    MetricFamily(
        "headgate_decision_latency_seconds",
        "histogram",
        "mode",
        "time from a fact to the decision on it, since the exporter began",
    ),
    _gauge("log_oldest_offset", "partition", "oldest offset of a partition of the log"),
    _gauge("log_end_offset", "partition", "offset up to which a partition can be read"),
    _gauge("exporter_lag_records", "partition", "records that the exporter had still to read"),
    _counter(
        "exporter_rejected_records",
        "",
        "records that are no events, since the exporter began",
    ),
    _gauge("exporter_read_timestamp_seconds", "", "time at which the log was last read"),
    _gauge("fsck_findings", "kind", "objects that are not as the log says"),
    _gauge("fsck_live_bytes", "", "bytes of the objects that are as they should be"),
    _gauge("fsck_duration_seconds", "", "duration of the last comparison"),
    _gauge("fsck_timestamp_seconds", "", "time at which the last comparison ended"),
)
FAMILIES = (*OF_A_JOB, *OF_THE_LOG)


@dataclass(slots=True)
class MetricValues:
    """Makes the values of the metrics. Numbers of a job's state are kept until it changes."""

    _kept: dict[JobId, tuple[JobState, tuple[Sample, ...]]] = field(default_factory=dict)

    def collect(self, numbers: LogNumbers, checked: FsckNumbers | None) -> list[Metric]:
        kept = {}
        families = {each.name: each.empty() for each in FAMILIES}

        def add(samples: Iterator[Sample] | Sequence[Sample]) -> None:
            for name, labels, value in samples:
                families[f"headgate_{name}"].add_metric(labels, value)  # type: ignore[attr-defined]

        for job in numbers.shown:
            state = job.listed.state
            former = self._kept.get(state.job)
            same = former is not None and former[0] is state
            samples = former[1] if former and same else tuple(_of_state(job.listed))
            kept[state.job] = state, samples
            add(samples)
            add(_of_job(job))
        self._kept = kept
        add(_of_log(numbers))
        add(_of_fsck(checked) if checked is not None else ())
        latency = families["headgate_decision_latency_seconds"]
        assert isinstance(latency, HistogramMetricFamily)
        for mode, latencies in numbers.latencies.items():
            bounds = (*map(str, LATENCIES_S), "+Inf")
            buckets = list(zip(bounds, map(float, latencies.counts), strict=True))
            latency.add_metric((mode,), buckets, latencies.sum_s)
        return list(families.values())


def _of_state(listed: ListedJob) -> Iterator[Sample]:
    state, job = listed.state, (listed.job,)
    report = job_report(state)
    put, got = written(state), reads(state)
    yield "written_bytes_total", job, report.stored_bytes
    yield "written_rows_total", job, put.rows
    yield "written_objects_total", job, put.segments
    yield "read_bytes_total", job, report.read_bytes
    yield "read_rows_total", job, got.rows
    yield "get_requests_total", job, report.gets
    yield "throttled_requests_total", (state.job, "put"), report.throttled_puts
    yield "throttled_requests_total", (state.job, "get"), report.throttled_gets
    yield "superseded_attempts_total", job, put.superseded
    deleted = sum(result.fate.deleted for result in state.results.values())
    yield "deleted_objects_total", job, deleted + state.forgotten.deleted
    yield "exchanges_total", job, listed.exchanges
    yield "stored_bytes", job, listed.stored_bytes
    yield "estimated_put_requests", job, report.puts
    yield "estimated_price_dollars", job, report.price_usd
    reached: Counter[str] = Counter()
    for result in state.results.values():
        if result.fate.released is None or result.production.attempts:
            reached.update(phases(result))
    for phase in _STATES:
        yield "partitions", (state.job, phase), reached[phase]


def _of_job(job: JobNumbers) -> Iterator[Sample]:
    listed, name = job.listed, (job.listed.job,)
    yield "due_decisions", name, job.due
    yield "lease_seconds", name, listed.registered.lease_ms / 1000
    yield "job_condition", (listed.job, listed.condition.value), 1
    yield "job_info", _driver(listed), 1
    for what, at_ms in (
        ("oldest_unreleased_result", job.oldest_ms),
        ("oldest_due_fact", job.due_ms),
        ("driver_heard", listed.heard_ms or None),
    ):
        if at_ms is not None:
            yield f"{what}_timestamp_seconds", name, at_ms / 1000


def _driver(listed: ListedJob) -> tuple[str, ...]:
    registered = listed.registered
    return listed.job, registered.application, listed.mode, registered.version


def _of_log(numbers: LogNumbers) -> Iterator[Sample]:
    conditions = Counter(listed.condition for listed in numbers.jobs)
    for condition in JobCondition:
        yield "jobs", (condition.value,), conditions[condition]
    for body in get_args(Body):
        yield "events_total", (body.__name__,), numbers.events.get(body.__name__, 0)
    for number, there in numbers.offsets.items():
        partition = (str(number),)
        yield "log_oldest_offset", partition, there.start
        yield "log_end_offset", partition, there.stop
        yield "exporter_lag_records", partition, numbers.lags[number]
    yield "exporter_rejected_records_total", (), numbers.rejected
    yield "exporter_read_timestamp_seconds", (), numbers.read_ms / 1000


def _of_fsck(checked: FsckNumbers) -> Iterator[Sample]:
    for kind in Kind:
        yield "fsck_findings", (kind.value,), checked.findings.get(kind, 0)
    yield "fsck_live_bytes", (), checked.live_bytes
    yield "fsck_duration_seconds", (), checked.took_s
    yield "fsck_timestamp_seconds", (), checked.ended_ms / 1000
