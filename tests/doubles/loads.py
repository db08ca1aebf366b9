"""The threads, descriptors and memory of processes, which stay the same however long they work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields

import psutil

from headgate.control.clock import SYSTEM_CLOCK, Deadline

_SETTLED_S_MAX = 15.0  # clients that are closed end their threads soon


@dataclass(frozen=True, slots=True)
class Load:
    """The resources of a process, or those that it may have more than before."""

    threads: int
    descriptors: int
    mib: float

    def growth(self, before: Load, more: Load) -> str:
        """Return what is larger than `before` by over a seventh and `more`; empty if nothing is."""
        grown = [
            f"{at.name} from {was:.0f} to {now:.0f}"
            for at in fields(self)
            if (now := getattr(self, at.name))
            > 1.15 * (was := getattr(before, at.name)) + getattr(more, at.name)
        ]
        return ", ".join(grown)


HOURS = Load(8, 16, 16.0)
"""The growth that hours of work may show: the pools of a JVM come and go."""
SAME = Load(0, 2, 16.0)
"""The growth of a process that has done the same things before."""
SPARKS = Load(200, 16, 64.0)
"""The growth of a JVM: two pools of the block manager grow to 100 threads."""


def load_of(pid: int) -> Load | None:
    """Return what a process holds; None when it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        with process.oneshot():
            mib = process.memory_info().rss / (1 << 20)
            return Load(process.num_threads(), process.num_fds(), mib)
    return None


def loads(pids: Mapping[str, int]) -> dict[tuple[str, int], Load]:
    """Return what each process holds that lives."""
    measured = {life: load_of(life[1]) for life in pids.items()}
    return {life: load for life, load in measured.items() if load is not None}


def grown(
    before: Mapping[tuple[str, int], Load], pids: Mapping[str, int], more: Load
) -> Iterator[str]:
    """Yield each process that has lived since `before` and holds more now."""
    for life, load in loads(pids).items():
        if life in before and (growth := load.growth(before[life], more)):
            yield f"{life[0]} ({life[1]}) has grown: {growth}"


def _this_process() -> dict[str, int]:
    return {"this process": os.getpid()}


@contextmanager
def steady(
    pids: Callable[[], Mapping[str, int]] = _this_process,
    more: Load = SAME,
    settled_s: float = _SETTLED_S_MAX,
) -> Iterator[None]:
    """Assert that the processes hold no more at the end of the block than at its start, or at most
    `settled_s` later. Those that end meanwhile do not count."""
    before = loads(pids())
    yield
    deadline = Deadline.after(settled_s)
    while (growth := list(grown(before, pids(), more))) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(deadline.poll_s)
    assert [] == growth, growth


def grown_sessions(printed: str) -> list[str]:
    """Return the growth in a line of an application that has made sessions: the numbers of
    descriptors, threads and MiB of each process at both ends."""
    (line,) = [line for line in printed.splitlines() if line.startswith("growth ")]
    rooms = {"driver": SAME, "JVM": SPARKS}
    ends = {
        name: [Load(threads, descriptors, mib) for descriptors, threads, mib in both]
        for name, both in json.loads(line.removeprefix("growth ")).items()
    }
    growths = ((name, after.growth(before, rooms[name])) for name, (before, after) in ends.items())
    return [f"{name}: {growth}" for name, growth in growths if growth]
