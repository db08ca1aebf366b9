"""The steps of a session master, for all partitions that it holds: facts in, decisions out.

The caller drives the steps, as with `JobSteps`: these steps have no thread, clock or randomness.
Guarantees:

- It decides only for jobs whose first registration says `session`, and only in partitions that it
  holds and has read to their end.
- A partition that is revoked is forgotten at once.
- Decisions that a refused step did not commit are due again in the next step.
- A job whose log does not explain itself is left alone; the other jobs go on.
- Every snapshot says from which offset its partition must be read. A partition that is granted is
  read from there, with the snapshots of its jobs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from ..clock import Clock, Deadline
from ..contract import SESSION, MasterSettings
from ..errors import Fenced, HeadgateError, Invalid, Unavailable
from ..events.log_lines import write_line
from ..events.types import Fact, JobRegistered, Newer, Recorded, Tick
from ..ids import JobId
from ..log import EventLog, Grant, Placed, StateRecord
from ..model.replay import Derived, Snapshot
from ..model.state import JobState
from ..snapshots import records as snapshots
from ..snapshots.records import Standing
from ..snapshots.resume import take_up_partition
from ..snapshots.schedule import SnapshotSchedule
from .announcer import Announcer
from .deletions import Clearing, Deletion, DeletionRetrier
from .group_job import GroupJob, HeldPartition
from .silence import MASTERS, LogTime, lease_expired

_LOG = logging.getLogger(__name__)
_KEPT_MAX = 1_000  # parts in one transaction, if they are of several jobs
_PART_BYTES = 1 << 10  # a larger record counts as several parts
_INDEX_PARTS = 10  # the last record of a snapshot, which is made when it is written

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MasterIdentity:
    """The author of a master's events."""

    slot: str
    """The master's place in the group."""
    name: str
    """A name that no other start of the slot has."""
    clock: Clock
    store: str
    """The place in which the master can delete objects."""
    numbers: Iterator[int] = field(default_factory=count)
    """The numbers of the master's facts, of all jobs together."""


