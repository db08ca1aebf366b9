"""Commands that look after jobs and their stored results.

They answer the question that somebody asks before an action (`available`, `may-release`: these only
read the log), or act: they publish facts, or delete objects. `fsck` and `remove-unused` act only
when they are told to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer
from rich.console import RenderableType

from ...control.addresses import is_same_place
from ...control.clock import SYSTEM_CLOCK, Deadline, ProgressDeadline
from ...control.errors import Invalid
from ...control.events.types import AttemptStarted, Lost, ReleaseRequested
from ...control.ids import JobId, ResultId, job_id, partition_id
from ...control.inquiry import questions
from ...control.inquiry.listing import list_jobs
from ...control.inquiry.neglected import neglected, seen
from ...control.inquiry.reading import (
    READ_S_MAX,
    known_without_indexes,
    list_present,
    read,
    read_jobs,
    states,
    without_indexes,
)
from ...control.log import EventLog
from ...control.master.announcer import Announcer
from ...control.master.silence import time_of
from ...control.snapshots.resume import by_partition
from ...storage.stores.port import BlobStore
from ...storage.upkeep.fsck import check
from ...storage.upkeep.fsck_repair import FsckRepair, sound_jobs
from ...storage.upkeep.object_deletion import ObjectDeleter
from ..sweep import FailedSweep, Swept, sweep_all
from ..target import Target
from . import fields, views
from .options import Job, JobOrAll, Json, Partition, Utc, example, out, show, targeted, zone_of

app = typer.Typer()
_HOSTS_SHOWN = 10


@app.command(epilog=example("fsck --job nightly-orders --deep"))
@targeted
def fsck(
    target: Target,
    job: JobOrAll = "",
    deep: Annotated[bool, typer.Option(help="Read every segment, compare checksums.")] = False,
    repair: Annotated[
        bool, typer.Option(help="Delete leftovers, and report lost objects as lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the log with the bucket; exit code 1 when a finding is left without repair."""
    named = job_id(job) if job else None
    with closing(target.open_log()) as log, _bucket(target, log) as (store, root):
        _check_place(log, job, target.store)
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


