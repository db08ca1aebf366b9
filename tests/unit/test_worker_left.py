"""Workers that the JVM leaves: PySpark's own daemon prints nothing about them."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

WORKER = """
import sys
from headgate.connectors.spark.tasks.shipping import probe, ship

def main(infile, outfile):
    word = infile.readline()
    try:
        if not word:
            raise EOFError
        if QUIET:
            list(ship(probe)(0, ()))
        if word == b"early\\n":
            while True:
                outfile.write(bytes(1 << 20))
                outfile.flush()
    except BaseException:
        outfile.write(b"the error")
        sys.exit(-1)
    if word == b"late\\n":
        outfile.write(b"begins")
        outfile.flush()
        outfile.write(b"more")
        try:
            infile.read()
        except ConnectionError:  # it has left
            sys.exit(-1)
    outfile.write(b"done")
"""
MODULE = "pyspark_double"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: that of a socket in it may have some hundred bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def daemon(folder: Path, quiet: bool, kills: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon with a double of PySpark's worker."""
    (folder / f"{MODULE}.py").write_text(WORKER.replace("QUIET", str(quiet)))
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "SPARK_REUSE_WORKER": "1",
        **({"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"} if kills else {}),
    }
    given = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
    )
    with given:
        yield given


def printed(daemon: subprocess.Popen[bytes], word: str) -> str:
    """Leave a worker early in its task, late in it, or when it is idle. Return what is printed."""
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    (length,) = struct.unpack(">i", daemon.stdout.read(4))
    place = daemon.stdout.read(length).decode()
    with closing(socket.socket(socket.AF_UNIX)) as jvm:
        jvm.connect(place)
        (worker,) = struct.unpack(">i", jvm.recv(4))
        jvm.sendall(f"{word}\n".encode())
        assert jvm.recv(4)
    while is_there(worker):
        threading.Event().wait(0.01)
    daemon.stdin.close()
    return daemon.stderr.read().decode()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("word", ["early", "late", "idle"])
def test_a_worker_that_the_jvm_leaves_says_nothing(folder: Path, word: str, kills: bool) -> None:
    """Spark leaves a worker that is not idle when it has rows enough."""
    with daemon(folder, quiet=True, kills=kills) as running:
        assert "" == printed(running, word)


@pytest.mark.parametrize("word", ["early", "late", "idle"])
def test_the_daemon_alone_prints_a_traceback(folder: Path, word: str) -> None:
    with daemon(folder, quiet=False, kills=True) as running:
        assert "BrokenPipeError" in printed(running, word)
