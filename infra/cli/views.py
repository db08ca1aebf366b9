"""Format the log for a reader: event rows, lives of partitions, states, findings. No I/O.

Guarantees: tables fit in 100 columns. An event with longer text makes a longer row: nothing is cut.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ...control.errors import HeadgateError
from ...control.events import types as ev
from ...control.ids import AttemptId, JobId, PartitionId, ResultId
from ...control.inquiry.audit import Audit
from ...control.inquiry.history import READ, Made
from ...control.inquiry.neglected import Neglected
from ...control.log import Rejected
from ...control.model.state import JobState, ResultState
from ...storage.upkeep.fsck import Findings, Kind
from ...storage.upkeep.fsck_repair import Repaired
from ..doctor import CheckOutcome, CheckVerdict
from ..spelling import spelled
from ..sweep import Swept

if TYPE_CHECKING:
    from ..devstack.stack import StackState

_FINDINGS_SHOWN = 10
_LIVES_SHOWN = 12
_BAR_CELLS = 18
_STEPS = ("AttemptStarted", "Consumable", "Released", "Deleted")
_PHASES = (" ", "░", "█", "▒", " ")
_STYLES = {
    "Consumable": "green",
    "ResultComplete": "bold green",
    "AttemptFailed": "red",
    "Superseded": "yellow",
    "Released": "magenta",
    "Deleted": "magenta",
}


_VERDICTS = {
    CheckVerdict.OK: ("✓", "green"),
    CheckVerdict.HINT: ("·", "yellow"),
    CheckVerdict.WRONG: ("✗", "bold red"),
    CheckVerdict.SKIPPED: ("-", "dim"),
}


# Events


def event_head(job: JobId) -> Text:
    columns = f"{'at':>5} {'UTC':<12} {'event':<19} {'what':<16} {'amount':>20}  {'by':<15} basis"
    return Text.assemble((f"job {job}\n", "bold"), (columns, "bold"))


def event_fields(recorded: ev.Recorded) -> dict[str, Any]:
    """Return an event as a value for JSON, with bytes as base64."""
    event = recorded.event
    fields = {
        name: getattr(event, name) for name in ("job", "id", "cause", "time_ms", "by", "basis")
    }
    body = json.loads(json.dumps(asdict(event.body), default=lambda raw: b64encode(raw).decode()))
    return {"offset": recorded.offset, "kind": event.kind} | fields | {"body": body}


def concerns(body: ev.Body, partition: str) -> bool:
    """Return True if an event is about a partition, named as `result/index` or `index`."""
    result, _, index = partition.rpartition("/")
    attempt: AttemptId | None = getattr(body, "attempt", None)
    if attempt is not None:
        return index == str(attempt.partition.index) and result in ("", attempt.partition.result)
    if result not in ("", getattr(body, "result", result)):
        return False
    match body:
        case ev.PartitionRegistered() | ev.PartitionAccepted():
            return index.isdecimal() and body.first <= int(index) < body.first + body.count
        case ev.Released() | ev.Deleted():
            return any(index == str(doomed.partition.index) for doomed in body.attempts)
        case _:
            return True


def event_row(recorded: ev.Recorded) -> Text:
    """Return an event in one line: offset, time, kind, what, rows and bytes, by, basis."""
    event = recorded.event
    at = datetime.fromtimestamp(event.time_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    what, amount = _said(event.body)
    return Text.assemble(
        (f"{recorded.offset:>5} ", "dim"),
        f"{at} ",
        (f"{event.kind:<19} ", _STYLES.get(event.kind, "" if event.basis is None else "cyan")),
        f"{spelled(what):<16} {spelled(amount):>20}  ",
        (f"{spelled(event.by):<15} ", "dim"),
        ("" if event.basis is None else f"←{event.basis}", "dim"),
    )


def _said(body: ev.Body) -> tuple[str, str]:
    """Return the subject of an event, and the amount that it states."""
    match body:
        case ev.JobRegistered():
            return body.application, f"{body.mode}, {body.version}"
        case ev.JobAccepted():
            return f"epoch {body.epoch}", ""
        case ev.JobUnregistered():
            return body.reason, ""
        case ev.ResultRegistered():
            return f"{body.result} {body.label}", f"{body.partitions} x {body.subpartitions}"
        case ev.PartitionRegistered() | ev.PartitionAccepted():
            return f"{body.result}/{_range(body.first, body.count)}", f"{body.count} partitions"
        case ev.Produced():
            what = f"{body.rows:,} rows {decimal(body.size_bytes):>8}"
            return str(body.attempt), what + _throttled(body.throttled)
        case ev.AttemptFailed() | ev.Superseded():
            return f"{body.attempt} {body.reason}", ""
        case ev.Consumed():
            what = f"{body.result} read {_range(body.first, body.count)}"
            amount = f"{body.rows:,} rows {decimal(body.read_bytes):>8}"
            return what, amount + _throttled(body.throttled)
        case ev.ReleaseRequested():
            return f"{body.result} {body.reason}", ""
        case ev.Released():
            return f"{body.result} {body.reason}", f"{len(body.attempts)} attempts"
        case ev.Deleted():
            return body.result, f"{body.objects} objects"
        case _:
            return str(getattr(body, "attempt", "") or getattr(body, "result", "")), ""


def _throttled(count: int) -> str:
    return f", {count} throttled" if count else ""


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"


# Lives of partitions


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one partition, as far as the log tells."""

    partition: PartitionId
    attempt: AttemptId | None
    """The winner, or else the attempt that was started last."""
    produced: ev.Produced | None
    """The event with which `attempt` announced its output."""
    times: Mapping[str, int]
    """The time of the first event of each kind, in milliseconds."""

    def phase(self, at_ms: float) -> int:
        """Return how many steps of its life the partition had taken."""
        return sum(step in self.times and self.times[step] <= at_ms for step in _STEPS)