class GroupSteps:
    def __init__(self, log: EventLog, me: MasterIdentity, settings: MasterSettings) -> None:
        """Join the group of masters.

        Raises:
            Unavailable: the log cannot be reached.
        """
        self._me = me
        self._log = log
        deadline = settings.deadline(me.clock)
        self._settings = settings.within(log.retention_ms(deadline))
        self._identity = log.identity(deadline)
        self._held: dict[int, HeldPartition] = {}
        self._failed = DeletionRetrier(me.clock, settings.look_ms / 1000)
        self._cleared: deque[Clearing] = deque()
        self._time = LogTime(me.clock, settings.pace)
        self._next_oldest = Deadline.after(settings.pace.refresh_s, me.clock)
        self._membership = log.join(me.slot, self)

    def granted(self, grant: Grant) -> int:
        resumption = take_up_partition(grant, self._identity)
        partition = HeldPartition(
            grant.offsets.start, dict(resumption.standings), resumption.outdated
        )
        self._held[grant.partition] = partition
        for name, snapshot in resumption.snapshots.items():
            if snapshot.mode == SESSION:
                partition.jobs[name] = self._job(partition, name, snapshot, snapshot.position)
            elif snapshot.mode is not None:
                partition.ignored[name] = snapshot.position
                del partition.standings[name]
        for name, error in resumption.newer.items():
            left = self._job(partition, name, None, resumption.position)
            left.give_up(error)
            partition.given_up[name] = left.unsaved
        for name, ended in resumption.ended.items():
            if ended.mode == SESSION:
                partition.ended[name] = ended
            else:
                partition.ignored[name] = ended.position
        _LOG.info(
            "slot %s holds partition %d, from offset %d on, and snapshots of %d jobs",
            self._me.slot,
            grant.partition,
            resumption.position,
            len(partition.jobs) + len(partition.ended),
        )
        return resumption.position

    def revoked(self, partition: int) -> None:
        del self._held[partition]
        _LOG.info("slot %s holds partition %d no longer", self._me.slot, partition)

    @property
    def states(self) -> Mapping[JobId, JobState]:
        """Return the committed states of the session jobs in the partitions that are held."""
        states = dict[JobId, JobState]()
        for partition in self._held.values():
            states |= {name: job.state for name, job in partition.jobs.items()}
            ended = partition.ended.items()
            states |= {name: snapshots.read(name, it.stored)[0].state for name, it in ended}
        return MappingProxyType(states)

    def step(self, timeout_s: float) -> tuple[Deletion | Clearing, ...]:
        """Read the next events, commit what follows from them, and return the deletions to run now.
        Wait for events at most `timeout_s`.

        Raises:
            Conflict: another master has joined under the same slot.
            Fenced, Unavailable, OutcomeUnknown, Lost: join again.
        """
        for placed in self._membership.poll(self._settings.step_events_max, timeout_s):
            self._observe(placed)
        self._take_back()
        for number, partition in self._held.items():
            if partition.recovered:
                partition.forget(self._membership.position(number))
            else:
                self._recover(number, partition)
        self._commit()
        return tuple(d for partition in self._held.values() for d in self._settle(partition))

    def look(self) -> bool:
        """Let the next step write the snapshots that time makes due. Return True if time seems to
        matter to a job: then read the heartbeats and pass them to `hear`."""
        now_ms, late = self._time.now_ms(), self._time.is_stale
        self._ask_oldest()
        due = False
        for partition in self._recovered():
            alive = partition.alive()
            partition.touched.update(alive)
            for job in alive.values():
                due |= job.seems_silent(now_ms) or job.waits_for(now_ms)
                due |= late and job.minds_time
        return due

    def hear(self, beats: Mapping[JobId, int]) -> None:
        """Publish the time for jobs that wait for it, and end the leases of drivers that are silent
        for too long. Only the log's clock counts."""
        now_ms = beats.get(MASTERS, 0)
        if now_ms:
            self._time.hear(now_ms)
        for partition in self._recovered():
            for name, job in partition.alive().items():
                if job.waits_for(now_ms):
                    self._say(job, Tick(now_ms))
                if silent_ms := job.silent_ms(beats.get(name, 0), now_ms):
                    self._say(job, lease_expired(job.ledger.newest, silent_ms))

    def _ask_oldest(self) -> None:
        """Ask the log for the oldest offset of each partition, every `refresh_s`. A job that has
        ended, or is ignored, is forgotten once the log has none of its events. Where the log does
        not answer, the others wait for the next turn, and come first: steps must not wait."""
        if not self._next_oldest.passed:
            return
        self._next_oldest = Deadline.after(self._settings.pace.refresh_s, self._me.clock)
        for number, partition in list(self._held.items()):
            over = (name for name, job in partition.jobs.items() if job.is_over)
            names = chain(partition.ignored, partition.given_up, partition.ended, over)
            if not partition.recovered or (known := next(names, None)) is None:
                continue
            try:
                partition.asked = self._log.oldest(known), self._log.written(known)
            except Unavailable as exc:
                _LOG.warning("could not ask for the oldest offset of partition %d: %s", number, exc)
                self._held[number] = self._held.pop(number)
                return
            partition.forget(self._membership.position(number))

    def close(self) -> None:
        """Leave the group; an open step is dropped."""
        self._membership.close()

    def _observe(self, placed: Placed) -> None:
        partition, event = self._held[placed.partition], placed.recorded.event
        if partition.passes(placed.recorded):
            return
        job = partition.jobs.get(event.job)
        if (ended := partition.ended.get(event.job)) is not None:
            if placed.recorded.offset < ended.position:
                return
            job = self._go_on(partition, event.job)
        if job is None:
            if not self._begins(partition, placed.recorded):
                return
            job = self._job(partition, event.job, None, placed.recorded.offset)
            partition.jobs[event.job] = job
        if job.is_new(placed.recorded):
            job.observe(placed.recorded)
            partition.touched[event.job] = job
            if partition.recovered:
                write_line(placed.recorded)

    def _begins(self, partition: HeldPartition, recorded: Recorded) -> bool:
        """Return True if a session job begins with the event. The name of a job of another mode is
        free once the log has none of that job's events."""
        name, body = recorded.event.job, recorded.event.body
        position = partition.ignored.get(name)
        if position is None and isinstance(body, Newer):
            return True  # perhaps a session job: no snapshot may pass its events by
        is_session = isinstance(body, JobRegistered) and body.mode == SESSION
        if is_session and (position is None or self._log.oldest(name) >= position):
            partition.ignored.pop(name, None)
            return True
        if position is not None or isinstance(body, JobRegistered):
            partition.ignored[name] = recorded.offset + 1
        return False

    def _go_on(self, partition: HeldPartition, name: JobId) -> GroupJob:
        """Read the state of a job that has ended, because an event of it has come."""
        ended, snapshot, error = partition.ended.pop(name), None, None
        try:
            snapshot, standing = snapshots.read(name, ended.stored)
        except HeadgateError as exc:
            standing, error = Standing(frozenset(ended.stored)), exc
        partition.standings[name] = standing
        job = partition.jobs[name] = self._job(partition, name, snapshot, ended.position)
        if error is not None:
            job.give_up(error)
        return job

    def _job(
        self, partition: HeldPartition, name: JobId, snapshot: Snapshot | None, position: int
    ) -> GroupJob:
        me = self._me
        announcer = Announcer(name, me.name, me.clock, me.numbers)
        standing = partition.standings.pop(name, Standing())
        now_ms = announcer.clock.now_ms()
        schedule = SnapshotSchedule(self._settings, self._identity, standing, position, now_ms)
        return GroupJob(announcer, snapshot, schedule, self._failed, me.store)

    def _recovered(self) -> Iterator[HeldPartition]:
        return (partition for partition in self._held.values() if partition.recovered)

    def _say(self, job: GroupJob, fact: Fact) -> None:
        """Append a fact without waiting for it. If it is lost, a later look publishes it again."""
        try:
            self._log.append(job.announcer.fact(fact))
        except Unavailable as exc:
            _LOG.warning("could not announce %s of job %s: %s", fact, job.announcer.job, exc)

    def _take_back(self) -> None:
        for failed in self._failed.take():
            failed.orders.take_back(failed)
            for partition in self._held.values():
                job = partition.jobs.get(failed.announcer.job)
                if job is not None and job.orders is failed.orders:
                    partition.touched[failed.announcer.job] = job
        for _ in range(len(self._cleared)):
            cleared = self._cleared.popleft()
            for partition in self._held.values():
                job = partition.jobs.get(cleared.closed.job)
                if job is not None and job.take_back(cleared):
                    partition.touched[cleared.closed.job] = job

    def _recover(self, number: int, partition: HeldPartition) -> None:
        """Start to decide in a partition once it is read to its end: decisions that a former holder
        left open are due then."""
        end = self._membership.end(number)
        if end is None or self._membership.position(number) < end:
            for job in partition.touched.values():
                job.ledger.settle()
            partition.touched.clear()
            return
        partition.recovered = True
        partition.asked = partition.oldest, end
        partition.forget(end)
        partition.touched = dict(partition.jobs)
        _LOG.info("slot %s decides for partition %d now", self._me.slot, number)

    def _commit(self) -> None:
        try:
            while due := tuple(islice(self._due(), self._settings.step_events_max)):
                self._write(due)
            for number, partition in self._held.items():
                if partition.recovered:
                    self._keep_all(partition, self._membership.position(number), number)
        except (Fenced, Unavailable) as exc:
            self._membership.abort()
            outcome = "was fenced" if isinstance(exc, Fenced) else "dropped a step"
            _LOG.warning("slot %s %s: %s", self._me.slot, outcome, exc)

    def _due(self) -> Iterator[tuple[int, GroupJob, Derived]]:
        for number, partition in self._held.items():
            for job in partition.touched.values():
                for derived in job.unwritten(self._settings.step_events_max):
                    yield number, job, derived

    def _write(self, due: tuple[tuple[int, GroupJob, Derived], ...]) -> None:
        """Commit decisions in one transaction.

        The log may refuse a decision while another job's is written, or with the commit. Then the
        jobs are tried one by one, and a job that is refused alone is given up.
        """
        positions = {number: self._membership.position(number) for number, *_ in due}
        jobs = dict.fromkeys(job for _, job, _ in due)
        self._membership.begin()
        try:
            for _, job, derived in due:
                self._membership.write(job.announcer.decision(derived))
            self._membership.commit(positions)
        except Invalid as exc:
            self._membership.abort()
            for job in jobs:
                if len(jobs) == 1:
                    job.give_up(exc)
                else:
                    self._insist(self._write, tuple(entry for entry in due if entry[1] is job))
            return
        for _, job, _ in due:
            job.ledger.wrote(1)

    def _insist(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a transaction, and run it again if it is dropped. Kafka's client drops one more step
        after a refused one, whatever is in it: without the second try every turn would end
        there."""
        try:
            write(*args, **kwargs)
        except Unavailable:
            self._membership.abort()
            write(*args, **kwargs)

    def _keep_all(self, partition: HeldPartition, position: int, number: int) -> None:
        due = (
            (name, job) for name, job in partition.touched.items() if job.writes_snapshot(position)
        )
        for batch in _batches(due, lambda job: _INDEX_PARTS + _weight(job.schedule.parts)):
            self._keep_batch(partition, batch, position, number)
        for ended in _batches(self._ended(partition), lambda schedule: _weight(schedule.end())):
            records = [record for schedule in ended.values() for record in schedule.end()]
            if self._keep(records, {number: position}, len(ended)) is not None:
                return
            for name in ended:
                partition.standings.pop(name, None)
                partition.touched.pop(name, None)
                partition.jobs.pop(name, None)
        partition.outdated = ()

    def _ended(self, partition: HeldPartition) -> list[tuple[JobId, SnapshotSchedule]]:
        """Return the jobs whose records are to be deleted: those that have ended and have no event
        left in the log, and those of another log. A job of another log that has begun in this one
        is left out: its snapshots replace these records."""
        ended = [
            (name, job.schedule)
            for name, job in partition.touched.items()
            if job.is_forgotten(partition.oldest)
        ]
        standings = partition.standings
        foreign = [
            (name, SnapshotSchedule(self._settings, self._identity, standings[name], 0, 0))
            for name in partition.outdated
            if name in standings
        ]
        return ended + foreign

    def _keep_batch(
        self, partition: HeldPartition, batch: Mapping[JobId, GroupJob], position: int, number: int
    ) -> None:
        """Write the next steps of snapshots in one transaction.

        If the log refuses the transaction, each step is tried alone, and a job whose step is
        refused alone is given up. So is a job whose step cannot be made: the next master would fail
        in the same way.
        """
        needed = partition.needed(position, batch)
        records: list[StateRecord] = []
        for job in batch.values():
            try:
                records += job.schedule.step(needed)
            except Exception as exc:
                return job.give_up(exc)
        refusal = self._keep(records, {number: position}, len(batch))
        if refusal is None:
            for job in batch.values():
                job.schedule.kept()
        elif len(batch) == 1:
            next(iter(batch.values())).give_up(refusal)
        else:
            for name, job in batch.items():
                self._insist(self._keep_batch, partition, {name: job}, position, number)

    def _keep(
        self, records: list[StateRecord], positions: Mapping[int, int], jobs: int
    ) -> Invalid | None:
        """Write records in one transaction. Return the refusal if the log does not take them."""
        if not records:
            return None
        self._membership.begin()
        try:
            for record in records:
                self._membership.keep(record)
            self._membership.commit(positions)
        except Invalid as exc:
            self._membership.abort()
            _LOG.warning("the log refuses the snapshots of %d jobs: %s", jobs, exc)
            return exc
        return None

    def _settle(self, partition: HeldPartition) -> list[Deletion | Clearing]:
        deletions = [
            deletion for job in partition.touched.values() for deletion in job.settle(self._cleared)
        ]
        touched = partition.touched
        partition.touched = {name: job for name, job in touched.items() if job.has_more}
        for name in touched.keys() - partition.touched.keys():
            partition.end(name)
        return deletions


def _batches(due: Iterable[tuple[JobId, T]], weigh: Callable[[T], int]) -> Iterator[dict[JobId, T]]:
    """Yield the items of each transaction: many small jobs, or a large one alone."""
    batch: dict[JobId, T] = {}
    weight = 0
    for name, item in due:
        more = weigh(item)
        if batch and weight + more > _KEPT_MAX:
            yield batch
            batch, weight = {}, 0
        batch[name] = item
        weight += more
    if batch:
        yield batch


def _weight(records: Iterable[StateRecord]) -> int:
    """Return the number of records; a large one counts as several."""
    return sum(1 + len(record.body or b"") // _PART_BYTES for record in records)
