"""Format the log for a reader: event rows, lives of partitions, states, findings. No I/O.

Guarantees: tables of ordinary names fit in 100 columns. Longer texts make longer rows: nothing is
cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, assert_never

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ...connectors.spark.report import JobReport
from ...control.contract import SESSION
from ...control.events import types as ev
from ...control.events.traits import attempt_of, result_of
from ...control.ids import AttemptId, exchange_name
from ...control.inquiry.audit import Audit
from ...control.inquiry.history import READ, Made
from ...control.inquiry.listing import JobCondition, ListedJob
from ...control.inquiry.spans import Span
from ...control.log import Rejected
from ...control.model.state import JobState, ResultState
from ...storage.upkeep.fsck import Findings, Kind
from ...storage.upkeep.fsck_repair import Repaired
from ..doctor import CheckOutcome, CheckVerdict
from ..spelling import spelled
from ..sweep import FailedSweep, Swept
from .fields import writing

if TYPE_CHECKING:
    from ..devstack.stack import StackState

_FINDINGS_SHOWN = 10
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
_CONDITIONS = {
    JobCondition.RUNNING: "green",
    JobCondition.SILENT: "yellow",
    JobCondition.NEGLECTED: "bold red",
    JobCondition.FAILED: "red",
    JobCondition.ENDING: "yellow",
    JobCondition.DAMAGED: "bold red",
    JobCondition.NEWER: "yellow",
}
_UNITS_MS = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


# Events


def event_head(recorded: ev.Recorded, zone: tzinfo | None) -> Text:
    """Return the name of the event's job, and the heads of the columns."""
    event = recorded.event
    at = _moment(event.time_ms, zone).tzname() or "time"
    columns = f"{'at':>5} {at:<12} {'event':<19} {'what':<16} {'amount':>20}  {'by':<15} basis"
    return Text.assemble((f"job {event.job}\n", "bold"), (columns, "bold"))


def concerns(body: ev.Body | ev.Newer, partition: str) -> bool:
    """Return True if an event is about a partition, named as `result/index` or `index`, about the
    whole of its result, or about its job."""
    result = partition.rpartition("/")[0]
    of_a_part = ev.PartitionRegistered | ev.PartitionAccepted | ev.Released | ev.Deleted
    if attempt_of(body) is not None or isinstance(body, of_a_part):
        return names(body, partition)
    return result in ("", result_of(body) or result)


def names(body: ev.Body | ev.Newer, partition: str) -> bool:
    """Return True if an event names a partition."""
    result, _, index = partition.rpartition("/")
    if result not in ("", result_of(body)):
        return False
    if (attempt := attempt_of(body)) is not None:
        return int(index) == attempt.partition.index
    match body:
        case ev.PartitionRegistered() | ev.PartitionAccepted():
            return body.first <= int(index) < body.first + body.count
        case ev.Released() | ev.Deleted():
            return any(int(index) == doomed.partition.index for doomed in body.attempts)
        case _:
            return False


def event_row(recorded: ev.Recorded, zone: tzinfo | None) -> Text:
    """Return an event in one line: offset, time, kind, what, rows and bytes, by, basis. Without a
    zone, times are in this machine's."""
    event = recorded.event
    at = _moment(event.time_ms, zone).strftime("%H:%M:%S.%f")[:-3]
    what, amount = subject_of(event.body)
    return Text.assemble(
        (f"{recorded.offset:>5} ", "dim"),
        f"{at} ",
        (f"{event.kind:<19} ", _STYLES.get(event.kind, "" if event.basis is None else "cyan")),
        f"{spelled(what):<16} {spelled(amount):>20}  ",
        (f"{spelled(event.by):<15} ", "dim"),
        ("" if event.basis is None else f"←{event.basis}", "dim"),
    )


def span_row(span: Span, zone: tzinfo | None) -> Text:
    """Return the line of a span. Without a zone, times are in this machine's."""
    numbers = (
        f"{name.removeprefix('headgate.')}={value}" for name, value in span.attributes.items()
    )
    return Text.assemble(
        f"{_moment(span.start_ms, zone):%H:%M:%S.%f}"[:-3],
        f" {span.end_ms - span.start_ms:>9,} ms  ",
        (spelled(span.name), "bold" if not span.parent else ""),
        (f"  {spelled(', '.join(numbers))}", "dim"),
        (f"  {spelled(span.error)}", "red"),
    )


