"""A second job that no fault strikes: it must go on and end."""

from __future__ import annotations

from headgate.control.events.types import (
    AttemptStarted,
    PartitionRegistered,
    Produced,
    Released,
    ReleaseRequested,
    ResultComplete,
    ResultRegistered,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId

from .machines import World
from .scheduler import Process
from .voice import Voice

RESULTS = 3
PATIENCE_S = 400.0
BETWEEN_MS = 10_000.0


class Bystander:
    """A driver whose results have one partition and no rows."""

    def __init__(self, world: World, job: JobId) -> None:
        self.finished = False
        self._world = world
        process = Process(f"driver of {job}", mortal=False)
        self._voice = Voice(world, process, job, PATIENCE_S)
        world.scheduler.spawn(process.name, process, self.run)

    def run(self) -> None:
        voice, scheduler = self._voice, self._world.scheduler
        voice.register()
        for number in range(RESULTS):
            self._live(ResultId(f"r{number}"))
            scheduler.pause("between", BETWEEN_MS * scheduler.random.random())
        voice.leave()
        self.finished = True

    def _live(self, name: ResultId) -> None:
        voice, attempt = self._voice, AttemptId(PartitionId(name, 0), self._voice.epoch, 1)
        voice.tell(ResultRegistered(name, 1, 1, "", ""))
        voice.ask(PartitionRegistered(name, 0, 1))
        voice.tell(AttemptStarted(attempt, "here"))
        decided = voice.ask(Produced(attempt, ()))
        assert not decided or ResultComplete(name) in decided, "the only partition is whole"
        decided = voice.ask(ReleaseRequested(name, "read", voice.epoch))
        assert not decided or isinstance(decided[0], Released), "what is asked for is released"
