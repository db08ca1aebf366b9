"""The `headgate` command.

Guarantees: an error is one line on stderr, with exit code 2. Exit code 1 says that the command
found something. Commands that only look write nothing to the log and nothing to the bucket; `fsck`
only looks without `--repair`, and `remove-unused` without `--release`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from ...control import __version__
from ...control.errors import HeadgateError, Invalid
from .. import doctor, master_command
from ..doctor import CheckVerdict
from ..start import commands
from ..target import Target
from . import fields, job_commands, log_commands, views
from .options import Json, err, example, out, require, show, targeted


class _Commands(TyperGroup):
    """Prints an error of ours as one line, and exits with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadgateError as exc:
            err.print(Text.assemble(("error: ", "bold red"), " ".join(str(exc).split())))
            raise typer.Exit(2) from exc


# Commands

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
stack_app = typer.Typer(help="The real stack on this machine: Kafka and MinIO.")
app.add_typer(stack_app, name="stack", no_args_is_help=True)
app.add_typer(log_commands.app)
app.add_typer(job_commands.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Headgate: a shuffle for PySpark over Kafka and object storage."""


@app.command("demo", epilog=example("demo"))
def run_demo() -> None:
    """Run an exchange on an embedded stack, and show what its log tells. Takes half a minute."""
    require("the demo", "spark", "embedded")
    from ..demo import run  # only here: it needs pyspark, which an operator's machine may not have

    raise typer.Exit(run())


@app.command("doctor", epilog=example("doctor --broker kafka:9092 --store s3://bucket/root"))
@targeted
def run_doctor(target: Target, as_json: Json = False) -> None:
    """Check that this machine, the broker and the bucket can do what Headgate needs.

    Writes a job named doctor-… of three events to the topic, and deletes every object that it puts.
    """
    wrong = 0
    for outcome in doctor.examine(target):
        show(
            as_json,
            [views.check_row(outcome)],
            [asdict(outcome) | {"verdict": outcome.verdict.value}],
        )
        wrong += outcome.verdict is CheckVerdict.WRONG
    raise typer.Exit(1 if wrong else 0)


def _stack() -> ModuleType:
    require("the local stack", "stack")
    from ..devstack import stack

    return stack


@stack_app.command(epilog=example("stack up --nodes 3"))
def up(
    nodes: Annotated[int, typer.Option(help="Kafka nodes, 1 or 3.")] = 1, as_json: Json = False
) -> None:
    """Start Kafka and MinIO unless they run, and print the settings to paste."""
    state = _stack().up(nodes)
    settings = views.stack_settings(state, f"s3://{state.bucket}/headgate")
    show(as_json, (*views.stack_rows(state), *settings), [fields.stack_fields(state)])


@stack_app.command(epilog=example("stack status --json"))
def status(as_json: Json = False) -> None:
    """Show which nodes run, and where; exit code 1 when a node does not run."""
    state = _stack().status()
    if state is None:
        raise Invalid("there is no stack: `headgate stack up` starts one")
    show(as_json, views.stack_rows(state), [fields.stack_fields(state)])
    raise typer.Exit(0 if state.is_up() else 1)


@stack_app.command(epilog=example("stack down --wipe"))
def down(
    wipe: Annotated[bool, typer.Option(help="Remove its data too.")] = False, as_json: Json = False
) -> None:
    """Stop Kafka and MinIO."""
    _stack().down(wipe)
    line = "the stack is down" + (", its data is gone" if wipe else "; its data stays")
    show(as_json, [line], [{"up": False, "wiped": wipe}])


@app.command(
    "master", epilog=example("master --slot a --broker kafka:9092 --store s3://bucket/root")
)
@targeted
def run_master(
    target: Target,
    slot: Annotated[
        str,
        typer.Option(help="Name of this process: unique in the group, the same after a restart."),
    ],
) -> None:
    """Decide for the jobs of mode `session`, in a group of such processes, until SIGTERM."""
    master_command.run(target, slot)


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog=example("run --conf spark.headgate.broker=kafka:9092 app.py 2026-01-31"),
)
def run_application(
    words: Annotated[
        list[str],
        typer.Argument(metavar="APPLICATION [ARGS]...", help="Or spark-submit and its arguments."),
    ],
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="The application is a module.")] = False,
) -> None:
    """Run a PySpark application as it is, with Headgate attached to the sessions that it makes."""
    commands.command_of(words, conf or [], module, os.environ).execute()


@app.command("start-up-hook", epilog=example("start-up-hook --remove"))
def start_up_hook(
    remove: Annotated[bool, typer.Option(help="Remove the hook.")] = False,
    as_json: Json = False,
) -> None:
    """Let this Python attach every session that is made with spark.headgate.enabled=true."""
    path = commands.remove_hook() if remove else commands.install_hook()
    line = f"{path} is {'gone' if remove else 'there'}"
    show(as_json, [line], [{"path": str(path), "installed": not remove}])


def main() -> None:
    app()
