"""What a driver knows of the tries that write a pipelined result, and says of those that fail.

Whoever reads a try hears from the log alone that it is whole or has failed. One that died cannot
say so, and of one that said nothing in time nobody knows: then its driver does.
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
        """Whether nothing more comes from the partition's attempt."""
        return result.attempts[attempt] is not None or self._tries[attempt].failed

    def state_failures(self, result: ResultState) -> None:
        """Say of each partition's attempt that ended without being whole that it did."""
        for attempt in sorted(result.winners.values()):
            one = self._tries[attempt]
            fails = result.attempts[attempt] is None and not one.said
            if fails and (fact := self._failure(attempt, one)) is not None:
                one.said = one.failed = True
                self._voice.ask(fact)

    def _failure(self, attempt: AttemptId, one: _Try) -> Fact | None:
        process, scheduler = one.executor.process, one.executor.world.scheduler
        if process.dead:
            return ExecutorLost(process.name, "killed")
        if one.failed:
            return AttemptFailed(attempt, "its task has failed")
        if scheduler.now_ms - one.since_ms > self._silent_ms:
            return ExecutorLost(process.name, "silent")
        return None
