"""The runtime of a process, and the clients that a job's writers and gates share there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..control.clock import SYSTEM_CLOCK, Clock, Deadline
from ..control.log import EventLog
from ..control.master.announcer import Announcer
from .format.layout import Layout
from .limits import Limits
from .stores.port import BlobStore
from .stores.request_meter import ThrottledMeter

Pool: TypeAlias = Callable[[int, str], Executor]


def threads(parallel: int, name: str) -> Executor:
    """Return a pool of so many threads, named after `name`."""
    return ThreadPoolExecutor(parallel, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The threads of a process, its clock, and the limit on its waits for the log."""

    wait_s: float = 60.0
    """The limit of each wait."""
    clock: Clock = SYSTEM_CLOCK
    pool: Pool = threads
    """Makes an executor that runs so many calls at the same time, under a name."""
    future: Callable[[], Future[Any]] = Future
    """Makes a future that a thread of this process may wait for."""
    folders: tuple[Path, ...] = ()
    """Folders that this process shares with others of its host, and that go with them."""

    def deadline(self) -> Deadline:
        """Return the deadline of a wait that begins now."""
        return Deadline.after(self.wait_s, self.clock)


@dataclass(frozen=True, slots=True)
class JobClients:
    """The log and the store as a job's writers and gates use them in one process."""

    log: EventLog
    store: BlobStore
    layout: Layout
    limits: Limits
    runtime: Runtime
    throttled: ThrottledMeter

    def announcer(self, name: str) -> Announcer:
        """Return the announcer of a writer or gate. No other one in the job has its name."""
        return Announcer(self.layout.job, name, self.runtime.clock)
