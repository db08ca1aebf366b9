"""The executors of a job, and their tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeAlias

from headgate.storage.stores.rooted import Root

from .machines import Executor, World
from .scheduler import Actor, Process

Run: TypeAlias = Callable[[Executor, int], object]


@dataclass(eq=False)
class Cluster:
    """Executors that are replaced when they die, and task numbers that never repeat."""

    world: World
    executors: list[Executor] = field(default_factory=list)
    numbers: count[int] = field(default_factory=partial(count, 1))
    names: count[int] = field(default_factory=count)

    def executor(self, root: Root | None, is_next: bool) -> Executor:
        """Return an idle executor for a driver, of its version: each runs one task at a time."""
        self.executors = [executor for executor in self.executors if not executor.process.dead]
        free = [executor for executor in self.executors if not executor.busy]
        idle = [executor for executor in free if executor.process.is_next == is_next]
        if not idle:
            process = Process(f"executor-{next(self.names)}", is_next=is_next)
            idle = [Executor(self.world, process)]
            self.executors += idle
        chosen = self.world.scheduler.random.choice(idle)
        chosen.busy = True
        chosen.serve(root)
        return chosen


@dataclass(eq=False)
class Task:
    """One task of a stage, and the actors that work at it."""

    run: Run
    doubled: bool = False
    actors: list[tuple[Actor, float]] = field(default_factory=list)
    done: bool = False
    answer: object = None
