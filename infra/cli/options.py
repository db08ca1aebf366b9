"""The options that commands share (broker, store, job), and the terminals that they print to."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, tzinfo
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ...control.errors import Invalid
from ..spelling import spelled
from ..target import Target

_COLUMNS_MAX = 10_000
_PACKAGES = {
    "spark": ("pyspark",),
    "embedded": ("moto", "flask", "flask_cors"),
    "metrics": ("prometheus_client",),
    "stack": ("psutil", "filelock"),
}
"""The packages of each extra that a command imports."""


class Terminal(Console):
    """Prints what others have written into the log, with control characters spelled out. Nothing is
    cut: a terminal that is too narrow, or a pipe, gets the whole line."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
            stderr=stderr,
            width=_COLUMNS_MAX,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=spelled(part.text, lines=True))


out, err = Terminal(), Terminal(stderr=True)


def example(command: str) -> str:
    """Return the last line of a command's help."""
    return f"Example: headgate {command}"


def missing(*extras: str) -> list[str]:
    """Return the packages of these extras that are not installed."""
    packages = [package for extra in extras for package in _PACKAGES[extra]]
    return [package for package in packages if find_spec(package) is None]


def require(subject: str, *extras: str) -> None:
    """Refuse a command without the packages that it imports, and name their extras."""
    if absent := missing(*extras):
        advice = f"pip install 'pyspark-headgate[{','.join(extras)}]'"
        raise Invalid(f"{subject} needs {', '.join(absent)}: {advice}")


Job = Annotated[str, typer.Option(help="Name of the job.")]
JobOrAll = Annotated[str, typer.Option(help="Name of the job; without it, every job of the log.")]
Partition = Annotated[str, typer.Option(help="`result/index`, as `headgate events` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")]
Utc = Annotated[bool, typer.Option("--utc", help="Times in UTC, not in this machine's zone.")]


def zone_of(utc: bool) -> tzinfo | None:
    """Return the zone in which times are shown; None for this machine's."""
    return UTC if utc else None


def show(
    as_json: bool, shown: Iterable[RenderableType], values: Iterable[Mapping[str, Any]]
) -> None:
    """Print lines for a reader, or values for a program; the other of the two is not made."""
    if as_json:
        for value in values:
            print(json.dumps(value).replace("\x7f", "\\u007f"), flush=True)
    else:
        for line in shown:
            out.print(line)


def _target(
    broker: Annotated[str, typer.Option(envvar="HEADGATE_BROKER", help="Bootstrap servers.")] = "",
    store: Annotated[
        str,
        typer.Option(
            envvar="HEADGATE_STORE",
            help="s3://bucket/root or file:///folder; several, with commas, as the drivers' store.",
        ),
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
    """Return the target that the connection options name, or the local stack without any."""
    options = _environment("HEADGATE_KAFKA_", ".") | _pairs(kafka)
    s3_options = _environment("HEADGATE_S3_", "_") | _pairs(s3)
    local = None
    if not (broker or store or missing("stack")):
        from ..devstack import stack

        local = stack.status()
    if local is not None and local.is_up():
        broker, store = local.bootstrap, f"s3://{local.bucket}/{prefix}"
        err.print(f"no broker given: using the local stack, {broker} and {store}", style="dim")
        os.environ.setdefault("AWS_ACCESS_KEY_ID", local.access_key)
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", local.secret_key)
        s3_options = {"endpoint": local.endpoint} | s3_options
    return Target(broker, store, prefix, options, s3_options)


def targeted(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, and pass it their target as the first argument."""
    shared = inspect.signature(_target, eval_str=True).parameters
    command_parameters = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        target = _target(**{name: arguments.pop(name) for name in shared})
        command(target, **arguments)

    parameters = [*command_parameters, *shared.values()]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    # Typer breaks later paragraphs of a help where their source has line breaks.
    run.__doc__ = re.sub(r"(?<=\S)\n *(?=\S)", " ", command.__doc__ or "")
    return run


def _environment(prefix: str, separator: str) -> dict[str, str]:
    named = {k.removeprefix(prefix): v for k, v in os.environ.items() if k.startswith(prefix)}
    return {name.lower().replace("_", separator): value for name, value in named.items()}


def _pairs(pairs: list[str] | None) -> dict[str, str]:
    for pair in pairs or ():
        if "=" not in pair:
            raise Invalid(
                "an option must be KEY=VALUE; its text is not shown, because it may be a secret"
            )
    return dict(pair.split("=", 1) for pair in pairs or ())
