"""Start, signal and await programs that outlive the process that starts them.

Guarantees: a signal reaches only the program that `launch` started, never another program that got
its pid later: the process must have the creation time noted at launch, and a command that names the
program's folder. That time counts from the start of the machine, so the clock may be set meanwhile.
Every wait has a limit, and its error names what was waited for.

Assumes that outgoing connections use ports from 32768 up, as on Linux.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from zlib import crc32

import psutil
from filelock import FileLock, Timeout

from ...control.clock import SYSTEM_CLOCK, Deadline
from ...control.errors import Invalid, Unavailable

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)
_POLL_S = 0.05
_START_S = 10.0
_ERROR_TAIL_CHARS = 2_000
_CLOCK_S = 2.0
"""Creation times of one process differ by less: the start of the machine is known in seconds."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One program on one loopback port."""

    name: str
    port: int
    folder: str
    """The folder of its settings and data, which its command names."""
    pid: int = 0
    """0 before the first launch."""
    after_boot_s: float = 0.0
    """The time from the start of the machine to the creation of its process, which tells it from a
    later process of the same pid."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def is_alive(self) -> bool:
        return self.running() is not None

    def running(self) -> psutil.Process | None:
        """Return the program's process, None if it has ended or if the pid is another program's."""
        try:
            process = psutil.Process(self.pid)
            ours = abs(_after_boot_s(process) - self.after_boot_s) < _CLOCK_S
            named = any(self.folder in argument for argument in process.cmdline())
        except psutil.Error:
            return None
        return process if ours and named else None


def launch(daemon: Daemon, argv: list[str], log: Path, env: Mapping[str, str]) -> Daemon:
    """Start the program in a session of its own, and append its output to `log`.

    Raises: Invalid when the program is not installed, Unavailable when it ends at once.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawnp(argv[0], argv, dict(env), file_actions=streams, setsid=True)
        process = psutil.Process(pid)
        # For a moment a new process has no command, by which `running` knows it.
        wait_until(lambda: bool(process.cmdline()), _START_S, f"the command of {daemon.name}")
        return replace(daemon, pid=pid, after_boot_s=_after_boot_s(process))
    except FileNotFoundError as exc:
        raise Invalid(f"{daemon.name} needs `{argv[0]}`, which is not on PATH") from exc
    except psutil.NoSuchProcess as exc:
        raise Unavailable(f"{daemon.name} ended at once; see {log}") from exc


def send(daemon: Daemon, signum: signal.Signals) -> None:
    """Signal the program if it still runs."""
    if process := daemon.running():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


def stop(daemons: Sequence[Daemon], limit_s: float) -> None:
    """Ask all programs to end at once, so that no quorum waits for a gone member; kill the rest."""
    running = [process for daemon in daemons if (process := daemon.running())]
    for daemon in daemons:
        send(daemon, signal.SIGTERM)
    with suppress(Unavailable):
        wait_until(lambda: all(map(_has_ended, running)), limit_s, "the end of all programs")
    for daemon in daemons:
        kill(daemon)


def kill(daemon: Daemon, limit_s: float = 10.0) -> None:
    """Kill the program and wait until its process has ended.

    Raises: Unavailable when the process still runs after `limit_s`.
    """
    if process := daemon.running():
        send(daemon, signal.SIGKILL)
        wait_until(lambda: _has_ended(process), limit_s, f"the end of {daemon.name}")


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Poll until `condition` holds.

    Raises: Unavailable after `limit_s`, naming `what`.
    """
    deadline = Deadline.after(limit_s)
    while not condition():
        if deadline.passed:
            raise Unavailable(f"waited {limit_s:g} s for {what}")
        SYSTEM_CLOCK.sleep_s(_POLL_S)


def await_started(daemon: Daemon, log: Path, is_ready: Callable[[], bool], limit_s: float) -> None:
    """Wait until the program serves.

    Raises: Unavailable when the program ends or takes longer than `limit_s`.
    """

    def started() -> bool:
        if not daemon.is_alive():
            raise Unavailable(f"{daemon.name} ended while it started; see {log}")
        return is_ready()

    wait_until(started, limit_s, f"{daemon.name} to start; see {log}")


@contextmanager
def locked(path: Path, limit_s: float) -> Iterator[None]:
    """Hold a lock file against other processes.

    The file stays on disk: if it were removed, two processes could hold the lock.

    Raises: Unavailable when another process holds the lock for longer than `limit_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path).acquire(limit_s)
    except Timeout as exc:
        raise Unavailable(f"waited {limit_s:g} s for the lock {path}") from exc
    with lock:
        yield


def free_ports(count: int, seed: str) -> list[int]:
    """Return free loopback ports, searched from a place that the seed fixes.

    The ports lie below the ephemeral range: an outgoing connection could otherwise take the port
    of a killed node before its restart.

    Raises: Unavailable when there are too few.
    """
    first = crc32(seed.encode()) % len(_PORTS)
    searched = [*_PORTS[first:], *_PORTS[:first]]
    free = list(islice(filter(_is_free, searched), count))
    if len(free) < count:
        raise Unavailable(f"no {count} free ports on {LOOPBACK} from {_PORTS[0]} to {_PORTS[-1]}")
    return free


def run_tool(argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> None:
    """Run a program to its end.

    Raises: Invalid when the program is not installed, Unavailable when it fails or takes too long.
    """
    tool = Path(argv[0]).name
    try:
        subprocess.run(
            argv,
            check=True,
            timeout=limit_s,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError as exc:
        raise Invalid(f"the local stack needs `{tool}` on PATH") from exc
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(f"waited {limit_s:g} s for `{tool} {argv[1]}`") from exc
    except subprocess.CalledProcessError as exc:
        tail = exc.stdout[-_ERROR_TAIL_CHARS:]
        raise Unavailable(f"`{tool} {argv[1]}` failed ({exc.returncode}): {tail}") from exc


def _after_boot_s(process: psutil.Process) -> float:
    # when the clock is set, both times move
    return float(process.create_time() - psutil.boot_time())


def _has_ended(process: psutil.Process) -> bool:
    """Return True if a process has ended. A child of this process is then reaped. One of another
    process is a zombie until that process reaps it, which may never happen."""
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return False
        process.wait(0)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
