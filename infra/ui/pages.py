"""The values that the live page shows. The counts are those of `headgate state`, `headgate report`
and `headgate jobs`, from the same functions. Pure.

Times are milliseconds since 1970; in the columns of an exchange, since its registration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ...connectors.spark.report import job_report
from ...control.contract import PER_JOB
from ...control.errors import Invalid
from ...control.events import types as ev
from ...control.events.traits import Importance, is_sign_of_life, result_of, traits_of
from ...control.ids import AttemptId, PartitionId, ResultId
from ...control.inquiry.audit import audit
from ...control.inquiry.history import why
from ...control.inquiry.job_history import JobHistory
from ...control.inquiry.listing import ListedJob, condition_of, phases
from ...control.model.state import JobState, ResultState
from ..cli import fields
from ..cli.lives import Times, event_times
from ..cli.views import subject_of
from .log_reader import JobListing

_NOTABLE_MAX = 200
_OUTLIERS_MAX = 5
_OUTLIER = 2.0  # times the median
_STEPS = (
    "AttemptStarted", "Produced", "Consumable", "TrackingStopped", "AttemptFailed", "Superseded",
    "Deleted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the history of a job, and all that was known there."""

    history: JobHistory
    at: int | None
    """The offset; None for now."""
    now_ms: int
    """The time up to which bars without an end are drawn."""
    records: Sequence[ev.Recorded]
    state: JobState

    @classmethod
    def of(cls, history: JobHistory, at: int | None, now_ms: int) -> Moment:
        records = history.until(at)
        if at is not None:
            now_ms = records[-1].event.time_ms if records else 0
        return cls(history, at, now_ms, records, history.state(at))

    @property
    def registrations(self) -> list[ev.JobRegistered]:
        bodies = (recorded.event.body for recorded in self.records)
        return [body for body in bodies if isinstance(body, ev.JobRegistered)]

    @property
    def store(self) -> str:
        """The place of the job's objects; empty if no driver has said it."""
        start = self.history.start
        known = start.registered.store if start and start.registered else ""
        return next((body.store for body in reversed(self.registrations)), known)

    def result(self, name: str) -> ResultState:
        """Return a result.

        Raises:
            Invalid: the state has no such result: it comes later, or is forgotten.
        """
        result = self.state.results.get(ResultId(name))
        if result is None:
            raise Invalid(f"job {self.history.job} has no result {name} at this place of its log")
        return result

    def fields(self) -> fields.Fields:
        """Return the values of the slider."""
        everything = self.history.records
        last = self.records[-1] if self.records else None
        return {
            "live": self.at is None,
            "events": len(everything),
            "event": len(self.records),
            "offset": last.offset if last else None,
            "time_ms": last.event.time_ms if last else None,
            "now_ms": self.now_ms,
        }


def offset_of(history: JobHistory, event: int, result: str = "") -> int:
    """Return the offset of an event, counted from 1; the first or last one beyond the ends. Before
    the registration of a result there is nothing to show of the result: this is its first event."""
    records = history.records
    at = records[min(max(event, 1), len(records)) - 1].offset if records else 0
    for recorded in records:
        body = recorded.event.body
        if isinstance(body, ev.ResultRegistered) and body.result == result:
            return max(at, recorded.offset)
    return at


def jobs_page(listing: JobListing) -> fields.Fields:
    """Return all jobs, the newest first."""
    jobs = [_job_row(listed) for listed in listing.jobs]
    return {"now_ms": listing.now_ms, "jobs": jobs[::-1]}


def _job_row(listed: ListedJob) -> fields.Fields:
    reported = job_report(listed.state)
    more = {"read_bytes": reported.read_bytes, "price_usd": reported.price_usd}
    return {**fields.job_fields(listed), **more}


# One job


def job_page(moment: Moment, beat_ms: int) -> fields.Fields:
    state = moment.state
    report = fields.report_fields(job_report(state))
    reported = {entry["result"]: entry for entry in report["exchanges"]}
    steps = _steps_of_results(moment.records)
    exchanges = [
        {
            **reported[name],
            **_counts(result, phases(result)),
            "inputs": result.registered.inputs,
            "times": steps.get(name, {}),
        }
        for name, result in state.results.items()
    ]
    return {
        "moment": moment.fields(),
        "job": _job_row(_listed(moment, beat_ms)),
        "report": {**report, "exchanges": exchanges},
        "notable": list(_notable(moment.records)),
        "authors": _authors(moment.records),
    }