def subject_of(body: ev.Body | ev.Newer) -> tuple[str, str]:
    """Return the subject of an event, and its amount."""
    match body:
        case ev.JobRegistered():
            return body.application, f"{body.mode}, {body.version}"
        case ev.JobAccepted():
            return f"epoch {body.epoch}", ""
        case ev.JobUnregistered():
            return body.reason, ""
        case ev.ResultRegistered():
            return exchange_name(
                body.result, body.label
            ), f"{body.partitions} x {body.subpartitions}"
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
        case ev.WayChosen():
            return f"{body.result} {body.way}", f"{_count(body.gets, 'get')} expected"
        case ev.ReleaseRequested():
            return f"{body.result} {body.reason}", ""
        case ev.Lost():
            return f"{body.attempt} {body.evidence}", ""
        case ev.Reproduce():
            again = ", ".join(map(str, body.partitions[:_FINDINGS_SHOWN]))
            return f"{body.result}/{again} {body.reason}", f"{len(body.partitions)} partitions"
        case ev.JobFailed() | ev.LeaseExpired():
            return body.reason, ""
        case ev.Released():
            return f"{body.result} {body.reason}", f"{len(body.attempts)} attempts"
        case ev.Deleted():
            return body.result, f"{body.objects} objects"
        case ev.Newer():
            return "written by a newer Headgate", f"version {body.version}"
        case ev.AttemptStarted() | ev.SegmentProduced() | ev.Consumable():
            return str(body.attempt), ""
        case ev.ResultComplete() | ev.TrackingStopped() | ev.Promoted():
            return body.result, ""
        case ev.PromoteRequested() | ev.StopTrackingRequested():
            return body.result, ""
        case ev.Tick():
            return "", ""
        case _:
            assert_never(body)


def _moment(at_ms: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)


def _throttled(count: int) -> str:
    return f", {count} throttled" if count else ""


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"


def table(words: Iterable[str], numbers: Iterable[str], title: str) -> Table:
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, title=title or None)
    rows.title_justify, rows.title_style = "left", "bold"
    for name in words:
        rows.add_column(name, no_wrap=True)
    for name in numbers:
        rows.add_column(name, justify="right", no_wrap=True)
    return rows


# Jobs and their exchanges


def jobs_table(jobs: Iterable[ListedJob], now_ms: int, zone: tzinfo | None) -> Table:
    """Return a row for each job. Without a zone, times are in this machine's."""
    numbers = ("exchanges", "stored", "began", "age", "heard before")
    rows = table(("job", "state", "decides", "application"), numbers, "")
    for job in jobs:
        condition = job.condition
        began = f"{_moment(job.began_ms, zone):%Y-%m-%d %H:%M:%S %Z}" if job.began_ms else "-"
        rows.add_row(
            spelled(job.job),
            Text(_condition_of(job, zone), _CONDITIONS.get(condition, "")),
            "masters" if job.mode == SESSION else "driver",
            spelled(job.registered.application),
            f"{job.exchanges:,}",
            decimal(job.stored_bytes),
            began,
            _span(now_ms - job.began_ms) if job.began_ms else "-",
            _span(now_ms - job.heard_ms) if job.heard_ms else "-",
        )
    return rows


def _condition_of(job: ListedJob, zone: tzinfo | None) -> str:
    since = f" since {_moment(job.heard_ms, zone):%H:%M:%S}"
    return job.condition.value + (since if job.condition is JobCondition.SILENT else "")


def _span(span_ms: int) -> str:
    """Return a time in the largest unit of which it has two or more."""
    return next((f"{span_ms // ms} {unit}" for unit, ms in _UNITS_MS if span_ms >= 2 * ms), "0 s")


def report_tables(report: JobReport) -> Iterator[Table | Text]:
    """Describe the exchanges of a job, and the sums of all of them."""
    numbers = ("partitions", "rows", "stored", "puts", "read", "gets", "predicted", "USD")
    rows = table(("exchange", "what", "way"), numbers, f"job {spelled(report.job)}")
    rows.add_column("released")
    for each in report.results:
        rows.add_row(
            spelled(each.result),
            spelled(each.label),
            spelled(each.way or "-"),
            f"{each.partitions} x {each.subpartitions}",
            f"{each.rows:,}",
            decimal(each.stored_bytes),
            f"{each.puts:,}",
            decimal(each.read_bytes),
            f"{each.gets:,}",
            f"{each.predicted_gets:,}" if each.predicted_gets >= 0 else "-",
            f"{each.price_usd:.6f}",
            spelled(each.released or "-"),
        )
    yield rows
    before = report.forgotten.results
    exchanges = _count(before + len(report.results), "exchange")
    earlier = f" ({before:,} of them earlier, and no longer listed)" if before else ""
    throttled = ""
    if report.throttled_puts or report.throttled_gets:
        throttled = f", throttled: {report.throttled_puts} PUTs, {report.throttled_gets} GETs"
    yield Text.assemble(
        (exchanges, "bold"),
        f"{earlier}: {decimal(report.stored_bytes)} stored by {_count(report.puts, 'put')}, "
        f"{decimal(report.read_bytes)} read by {_count(report.gets, 'get')}, "
        f"{report.price_usd:.6f} USD by the prices of S3 Standard{throttled}",
    )


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
    rows = table(("result", "what"), numbers, title)
    rows.add_column("released")
    for name, result in state.results.items():
        rows.add_row(name, *_state_row(result))
    return rows


