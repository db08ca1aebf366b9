"""The `headgate` command: what an operator asks and starts.

Guarantees: an error is one line on stderr and exit code 2; exit code 1 says that something was
found. Commands that only look write nothing, neither to the log nor to the bucket; `fsck` is one of
them without `--repair`, `remove-unused` without `--release`.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ..control import questions
from ..control.author import Author
from ..control.clock import SYSTEM_CLOCK, Deadline
from ..control.contract import MasterSettings
from ..control.errors import HeadgateError, Invalid, Unavailable
from ..control.events import Recorded, ReleaseRequested
from ..control.ids import JobId, ResultId, job_id
from ..control.leases import neglected
from ..control.log import EventLog
from ..control.recovery import read_snapshots
from ..control.replay import Snapshot
from ..control.state import JobState
from ..storage.fsck import audit, check, fold
from ..storage.mending import Mender, sound_jobs
from ..storage.release import StorageRelease
from . import doctor, masters, stack, views
from .doctor import Target, Verdict
from .sweep import sweep

_READ_S_MAX = 60.0
_POLL_S = 0.5
_POLL_EVENTS_MAX = 500

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)


# What commands are made of


class _Commands(TyperGroup):
    """Shows our errors as one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadgateError as exc:
            err.print(Text.assemble(("error: ", "bold red"), " ".join(str(exc).split())))
            raise typer.Exit(2) from exc


def _target(
    broker: Annotated[str, typer.Option(envvar="HEADGATE_BROKER", help="Bootstrap servers.")] = "",
    store: Annotated[
        str, typer.Option(envvar="HEADGATE_STORE", help="s3://bucket/root or file:///folder.")
    ] = "",
    prefix: Annotated[
        str, typer.Option(envvar="HEADGATE_PREFIX", help="First part of the topics' names.")
    ] = "headgate",
    kafka: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Kafka client option; also HEADGATE_KAFKA_<KEY>."),
    ] = None,
    s3: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="S3 option; also HEADGATE_S3_<KEY>."),
    ] = None,
) -> Target:
    """What the connection options name, or the local stack when they name nothing."""
    options = _environment("HEADGATE_KAFKA_", ".") | _pairs(kafka)
    s3_options = _environment("HEADGATE_S3_", "_") | _pairs(s3)
    found = None if broker or store else stack.status()
    if found is None or not found.is_up():
        return Target(broker, store, prefix, options, s3_options)
    store = f"s3://{found.bucket}/{prefix}"
    err.print(f"no broker given: using the local stack, {found.bootstrap} and {store}", style="dim")
    os.environ.setdefault("AWS_ACCESS_KEY_ID", found.access_key)
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", found.secret_key)
    return Target(
        found.bootstrap, store, prefix, options, {"endpoint": found.endpoint} | s3_options
    )


