"""The runtime of a process: its threads, its clock, and the limit on its waits for the log."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from ..control.clock import SYSTEM_CLOCK, Clock, Deadline

Pool: TypeAlias = Callable[[int, str], Executor]


def threads(parallel: int, name: str) -> Executor:
    """Return a pool of so many threads, named after `name`."""
    return ThreadPoolExecutor(parallel, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Runtime:
    wait_s: float = 60.0
    """The limit of each wait."""
    clock: Clock = SYSTEM_CLOCK
    pool: Pool = threads
    """Makes an executor that runs so many calls at the same time, under a name."""

    def deadline(self) -> Deadline:
        """Return the deadline of a wait that begins now."""
        return Deadline.after(self.wait_s, self.clock)