def _listed(moment: Moment, beat_ms: int) -> ListedJob:
    start, records, bodies = moment.history.start, moment.records, moment.registrations
    registered = bodies[-1] if bodies else start.registered if start else None
    mode = (start.mode if start else None) or (bodies[0].mode if bodies else PER_JOB)
    own = (it for it in reversed(records) if not it.event.by.startswith(ev.BY_HAND))
    signs = (it.at_ms or it.event.time_ms for it in own if is_sign_of_life(it.event))
    heard = next(signs, 0)
    heard_ms = max(heard, beat_ms if moment.at is None else 0)
    began_ms = records[0].at_ms or records[0].event.time_ms if records else 0
    if start is not None:
        began_ms, heard_ms = start.began_ms, max(heard_ms, start.heard_ms)
    condition = condition_of(moment.state, registered, moment.now_ms - heard_ms)
    empty = ev.JobRegistered("", "", "")
    return ListedJob(moment.state, condition, mode, registered or empty, began_ms, heard_ms)


def _steps_of_results(records: Iterable[ev.Recorded]) -> dict[ResultId, dict[str, int]]:
    """Return, for each result, when it was registered, whole, read first and last, released, and
    when its last objects went."""
    steps: dict[ResultId, dict[str, int]] = {}
    for event in (recorded.event for recorded in records):
        match event.body:
            case ev.ResultRegistered():
                steps.setdefault(event.body.result, {}).setdefault("registered", event.time_ms)
            case ev.ResultComplete() | ev.Released() | ev.Deleted():
                steps.setdefault(event.body.result, {})[event.kind] = event.time_ms
            case ev.Consumed():
                own = steps.setdefault(event.body.result, {})
                own.setdefault("read_first", event.time_ms)
                own["read_last"] = event.time_ms
    return steps


def _notable(records: Sequence[ev.Recorded]) -> Iterator[fields.Fields]:
    """Yield the newest events about drivers, losses, failures and repairs, the newest first."""
    left = _NOTABLE_MAX
    for recorded in reversed(records):
        if left and traits_of(recorded.event.body).importance is Importance.JOB:
            left -= 1
            event = recorded.event
            what, amount = subject_of(event.body)
            yield {
                "offset": recorded.offset,
                "time_ms": event.time_ms,
                "kind": event.kind,
                "what": " · ".join(filter(None, (what, amount))),
                "by": event.by,
                "basis": event.basis,
            }


def _authors(records: Iterable[ev.Recorded]) -> list[fields.Fields]:
    """Return the masters that have decided, in the order of their first decisions."""
    authors: dict[str, dict[str, Any]] = {}
    for recorded in records:
        if recorded.event.basis is not None:
            first = {"by": recorded.event.by, "first": recorded.offset, "decisions": 0}
            own = authors.setdefault(recorded.event.by, first)
            own["decisions"] += 1
            own["last"], own["time_ms"] = recorded.offset, recorded.event.time_ms
    return list(authors.values())


def audit_page(moment: Moment) -> fields.Fields:
    start = moment.history.start
    snapshots = {} if start is None else {moment.history.job: start}
    audits = [asdict(each) for each in audit(moment.records, snapshots)]
    return {"moment": moment.fields(), "audits": audits}


# One exchange


def exchange_page(moment: Moment, name: str) -> fields.Fields:
    result = moment.result(name)
    own = [it for it in moment.records if result_of(it.event.body) == name]
    registered = (it.event.time_ms for it in own if isinstance(it.event.body, ev.ResultRegistered))
    first_ms = next(registered, own[0].event.time_ms if own else 0)
    reported = fields.report_fields(job_report(moment.state))["exchanges"]
    reads, times, reached = _reads(own, first_ms), event_times(own), phases(result)
    return {
        "moment": moment.fields(),
        "job": moment.history.job,
        "first_ms": first_ms,
        "exchange": next(entry for entry in reported if entry["result"] == name)
        | _counts(result, reached)
        | {"inputs": result.registered.inputs},
        "phases": reached,
        "attempts": _attempts(own, times, result, first_ms),
        "reads": reads,
        "outliers": _outliers(times, result, moment.now_ms) + _uneven_reads(reads),
    }