@dataclass(frozen=True, slots=True)
class ResultLives:
    registered: ev.ResultRegistered
    partitions: tuple[Life, ...]
    consumed: int
    """The number of subpartitions that were read."""


def lives(records: Sequence[ev.Recorded]) -> tuple[ResultLives, ...]:
    """Return the life of every partition that a job registered."""
    bodies = [recorded.event.body for recorded in records]
    times = _times(records)
    produced = {body.attempt: body for body in bodies if isinstance(body, ev.Produced)}
    started = {b.attempt.partition: b.attempt for b in bodies if isinstance(b, ev.AttemptStarted)}
    won = {b.attempt.partition: b.attempt for b in bodies if isinstance(b, ev.Consumable)}
    shown = started | won

    def life(partition: PartitionId) -> Life:
        attempt = shown.get(partition)
        subjects: tuple[AttemptId | ResultId | None, ...] = (attempt, partition.result)
        kinds = (*_STEPS, "Produced")
        own_times = {k: times[k, s] for k in kinds for s in subjects if (k, s) in times}
        return Life(partition, attempt, produced.get(attempt) if attempt else None, own_times)

    def result(registered: ev.ResultRegistered) -> ResultLives:
        name = registered.result
        reads = [b for b in bodies if isinstance(b, ev.Consumed) and b.result == name]
        read = {at for body in reads for at in range(body.first, body.first + body.count)}
        partitions = (PartitionId(name, index) for index in range(registered.partitions))
        return ResultLives(registered, tuple(map(life, partitions)), len(read))

    registered = {body.result: body for body in bodies if isinstance(body, ev.ResultRegistered)}
    return tuple(map(result, registered.values()))


def _times(records: Iterable[ev.Recorded]) -> dict[tuple[str, AttemptId | ResultId | None], int]:
    """Return the time of the first event of each kind about an attempt or a result."""
    times: dict[tuple[str, AttemptId | ResultId | None], int] = {}
    for event in (recorded.event for recorded in records):
        subjects: Iterable[AttemptId | ResultId]
        match event.body:
            case ev.Deleted():
                subjects = event.body.attempts
            case ev.Released():
                subjects = (event.body.result,)
            case _:
                subjects = (event.body.attempt,) if hasattr(event.body, "attempt") else ()
        for subject in subjects:
            times.setdefault((event.kind, subject), event.time_ms)
    return times


def timeline(records: Sequence[ev.Recorded], shown: int = _LIVES_SHOWN) -> Table:
    """Return a row for each partition, up to `shown` per result; seconds from the first event."""
    times = [r.event.time_ms for r in records] or [0]
    first, last = min(times), max(times)
    numbers = ("rows", "bytes", "produced", "consumable", "consumed", "released", "deleted")
    table = _table(("partition", "attempt"), numbers, "")
    table.add_column("life", no_wrap=True, min_width=_BAR_CELLS)
    began = min((r.event.time_ms for r in records if r.event.kind == _STEPS[0]), default=first)
    for result in lives(records):
        for life in result.partitions[:shown]:
            attempt = f"{life.attempt.epoch}-{life.attempt.task}" if life.attempt else "-"
            cells = _cells([life], result, first, "-")
            table.add_row(str(life.partition), attempt, *cells, _bar(life, began, last))
        rest = result.partitions[shown:]
        if rest:
            cells = _cells(rest, result, first)
            table.add_row(f"and {len(rest)}", "", *cells, style="dim")
        table.add_section()
    return table


