"""Start, signal and await programs that outlive the process that starts them.

Guarantees: a signal reaches only the program that `launch` started, never another program that got
its pid later: it goes through a pidfd, while the process has the kernel start time noted at launch.
Every wait has a limit, and its error names what was waited for.

Assumes Linux: /proc, pidfd, and outgoing connections that use ports from 32768 up.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from ...control.clock import SYSTEM_CLOCK, Deadline
from ...control.errors import Invalid, Unavailable

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)
_POLL_S = 0.05
_ERROR_TAIL_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Daemon:
    """One program on one loopback port."""

    name: str
    port: int
    pid: int = 0
    """0 before the first launch."""
    start_ticks: int = 0
    """The kernel's start time of the process, which tells it from a later one of the same pid."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def is_alive(self) -> bool:
        return self.pid > 0 and _start_ticks(self.pid) == self.start_ticks


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
    except FileNotFoundError as exc:
        raise Invalid(f"{daemon.name} needs `{argv[0]}`, which is not on PATH") from exc
    ticks = _start_ticks(pid)
    if ticks is None:
        raise Unavailable(f"{daemon.name} ended at once; see {log}")
    return Daemon(daemon.name, daemon.port, pid, ticks)


def send(daemon: Daemon, signum: signal.Signals) -> None:
    """Signal the program if it still runs."""
    try:
        pidfd = os.pidfd_open(daemon.pid)
    except OSError:
        return
    try:
        if daemon.is_alive():
            signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def stop(daemons: Iterable[Daemon], limit_s: float) -> None:
    """Ask all programs to end at once, so that no quorum waits for a gone member; kill the rest."""
    running = [daemon for daemon in daemons if daemon.is_alive()]
    for daemon in running:
        send(daemon, signal.SIGTERM)
    deadline = Deadline.after(limit_s)
    while any(daemon.is_alive() for daemon in running) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(_POLL_S)
    for daemon in running:
        kill(daemon)


def kill(daemon: Daemon, limit_s: float = 10.0) -> None:
    """Kill the program and wait until its process has ended.

    Raises: Unavailable when the process still runs after `limit_s`.
    """
    send(daemon, signal.SIGKILL)
    wait_until(lambda: not daemon.is_alive(), limit_s, f"the end of {daemon.name}")
    if daemon.pid > 0:
        with suppress(ChildProcessError):
            os.waitpid(daemon.pid, os.WNOHANG)


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Poll until `condition` holds.

    Raises: Unavailable after `limit_s`, naming `what`.
    """
    deadline = Deadline.after(limit_s)
    while not condition():
        if deadline.passed:
            raise Unavailable(f"waited {limit_s:g} s for {what}")
        SYSTEM_CLOCK.sleep_s(_POLL_S)


@contextmanager
def locked(path: Path, limit_s: float) -> Iterator[None]:
    """Hold a lock file against other processes.

    The file stays on disk: if it were removed, two processes could hold the lock.

    Raises: Unavailable when another process holds the lock for longer than `limit_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as handle:
        wait_until(lambda: _try_lock(handle.fileno()), limit_s, f"the lock {path}")
        yield


def free_ports(count: int, seed: str) -> list[int]:
    """Return free loopback ports, searched from a place that the seed fixes.

    The ports lie below the ephemeral range: an outgoing connection could otherwise take the port
    of a killed node before its restart.

    Raises: Unavailable when there are too few.
    """
    first = crc32(seed.encode()) % len(_PORTS)
    searched = [*_PORTS[first:], *_PORTS[:first]]
    free: list[int] = []
    for port in searched:
        if len(free) == count:
            return free
        if _is_free(port):
            free.append(port)
    raise Unavailable(f"no {count} free ports on {LOOPBACK} in {_PORTS}")


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


def _start_ticks(pid: int) -> int | None:
    """Return the kernel start time of a process, None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
