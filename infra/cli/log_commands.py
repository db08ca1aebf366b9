"""Commands that show and check what is in the log: events, states, attempts, decisions.

None of them opens the store or writes to the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Annotated

import typer

from ...control.clock import Deadline
from ...control.errors import Invalid
from ...control.events.types import Recorded
from ...control.ids import partition_id
from ...control.inquiry.audit import audit, fold
from ...control.inquiry.history import why
from ...control.inquiry.ignored import refused
from ...control.inquiry.reading import READ_S_MAX, follow, known, read
from ..target import Target
from . import views
from .options import Job, JobOrAll, out, targeted

app = typer.Typer()
audit_app = typer.Typer(help="Check that every decision follows from the facts in the log.")
app.add_typer(audit_app, name="audit", no_args_is_help=True)


@app.command()
@targeted
def events(
    target: Target,
    job: JobOrAll = "",
    partition: Annotated[
        str, typer.Option(help="Only one partition's life: `result/index` or `index`.")
    ] = "",
    wait: Annotated[bool, typer.Option("--follow", help="Wait for more; Ctrl-C ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    rejected: Annotated[
        bool, typer.Option(help="Only facts without any effect, and records that are not events.")
    ] = False,
) -> None:
    """Print the log, one event a line."""
    with closing(target.open_log()) as log:
        if rejected:
            for record in log.read_rejected(Deadline.after(READ_S_MAX)):
                out.print(views.rejected_row(record))
            snapshots = known(log, job)
            _print_events(refused(read(log, job, snapshots), snapshots), as_json)
            return
        records = (follow if wait else read)(log, job)
        shown = (r for r in records if not partition or views.concerns(r.event.body, partition))
        with suppress(KeyboardInterrupt):
            _print_events(shown, as_json)


def _print_events(records: Iterable[Recorded], as_json: bool) -> None:
    last = None
    for recorded in records:
        if as_json:
            print(json.dumps(views.event_fields(recorded)), flush=True)
            continue
        if recorded.event.job != last:
            out.print(views.event_head(recorded.event.job))
            last = recorded.event.job
        out.print(views.event_row(recorded))


@app.command()
@targeted
def state(
    target: Target,
    job: Job,
    at: Annotated[int | None, typer.Option(help="Offset; without it, now.")] = None,
) -> None:
    """Show the state of a job at an offset, folded from the facts up to there."""
    with closing(target.open_log()) as log:
        snapshots = known(log, job)
        records = list(read(log, job, snapshots))
    starts = {j: s for j, s in snapshots.items() if not records or records[0].offset > s.first}
    if at is not None:
        for name, snapshot in starts.items():
            if at < snapshot.position - 1:
                raise Invalid(
                    f"the first events of job {name} are gone: its state is known from the "
                    f"snapshot at offset {snapshot.position} on, not at {at}"
                )
        records = [recorded for recorded in records if recorded.offset <= at]
    for folded in fold(records, starts):
        out.print(views.state_table(folded))
    out.print(views.timeline(records), views.legend(), sep="\n")


@audit_app.command()
@targeted
def verify(target: Target, job: JobOrAll = "") -> None:
    """Derive every decision again from the facts; exit code 1 when a recorded decision differs."""
    with closing(target.open_log()) as log:
        snapshots = known(log, job)
        audits = audit(read(log, job, snapshots), snapshots)
    out.print(*views.audit_rows(audits), sep="\n")
    raise typer.Exit(1 if any(audited.violation for audited in audits) else 0)


@app.command("why")
@targeted
def run_why(
    target: Target,
    partition: Annotated[str, typer.Argument(help="`result/index`, as in `headgate events`.")],
    job: Job,
) -> None:
    """Explain why a partition was made, and made again: every attempt, its reason and its end."""
    with closing(target.open_log()) as log:
        attempts = why(read(log, job), partition_id(partition))
    if not attempts:
        raise Invalid(f"the log knows of no attempt at partition {partition} of job {job}")
    out.print(*map(views.made_row, attempts), sep="\n")
