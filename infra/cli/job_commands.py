"""Commands that look after jobs and their stored results.

They answer the question that somebody asks before an action (`available`, `may-release`: these only
read the log), or act: they state facts, or delete objects. `fsck` and `remove-unused` act only when
they are told to.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated

import typer

from ...control.clock import SYSTEM_CLOCK, Deadline, ProgressDeadline
from ...control.errors import Invalid
from ...control.events.types import Lost, ReleaseRequested
from ...control.ids import JobId, ResultId, job_id, partition_id
from ...control.inquiry import questions
from ...control.inquiry.neglected import neglected
from ...control.inquiry.reading import (
    READ_S_MAX,
    known_without_indexes,
    read,
    read_news,
    states,
    without_indexes,
)
from ...control.master.announcer import Announcer
from ...control.master.silence import time_of
from ...control.snapshots.resume import by_partition
from ...storage.upkeep.fsck import check
from ...storage.upkeep.fsck_repair import FsckRepair, sound_jobs
from ...storage.upkeep.object_deletion import ObjectDeleter
from ..sweep import FailedSweep, sweep_all
from ..target import Target
from . import fields, views
from .options import Job, JobOrAll, Json, out, show, targeted

app = typer.Typer()


@app.command()
@targeted
def fsck(
    target: Target,
    job: JobOrAll = "",
    deep: Annotated[bool, typer.Option(help="Read every segment, compare checksums.")] = False,
    repair: Annotated[
        bool, typer.Option(help="Delete leftovers, and state lost objects as lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the log with the bucket; exit code 1 when a finding is left without repair."""
    store, root = target.open_bucket()
    named = job_id(job) if job else None
    with closing(store), closing(target.open_log()) as log:
        findings = check(store, root, lambda: states(log, job), named, deep)
        if not as_json:
            out.print(*views.findings(findings), sep="\n")
        left, repaired = findings.found, None
        if repair:
            repair_run = FsckRepair(store, root, log, f"fsck {os.urandom(4).hex()}", READ_S_MAX)
            snapshots = known_without_indexes(log, job)
            records = map(without_indexes, read(log, job, snapshots))
            repaired = repair_run.mend(findings, sound_jobs(records, target.store, snapshots))
            left = repaired.left
        done = views.mended(repaired) if repaired is not None else ()
        show(as_json, done, [fields.findings_fields(findings, repaired)])
    raise typer.Exit(1 if left else 0)


@app.command()
@targeted
def available(
    target: Target,
    job: Job,
    result: Annotated[str, typer.Option(help="Name of the result.")],
    partition: Annotated[int | None, typer.Option(help="Only this partition of it.")] = None,
    as_json: Json = False,
) -> None:
    """Tell if a result, or one of its partitions, can be read whole now; exit code 1 if not."""
    with closing(target.open_log()) as log:
        readable = questions.is_available(states(log, job)[0], ResultId(result), partition)
    what = f"result {result}" if partition is None else f"partition {result}/{partition}"
    line = f"{what} of job {job} is {'' if readable else 'not '}available"
    answer = {"job": job, "result": result, "partition": partition, "available": readable}
    show(as_json, [line], [answer])
    raise typer.Exit(0 if readable else 1)


@app.command("may-release")
@targeted
def may_release(
    target: Target,
    job: Job,
    host: Annotated[str, typer.Option(help="The executor's host, as `headgate events` shows it.")],
    as_json: Json = False,
) -> None:
    """Tell if an executor may go without loss; exit code 1 while attempts of the job run there."""
    with closing(target.open_log()) as log:
        running = questions.running_on(states(log, job)[0], host)
    lines = [f"attempt {attempt} runs on {host}" for attempt in running]
    lines.append(f"job {job} loses {len(running) or 'nothing'} with {host}")
    answer = {"job": job, "host": host, "running": list(map(str, running))}
    show(as_json, lines, [answer | {"may_release": not running}])
    raise typer.Exit(1 if running else 0)


@app.command("remove-unused")
@targeted
def remove_unused(
    target: Target,
    job: Job,
    keep: Annotated[list[str] | None, typer.Option(help="A result that is in use.")] = None,
    release: Annotated[
        bool, typer.Option(help="Release them, instead of only listing them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the complete results that nobody needs; --release has the job's master delete them."""
    with closing(target.open_log()) as log:
        unused = questions.unused(states(log, job)[0], [ResultId(name) for name in keep or ()])
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        for result in unused if release else ():
            request = announcer.fact(ReleaseRequested(result, "unused"))
            log.append(request).offset(Deadline.after(READ_S_MAX))
    show(as_json, unused, ({"job": job, "result": r, "released": release} for r in unused))


@app.command("lost")
@targeted
def run_lost(
    target: Target,
    partition: Annotated[str, typer.Argument(help="`result/index`, as in `headgate events`.")],
    evidence: Annotated[
        str, typer.Option(help="How you know that the objects are lost; kept in the log.")
    ],
    job: Job,
    as_json: Json = False,
) -> None:
    """State that a partition's objects are gone, so that the job's driver makes it again."""
    name = partition_id(partition)
    with closing(target.open_log()) as log:
        result = next((s.results.get(name.result) for s in states(log, job)), None)
        if result is None or name.index not in result.production.winners:
            raise Invalid(f"job {job} has no consumable partition {partition}")
        attempt = result.production.winners[name.index]
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        fact = announcer.fact(Lost(attempt, str(attempt), evidence))
        offset = log.append(fact).offset(Deadline.after(READ_S_MAX))
    line = f"attempt {attempt} was stated as lost, at offset {offset}"
    show(as_json, [line], [{"job": job, "attempt": str(attempt), "offset": offset}])


@app.command("sweep")
@targeted
def run_sweep(target: Target, job: JobOrAll = "", as_json: Json = False) -> None:
    """End jobs whose drivers were silent for longer than their leases, and delete their objects.

    Also deletes what ended jobs have left. Results that outlive their job stay. Exit code 1 when
    a job could not be swept; the others are swept."""
    failed = False
    store, root = target.open_bucket()
    with closing(store), closing(target.open_log()) as log:
        name = JobId(f"sweep-{os.urandom(4).hex()}")
        # Either clock may be wrong, and what is deleted too early is lost: the earlier one counts.
        now_ms = min(time_of(log, name, Deadline.after(READ_S_MAX)), SYSTEM_CLOCK.now_ms())
        snapshots = known_without_indexes(log, job)
        beats = log.read_beats(job_id(job) if job else None, ProgressDeadline(READ_S_MAX))
        records = read_news(log, job, snapshots)
        oldest = by_partition(log, log.oldest)
        candidates = list(neglected(records, snapshots, beats, now_ms, oldest))
        for swept in sweep_all(log, ObjectDeleter(store, root), candidates, target.store):
            failed |= isinstance(swept, FailedSweep) and swept.failed
            show(as_json, [views.swept_row(swept)], [fields.swept_fields(swept)])
    raise typer.Exit(1 if failed else 0)
