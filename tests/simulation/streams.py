"""The attempts that write a driver's pipelined results, and the driver's reports of failed ones.

Readers of an attempt learn from the log alone that it is whole or has failed. An attempt that died
cannot report its failure, and an attempt that was silent for too long is in doubt: the driver
reports the failure of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control.events.types import AttemptFailed
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
            if fails and (reason := self._failure(task)) is not None:
                task.said = task.failed = True
                self._voice.ask(AttemptFailed(attempt, reason))

    def _failure(self, task: _Try) -> str | None:
        if task.executor.process.dead:
            return "its executor was killed"
        if task.failed:
            return "its task has failed"
        is_silent = task.executor.world.scheduler.now_ms - task.since_ms > self._silent_ms
        return "it is silent" if is_silent else None
