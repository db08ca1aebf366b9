"""Headgates are closed when their application ends, which ends as in plain Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MAIN = ["-m", "headgate.infra.start"]
CLOSED = """
import sys, threading, os
from headgate.infra.start import session_hook as hook
class Fake:
    job, last_words = "j", lambda self: "job j: much was exchanged"
    def __exit__(self, *error):
        print("closed", flush=True)
        WHAT
hook._attached["a"] = None, Fake()
threading._register_atexit(hook.close_at_exit)
"""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "end", ["sys.exit()", "sys.exit('text')", "sys.exit(7)", "1 / 0", "raise KeyboardInterrupt"]
)
@pytest.mark.parametrize("closing", ["exec('1')", "raise OSError('the JVM is gone')"])
def test_an_application_ends_as_in_plain_python(tmp_path: Path, end: str, closing: str) -> None:
    """Its exit code and its error are its own, whatever happens when its headgate closes."""
    (tmp_path / "plain.py").write_text(f"import sys\n{end}")
    (tmp_path / "app.py").write_text(CLOSED.replace("WHAT", closing) + end)
    plain, ours = run(["plain.py"], tmp_path), run([*MAIN, "app.py"], tmp_path)
    assert (ours.returncode, ours.stdout) == (plain.returncode, "closed\n"), ours.stderr
    own = ("job j was not closed", "headgate: job j: much was exchanged")
    lines = ours.stderr.splitlines()
    assert own[1] in lines
    assert plain.stderr.splitlines()[-1:] == [it for it in lines if not it.startswith(own)][-1:]


def test_a_child_that_was_forked_closes_nothing(tmp_path: Path) -> None:
    """The headgates of its parent are still in use."""
    child = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start(); child.join(); sys.stdout.flush()
if (pid := os.fork()) == 0:
    sys.exit()
os.waitpid(pid, 0)
print("parent")
"""
    (tmp_path / "app.py").write_text(CLOSED.replace("WHAT", "pass") + child)
    ours = run([*MAIN, "app.py"], tmp_path)
    assert ours.stdout.splitlines() == ["child", "parent", "closed"], ours.stderr


def test_a_query_of_another_thread_ends_before_its_headgate_is_closed(tmp_path: Path) -> None:
    """A thread that only waits for the main one, and an idle pool, keep nothing open."""
    threads = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
pool.submit(print, "pool").result()
threading.Thread(target=threading.main_thread().join).start()
wait = threading.Event().wait
exec("def query(): wait(1); print('query', flush=True)", asked := {
    "__name__": "pyspark.x", "wait": wait})
threading.Thread(target=asked["query"]).start()
"""
    (tmp_path / "app.py").write_text(CLOSED.replace("WHAT", "pass") + threads)
    ours = run([*MAIN, "app.py"], tmp_path)
    assert ours.stdout.splitlines() == ["pool", "query", "closed"], ours.stderr
