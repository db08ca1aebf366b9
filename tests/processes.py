"""The processes under a process; any of them may end while it is inspected."""

from __future__ import annotations

from contextlib import suppress

import psutil


def descendants(pid: int) -> list[int]:
    """Return all processes under a process, each behind its parent."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def command(pid: int) -> str:
    """Return the command line of a process, or nothing if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
