"""The processes under a process; any of them may end while it is inspected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return all processes under a process, each behind its parent."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one, ())
    return found


def command(pid: int) -> bytes:
    """Return the command line of a process, or nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