@app.command(epilog=example("available --job nightly-orders --result 1-0003"))
@targeted
def available(
    target: Target,
    job: Job,
    result: Annotated[str, typer.Option(help="Name of the result.")] = "",
    partition: Annotated[
        str, typer.Option(help="Only one partition: `result/index`, or `index` with --result.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Tell if a result, or one of its partitions, can be read whole now; exit code 1 if not."""
    with closing(target.open_log()) as log:
        state = states(log, job)[0]
        if "/" not in partition and not result:
            raise Invalid("name a --result, or a --partition as result/index")
        if "/" in partition and result not in ("", partition.rpartition("/")[0]):
            raise Invalid(f"partition {partition} is not of result {result}")
        named = partition if "/" in partition or not partition else f"{result}/{partition}"
        index = partition_id(named).index if named else None
        name = partition_id(named).result if named else ResultId(result)
        questions.check_named(state, name, index)
        readable = questions.is_available(state, name, index)
    what = f"partition {named}" if named else f"result {name}"
    line = f"{what} of job {job} is {'' if readable else 'not '}available"
    answer = {"job": job, "result": name, "partition": index, "available": readable}
    show(as_json, [line], [answer])
    raise typer.Exit(0 if readable else 1)


@app.command("may-release", epilog=example("may-release --job nightly-orders --host 10.0.0.7"))
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
        if not running:
            _check_host(log, job, host)
    lines = [f"attempt {attempt} runs on {host}" for attempt in running]
    lines.append(f"job {job} loses {len(running) or 'nothing'} with {host}")
    answer = {"job": job, "host": host, "running": list(map(str, running))}
    show(as_json, lines, [answer | {"may_release": not running}])
    raise typer.Exit(1 if running else 0)


@app.command(
    "remove-unused", epilog=example("remove-unused --job nightly-orders --keep 1-0003 --release")
)
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
        state, in_use = states(log, job)[0], [ResultId(name) for name in keep or ()]
        for name in in_use:
            questions.check_named(state, name)
        unused = questions.unused(state, in_use)
        (listed,), now_ms = list_present(log, job)
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        for result in unused if release else ():
            request = announcer.fact(ReleaseRequested(result, "unused"))
            log.append(request).offset(Deadline.after(READ_S_MAX))
    outcome = views.unused_row(listed, now_ms, len(unused), release)
    shown: list[RenderableType] = [*unused, outcome]
    show(as_json, shown, ({"job": job, "result": r, "released": release} for r in unused))


@app.command(
    "lost",
    epilog=example('lost --job nightly-orders --partition 1-0003/7 --evidence "disk pulled"'),
)
@targeted
def run_lost(
    target: Target,
    job: Job,
    partition: Partition,
    evidence: Annotated[
        str, typer.Option(help="How you know that the objects are lost; kept in the log.")
    ],
    as_json: Json = False,
) -> None:
    """Report a partition's objects as lost, so that the job's driver makes it again."""
    name = partition_id(partition)
    with closing(target.open_log()) as log:
        result = next((s.results.get(name.result) for s in states(log, job)), None)
        if result is None or name.index not in result.production.winners:
            raise Invalid(f"job {job} has no consumable partition {partition}")
        attempt = result.production.winners[name.index]
        announcer = Announcer(job_id(job), f"operator {os.urandom(4).hex()}")
        fact = announcer.fact(Lost(attempt, str(attempt), evidence))
        offset = log.append(fact).offset(Deadline.after(READ_S_MAX))
        (listed,), now_ms = list_present(log, job)
    line = views.lost_row(attempt, offset, listed, now_ms)
    show(as_json, [line], [{"job": job, "attempt": str(attempt), "offset": offset}])


@app.command("sweep", epilog=example("sweep --broker kafka:9092 --store s3://bucket/root"))
@targeted
def run_sweep(target: Target, job: JobOrAll = "", as_json: Json = False, utc: Utc = False) -> None:
    """End jobs whose drivers were silent for longer than their leases, and delete their objects.

    Also deletes objects of ended jobs. Results that outlive their job stay. Names the silent jobs
    that it leaves, and when their leases end. Exit code 1 when a job could not be swept; the others
    are swept."""
    with closing(target.open_log()) as log, _bucket(target, log) as (store, root):
        name = JobId(f"sweep-{os.urandom(4).hex()}")
        # either clock may be wrong: the earlier one counts, because nothing may go too early
        now_ms = min(time_of(log, name, Deadline.after(READ_S_MAX)), SYSTEM_CLOCK.now_ms())
        beats = log.read_beats(job_id(job) if job else None, ProgressDeadline(READ_S_MAX))
        jobs = read_jobs(log, job)
        listed = list(list_jobs(jobs, beats, now_ms))
        candidates = list(neglected(jobs, beats, now_ms, by_partition(log, log.oldest)))
        deleter, failed = ObjectDeleter(store, root), False
        for swept in sweep_all(log, deleter, candidates, target.store, "sweep"):
            failed |= isinstance(swept, FailedSweep) and swept.failed
            show(as_json, [views.swept_row(swept)], [fields.swept_fields(swept)])
    others = [each for each in listed if each.job not in {swept.job for swept in candidates}]
    waiting = [each for each in others if each.lease_ends_ms]
    left = [fields.waiting_fields(each) for each in waiting]
    show(as_json, views.left_rows(others, now_ms, zone_of(utc)), left)
    raise typer.Exit(1 if failed else 0)


@app.command("end", epilog=example("end --job nightly-orders --store s3://bucket/root"))
@targeted
def run_end(target: Target, job: Job, as_json: Json = False) -> None:
    """End a job whose driver is known to be dead, before its lease is over; delete its objects.

    Results that outlive the job stay. A driver that is heard meanwhile keeps its job. Exit code 1
    when the job was not ended."""
    with closing(target.open_log()) as log, _bucket(target, log) as (store, root):
        beats = log.read_beats(job_id(job), ProgressDeadline(READ_S_MAX))
        now_ms = time_of(log, JobId(f"end-{os.urandom(4).hex()}"), Deadline.after(READ_S_MAX))
        entry = read_jobs(log, job)[job_id(job)]
        state = entry.replay.state
        if entry.newer:
            raise Invalid(entry.newer)
        if entry.broken or state.epoch == 0 or state.closed is not None:
            why = state.closed or "no driver has registered it"
            why = f"`headgate audit verify --job {job}` says why" if entry.broken else why
            raise Invalid(f"job {job} is not open: {why}")
        dead = seen(entry, beats.get(job_id(job), 0), now_ms)
        deleter = ObjectDeleter(store, root)
        (ended,) = sweep_all(log, deleter, [dead], target.store, "operator")
    show(as_json, [views.swept_row(ended)], [fields.swept_fields(ended)])
    raise typer.Exit(0 if isinstance(ended, Swept) and not ended.came_back else 1)


@contextmanager
def _bucket(target: Target, log: EventLog) -> Iterator[tuple[BlobStore, str]]:
    """Open the store of a log's jobs, and close it in the end."""
    store, root = target.open_bucket(log)
    with closing(store):
        yield store, root


def _check_place(log: EventLog, job: str, store: str) -> None:
    """Refuse a store that no job of the log has registered: all objects would seem to be gone."""
    registrations = (entry.replay.registered for entry in read_jobs(log, job).values())
    places = {registered.store for registered in registrations if registered is not None}
    if places and not any(is_same_place(place, store) for place in places):
        raise Invalid(
            f"no object is in {store}: {'the job has' if job else 'the jobs have'} registered "
            f"{', '.join(sorted(places))}"
        )


def _check_host(log: EventLog, job: str, host: str) -> None:
    """Refuse a host on which no attempt of a job has begun, as far as the log goes back."""
    begun = (recorded.event.body for recorded in read(log, job, known_without_indexes(log, job)))
    hosts = {body.host for body in begun if isinstance(body, AttemptStarted)}
    if host not in hosts:
        named = ", ".join(sorted(hosts)[:_HOSTS_SHOWN]) or "none that the log still has"
        raise Invalid(f"no attempt of job {job} has begun on host {host}; its hosts: {named}")