def _cells(lives: Sequence[Life], result: ResultLives, first: int, none: str = "") -> list[str]:
    """Sum up partitions: their rows, their bytes, and the latest times. Show `none` for what they
    lack; without it, zeros, and how many partitions have come so far."""
    produced = [life.produced for life in lives if life.produced is not None]
    rows, size_bytes = sum(it.rows for it in produced), sum(it.size_bytes for it in produced)
    cells = [none, none] if none and not produced else [f"{rows:,}", decimal(size_bytes)]
    for kind in ("Produced", "Consumable", "Released", "Deleted"):
        if kind == "Released":
            cells.append(f"{result.consumed} of {result.registered.subpartitions}")
        times = [life.times[kind] for life in lives if kind in life.times]
        if len(times) == len(lives):
            cells.append(f"{(max(times) - first) / 1000:.3f}")
        else:
            cells.append(none or f"{len(times)} of {len(lives)}")
    return cells


def _bar(life: Life, first: int, last: int) -> Text:
    step = max(1, last - first) / _BAR_CELLS
    edges = [life.phase(first + cell * step) for cell in range(_BAR_CELLS + 1)]
    # The start of a life is shown, however short it is.
    cells = (begin or min(end, 1) for begin, end in pairwise(edges))
    return Text("".join(_PHASES[cell] for cell in cells), "green")


def legend() -> Text:
    """Explain the columns and the bars of a timeline."""
    marks = "life: ░ being written  █ consumable  ▒ released, not yet deleted"
    return Text(f"seconds since the job began; {marks}", "dim")


def _table(words: Iterable[str], numbers: Iterable[str], title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, title=title or None)
    table.title_justify, table.title_style = "left", "bold"
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


# States, findings, checks


def state_table(state: JobState) -> Table:
    """Return the state of a job at one place of its log, a row per result."""
    ended = "open" if state.closed is None else f"ended ({state.closed})"
    title = f"job {state.job}, epoch {state.epoch}, {ended}"
    if state.forgotten.results:
        title += f"; {_count(state.forgotten.results, 'earlier result')} released"
    totals = [result.totals for result in state.results.values()]
    puts = sum(each.written.throttled for each in totals) + state.forgotten.written.throttled
    gets = sum(each.reads.throttled for each in totals) + state.forgotten.reads.throttled
    if puts or gets:
        title += f"; throttled: {puts} PUTs, {gets} GETs"
    numbers = ("partitions", "writing", "consumable", "superseded", "consumed", "deleted")
    table = _table(("result", "what"), numbers, title)
    table.add_column("released")
    for name, result in state.results.items():
        table.add_row(name, *_state_row(result))
    return table


def _state_row(result: ResultState) -> tuple[str, ...]:
    registered, production, fate = result.registered, result.production, result.fate
    writing = [a for a, produced in production.attempts.items() if produced is None]
    return (
        registered.label,
        f"{registered.partitions} x {registered.subpartitions}",
        str(len(set(writing) - production.superseded)),
        f"{len(production.winners)} of {registered.partitions}",
        str(result.totals.written.superseded),
        f"{result.totals.reads.subpartitions} of {registered.subpartitions}",
        f"{fate.deleted} objects" if fate.deleted else "-",
        fate.released or "-",
    )


def findings(report: Findings) -> Iterator[Text]:
    """Describe what fsck found: the first findings of each kind, and the totals."""
    for kind in Kind:
        of_kind = report.of(kind)
        for finding in of_kind[:_FINDINGS_SHOWN]:
            text = f"{finding.name}  {decimal(finding.size_bytes)}  {finding.says}"
            yield Text.assemble((f"{kind.value:<18}", "red"), text)
        if len(of_kind) > _FINDINGS_SHOWN:
            yield Text(f"{kind.value:<18}and {len(of_kind) - _FINDINGS_SHOWN} more", "red")
    size = decimal(sum(stat.size_bytes for stat in report.live))
    count = _count(len(report.found), "finding")
    word, style = ("clean", "green") if report.clean else (count, "red")
    live = f"{_count(len(report.live), 'object')} ({size}) as the log says"
    stored = live if report.live else "nothing is stored"
    flight = f", {_count(len(report.in_flight), 'object')} in flight" if report.in_flight else ""
    yield Text.assemble((word, f"bold {style}"), f": {stored}{flight}")


