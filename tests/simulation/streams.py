"""The attempts that write a driver's pipelined results, and the driver's reports of failed ones.

Readers of an attempt learn from the log alone that it is whole or has failed. An attempt that died
cannot state its failure, and an attempt that was silent for too long is in doubt: the driver states
the failure of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control.events.types import AttemptFailed, ExecutorLost, Fact
from headgate.control.ids import AttemptId
from headgate.control.model.state import ResultState

from .machines import Executor
from .voice import Voice


@dataclass
class _Try:
    executor: Executor
    since_ms: float
    failed: bool = False
    said: bool = False


class Streams:
    def __init__(self, voice: Voice, silent_ms: float) -> None:
        self._voice = voice
        self._silent_ms = silent_ms
        self._tries: dict[AttemptId, _Try] = {}

    def begins(self, attempt: AttemptId, executor: Executor) -> None:
        self._tries[attempt] = _Try(executor, executor.world.scheduler.now_ms)

    def fails(self, attempt: AttemptId) -> None:
        self._tries[attempt].failed = True

    def is_over(self, result: ResultState, attempt: AttemptId) -> bool:
        """Return True if the attempt writes nothing more."""
        return result.production.attempts[attempt] is not None or self._tries[attempt].failed

    def state_failures(self, result: ResultState) -> None:
        """State the failure of each partition's attempt that ended before it was whole."""
        for attempt in sorted(result.production.winners.values()):
            task = self._tries[attempt]
            fails = result.production.attempts[attempt] is None and not task.said
            if fails and (fact := self._failure(attempt, task)) is not None:
                task.said = task.failed = True
                self._voice.ask(fact)

    def _failure(self, attempt: AttemptId, task: _Try) -> Fact | None:
        process, scheduler = task.executor.process, task.executor.world.scheduler
        if process.dead:
            return ExecutorLost(process.name, "killed")
        if task.failed:
            return AttemptFailed(attempt, "its task has failed")
        if scheduler.now_ms - task.since_ms > self._silent_ms:
            return ExecutorLost(process.name, "silent")
        return None
