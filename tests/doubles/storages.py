"""Storages that delete when they are told to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    PartitionRegistered,
    Produced,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.log import EventLog
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.model.state import JobState, ResultState

from .jobs import SETTINGS, Job, OrderedStorage, state_facts


@dataclass
class SlowStorage(OrderedStorage):
    """A storage that needs some time for each deletion."""

    takes_s: float = 0.0

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        SYSTEM_CLOCK.sleep_s(self.takes_s)
        return super().delete(job, result, attempts)


def stored(log: EventLog, results: int) -> DriverMaster:
    """Return a driver whose job has this many results of one partition each."""
    storage = SlowStorage(log)
    driver = DriverMaster(log, storage, SETTINGS, DriverIdentity("driver", "0"))
    driver.register_job(Job())
    for number in range(results):
        name = ResultId(f"r{number}")
        made = AttemptId(PartitionId(name, 0), 1, number)
        state_facts(
            log,
            ResultRegistered(name, 1, 1, "", ""),
            PartitionRegistered(name, 0, 1),
            Produced(made, (SegmentSummary(0, 9, 1, 0, b""),)),
        )
    return driver


@dataclass
class BusyStorage(OrderedStorage):
    """A storage whose first deletions and sweeps fail."""

    failures: int = 3
    error: Exception = field(default_factory=lambda: Unavailable("the store is away"))

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        self._fail()
        return super().delete(job, result, attempts)

    def sweep(self, closed: JobState) -> int:
        self._fail()
        return super().sweep(closed)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
