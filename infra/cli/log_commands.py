"""Commands that show and check what is in the log: jobs, events, states, attempts, decisions.

None of them writes to the log. Only two open the store: `ui` for a viewer who asks for that, and
`exporter` with `--fsck-seconds`.
"""

from __future__ import annotations

import secrets
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from ...connectors.spark.report import job_report
from ...control.clock import ProgressDeadline
from ...control.errors import Invalid
from ...control.ids import is_index, job_id, partition_id
from ...control.inquiry.audit import audit, refused
from ...control.inquiry.history import why
from ...control.inquiry.job_history import JobHistory
from ...control.inquiry.reading import (
    READ_S_MAX,
    follow,
    known,
    known_without_indexes,
    list_present,
    read,
    states,
    without_indexes,
)
from ...control.inquiry.spans import spans
from ..master_command import spare_collector
from ..serving import ServerSettings, is_loopback
from ..target import Target
from ..traces import send
from ..ui.bucket_check import BucketCheck
from ..ui.log_reader import LogReader
from ..ui.server import UiServer
from . import fields, lives, views
from .options import (
    Job,
    JobOrAll,
    Json,
    Partition,
    Utc,
    example,
    out,
    require,
    show,
    targeted,
    zone_of,
)

app = typer.Typer()
audit_app = typer.Typer(help="Check that every decision follows from the facts in the log.")
app.add_typer(audit_app, name="audit", no_args_is_help=True)


@app.command("jobs", epilog=example("jobs --utc"))
@targeted
def run_jobs(target: Target, as_json: Json = False, utc: Utc = False) -> None:
    """List all jobs of the log, the oldest first: who decides, what is stored, how old it is."""
    with closing(target.open_log()) as log:
        jobs, now_ms = list_present(log, "")
    shown = [views.jobs_table(jobs, now_ms, zone_of(utc))]
    show(as_json, shown, map(fields.job_fields, jobs))


@app.command(epilog=example("report --job nightly-orders"))
@targeted
def report(target: Target, job: Job, as_json: Json = False) -> None:
    """Show rows, bytes, requests and price of a job's exchanges, as `hg.report()` does."""
    with closing(target.open_log()) as log:
        reported = job_report(states(log, job)[0])
    show(as_json, views.report_tables(reported), [fields.report_fields(reported)])


@app.command(epilog=example("events --job nightly-orders --partition 1-0003/7"))
@targeted
def events(
    target: Target,
    job: JobOrAll = "",
    partition: Annotated[
        str, typer.Option(help="Only one partition's life: `result/index` or `index`.")
    ] = "",
    wait: Annotated[bool, typer.Option("--follow", help="Wait for more; Ctrl-C ends.")] = False,
    as_json: Json = False,
    utc: Utc = False,
    rejected: Annotated[
        bool, typer.Option(help="Only facts without any effect, and records that are not events.")
    ] = False,
) -> None:
    """Print the log, one event a line."""
    if partition and not is_index(partition.rpartition("/")[2]):
        raise Invalid(f"partition {partition!r}: write result/index or index, for example 1-0001/3")
    with closing(target.open_log()) as log, suppress(KeyboardInterrupt):
        may_miss = not partition or (wait and not rejected)
        # All events before it are read twice: they may be too many to be held.
        if not (may_miss or any(views.names(it.event.body, partition) for it in read(log, job))):
            raise Invalid(f"no event of the log is about partition {partition}")
        if rejected:
            for record in log.read_rejected(ProgressDeadline(READ_S_MAX)):
                show(as_json, [views.rejected_row(record)], [asdict(record)])
            snapshots = known(log, job)
            records = refused(read(log, job, snapshots), snapshots)
        else:
            records = follow(log, job) if wait else read(log, job)
        last = None
        for recorded in records:
            if partition and not views.concerns(recorded.event.body, partition):
                continue
            rows = [views.event_row(recorded, zone_of(utc))]
            if recorded.event.job != last:
                rows.insert(0, views.event_head(recorded, zone_of(utc)))
                last = recorded.event.job
            show(as_json, rows, map(fields.event_fields, [recorded]))