def partition_page(moment: Moment, name: str, index: int) -> fields.Fields:
    """Return every attempt at a partition, with its reason and its end."""
    partition = PartitionId(moment.result(name).registered.result, index)
    attempts = why(moment.records, partition)
    return {"partition": str(partition), "attempts": [fields.made_fields(it) for it in attempts]}


def _counts(result: ResultState, reached: Iterable[str]) -> fields.Fields:
    """Return the counts that `headgate state` shows, and those of partitions in each phase."""
    return {
        "complete": result.complete,
        "consumable_now": len(result.production.winners),
        "writing": fields.writing(result),
        "deleted": result.fate.deleted,
        "expires_ms": result.fate.expires_ms,
        "tracked": result.fate.tracked,
        "again": len(result.reproduction.reproducing),
        "reached": dict(Counter(reached)),
    }


def _attempts(
    own: Iterable[ev.Recorded], times: Times, result: ResultState, first_ms: int
) -> Mapping[str, list[Any]]:
    """Return all attempts that have begun, a list for each column."""
    bodies = [recorded.event.body for recorded in own]
    produced = {body.attempt: body for body in bodies if isinstance(body, ev.Produced)}
    hosts = {body.attempt: body.host for body in bodies if isinstance(body, ev.AttemptStarted)}
    winners, released = result.production.winners, times.get(("Released", result.registered.result))
    attempts = sorted(hosts)
    outputs = [produced.get(attempt) for attempt in attempts]
    columns: dict[str, list[Any]] = {
        "partition": [attempt.partition.index for attempt in attempts],
        "name": [f"{attempt.epoch}-{attempt.task}" for attempt in attempts],
        "host": [hosts[attempt] for attempt in attempts],
        "running": [attempt in result.production.running for attempt in attempts],
        "wins": [winners.get(attempt.partition.index) == attempt for attempt in attempts],
        "rows": [None if output is None else output.rows for output in outputs],
        "bytes": [None if output is None else output.size_bytes for output in outputs],
        "Released": [None if released is None else released - first_ms] * len(attempts),
    }
    for kind in _STEPS:
        of_kind = (times.get((kind, attempt)) for attempt in attempts)
        columns[kind] = [None if at is None else at - first_ms for at in of_kind]
    return columns


def _reads(own: Iterable[ev.Recorded], first_ms: int) -> Mapping[str, list[int]]:
    """Return all reads, a list for each column."""
    reads = [(it.event.time_ms, it.event.body) for it in own]
    consumed = [(at, body) for at, body in reads if isinstance(body, ev.Consumed)]
    return {
        "at": [at - first_ms for at, _ in consumed],
        "first": [body.first for _, body in consumed],
        "count": [body.count for _, body in consumed],
        "rows": [body.rows for _, body in consumed],
        "bytes": [body.read_bytes for _, body in consumed],
        "requests": [body.requests for _, body in consumed],
    }


def _outliers(times: Times, result: ResultState, now_ms: int) -> list[fields.Fields]:
    """Return the partitions that took or take far longer, or are far larger, than the median."""
    production = result.production
    took: dict[int, float] = {}
    for (kind, attempt), began_ms in times.items():
        if kind != "AttemptStarted" or not isinstance(attempt, AttemptId):
            continue
        end_ms = times.get(("Produced", attempt))
        if end_ms is None and attempt in production.running:
            end_ms = now_ms
        if end_ms is not None:
            took[attempt.partition.index] = end_ms - began_ms
    sizes = {
        attempt.partition.index: float(produced.size_bytes)
        for attempt, produced in production.attempts.items()
        if produced is not None and production.winners.get(attempt.partition.index) == attempt
    }
    return _beyond("written in ms", took) + _beyond("stored bytes", sizes)


def _uneven_reads(reads: Mapping[str, list[int]]) -> list[fields.Fields]:
    """Return the readers that had far more bytes than the median. A part of a subpartition that is
    read in pieces counts as one reader."""
    sizes = {at: float(size) for at, size in zip(reads["first"], reads["bytes"], strict=True)}
    return _beyond("read bytes", sizes)


def _beyond(what: str, amounts: Mapping[int, float]) -> list[fields.Fields]:
    if not amounts:
        return []
    middle = median(amounts.values())
    largest = sorted(amounts.items(), key=lambda named: (-named[1], named[0]))[:_OUTLIERS_MAX]
    return [
        {"what": what, "index": index, "amount": amount, "median": middle}
        for index, amount in largest
        if amount > _OUTLIER * middle
    ]
