"""The values that commands print with `--json`: one for each row of the log, or one for a command.

Names stay the same from version to version; new ones may come. Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from ...connectors.spark.report import JobReport
from ...control.events import types as ev
from ...control.inquiry.history import Made
from ...control.inquiry.listing import ListedJob, written
from ...control.model.state import JobState, ResultState
from ...storage.upkeep.fsck import Finding, Findings
from ...storage.upkeep.fsck_repair import Repaired
from ..sweep import FailedSweep, Swept

if TYPE_CHECKING:
    from ..devstack.stack import StackState

Fields: TypeAlias = Mapping[str, Any]


def event_fields(recorded: ev.Recorded) -> Fields:
    """Return an event, with bytes as base64."""
    event = recorded.event
    fields = {
        name: getattr(event, name) for name in ("job", "id", "cause", "time_ms", "by", "basis")
    }
    body = json.loads(json.dumps(asdict(event.body), default=lambda raw: b64encode(raw).decode()))
    return {"offset": recorded.offset, "kind": event.kind} | fields | {"body": body}


def job_fields(listed: ListedJob) -> Fields:
    """Return a job. `stored_bytes` are there now, `written_bytes` were consumable at any time."""
    state, registered = listed.state, listed.registered
    return {
        "job": listed.job,
        "state": listed.condition.value,
        "mode": listed.mode,
        "application": registered.application,
        "version": registered.version,
        "store": registered.store,
        "epoch": state.epoch,
        "closed": state.closed,
        "failed": state.failed,
        "exchanges": listed.exchanges,
        "stored_bytes": listed.stored_bytes,
        "written_bytes": written(state).stored_bytes,
        "began_ms": listed.began_ms,
        "heard_ms": listed.heard_ms,
        "lease_ms": registered.lease_ms,
    }


def report_fields(report: JobReport) -> Fields:
    """Return the exchanges of a job, and the sums of all of them. A prediction that the log does
    not have is -1."""
    return {
        "job": report.job,
        "exchanges": [asdict(it) | {"price_usd": it.price_usd} for it in report.results],
        "forgotten": report.forgotten.results,
        "stored_bytes": report.stored_bytes,
        "read_bytes": report.read_bytes,
        "puts": report.puts,
        "gets": report.gets,
        "throttled_puts": report.throttled_puts,
        "throttled_gets": report.throttled_gets,
        "price_usd": report.price_usd,
    }


def state_fields(state: JobState) -> Fields:
    return {
        "job": state.job,
        "epoch": state.epoch,
        "closed": state.closed,
        "failed": state.failed,
        "results": [_result_fields(result) for result in state.results.values()],
        "forgotten": asdict(state.forgotten),
    }


def _result_fields(result: ResultState) -> Fields:
    registered, fate = result.registered, result.fate
    return {
        "result": registered.result,
        "label": registered.label,
        "partitions": registered.partitions,
        "subpartitions": registered.subpartitions,
        "complete": result.complete,
        "writing": writing(result),
        "consumable": len(result.production.winners),
        "written": asdict(result.totals.written),
        "reads": asdict(result.totals.reads),
        "released": fate.released,
        "expires_ms": fate.expires_ms,
        "tracked": fate.tracked,
        "deleted": fate.deleted,
    }


def writing(result: ResultState) -> int:
    """Return the number of attempts that write now."""
    production = result.production
    attempts = {attempt for attempt, produced in production.attempts.items() if produced is None}
    return len(attempts - production.superseded)


def made_fields(made: Made) -> Fields:
    return asdict(made) | {"attempt": str(made.attempt)}


def findings_fields(findings: Findings, repaired: Repaired | None) -> Fields:
    """Return all findings, and with `--repair` the outcome."""
    done: Fields | None = None
    if repaired is not None:
        left = [finding.name for finding in repaired.left]
        done = asdict(repaired) | {"left": left}
    return {
        "findings": [_finding_fields(finding) for finding in findings.found],
        "live": len(findings.live),
        "live_bytes": sum(stat.size_bytes for stat in findings.live),
        "in_flight": len(findings.in_flight),
        "repaired": done,
    }


def _finding_fields(finding: Finding) -> Fields:
    fields = {name: getattr(finding, name) for name in ("name", "size_bytes", "says", "job")}
    return {"kind": finding.kind.value} | fields


def swept_fields(swept: Swept | FailedSweep) -> Fields:
    if isinstance(swept, FailedSweep):
        return {"job": swept.job, "swept": False, "error": swept.error}
    return asdict(swept) | {"swept": not swept.came_back, "error": None}


def waiting_fields(listed: ListedJob) -> Fields:
    """Return a job that a sweep leaves alone until its lease ends."""
    return {"job": listed.job, "swept": False, "error": None, "due_ms": listed.lease_ends_ms}


def stack_fields(state: StackState) -> Fields:
    """Return the nodes of the stack, and where to find its services."""
    nodes = [
        {"name": node.name, "address": node.address, "pid": node.pid, "up": node.is_alive()}
        for node in state.nodes
    ]
    places = {name: getattr(state, name) for name in ("bootstrap", "endpoint", "bucket")}
    return {"up": state.is_up(), "nodes": nodes} | places