def _targeted(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection options, and what they name as its first argument."""
    shared = inspect.signature(_target, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        target = _target(**{name: given.pop(name) for name in shared})
        command(target, **given)

    parameters = [*own, *shared.values()]
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    return run


def _environment(prefix: str, separator: str) -> dict[str, str]:
    named = {k.removeprefix(prefix): v for k, v in os.environ.items() if k.startswith(prefix)}
    return {name.lower().replace("_", separator): value for name, value in named.items()}


def _pairs(given: list[str] | None) -> dict[str, str]:
    for pair in given or ():
        if "=" not in pair:
            raise Invalid(f"{pair!r} must be key=value")
    return dict(pair.split("=", 1) for pair in given or ())


def _snapshots(log: EventLog, job: str) -> dict[JobId, Snapshot]:
    """Read before the events, which then go on from there at the latest."""
    return read_snapshots(log, job_id(job) if job else None, Deadline.after(_READ_S_MAX))


def _read(log: EventLog, job: str, known: Collection[JobId] = ()) -> Iterator[Recorded]:
    """Everything up to now of one job, or of all when none is named; one that is not known
    otherwise must have an event."""
    deadline = Deadline.after(_READ_S_MAX)
    if not job:
        yield from log.read_all(deadline)
        return
    with closing(log.follow(job_id(job), None)) as follower:
        end, found = follower.end(), 0
        while follower.position() < end:
            if deadline.passed:
                raise Unavailable(f"read up to {follower.position()} of {end} in {_READ_S_MAX} s")
            records = follower.poll(_POLL_EVENTS_MAX, _POLL_S)
            found += len(records)
            yield from records
    if not found and job_id(job) not in known:
        raise Invalid(f"the log has no events of job {job}")


def _states(log: EventLog, job: str) -> tuple[JobState, ...]:
    snapshots = _snapshots(log, job)
    return fold(_read(log, job, snapshots), snapshots)


def _follow(log: EventLog, job: str) -> Iterator[Recorded]:
    if not job:
        raise Invalid("--follow needs --job: jobs are ordered each by itself")
    with closing(log.follow(job_id(job), None)) as follower:
        while True:
            yield from follower.poll(_POLL_EVENTS_MAX, _POLL_S)


# Commands

app = typer.Typer(
    cls=_Commands,
    help="Headgate: a shuffle for PySpark over Kafka and object storage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
stack_app = typer.Typer(help="The real stack on this machine: Kafka and MinIO.")
audit_app = typer.Typer(help="Does the log explain itself?")
app.add_typer(stack_app, name="stack", no_args_is_help=True)
app.add_typer(audit_app, name="audit", no_args_is_help=True)

Job = Annotated[str, typer.Option(help="Name of the job; without it, every job of the log.")]


@app.command("demo")
def run_demo() -> None:
    """An exchange through an embedded stack, and all that its log tells. Takes half a minute."""
    from .demo import run  # only here: it needs pyspark, which an operator's machine may not have

    raise typer.Exit(run())


@app.command("doctor")
@_targeted
def run_doctor(target: Target) -> None:
    """Is everything here that Headgate needs? Tries the broker and the bucket.

    Writes a job named doctor-… of three events to the topic, and deletes every object it puts.
    """
    wrong = 0
    for outcome in doctor.examine(target):
        out.print(views.check_row(outcome))
        wrong += outcome.verdict is Verdict.WRONG
    raise typer.Exit(1 if wrong else 0)


@stack_app.command()
def up(nodes: Annotated[int, typer.Option(help="Kafka nodes, 1 or 3.")] = 1) -> None:
    """Start Kafka and MinIO, or find them running; prints what to paste."""
    found = stack.up(nodes)
    out.print(*views.stack_rows(found), sep="\n")
    out.print(*views.stack_settings(found, f"s3://{found.bucket}/headgate"), sep="\n")


@stack_app.command()
def status() -> None:
    """Which nodes run, and where; exit code 1 when one does not."""
    found = stack.status()
    if found is None:
        raise Invalid("there is no stack: `headgate stack up` starts one")
    out.print(*views.stack_rows(found), sep="\n")
    raise typer.Exit(0 if found.is_up() else 1)


@stack_app.command()
def down(wipe: Annotated[bool, typer.Option(help="Remove its data too.")] = False) -> None:
    """Stop everything."""
    stack.down(wipe)
    out.print("the stack is down" + (", its data is gone" if wipe else "; its data stays"))


@app.command()
@_targeted
def events(
    target: Target,
    job: Job = "",
    partition: Annotated[
        str, typer.Option(help="Only one partition's life: `result/index` or `index`.")
    ] = "",
    follow: Annotated[bool, typer.Option(help="Wait for more; Ctrl-C ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The log, one event a line."""
    with closing(doctor.open_log(target)) as log:
        records = (_follow if follow else _read)(log, job)
        shown = (r for r in records if not partition or views.concerns(r.event.body, partition))
        try:
            _print_events(shown, as_json)
        except KeyboardInterrupt:
            return


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
@_targeted
def state(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    at: Annotated[int | None, typer.Option(help="Offset; without it, now.")] = None,
) -> None:
    """What was true of a job at an offset: the facts up to there, folded."""
    with closing(doctor.open_log(target)) as log:
        snapshots = _snapshots(log, job)
        records = list(_read(log, job, snapshots))
    behind = {j: s for j, s in snapshots.items() if not records or records[0].offset > s.first}
    if at is not None:
        _check_known(behind, at)
        records = [recorded for recorded in records if recorded.offset <= at]
    for folded in fold(records, behind):
        out.print(views.state_table(folded))
    out.print(views.timeline(records), views.legend(), sep="\n")


def _check_known(behind: Mapping[JobId, Snapshot], at: int) -> None:
    for job, snapshot in behind.items():
        if at < snapshot.position - 1:
            raise Invalid(
                f"the log no longer holds the head of job {job}: its state is known from the "
                f"snapshot at offset {snapshot.position} on, not at {at}"
            )


@audit_app.command()
@_targeted
def verify(target: Target, job: Job = "") -> None:
    """Derive every decision again from the facts, and compare; exit code 1 when one differs."""
    with closing(doctor.open_log(target)) as log:
        snapshots = _snapshots(log, job)
        found = audit(_read(log, job, snapshots), snapshots)
    out.print(*views.audit_rows(found), sep="\n")
    raise typer.Exit(1 if any(one.violation for one in found) else 0)


@app.command()
@_targeted
def fsck(
    target: Target,
    job: Job = "",
    deep: Annotated[bool, typer.Option(help="Read every segment, compare checksums.")] = False,
    repair: Annotated[
        bool, typer.Option(help="Delete what is to go, state what is lost as lost.")
    ] = False,
) -> None:
    """Hold the log against the bucket; exit code 1 when something is found and not mended."""
    store, root = doctor.open_bucket(target)
    named = job_id(job) if job else None
    with closing(store), closing(doctor.open_log(target)) as log:
        found = check(store, root, lambda: _states(log, job), named, deep)
        out.print(*views.findings(found), sep="\n")
        left = found.found
        if repair:
            mender = Mender(store, root, log, f"fsck {os.urandom(4).hex()}", _READ_S_MAX)
            snapshots = _snapshots(log, job)
            records = tuple(_read(log, job, snapshots))
            mended = mender.mend(found, sound_jobs(records, target.store, snapshots))
            out.print(*views.mended(mended), sep="\n")
            left = mended.left
    raise typer.Exit(1 if left else 0)


@app.command()
@_targeted
def available(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    result: Annotated[str, typer.Option(help="Name of the result.")],
    partition: Annotated[int | None, typer.Option(help="Only this partition of it.")] = None,
) -> None:
    """Can a result, or one partition of it, be read whole now? Exit code 1 when it cannot."""
    with closing(doctor.open_log(target)) as log:
        found = questions.is_available(_states(log, job)[0], ResultId(result), partition)
    what = f"result {result}" if partition is None else f"partition {result}/{partition}"
    out.print(f"{what} of job {job} is {'' if found else 'not '}available")
    raise typer.Exit(0 if found else 1)


@app.command("may-release")
@_targeted
def may_release(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    host: Annotated[str, typer.Option(help="The executor's host, as `headgate events` shows it.")],
) -> None:
    """May an executor go without loss? Exit code 1 while attempts of the job run on its host."""
    with closing(doctor.open_log(target)) as log:
        running = questions.running_on(_states(log, job)[0], host)
    for attempt in running:
        out.print(f"attempt {attempt} runs on {host}")
    out.print(f"job {job} loses {len(running) or 'nothing'} with {host}")
    raise typer.Exit(1 if running else 0)


@app.command("remove-unused")
@_targeted
def remove_unused(
    target: Target,
    job: Annotated[str, typer.Option(help="Name of the job.")],
    keep: Annotated[list[str] | None, typer.Option(help="A result that is in use.")] = None,
    release: Annotated[bool, typer.Option(help="Ask for their release, not only list.")] = False,
) -> None:
    """Which complete results does nobody need? With --release their job's master deletes them."""
    with closing(doctor.open_log(target)) as log:
        found = questions.unused(_states(log, job)[0], [ResultId(name) for name in keep or ()])
        author = Author(job_id(job), f"operator {os.urandom(4).hex()}")
        for result in found if release else ():
            asked = author.fact(ReleaseRequested(result, "unused"))
            log.append(asked).offset(Deadline.after(_READ_S_MAX))
    out.print(*found, sep="\n")


@app.command("master")
@_targeted
def run_master(
    target: Target,
    slot: Annotated[
        str, typer.Option(help="A name that one process has at a time, and keeps when it restarts.")
    ],
) -> None:
    """Decide for the jobs of mode `session`, together with other such processes, until SIGTERM."""
    masters.run(target, slot)


@app.command("sweep")
@_targeted
def run_sweep(target: Target, job: Job = "") -> None:
    """End the jobs whose drivers were silent for longer than their leases, and delete what is
    theirs; also what jobs that have ended left behind. Results that outlive their job stay."""
    store, root = doctor.open_bucket(target)
    with closing(store), closing(doctor.open_log(target)) as log:
        snapshots = _snapshots(log, job)
        beats = log.read_beats(job_id(job) if job else None, Deadline.after(_READ_S_MAX))
        records = _read(log, job, snapshots)
        for found in list(neglected(records, snapshots, beats, SYSTEM_CLOCK.now_ms())):
            if found.store.rstrip("/") not in ("", target.store.rstrip("/")):
                out.print(views.elsewhere_row(found))
                continue
            settings = MasterSettings(mode=found.mode)
            out.print(views.swept_row(sweep(log, StorageRelease(store, root), found, settings)))


def main() -> None:
    app()
