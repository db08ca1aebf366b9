"""A deployment on the same cluster whose prefix and job name together read like ours.

Neither deployment may fence the other's master.
"""

from __future__ import annotations

from contextlib import closing

from headgate.control.errors import Fenced
from headgate.control.events.types import Event, Tick
from headgate.control.ids import JobId
from headgate.control.kafka.settings import KafkaSettings
from headgate.control.memory.log import MemoryEventLog

from .machines import World
from .scheduler import Process, SimClock

SETTINGS = KafkaSettings("", "head")
JOB = JobId("gate-job")
LIVES, STEPS = 6, 4
BETWEEN_MS = 4_000.0


class Neighbour:
    """A job of few steps that no fault strikes, and whose master starts over a few times."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.scheduler.dice("neighbour")
        process = Process("neighbour", mortal=False)
        self._log = MemoryEventLog(1, SimClock(world.scheduler, process))
        world.scheduler.spawn(process.name, process, self.run)

    def run(self) -> None:
        for _ in range(LIVES):
            try:
                self._decide()
            except Fenced:
                self._world.oracle.violated("a job of another deployment was fenced")
                return

    def _decide(self) -> None:
        scheduler, broker = self._world.scheduler, self._world.broker
        with closing(self._log.open_decisions(JOB)) as decisions:
            broker.claim(SETTINGS.group(JOB), decisions)
            for _ in range(STEPS):
                scheduler.pause("neighbour", BETWEEN_MS * self._dice.random())
                decisions.begin()
                decisions.write(Event("", JOB, "", 0, "neighbour", 0, Tick(0)))
                decisions.commit(0)
