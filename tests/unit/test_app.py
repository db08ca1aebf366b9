"""The help of each command, and the table of commands on the page of the API."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headgate.infra.cli import app

ROOT = Path(__file__).parents[2]


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


EVERY = dict(commands(typer.main.get_command(app.app)))


@pytest.mark.parametrize("name", EVERY)
def test_help_ends_with_an_example_that_can_be_typed(name: str) -> None:
    """The help of each command has an example with the command's own options."""
    command = EVERY[name]
    example = (command.epilog or "").removeprefix("Example: headgate ")
    assert example.startswith(name)
    command.make_context(name, shlex.split(example.removeprefix(name)))


@pytest.mark.parametrize("name", EVERY)
def test_paragraphs_of_a_help_are_as_wide_as_the_terminal(name: str) -> None:
    """No paragraph behind the first one has the line breaks of its source."""
    _, *more = (EVERY[name].help or "").split("\n\n")
    assert [] == [paragraph for paragraph in more if "\n" in paragraph.strip()]


@pytest.mark.parametrize("name", EVERY)
def test_the_page_names_every_command(name: str) -> None:
    """The table has a line for each command; those of the stack share one."""
    word = "stack up" if name.startswith("stack") else name
    assert f"\nheadgate {word}" in (ROOT / "docs/api.md").read_text()


def test_arguments_have_one_style() -> None:
    """Everything that a command works on is named by an option, but the application that runs."""
    arguments = {
        name
        for name, command in EVERY.items()
        for parameter in command.params
        if parameter.param_type_name == "argument"
    }
    assert {"run"} == arguments
