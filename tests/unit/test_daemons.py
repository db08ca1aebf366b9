"""Programs that outlive their starter: only they are signalled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from headgate.control.errors import Invalid, Unavailable
from headgate.infra.devstack import daemons, stack
from headgate.infra.devstack.daemons import Daemon, free_ports, launch, locked
from headgate.infra.devstack.stack import StackSettings

SLEEP = "import time; time.sleep(60)"


def started(name: str, folder: Path, *arguments: str) -> Daemon:
    """Launch a program that sleeps, with these arguments in its command."""
    daemon = Daemon(name, 9, str(folder))
    return launch(daemon, [sys.executable, "-c", SLEEP, *arguments], folder / "log", os.environ)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "minio").mkdir()
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def node(home: Path) -> Iterator[Daemon]:
    """Run a program whose command names its folder, as a node's does."""
    folder = home / "minio"
    daemon = started("minio", folder, str(folder / "data"))
    yield daemon
    daemons.kill(daemon)


@pytest.fixture
def stranger(home: Path) -> Iterator[Daemon]:
    """Run a program whose command names no folder of the stack."""
    daemon = started("minio", home / "minio", "elsewhere")
    yield daemon
    os.kill(daemon.pid, signal.SIGKILL)
    os.waitpid(daemon.pid, 0)


def test_a_program_is_stopped(node: Daemon) -> None:
    """A launched program is alive until it is stopped, and then nothing of it is left."""
    assert node.is_alive()
    daemons.stop([node], 10.0)
    assert not node.is_alive()
    assert not psutil.pid_exists(node.pid)


def test_a_program_that_ignores_the_request_is_killed(node: Daemon) -> None:
    """A program that does not end when it is asked to is killed."""
    daemons.send(node, signal.SIGSTOP)
    daemons.stop([node], 0.1)
    assert not psutil.pid_exists(node.pid)


def test_a_signal_never_reaches_a_stranger(node: Daemon, stranger: Daemon) -> None:
    """A process of the same pid is no node if it was created at another time, or if its command
    does not name the node's folder."""
    later = replace(node, after_boot_s=node.after_boot_s - 60.0)
    for other in (later, stranger, replace(node, pid=0)):
        assert not other.is_alive()
        daemons.send(other, signal.SIGKILL)
        daemons.stop([other], 0.1)
    assert node.is_alive()
    assert psutil.Process(stranger.pid).status() != psutil.STATUS_ZOMBIE


def test_a_program_is_known_after_the_clock_was_set(
    node: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is alive also if the clock was set by an hour since its launch: only then does `down`
    stop it before `--wipe` removes its data."""
    boot_s = psutil.boot_time() + 3_600.0
    monkeypatch.setattr("psutil.boot_time", lambda: boot_s)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_s)
    assert node.is_alive()


ENDS = """
import sys
from headgate.infra.devstack import daemons
node = daemons.Daemon("minio", 9, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
daemons.stop([node], 15.0) if sys.argv[4] == "stop" else daemons.kill(node)
"""


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_program_that_stays_a_zombie_has_ended(node: Daemon, how: str) -> None:
    """Another process than its parent ends a node at once, though a parent that does not look at it
    keeps it as a zombie, as the first process of a container may."""
    arguments = [node.folder, str(node.pid), str(node.after_boot_s), how]
    subprocess.run([sys.executable, "-c", ENDS, *arguments], check=True, timeout=8.0)
    assert psutil.STATUS_ZOMBIE == psutil.Process(node.pid).status()
    os.waitpid(node.pid, 0)


def test_a_copied_stack_does_not_stop_the_first(
    home: Path, node: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A state file in another folder than the one that it names signals nothing: the programs are
    those of another stack. A link to the folder is the folder."""
    copy = tmp_path_factory.mktemp("copy")
    (link := copy / "link").symlink_to(home)
    for folder in (copy, home):
        (folder / "state.json").write_text(json.dumps([asdict(node)]))
    with pytest.raises(Invalid, match="outside of it"):
        stack.down(True, StackSettings(copy))
    assert node.is_alive()
    stack.down(settings=StackSettings(link))
    assert not node.is_alive()


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no-such-program"):
        launch(Daemon("minio", 9, ""), ["no-such-program"], tmp_path / "log", os.environ)


def test_one_process_has_the_lock(tmp_path: Path) -> None:
    """A second holder waits no longer than its limit, and the lock is free afterwards."""
    path = tmp_path / "new" / "lock"
    with (
        locked(path, 1.0),
        pytest.raises(Unavailable, match="s for the lock"),
        locked(path, 0.1),
    ):
        pass
    with locked(path, 0.1):
        assert path.exists()


def test_the_last_port_may_be_the_last_one_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are returned when the last one that is looked at completes their number; only one more
    is too many."""
    monkeypatch.setattr(daemons, "_PORTS", range(20_000, 20_002))
    monkeypatch.setattr(daemons, "_is_free", lambda _: True)
    assert [20_000, 20_001] == sorted(free_ports(2, "seed"))
    with pytest.raises(Unavailable, match="no 3 free ports"):
        free_ports(3, "seed")


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((daemons.LOOPBACK, 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(daemons, "_PORTS", range(port, port + 1))
        with pytest.raises(Unavailable):
            free_ports(1, "seed")
