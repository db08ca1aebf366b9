"""Ship tasks to executors, each after a check that the executor can run it.

The check is an inner function, which is pickled as code. So an executor without headgate, or with
another version, can run the check and report the mismatch.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....control import __version__, errors
from ....control.errors import HeadgateError, Invalid

Task = Callable[[int, Iterable[Any]], Iterator[Any]]

_OURS = re.compile(r"^headgate\.control\.errors\.(\w+): (.*)$", re.MULTILINE)
_OTHER = re.compile(r"^ImportError: (executor .*headgate.*)$", re.MULTILINE)


def ship(task: Task) -> Task:
    """Return the task as a function that any Python worker can load."""
    body, version = pickle.dumps(task), __version__

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
        results: Iterator[Any] = pickle.loads(body)(index, rows)
        return results

    return run


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