def mended(done: Repaired) -> Iterator[Text]:
    """Describe what a repair did, and what it left alone."""
    for finding in done.left[:_FINDINGS_SHOWN]:
        yield Text.assemble((f"{'left alone':<18}", "yellow"), finding.name)
    deleted, aborted = _count(done.deleted, "object"), _count(done.aborted, "upload")
    lost, left = _count(done.lost, "attempt"), _count(len(done.left), "finding")
    yield Text(f"{deleted} deleted, {aborted} aborted, {lost} stated as lost, {left} left alone")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def audit_rows(audits: Sequence[Audit]) -> Iterator[Text]:
    """Describe the audits of all jobs: violations first, then the totals."""
    wrong = [log for log in audits if log.violation]
    for log in wrong:
        yield Text.assemble((f"offset {log.offset} of job {log.job}: ", "bold red"), log.violation)
    for log in audits:
        if not log.whole:
            says = "its first events and its snapshot are gone: not verified"
            yield Text(f"job {log.job}: {says}", "yellow")
    for log in audits:
        if log.start is not None:
            says = f"its first events are gone: verified from the snapshot at offset {log.start}"
            yield Text(f"job {log.job}: {says}", "yellow")
    facts, decisions = sum(log.facts for log in audits), sum(log.decisions for log in audits)
    counts = [_count(len(audits), "job"), _count(facts, "fact"), _count(decisions, "decision")]
    verdict = _count(len(wrong), "violation") if wrong else "every decision follows from its facts"
    style = "bold red" if wrong else "bold green"
    due = sum(log.due for log in audits)
    still = f", {_count(due, 'decision')} still due" if due else ", none still due"
    yield Text.assemble(", ".join(counts), ": ", (verdict, style), still)


def elsewhere_row(neglected: Neglected) -> Text:
    return Text(f"job {neglected.job}: not swept, its objects are in {neglected.store}", "yellow")


def swept_row(swept: Swept) -> Text:
    if swept.came_back:
        return Text(f"job {swept.job}: not swept, another driver has attached", "yellow")
    if swept.forgotten:
        return Text(f"job {swept.job}: the log has no more events of it; its snapshot was removed")
    why = f"driver silent for {swept.silent_ms // 1000:,} s" if swept.silent_ms else "ended before"
    kept = f", {_count(swept.kept, 'result')} outlive it" if swept.kept else ""
    return Text(f"job {swept.job}: {why}, {_count(swept.objects, 'object')} deleted{kept}")


def unswept_row(neglected: Neglected, error: HeadgateError) -> Text:
    return Text(f"job {neglected.job}: not swept: {error}", "red")


def check_row(outcome: CheckOutcome) -> Text:
    mark, style = _VERDICTS[outcome.verdict]
    took = f"{outcome.took_ms:,} ms" if outcome.took_ms else ""
    verdict = (f"{mark} {outcome.verdict.value:<8}", style)
    return Text.assemble(verdict, f"{outcome.name:<16} {took:>9}  {outcome.says}")


def stack_rows(state: StackState) -> Iterator[Text]:
    for node in state.nodes:
        lives = ("up  ", "green") if node.is_alive() else ("down", "red")
        yield Text.assemble(lives, f" {node.name:<8} {node.address:<16} pid {node.pid}")


def stack_settings(state: StackState, store: str) -> Iterator[Text]:
    """Return the lines to paste into a shell, and those for Spark's configuration."""
    yield Text("\n# for this shell: credentials, and what `headgate` itself reads", "dim")
    yield Text(f"export AWS_ACCESS_KEY_ID={state.access_key}")
    yield Text(f"export AWS_SECRET_ACCESS_KEY={state.secret_key}")
    yield Text(f"export HEADGATE_BROKER={state.bootstrap}")
    yield Text(f"export HEADGATE_STORE={store}")
    yield Text(f"export HEADGATE_S3_ENDPOINT={state.endpoint}")
    yield Text("\n# for spark-defaults.conf", "dim")
    yield Text(f"spark.headgate.broker       {state.bootstrap}")
    yield Text(f"spark.headgate.store        {store}")
    yield Text(f"spark.headgate.s3.endpoint  {state.endpoint}")
    yield Text("spark.python.unix.domain.socket.enabled  true")


def made_row(made: Made) -> Text:
    """Return an attempt at a partition, on two lines."""
    end = "green" if made.outcome == READ else "yellow"
    offsets = ", ".join(map(str, made.offsets))
    return Text.assemble(
        (f"attempt {made.attempt}: ", "bold"),
        (made.outcome, end),
        f"\n  {made.reason}",
        (f" [offsets {offsets}]", "dim"),
    )


def rejected_row(record: Rejected) -> Text:
    where = f"partition {record.partition}, offset {record.offset}: "
    return Text.assemble((where, "bold"), (record.reason, "red"))
