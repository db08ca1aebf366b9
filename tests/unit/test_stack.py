"""The local stack believes only a state folder that is the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.control.errors import Invalid
from headgate.infra.devstack import daemons, stack
from headgate.infra.devstack.stack import StackSettings

PLANTED = [{"name": "../somebody", "port": 1, "folder": "", "pid": os.getpid()}]
Ask = Callable[[StackSettings], object]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a folder with a planted state, beside another user's folder."""
    home = tmp_path / "stack"
    home.mkdir(0o700)
    (tmp_path / "somebody").mkdir()
    (home / "state.json").write_text(json.dumps(PLANTED))
    return home


ASKED: dict[str, Ask] = {
    "status": lambda settings: stack.status(settings),
    "down": lambda settings: stack.down(True, settings),
    "up": lambda settings: stack.up(1, settings),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o700])
def test_a_planted_state_is_refused(
    home: Path, asked: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted state is refused, and no process is signalled and no folder deleted.

    It is refused in a folder that others may write, and anywhere if it names something that is no
    part of a stack.
    """
    monkeypatch.setattr(daemons, "stop", lambda *_: pytest.fail("nothing is signalled"))
    monkeypatch.setattr(daemons, "kill", lambda *_: pytest.fail("nothing is signalled"))
    home.chmod(mode)
    with pytest.raises(Invalid, match="others may write" if mode != 0o700 else "somebody"):
        ASKED[asked](StackSettings(home))
    assert (home.parent / "somebody").is_dir()


def test_a_folder_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(home).st_uid + 1)
    with pytest.raises(Invalid, match="others may write"):
        stack.status(StackSettings(home))


def test_a_home_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default state folder lies in the user's own folders, and nobody else may read it."""
    monkeypatch.delenv("HEADGATE_STACK_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = StackSettings()
    assert settings.home.is_relative_to(tmp_path)
    stack.down(False, settings)
    assert 0o700 == settings.home.stat().st_mode & 0o777
