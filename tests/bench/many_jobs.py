"""A thousand jobs whose events a group of masters decides, with a log in memory and no store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, cycle, islice

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import MasterSettings
from headgate.control.events.types import Fact, JobUnregistered, ReleaseRequested, ResultRegistered
from headgate.control.ids import JobId
from headgate.control.master.announcer import Announcer
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState, ResultState
from headgate.infra.master_command import STEP_EVENTS_MAX, spare_collector

from .core import facts

JOBS, MASTERS, PARTITIONS = 1_000, 3, 16
EXCHANGES, MAPS, READERS = 3, 50, 50
_BETWEEN = 5_000  # facts that are published before the masters look again


class Untouched:
    """A storage without objects."""

    def delete(self, job: JobId, result: ResultState, attempts: object) -> int:
        return 0

    def sweep(self, closed: JobState) -> int:
        return 0


def run() -> dict[str, str]:
    """Let every job run a few exchanges, all at the same time, to its end. Return the figures."""
    log, took_s = MemoryEventLog(PARTITIONS), 0.0
    spare_collector()
    with ExitStack() as closing:
        masters = [_master(log, f"{number}") for number in range(MASTERS)]
        for master in masters:
            closing.callback(master.close)
        stated = _interleaved()
        while some := list(islice(stated, _BETWEEN)):
            for job, fact in some:
                log.append(Announcer(job, "driver").fact(fact))
            took_s += _decide(log, masters)
        took_s += _decide(log, masters)
        states = dict(chain.from_iterable(master.states.items() for master in masters))
    assert len(states) == JOBS, "every job has a master"
    assert all(state.closed for state in states.values()), "every job is closed"
    left = [result for state in states.values() for result in state.results.values()]
    assert not any(result.doomed for result in left), "nothing of them is left"
    entries = [entry for partition in log.partitions for entry in partition.entries]
    events = sum(entry.record is not None for entry in entries)
    log_bytes = sum(len(entry.record or b"") for entry in entries)
    kept_bytes = sum(len(body) for part in log.partitions for body in part.state.values())
    return {
        "jobs": f"{JOBS:,}",
        "masters": str(MASTERS),
        "events": f"{events:,}",
        "log MB": f"{log_bytes / 1e6:.0f}",
        "snapshots MB": f"{kept_bytes / 1e6:.0f}",
        "master CPU s": f"{took_s:.1f}",
        "us an event": f"{took_s / events * 1e6:.0f}",
    }


def _master(log: MemoryEventLog, slot: str) -> GroupSteps:
    me = MasterIdentity(slot, f"master {slot}", SYSTEM_CLOCK, "")
    return GroupSteps(log, me, MasterSettings(step_events_max=STEP_EVENTS_MAX))


def _interleaved() -> Iterator[tuple[JobId, Fact]]:
    """Yield the facts of all jobs, one of each job in turn."""
    names = [JobId(f"job-{number}") for number in range(JOBS)]
    for row in zip(*(_life() for _ in names), strict=True):
        yield from zip(names, row, strict=True)


def _life() -> Iterator[Fact]:
    last = None
    for fact in facts(EXCHANGES, MAPS, READERS):
        if isinstance(fact, ResultRegistered):
            last = fact.result
        yield fact
    assert last is not None, "a job has results"
    yield ReleaseRequested(last, "asked for")
    yield JobUnregistered("closed", 1)


def _decide(log: MemoryEventLog, masters: list[GroupSteps]) -> float:
    """Let the masters step until nothing is left to decide; return their CPU seconds."""
    began_s, idle, end = time.process_time(), 0, -1
    for master in cycle(masters):
        for deletion in master.step(0.0):
            deletion.run(Untouched(), log, Deadline.after(60))
        before, end = end, sum(len(partition.entries) for partition in log.partitions)
        idle = 0 if end > before else idle + 1
        if idle > 2 * len(masters):
            break
    return time.process_time() - began_s
