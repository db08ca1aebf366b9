"""A job that a test plays event by event, at times of its own, with the decisions that follow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Deleted,
    Event,
    Fact,
    JobRegistered,
    JobUnregistered,
    Lost,
    PartitionRegistered,
    Produced,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay
from headgate.control.snapshots import records
from headgate.control.snapshots.records import Standing

from .steps import StoppedClock

START_MS = 1_767_225_600_000


class TimedLog(MemoryEventLog):
    """A log whose clock the jobs set."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        super().__init__(clock=self.clock)


class ScriptedJob:
    """Writes facts into a log, and after each of them what its master decides."""

    def __init__(
        self, log: TimedLog, job: str, application: str = "tests", start_ms: int = START_MS
    ) -> None:
        self.log = log
        self.job = JobId(job)
        self.now_ms = start_ms
        self.tasks = count(1)
        self._numbers = count()
        self._replay = Replay(self.job)
        self._decisions = log.open_decisions(self.job)
        self.state(JobRegistered("per-job", "0.1.0", application, "s3://b/r", 60_000), by="driver")

    def state(self, *facts: Fact, by: str = "task", after_ms: int = 0) -> int:
        """Write facts and the decisions that follow; return the offset of the last fact."""
        self.now_ms += after_ms
        offset = 0
        for fact in facts:
            name = f"{by}.{next(self._numbers)}"
            event = Event(name, self.job, "", self.now_ms, by, None, fact)
            self.log.clock.at_ms = self.now_ms
            offset = self.log.append(event).at
            (recorded,) = self._read(offset)
            self._replay.observe(recorded)
            self._decide()
        return offset

    def register(
        self, result: str, partitions: int, subpartitions: int, label: str, *inputs: str
    ) -> None:
        """Register a result and all of its partitions."""
        name, sources = ResultId(result), tuple(map(ResultId, inputs))
        self.state(
            ResultRegistered(name, partitions, subpartitions, "", label, sources),
            PartitionRegistered(name, 0, partitions),
            by="driver",
        )

    def begin(self, result: str, index: int, host: str = "worker-1") -> AttemptId:
        attempt = AttemptId(PartitionId(ResultId(result), index), 1, next(self.tasks))
        self.state(AttemptStarted(attempt, host))
        return attempt

    def produce(self, attempt: AttemptId, rows: int, size_bytes: int) -> None:
        self.state(Produced(attempt, (SegmentSummary(0, size_bytes, rows, 1, b"index"),), 1))

    def lose(self, attempt: AttemptId, evidence: str = "404, read twice") -> int:
        return self.state(Lost(attempt, str(attempt), evidence), by="reader")

    def read(self, result: str, first: int, rows: int, size_bytes: int, count: int = 1) -> None:
        task = next(self.tasks)
        fact = Consumed(ResultId(result), first, count, task, rows, size_bytes, 4)
        self.state(fact, by="reader")

    def write_all(self, result: str, partitions: Iterable[int], took_ms: int = 100) -> None:
        for index in partitions:
            attempt = self.begin(result, index)
            self.now_ms += took_ms
            self.produce(attempt, 100, 1_000)

    def release(self, result: str) -> None:
        self.state(ReleaseRequested(ResultId(result), "not used any more"), by="driver")

    def delete(self, result: str) -> None:
        """State that all objects of a released result are gone."""
        doomed = self._replay.state.results[ResultId(result)].doomed
        self.state(Deleted(ResultId(result), doomed, len(doomed)), by="driver")

    def fail(self, result: str, index: int) -> None:
        """Lose a partition, and make it again with other rows, for which the job fails."""
        self.lose(self._replay.state.results[ResultId(result)].production.winners[index])
        attempt = self.begin(result, index)
        self.state(Produced(attempt, (SegmentSummary(0, 900, 90, 1, b""),), 2))

    def close(self) -> None:
        self.state(JobUnregistered("closed"), by="driver")

    def keep_snapshot(self) -> int:
        """Write a snapshot of the job as it is now, and return its position."""
        position = self.log.written(self.job)
        written, _ = records.write(self._replay.snapshot(position), Standing())
        records.keep_all(self._decisions, written, position)
        return position

    def _decide(self) -> None:
        due = tuple(self._replay.due)
        if not due:
            return
        self._decisions.begin()
        for entry in due:
            decision = Event(
                entry.id,
                self.job,
                entry.cause,
                self.now_ms + 2,
                "driver",
                entry.basis,
                entry.decision,
            )
            self._decisions.write(decision)
        start = self.log.written(self.job) - len(due)
        self._decisions.commit(0)
        for recorded in self._read(start):
            self._replay.observe(recorded)

    def _read(self, start: int) -> list[Recorded]:
        follower = self.log.follow(self.job, start)
        return follower.poll(1_000, 0.0)