@app.command(epilog=example("state --job nightly-orders --at 512"))
@targeted
def state(
    target: Target,
    job: Job,
    at: Annotated[int | None, typer.Option(min=0, help="Offset; without it, now.")] = None,
    as_json: Json = False,
) -> None:
    """Show the state of a job at an offset, folded from the facts up to there."""
    with closing(target.open_log()) as log:
        if at is not None and at >= (written := log.written(job_id(job))):
            raise Invalid(f"the log has no offset {at} yet: its newest is {written - 1}")
        snapshots = known(log, job)
        name = job_id(job)
        history = JobHistory(name, snapshots.get(name))
        history.observe(read(log, job, snapshots))
    folded = [history.state(at)]
    tables = *map(views.state_table, folded), lives.timeline(history.until(at))
    show(as_json, (*tables, lives.legend()), map(fields.state_fields, folded))


@app.command(epilog=example("traces --job nightly-orders --to http://127.0.0.1:4318"))
@targeted
def traces(
    target: Target,
    job: Job,
    to: Annotated[
        str, typer.Option(help="Send them to this OpenTelemetry collector (OTLP/HTTP).")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--follow", help="Wait for the exchanges that end; Ctrl-C ends.")
    ] = False,
    as_json: Json = False,
    utc: Utc = False,
) -> None:
    """Show each exchange of a job as a trace: map stage, tasks, decisions, readers, deletion."""
    with closing(target.open_log()) as log, suppress(KeyboardInterrupt):
        records = follow(log, job) if wait else read(log, job, known(log, job))
        for made in spans(map(without_indexes, records)):
            if to:
                send(to, made)
            rows = [views.span_row(span, zone_of(utc)) for span in made]
            show(as_json, rows, map(asdict, made))


@audit_app.command(epilog=example("audit verify --job nightly-orders"))
@targeted
def verify(target: Target, job: JobOrAll = "", as_json: Json = False) -> None:
    """Derive every decision again from the facts; exit code 1 when a recorded decision differs."""
    with closing(target.open_log()) as log:
        snapshots = known_without_indexes(log, job)
        audits = audit(map(without_indexes, read(log, job, snapshots)), snapshots)
    show(as_json, views.audit_rows(audits), map(asdict, audits))
    raise typer.Exit(1 if any(audited.violation for audited in audits) else 0)


@app.command("why", epilog=example("why --job nightly-orders --partition 1-0003/7"))
@targeted
def run_why(
    target: Target,
    job: Job,
    partition: Partition,
    as_json: Json = False,
) -> None:
    """Explain why a partition was made, and made again: every attempt, its reason and its end."""
    with closing(target.open_log()) as log:
        attempts = why(read(log, job), partition_id(partition))
    if not attempts:
        raise Invalid(f"the log knows of no attempt at partition {partition} of job {job}")
    show(as_json, map(views.made_row, attempts), map(fields.made_fields, attempts))


@app.command("ui", epilog=example("ui --port 8484"))
@targeted
def run_ui(
    target: Target,
    host: Annotated[str, typer.Option(help="Address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8484,
    token: Annotated[
        str,
        typer.Option(
            envvar="HEADGATE_UI_TOKEN",
            help="Word that viewers must know. Where others reach the address, one is made.",
        ),
    ] = "",
) -> None:
    """Show jobs, exchanges and partitions on a live web page, until Ctrl-C.

    Only reads the log. The bucket is read when a viewer asks to compare a job with it."""
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(18)
    spare_collector()
    with closing(target.open_log()) as log, closing(LogReader(log)) as reader:
        bucket = BucketCheck(log, target.store, target.open_bucket)
        server = UiServer(reader, ServerSettings(host, port, token), bucket)
        out.print(f"serving at {server.url}")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        server.end()


@app.command("exporter", epilog=example("exporter --port 9484 --fsck-seconds 3600"))
@targeted
def run_exporter(
    target: Target,
    host: Annotated[str, typer.Option(help="Address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 9484,
    token: Annotated[
        str,
        typer.Option(
            envvar="HEADGATE_METRICS_TOKEN",
            help="Word that Prometheus must know. Needed where others reach the address.",
        ),
    ] = "",
    fsck_seconds: Annotated[
        float, typer.Option(help="Interval of comparisons with the bucket; 0 for none.")
    ] = 0.0,
) -> None:
    """Serve the numbers of all jobs for Prometheus, until SIGTERM. Only reads the log."""
    require("the exporter", "metrics")
    from ..metrics import exporter

    exporter.run(target, ServerSettings(host, port, token), fsck_seconds, out.print)
