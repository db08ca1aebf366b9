"""Commands about jobs and what they have stored: questions, and the few that change something."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated

import typer

from ...control.clock import Deadline
from ...control.contract import MasterSettings
from ...control.errors import HeadgateError, Invalid
from ...control.events.types import Lost, ReleaseRequested
from ...control.ids import JobId, ResultId, job_id, partition_id
from ...control.inquiry import questions
from ...control.inquiry.neglected import neglected
from ...control.inquiry.reading import READ_S_MAX, known, read, read_news, states
from ...control.master.announcer import Announcer
from ...control.master.silence import time_of
from ...control.snapshots.resume import by_partition
from ...storage.upkeep.fsck import check
from ...storage.upkeep.fsck_repair import FsckRepair, sound_jobs
from ...storage.upkeep.object_deletion import ObjectDeleter
from ..sweep import sweep
from ..target import Target
from . import views
from .options import Job, out, targeted

app = typer.Typer()


@app.command()
@targeted
def fsck(
    target: Target,
    job: Job = "",
    deep: Annotated[bool, typer.Option(help="Read every segment, compare checksums.")] = False,
    repair: Annotated[
        bool, typer.Option(help="Delete what is to go, state what is lost as lost.")
    ] = False,
) -> None:
    """Hold the log against the bucket; exit code 1 when something is found and not mended."""
    store, root = target.open_bucket()
    named = job_id(job) if job else None
    with closing(store), closing(target.open_log()) as log:
        found = check(store, root, lambda: states(log, job), named, deep)
        out.print(*views.findings(found), sep="\n")
        left = found.found
        if repair:
            mender = FsckRepair(store, root, log, f"fsck {os.urandom(4).hex()}", READ_S_MAX)
            snapshots = known(log, job)
            records = read(log, job, snapshots)
            mended = mender.mend(found, sound_jobs(records, target.store, snapshots))
            out.print(*views.mended(mended), sep="\n")
            left = mended.left
    raise typer.Exit(1 if left else 0)


@app.command()
@targeted
def available(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    result: Annotated[str, typer.Option(help="Name of the result.")],
    partition: Annotated[int | None, typer.Option(help="Only this partition of it.")] = None,
) -> None:
    """Can a result, or one partition of it, be read whole now? Exit code 1 when it cannot."""
    with closing(target.open_log()) as log:
        found = questions.is_available(states(log, job)[0], ResultId(result), partition)
    what = f"result {result}" if partition is None else f"partition {result}/{partition}"
    out.print(f"{what} of job {job} is {'' if found else 'not '}available")
    raise typer.Exit(0 if found else 1)


@app.command("may-release")
@targeted
def may_release(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    host: Annotated[str, typer.Option(help="The executor's host, as `headgate events` shows it.")],
) -> None:
    """May an executor go without loss? Exit code 1 while attempts of the job run on its host."""
    with closing(target.open_log()) as log:
        running = questions.running_on(states(log, job)[0], host)
    for attempt in running:
        out.print(f"attempt {attempt} runs on {host}")
    out.print(f"job {job} loses {len(running) or 'nothing'} with {host}")
    raise typer.Exit(1 if running else 0)


@app.command("remove-unused")
@targeted
def remove_unused(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    keep: Annotated[list[str] | None, typer.Option(help="A result that is in use.")] = None,
    release: Annotated[bool, typer.Option(help="Ask for their release, not only list.")] = False,
) -> None:
    """Which complete results does nobody need? With --release their job's master deletes them."""
    with closing(target.open_log()) as log:
        found = questions.unused(states(log, job)[0], [ResultId(name) for name in keep or ()])
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        for result in found if release else ():
            asked = announcer.fact(ReleaseRequested(result, "unused"))
            log.append(asked).offset(Deadline.after(READ_S_MAX))
    out.print(*found, sep="\n")


@app.command("lost")
@targeted
def run_lost(
    target: Target,
    partition: Annotated[str, typer.Argument(help="`result/index`, as in `headgate events`.")],
    evidence: Annotated[str, typer.Option(help="How you know: it goes into the log.")],
    job: Annotated[str, typer.Option(help="Name of the job.")],
) -> None:
    """State that a partition's objects are gone: the job's driver makes it again."""
    name = partition_id(partition)
    with closing(target.open_log()) as log:
        result = next((s.results.get(name.result) for s in states(log, job)), None)
        if result is None or name.index not in result.winners:
            raise Invalid(f"job {job} has no consumable partition {partition}")
        attempt = result.winners[name.index]
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        fact = announcer.fact(Lost(attempt, str(attempt), evidence))
        offset = log.append(fact).offset(Deadline.after(READ_S_MAX))
    out.print(f"attempt {attempt} is stated as lost, at offset {offset}")


@app.command("sweep")
@targeted
def run_sweep(target: Target, job: Job = "") -> None:
    """End the jobs whose drivers were silent for longer than their leases, and delete what is
    theirs; also what jobs that have ended left behind. Results that outlive their job stay. Exit
    code 1 when a job could not be swept: the others are."""
    failed = False
    store, root = target.open_bucket()
    with closing(store), closing(target.open_log()) as log:
        name = JobId(f"sweep-{os.urandom(4).hex()}")
        now_ms = time_of(log, name, Deadline.after(READ_S_MAX))
        snapshots = known(log, job, begun=False)
        beats = log.read_beats(job_id(job) if job else None, Deadline.after(READ_S_MAX))
        records = read_news(log, job, snapshots)
        oldest = by_partition(log, log.oldest)
        for found in list(neglected(records, snapshots, beats, now_ms, oldest)):
            if found.store.rstrip("/") not in ("", target.store.rstrip("/")):
                out.print(views.elsewhere_row(found))
                continue
            settings = MasterSettings(mode=found.mode)
            try:
                row = views.swept_row(sweep(log, ObjectDeleter(store, root), found, settings))
            except HeadgateError as exc:
                failed, row = True, views.unswept_row(found, exc)
            out.print(row)
    raise typer.Exit(1 if failed else 0)
