"""The invariants of a simulated world, checked by a model that shares no code with the product.

The oracle knows the rows that each attempt was given, reads the committed log for itself, sees
every delete and every reader's rows, and collects violations. It parses objects' names by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from headgate.control.events.types import (
    AttemptFailed,
    Body,
    Consumable,
    Deleted,
    Event,
    JobAccepted,
    JobFailed,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    Newer,
    Produced,
    Promoted,
    Recorded,
    Released,
    ReleaseRequested,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    Superseded,
    Tick,
    TrackingStopped,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId

from .generations import Generations

ROOT = "root"
JOB = JobId("job")
PREFIX = f"{ROOT}/{JOB}/"
LOOKED_MS = 500.0

Row = tuple[int, int, int]  # partition, number, task


@dataclass
class Told:
    """The facts and decisions of one partition that the log has held so far."""

    consumable: list[AttemptId] = field(default_factory=list)
    superseded: set[AttemptId] = field(default_factory=set)
    winner: AttemptId | None = None
    read: list[AttemptId] = field(default_factory=list)  # the attempts that readers may have read


class Oracle:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.given: dict[AttemptId, dict[int, list[Row]]] = {}
        self.damaged: set[str] = set()
        self.bad_answers: Callable[[], bool] = lambda: False
        self.events: list[Recorded] = []
        self._events_at: dict[int, list[Event]] = {}
        self._registered: list[Recorded] = []
        self.epoch = 0
        self.closed = False
        self.released: set[str] = set()
        self.promoted: dict[str, int] = {}  # the time of expiry
        self.objects: Collection[str] = ()
        self._stored: dict[str, list[str]] = {}
        self._streams = Generations()
        self._family: dict[str, list[str]] = {}  # results with the same rows, by the original
        self._copied: dict[str, tuple[str, int]] = {}  # the original, and its partitions
        self.copies: Counter[str] = Counter()  # of each fate of combined results, how many
        self._short: set[str] = set()  # combined results without some of the rows
        self._replaced: dict[str, str] = {}  # combined results that are read instead of others
        self._completed: set[str] = set()
        self._steady: set[str] = set()  # results whose rows are the same each time
        self._closed_epoch = 0
        self._failed = False
        self._ordered: set[AttemptId | str | None] = set()
        self._told: dict[tuple[str, int], Told] = {}
        self._heard: dict[str, tuple[float, float]] = {}  # the last time, and the longest silence
        self._missed: set[str] = set()  # objects that were deleted where they are not
        self._beats: list[tuple[str, float]] = []  # by whom, and when
        self._overtaken: set[int] = set()  # the ends of leases of drivers that were heard meanwhile
        self.now_ms = 0.0
        self.has_one_master = False
        self._masters: list[str] = []
        self._holders: dict[JobId | int, object] = {}  # by job, or by partition

    def violated(self, what: str) -> None:
        self.violations.append(what)

    # Checks of the log

    def opened(self, what: JobId | int, holder: object) -> None:
        self._holders[what] = holder

    def holds(self, what: JobId | int, holder: object) -> bool:
        return self._holders.get(what) is holder

    def committed(self, what: JobId | int, holder: object, decisions: Sequence[Event]) -> None:
        """Check a committed step. An open step of a zombie before it may hide it for a while."""
        if decisions and not self.holds(what, holder):
            self.violated(f"a fenced master committed {[str(d.body) for d in decisions]}")
        for body in (decision.body for decision in decisions):
            if isinstance(body, Superseded):
                self._ordered.add(body.attempt)
            elif isinstance(body, Released):
                self._ordered.add(body.result)

    def read_log(self, records: Sequence[Recorded]) -> None:
        """Take in the events that were committed since the last call."""
        for recorded in records:
            self.events.append(recorded)
            self._events_at.setdefault(recorded.offset, []).append(recorded.event)
            if isinstance(recorded.event.body, JobRegistered):
                self._registered.append(recorded)
            self._observe(recorded)

    def _decided(self, master: str) -> None:
        """Report a master that decides again after a later master has decided."""
        if master in self._masters[:-1]:
            self.violated(f"{master} decides again, though {self._masters[-1]} has followed it")
        elif master not in self._masters:
            self._masters.append(master)

    def told(self, result: str, partition: int) -> Told:
        return self._told.setdefault((result, partition), Told())

    def _observe(self, recorded: Recorded) -> None:
        event = recorded.event
        body, basis = event.body, -1 if event.basis is None else event.basis
        if event.basis is not None and self.has_one_master:
            self._decided(event.by)
        match body:
            case JobAccepted():
                self.epoch, self.closed = body.epoch, self._has_ended(body.epoch)
            case JobUnregistered() if body.epoch == self._epoch_at(recorded.offset):
                self.closed, self._closed_epoch = True, body.epoch
            case LeaseExpired() if not self.closed and body.epoch == self._epoch_at(
                recorded.offset
            ):
                if not self._is_overtaken(recorded):
                    self.closed, self._closed_epoch = True, body.epoch
                    self._expire(recorded.offset)
            case ResultRegistered():
                self._register(body)
            case ResultComplete():
                self._completed.add(body.result)
                if self._streams.has(body.result):
                    self._streams.complete(body.result, self._winners(body.result))
            case Superseded():
                self._supersede(body.attempt)
            case Consumable():
                self._consumable(body.attempt, basis)
            case TrackingStopped():
                for attempt in body.attempts:
                    self._stop(attempt, basis)
            case JobFailed():
                self._failed = True
                if not (self.harmed() and self._may_fail(body.reason)):
                    self.violated(f"the job failed for no reason: {body.reason}")
            case Deleted():
                self._delete(body)
            case Promoted():
                self.promoted[body.result] = body.expires_ms
                self._stored[body.result] = [
                    name for name in self.objects if f"/{body.result}/" in name
                ]
            case Released():
                self._released(body.result, basis)

    def _register(self, registered: ResultRegistered) -> None:
        if registered.pipelined:
            self._streams.register(registered.result)
        if registered.deterministic and self._steady.issuperset(registered.inputs):
            self._steady.add(registered.result)

    def _may_fail(self, reason: str) -> bool:
        """Return False if the reason cannot be: rows that come again have changed, or rows would be
        made again from a result that was released because others have replaced it."""
        changed = re.search(r"partition (\S+)/\d+ was made again with other rows", reason)
        released = re.search(r"its input (\S+) is released", reason)
        steady = changed is not None and changed[1] in self._steady
        return not (steady or (released is not None and released[1] in self._replaced))

    def _of(self, attempt: AttemptId) -> Told:
        return self.told(attempt.partition.result, attempt.partition.index)

    def _supersede(self, attempt: AttemptId) -> None:
        history = self._of(attempt)
        history.superseded.add(attempt)
        if attempt == history.winner and attempt.partition.result not in self.released:
            self.violated(f"{attempt} was superseded although readers read it")

    @property
    def streaming(self) -> set[AttemptId]:
        """Return the winning attempts of pipelined results."""
        return {
            history.winner
            for (result, _), history in self._told.items()
            if history.winner is not None and self._streams.has(result)
        }

    def _winners(self, result: str) -> dict[int, AttemptId]:
        return {
            partition: history.winner
            for (name, partition), history in self._told.items()
            if name == result and history.winner is not None
        }

    def _stop(self, attempt: AttemptId, basis: int) -> None:
        """Check that a winner no longer counts for a reason: an object was harmed, or, in a stream,
        an attempt failed."""
        history, result = self._of(attempt), attempt.partition.result
        fails = any(isinstance(body, AttemptFailed) for body in self._at(basis))
        ended = self._streams.has(result) and fails
        if self._streams.has(result):
            self._streams.restart(result)
        if attempt != history.winner or not (ended or self.harmed()):
            self.violated(f"{attempt} was given up, and {history.winner} is the partition")
        history.winner = None

    def _consumable(self, attempt: AttemptId, basis: int) -> None:
        history, epoch = self._of(attempt), self._epoch_at(basis)
        kind = (
            Produced | SegmentProduced if self._streams.has(attempt.partition.result) else Produced
        )
        if attempt not in [body.attempt for body in self._at(basis) if isinstance(body, kind)]:
            self.violated(f"{attempt} is consumable on another basis, {basis}")
        if history.winner is not None:
            self.violated(f"{attempt} is consumable beside {history.winner}")
        if attempt in history.superseded:
            self.violated(f"{attempt} is consumable and superseded")
        if attempt.epoch != epoch:
            self.violated(f"{attempt} is consumable in epoch {epoch}")
        history.winner = attempt
        history.consumable.append(attempt)

    def _released(self, result: str, basis: int) -> None:
        """Check a release: only the driver of that time may release a result, besides expiry and a
        job's end."""
        by = [event.by for event in self._events_at.get(basis, ())]
        driver = self._before(basis)[-1].by
        expires_ms = self.promoted.pop(result, None)
        match self._at(basis)[0]:
            case Tick() as tick:
                if not expires_ms or tick.now_ms < expires_ms:
                    self.violated(f"{result} was released at {tick.now_ms}, before its time")
            case JobUnregistered() | LeaseExpired() if expires_ms is not None:
                self.violated(f"{result} was promoted, and released with its job")
            case LeaseExpired() if basis in self._overtaken:
                self.violated(f"{result} was released, and its driver was heard in time")
            case LeaseExpired():
                pass
            case ReleaseRequested() if not self._completed.issuperset(self._copies_of(result)):
                self.violated(f"{result} was released before its rows were combined")
            case _ if by != [driver]:
                self.violated(f"{result} was released by {by}, and {driver} speaks for the job")
        self.released.add(result)

    def _copies_of(self, result: str) -> list[str]:
        return [self._replaced[result]] if result in self._replaced else []

    def combines(self, result: str, original: str, partitions: int) -> None:
        """Record that a result is to have the rows of another one, which it replaces."""
        self._copied[result] = original, partitions
        self.copies["combined"] += 1
        self._replaced[original] = result

    def falls_back(self, result: str) -> None:
        """Record that a result is not combined after all."""
        self._replaced.pop(self._copied[result][0])
        self.copies["not read"] += 1

    def leaves_out(self, result: str) -> None:
        """Record that a combined result will not have all rows."""
        self._short.add(result)

    def differs(self, result: str, error: Exception) -> None:
        """Check that a combined result with too few or too many rows has a reason."""
        if result not in self._short:
            self.violated(f"rows were combined wrongly: {error}")

    def makes_again(self, result: str, original: str) -> None:
        """Record that a result is to have the rows of another one, which is gone."""
        self._family.setdefault(original, [original]).append(result)
        self.copies["made again"] += 1

    def outlives(self) -> None:
        """Check that all objects of promoted results are there when the job is over."""
        for result in self.promoted:
            for name in self._stored.get(result, ()):
                attempt = attempt_of(name)
                needed = attempt and attempt == self._of(attempt).winner
                if needed and name not in self.objects and name not in self.damaged:
                    self.violated(f"{name} is gone, and its result is to outlive the job")

    def _epoch_at(self, offset: int) -> int:
        """Return the epoch in which the fact at an offset is decided, whenever that happens."""
        return len(self._before(offset))

    def _before(self, offset: int) -> list[Event]:
        """Return the job's registrations before an offset."""
        return [recorded.event for recorded in self._registered if recorded.offset < offset]

    def _at(self, offset: int) -> list[Body | Newer]:
        return [event.body for event in self._events_at.get(offset, ())]

    def heard(self, job: JobId, by: str, said_ms: float) -> None:
        """Record that the log got a heartbeat or an event, and when its author sent it."""
        if job == JOB:
            before, longest = self._heard.get(by, (said_ms, 0.0))
            self._heard[by] = max(before, said_ms), max(longest, said_ms - before)

    def beats(self, job: JobId, by: str, at_ms: float) -> None:
        """Record that the log got a heartbeat."""
        self.heard(job, by, at_ms)
        if job == JOB:
            self._beats.append((by, at_ms))

    def ends_lease(self, event: Event, said_ms: float) -> None:
        """Check that a sweeper which ends a lease has just looked for heartbeats of the driver."""
        if event.job != JOB or not self._registered or not event.by.startswith("sweeper"):
            return
        driver = self._registered[-1].event
        assert isinstance(driver.body, JobRegistered), "it is a registration"
        late = said_ms - driver.body.lease_ms, said_ms - LOOKED_MS
        if any(by == driver.by and late[0] < at_ms < late[1] for by, at_ms in self._beats):
            self.violated(f"{event.by} ends the lease of {driver.by}, who was heard again")

    def _is_overtaken(self, recorded: Recorded) -> bool:
        """Return True if the log has a sign of life of the driver that the author did not know."""
        body = recorded.event.body
        assert isinstance(body, LeaseExpired), "nothing else ends a lease"
        since = (it for it in self.events if (body.heard or 0) < it.offset < recorded.offset)
        if body.heard is None or not any(
            it.event.basis is None and not isinstance(it.event.body, Tick | Deleted | LeaseExpired)
            for it in since
        ):
            return False
        self._overtaken.add(recorded.offset)
        return True

    def _expire(self, at: int) -> None:
        """Check that the driver whose lease ended was silent for that long at some time."""
        driver = self._before(at)[-1]
        assert isinstance(driver.body, JobRegistered), "just asked for"
        before, longest = self._heard[driver.by]
        if max(longest, self.now_ms - before) < driver.body.lease_ms:
            self.violated(f"the lease of {driver.by} ended, who was never silent for so long")

    def _delete(self, body: Deleted) -> None:
        """Check that objects that are said to be deleted were not deleted elsewhere only."""
        gone = {name for name in self._missed if attempt_of(name) in body.attempts}
        for name in sorted(gone.intersection(self.objects)):
            self.violated(f"{name} is said to be deleted, and is there")

    # Checks of the store

    def deletes(self, name: str, is_mounted: bool = True) -> None:
        """Check that an object may be deleted. A process without its mount deletes nothing."""
        if not is_mounted:
            self._missed |= {name} & set(self.objects)
            return
        self._missed.discard(name)
        if not name.startswith(PREFIX):
            self.violated(f"{name} is outside of the job's prefix")
            return
        if is_marker(name):
            epoch = int(name.split("/")[-1].split("-")[0])
            if not self.closed and epoch >= self.epoch and not self._has_ended(epoch):
                self.violated(f"{name} was deleted although its driver goes on")
            return
        attempt = attempt_of(name)
        if _result_of(name) in self.released or {attempt, _result_of(name)} & self._ordered:
            return
        if attempt is None:
            self.violated(f"{name} was deleted before its result was released")
            return
        history = self._of(attempt)
        if attempt == history.winner:
            self.violated(f"{name} was deleted although readers need it")
        elif attempt not in history.superseded and not self.closed:
            self.violated(f"{name} was deleted without an order")

    def _has_ended(self, epoch: int) -> bool:
        """Return True if the log has the end of a lease, perhaps before the driver's acceptance."""
        return any(
            isinstance(it.event.body, LeaseExpired)
            and it.event.body.epoch == epoch
            and not self._is_overtaken(it)
            for it in self.events
        )

    # Checks of readers

    def read(
        self, result: str, partitions: int, subpartitions: range, task: int, rows: list[Row]
    ) -> None:
        """Check the rows of a reader that has come to its end."""
        original, partitions = self._copied.get(result, (result, partitions))
        self.copies["read after a loss"] += original != result and original in self._family
        if strangers := [row for row in rows if row[0] not in range(partitions)]:
            self.violated(f"a reader of {result} got rows of nobody: {strangers}")
        got = [sorted(row for row in rows if row[0] == index) for index in range(partitions)]
        if self._streams.has(result):
            self._read_stream(result, subpartitions, task, got)
            return
        for partition in range(partitions):
            self._read_partition(original, partition, subpartitions, got[partition])

    def _read_partition(
        self, result: str, partition: int, subpartitions: range, got: list[Row]
    ) -> None:
        history = self.told(result, partition)
        family = self._family.get(result, (result,))
        consumable = [a for name in family for a in self.told(name, partition).consumable]
        fits = [a for a in consumable if got == self._expected(a, subpartitions)]
        if not fits:
            self.violated(
                f"a reader of {result}/{subpartitions} got {got} of partition {partition}, "
                f"and {[str(a) for a in consumable]} were consumable"
            )
        elif history.read and not set(fits) & set(history.read):
            self.violated(f"readers of {result}/{partition} got {history.read} and {fits}")
        history.read = [a for a in fits if not history.read or a in history.read]

    def _read_stream(
        self, result: str, subpartitions: range, task: int, got: list[list[Row]]
    ) -> None:
        """Check that a reader's rows are those of partitions that were whole together at some
        time."""
        fits = {
            number
            for number, winners in enumerate(self._streams.of(result))
            if got == [self._expected(winners[at], subpartitions) for at in range(len(got))]
        }
        self._streams.read(result, task, fits)
        if not fits:
            whole = [[str(a) for a in winners.values()] for winners in self._streams.of(result)]
            self.violated(
                f"a reader of {result}/{subpartitions} got {got}, and {whole} were whole together"
            )

    def read_together(self, result: str, tasks: list[object]) -> None:
        """Check that readers whose rows the driver uses together have read the same generation."""
        if not self._streams.is_one(result, tasks):
            self.violated(f"readers {tasks} of {result} have read what was never whole together")

    def _expected(self, attempt: AttemptId, subpartitions: range) -> list[Row]:
        given = self.given[attempt]
        return sorted(row for sub in subpartitions for row in given.get(sub, []))

    def harmed(self) -> bool:
        """Return True if any object was lost or damaged, or any answer was broken on its way."""
        return bool(self.damaged) or self.bad_answers()

    def missed(self, results: Sequence[str], error: Exception) -> None:
        """Check that a reader which reported a loss has a reason."""
        harmed = any(f"/{result}/" in name for result in results for name in self.damaged)
        over = any(_epoch_of(result) <= self._closed_epoch for result in results)
        restarted = any(self._streams.was_restarted(result) for result in results)
        if "were announced" in str(error):
            self.violated(f"a reader of {results} has counted wrongly: {error}")
        failed = self._failed and "the job failed" in str(error)
        failed |= "the log no longer has all events" in str(error)
        if not (harmed or over or restarted or failed or self.released.intersection(results)):
            self.violated(f"a reader of {results} failed for no reason: {error}")


def is_marker(name: str) -> bool:
    return name.startswith(f"{PREFIX}_driver/")


def _result_of(name: str) -> str:
    return name.removeprefix(PREFIX).split("/")[1]


def attempt_of(name: str) -> AttemptId | None:
    """Return the attempt that wrote an object, or None for a manifest or a marker."""
    if is_marker(name):
        return None
    _, result, partition, *rest = name.removeprefix(PREFIX).split("/")
    if partition == "manifest":
        return None
    epoch, task = map(int, rest[0].split("-"))
    return AttemptId(PartitionId(ResultId(result), int(partition)), epoch, task)


def _epoch_of(result: str) -> int:
    """Return the epoch in a result's name, where the application puts it."""
    return int(result[1:].split("-")[0])