def _state_row(result: ResultState) -> tuple[str, ...]:
    registered, production, fate = result.registered, result.production, result.fate
    return (
        registered.label,
        f"{registered.partitions} x {registered.subpartitions}",
        str(writing(result)),
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
    yield Text(f"{deleted} deleted, {aborted} aborted, {lost} reported as lost, {left} left alone")


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


def swept_row(swept: Swept | FailedSweep) -> Text:
    if isinstance(swept, FailedSweep):
        return Text(
            f"job {swept.job}: not swept: {swept.error}", "red" if swept.failed else "yellow"
        )
    if swept.came_back:
        return Text(f"job {swept.job}: not swept: its driver, or another one, is back", "yellow")
    if swept.forgotten:
        more = f", and {_count(swept.objects, 'object')}" if swept.objects else ""
        gone = f"its snapshot was removed{more}"
        return Text(f"job {swept.job}: the log has no more events of it; {gone}")
    why = f"driver silent for {swept.silent_ms // 1000:,} s" if swept.silent_ms else "ended before"
    kept = f", {_count(swept.kept, 'result')} outlive it" if swept.kept else ""
    return Text(f"job {swept.job}: {why}, {_count(swept.objects, 'object')} deleted{kept}")


def left_rows(jobs: Sequence[ListedJob], now_ms: int, zone: tzinfo | None) -> Iterator[Text]:
    """Describe the jobs that a sweep has left alone: silent ones, those of a newer version, and the
    sums of the others."""
    for job in jobs:
        if job.condition is JobCondition.SILENT:
            since, ends = (_moment(at, zone) for at in (job.heard_ms, job.lease_ends_ms))
            says = f"silent since {since:%F %T}, its lease ends at {ends:%F %T %Z}"
            yield Text(f"job {job.job}: not swept: {says}", "yellow")
        elif job.condition is JobCondition.NEWER:
            yield Text(
                f"job {job.job}: not swept: its log was written by a newer Headgate", "yellow"
            )
    counts = Counter(job.condition.value for job in jobs)
    tally = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
    ends_ms = min((job.lease_ends_ms for job in jobs if job.lease_ends_ms), default=0)
    first = f"; no lease ends before {_span(ends_ms - now_ms)} are over" if ends_ms else ""
    yield Text(f"left alone: {tally}{first}", "dim")


def unused_row(job: ListedJob, now_ms: int, unused: int, is_released: bool) -> Text:
    """Tell what becomes of the results of a job that nobody needs."""
    count = _count(unused, "unused result")
    if not unused:
        return Text("none is unused: each is in use, outlives its job, or is being written", "dim")
    if not is_released:
        return Text(f"{count}, nothing is released: --release asks for that", "dim")
    if job.mode == SESSION:
        return Text(f"the release of {count} is asked for: a session master decides it", "dim")
    if job.condition in (JobCondition.RUNNING, JobCondition.FAILED):
        return Text(f"the release of {count} is asked for: the driver decides it", "dim")
    return Text(
        f"the release of {count} is asked for, and waits: {_silence(job, now_ms)}. "
        "Its next driver decides, or `headgate sweep` once the lease is over",
        "yellow",
    )


def lost_row(attempt: AttemptId, offset: int, job: ListedJob, now_ms: int) -> Text:
    """Tell that an attempt was reported as lost, and who makes its partition again."""
    line = f"attempt {attempt} was reported as lost, at offset {offset}"
    if job.condition is JobCondition.RUNNING:
        return Text(line)
    is_over = job.condition in (JobCondition.FAILED, JobCondition.ENDING, JobCondition.ENDED)
    who = "nobody makes its partition again" if is_over else "only a next driver makes it again"
    return Text(f"{line}: {_silence(job, now_ms)}, {who}", "yellow")


def _silence(job: ListedJob, now_ms: int) -> str:
    """Return the condition of a job, and how long its driver is silent."""
    name = f"the job is {job.condition.value}"
    if not job.heard_ms:
        return name
    span = _span(now_ms - job.heard_ms)
    return (
        f"{name} for {span}"
        if job.condition is JobCondition.SILENT
        else f"{name}, heard {span} ago"
    )


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
