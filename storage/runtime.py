"""What a process works with: its threads, its clock, and how long it waits for the log."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from ..control.clock import SYSTEM_CLOCK, Clock, Deadline

Pool: TypeAlias = Callable[[int, str], Executor]


def threads(parallel: int, name: str) -> Executor:
    """A pool of so many threads, all of one name."""
    return ThreadPoolExecutor(parallel, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Runtime:
    """`pool` makes the executor that some work runs on: so many at once, under a name."""

    wait_s: float = 60.0
    clock: Clock = SYSTEM_CLOCK
    pool: Pool = threads

    def deadline(self) -> Deadline:
        """The end of a wait that begins now."""
        return Deadline.after(self.wait_s, self.clock)
