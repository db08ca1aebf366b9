"""Steps that are driven from outside, and a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control.clock import Deadline
from headgate.control.log import EventLog
from headgate.control.master.job_steps import JobSteps, Outcome

from .jobs import OrderedStorage


@dataclass
class StoppedClock:
    """A clock that stands still until a test moves it."""

    at_ms: int = 1_000

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_s(self) -> float:
        return self.at_ms / 1000

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


CLOCK = StoppedClock()
STEPS = 12


def drive(steps: JobSteps, log: EventLog, storage: OrderedStorage) -> list[Outcome]:
    """Run enough steps that nothing can be left to do, and every deletion at once."""
    outcomes: list[Outcome] = []
    for _ in range(STEPS):
        outcomes.append(steps.step(0.0))
        for deletion in outcomes[-1].deletions:
            deletion.run(storage, log, Deadline.after(1.0, CLOCK))
    return outcomes
