"""How tasks get to executors: by value as far as a check that the executor can run them.

A function that lives inside another travels as code, so an executor without headgate, or with
another version, still gets as far as saying so.
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
    """The task as a function that any Python worker can load."""
    body, version = pickle.dumps(task), __version__

    def run(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        import importlib
        import pickle
        import socket
        import sys

        try:
            found = importlib.import_module("headgate").__version__
        except (ImportError, AttributeError):
            found = "none"
        if found != version:
            raise ImportError(
                f"executor {socket.gethostname()} ({sys.executable}) has headgate {found}, "
                f"the driver has {version}: install the same version there, or point "
                "PYSPARK_PYTHON at a Python that has it"
            )
        made: Iterator[Any] = pickle.loads(body)(index, rows)
        return made

    return run


def probe(index: int, rows: Iterable[Any]) -> Iterator[str]:
    """A task that does nothing: where it runs, the right headgate is installed."""
    yield from ()


def cause(failure: BaseException) -> HeadgateError | None:
    """The headgate error that made a Spark action fail, if one did."""
    text = str(failure)
    if found := _OURS.search(text):
        kind = getattr(errors, found[1])
        return kind(found[2])  # type: ignore[no-any-return]
    if found := _OTHER.search(text):
        return Invalid(found[1])
    return None
