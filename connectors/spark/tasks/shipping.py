"""Ship tasks to executors, each after a check that the executor can run it.

The check is an inner function, which is pickled as code. So an executor without headgate, or with
another version, can run the check and report the mismatch.

The JVM leaves a worker when its task has rows enough for a limit, when somebody ends the job, and
after a minute without a task. PySpark's daemon then prints a traceback of the failed write. A
worker that has run one of these tasks ends without a word.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ....control import __version__, errors
from ....control.errors import HeadgateError, Invalid

Task = Callable[[int, Iterable[Any]], Iterator[Any]]

_OURS = re.compile(r"^headgate\.control\.errors\.(\w+): (.*)$", re.MULTILINE)
_OTHER = re.compile(r"^ImportError: (executor .*headgate.*)$", re.MULTILINE)


def ship(task: Task) -> Task:
    """Return the task as a function that any Python worker can load."""
    body, version, here = pickle.dumps(task), __version__, __name__

    def run(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        import importlib
        import pickle
        import socket
        import sys

        try:
            installed = importlib.import_module("headgate").__version__
        except (ImportError, AttributeError):
            installed = "none"
        if installed != version:
            raise ImportError(
                f"executor {socket.gethostname()} ({sys.executable}) has headgate {installed}, "
                f"the driver has {version}: install the same version there, or point "
                "PYSPARK_PYTHON at a Python that has it"
            )
        importlib.import_module(here).end_quietly()
        results: Iterator[Any] = pickle.loads(body)(index, rows)
        return results

    return run


def end_quietly() -> None:
    """Let this worker end without a word when the JVM has left it. The system tells a process by
    SIGPIPE that nobody reads its output, which Python ignores."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN:
        signal.signal(signal.SIGPIPE, _end_if_left)


def _end_if_left(_: int, frame: FrameType | None) -> None:
    """Drop the output of a task that cleans up, and end the process if no task runs. The signal may
    be about another stream, which is none of the JVM's."""
    runs = False
    while frame is not None:
        place, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if place.parent.name == "pyspark" and (place.stem, name) == ("daemon", "worker"):
            stream = frame.f_locals.get("outfile")
            if stream is None or not is_left(stream):
                return
            if not runs:
                os._exit(1)
            lead_nowhere(stream)
            return
        runs = runs or name == "main"
        frame = frame.f_back


def is_left(stream: Any) -> bool:
    """Return True if nobody reads a stream any more."""
    ends = select.poll()
    half = getattr(select, "POLLRDHUP", 0)  # macOS has no such event
    ends.register(stream, half | select.POLLHUP | select.POLLERR)
    return bool(ends.poll(0))


def lead_nowhere(stream: Any) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def probe(index: int, rows: Iterable[Any]) -> Iterator[str]:
    """Do nothing: a task that `ship` lets run only where the right headgate is installed."""
    yield from ()


def cause(failure: BaseException) -> HeadgateError | None:
    """Return the headgate error that made a Spark action fail, None for other failures."""
    text = str(failure)
    if match := _OURS.search(text):
        kind = getattr(errors, match[1])
        return kind(match[2])  # type: ignore[no-any-return]
    if match := _OTHER.search(text):
        return Invalid(match[1])
    return None
