"""The steps of a session master: the jobs of every partition that it holds, a transaction a step.

Driven from outside like `JobSteps`, with no thread, clock or randomness of its own. Guarantees: it
decides only for jobs whose first registration says `session`, and only in partitions that it holds
and has read to their end; a partition that is revoked is forgotten at once. What a refused step did
not commit is due again in the next one. A job whose log does not explain itself is left alone, the
others go on. Every snapshot says from where on its partition is to be read: a partition that is
granted is taken up there, with the snapshots of its jobs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from ..clock import Clock, Deadline
from ..contract import SESSION, MasterSettings
from ..errors import Fenced, Invalid, Unavailable
from ..events.types import Fact, JobRegistered, LeaseExpired, Tick
from ..ids import JobId
from ..log import EventLog, Grant, Placed, StateRecord
from ..model.replay import Derived, Snapshot
from ..model.state import JobState
from ..snapshots.records import Standing
from ..snapshots.resume import take_up_partition
from ..snapshots.schedule import SnapshotSchedule
from .announcer import Announcer
from .deletions import Clearing, Deletion
from .job_decider import JobDecider
from .silence import MASTERS, LogTime

_LOG = logging.getLogger(__name__)
_OLDEST_S = 300.0  # how often it is asked what the log has forgotten
_KEPT_MAX = 1_000  # parts of the state of several jobs
_PART_BYTES = 16 << 10

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Held:
    """A partition: the oldest offset that it had, what stood there of its session jobs that are
    not known yet, its session jobs, the jobs that are others', and those with something to do, none
    before it is recovered. `outdated` are jobs of another log, whose state is taken back."""

    oldest: int
    standings: dict[JobId, Standing]
    outdated: tuple[JobId, ...] = ()
    jobs: dict[JobId, JobDecider] = field(default_factory=dict)
    ignored: set[JobId] = field(default_factory=set)
    touched: dict[JobId, JobDecider] = field(default_factory=dict)
    recovered: bool = False

    def needed(self, position: int, but: Collection[JobId]) -> int:
        """From where on the partition is to be read, some jobs' events before `position` apart."""
        others = (decider.schedule.unsaved for job, decider in self.jobs.items() if job not in but)
        return min((at for at in others if at is not None), default=position)

    def alive(self) -> dict[JobId, JobDecider]:
        """Return the jobs for which there may be something to do as time goes by: not those that
        have ended, before the log has forgotten them."""
        return {
            job: decider
            for job, decider in self.jobs.items()
            if not decider.is_over or decider.is_forgotten(self.oldest)
        }


@dataclass(frozen=True, slots=True)
class MasterIdentity:
    """In whose name a master speaks: its slot, a name that no other start of it has, and where it
    can delete objects."""

    slot: str
    name: str
    clock: Clock
    store: str
    numbers: Iterator[int] = field(default_factory=count)


class GroupSteps:
    def __init__(self, log: EventLog, me: MasterIdentity, settings: MasterSettings) -> None:
        """Join the group of masters.

        Raises:
            Unavailable: the log cannot be reached.
        """
        self._me = me
        self._log = log
        deadline = Deadline.after(settings.wait_ms / 1000, me.clock)
        self._settings = settings.within(log.retention_ms(deadline))
        self._identity = log.identity(deadline)
        self._step_events_max = settings.step_events_max
        self._held: dict[int, _Held] = {}
        self._failed: deque[Deletion] = deque()
        self._cleared: deque[Clearing] = deque()
        self._time = LogTime(me.clock)
        self._next_oldest = Deadline.after(_OLDEST_S, me.clock)
        self._membership = log.join(me.slot, self)

    def granted(self, grant: Grant) -> int:
        found = take_up_partition(grant, self._identity)
        held = _Held(grant.offsets.start, dict(found.standings), found.outdated)
        self._held[grant.partition] = held
        for job, snapshot in found.snapshots.items():
            if snapshot.mode == SESSION:
                held.jobs[job] = self._decider(held, job, snapshot, snapshot.position)
            elif snapshot.mode is not None:
                held.ignored.add(job)
                del held.standings[job]
        _LOG.info(
            "slot %s holds partition %d, from offset %d on, and snapshots of %d jobs",
            self._me.slot,
            grant.partition,
            found.position,
            len(held.jobs),
        )
        return found.position

    def revoked(self, partition: int) -> None:
        del self._held[partition]
        _LOG.info("slot %s holds partition %d no longer", self._me.slot, partition)

    @property
    def states(self) -> Mapping[JobId, JobState]:
        """The session jobs of the partitions that are held, as far as they are committed."""
        cases = (decider for held in self._held.values() for decider in held.jobs.values())
        return MappingProxyType({decider.announcer.job: decider.ledger.state for decider in cases})

    def step(self, timeout_s: float) -> tuple[Deletion | Clearing, ...]:
        """Take the next events, waiting no longer than told, commit what follows from them, and
        hand out the deletions that are to be run now.

        Raises:
            Conflict: another master has joined under the same slot.
            Fenced, Unavailable, OutcomeUnknown, Lost: join again.
        """
        for placed in self._membership.poll(self._step_events_max, timeout_s):
            self._observe(placed)
        self._take_back()
        for number, held in self._held.items():
            if not held.recovered:
                self._recover(number, held)
        self._commit()
        return tuple(d for held in self._held.values() for d in self._settle(held))

    def look(self) -> bool:
        """Have the next step keep what was not kept for long; whether time seems to have brought
        something, so that it should be asked what time it is and when drivers were heard."""
        now_ms, late = self._time.now_ms(), self._time.is_stale
        self._ask_oldest()
        due = False
        for held in self._recovered():
            alive = held.alive()
            held.touched.update(alive)
            for decider in alive.values():
                due |= decider.seems_silent(now_ms) or decider.waits_for(now_ms)
                due |= late and decider.minds_time
        return due

    def hear(self, beats: Mapping[JobId, int]) -> None:
        """State the time where something waits for it, and end the leases of drivers that are
        silent for too long, by the log's clock alone."""
        now_ms = beats.get(MASTERS, 0)
        if now_ms:
            self._time.hear(now_ms)
        for held in self._recovered():
            for job, decider in held.alive().items():
                if decider.waits_for(now_ms):
                    self._say(decider, Tick(now_ms))
                if silent_ms := decider.silent_ms(beats.get(job, 0), now_ms):
                    reason = f"its driver was silent for {silent_ms // 1000} s"
                    self._say(decider, LeaseExpired(reason, decider.ledger.state.epoch))

    def _ask_oldest(self) -> None:
        """A job that has ended is forgotten when the log has nothing of it any more."""
        if not self._next_oldest.passed:
            return
        self._next_oldest = Deadline.after(_OLDEST_S, self._me.clock)
        for number, held in self._held.items():
            job = next((job for job, decider in held.jobs.items() if decider.is_over), None)
            try:
                held.oldest = held.oldest if job is None else self._log.oldest(job)
            except Unavailable as exc:
                _LOG.warning("what partition %d has forgotten is not known: %s", number, exc)

    def close(self) -> None:
        """Leave the group; an open step is dropped."""
        self._membership.close()

    def _observe(self, placed: Placed) -> None:
        held, event = self._held[placed.partition], placed.recorded.event
        decider = held.jobs.get(event.job)
        if decider is None:
            if event.job in held.ignored or not isinstance(event.body, JobRegistered):
                return
            if event.body.mode != SESSION:
                held.ignored.add(event.job)
                return
            decider = self._decider(held, event.job, None, placed.recorded.offset)
            held.jobs[event.job] = decider
        if decider.observe(placed.recorded):
            held.touched[event.job] = decider

    def _decider(
        self, held: _Held, job: JobId, snapshot: Snapshot | None, position: int
    ) -> JobDecider:
        me = self._me
        announcer = Announcer(job, me.name, me.clock, me.numbers)
        standing = held.standings.pop(job, Standing())
        now_ms = announcer.now_ms()
        schedule = SnapshotSchedule(self._settings, self._identity, standing, position, now_ms)
        return JobDecider(announcer, me.store, self._failed, schedule, snapshot)

    def _recovered(self) -> Iterator[_Held]:
        return (held for held in self._held.values() if held.recovered)

    def _say(self, decider: JobDecider, fact: Fact) -> None:
        """Nobody waits for it: what is not in the log is said again."""
        try:
            self._log.append(decider.announcer.fact(fact))
        except Unavailable as exc:
            _LOG.warning("%s of job %s was not said: %s", fact, decider.announcer.job, exc)

    def _take_back(self) -> None:
        for _ in range(len(self._failed)):
            failed = self._failed.popleft()
            failed.orders.take_back(failed)
            for held in self._held.values():
                case = held.jobs.get(failed.announcer.job)
                if case is not None and case.orders is failed.orders:
                    held.touched[failed.announcer.job] = case
        for _ in range(len(self._cleared)):
            cleared = self._cleared.popleft()
            for held in self._held.values():
                case = held.jobs.get(cleared.closed.job)
                if case is not None and case.take_back(cleared):
                    held.touched[cleared.closed.job] = case

    def _recover(self, number: int, held: _Held) -> None:
        """Once its end is reached, whatever a former holder left undecided is due."""
        end = self._membership.end(number)
        if end is None or self._membership.position(number) < end:
            for decider in held.touched.values():
                decider.ledger.settle()
            held.touched.clear()
            return
        held.recovered = True
        held.touched = dict(held.jobs)
        _LOG.info("slot %s decides for partition %d now", self._me.slot, number)

    def _commit(self) -> None:
        try:
            while due := tuple(islice(self._due(), self._step_events_max)):
                self._write(due)
            for number, held in self._held.items():
                if held.recovered:
                    self._keep_all(held, self._membership.position(number), number)
        except (Fenced, Unavailable) as exc:
            self._membership.abort()
            said = "was fenced" if isinstance(exc, Fenced) else "dropped a step"
            _LOG.warning("slot %s %s: %s", self._me.slot, said, exc)

    def _due(self) -> Iterator[tuple[int, JobDecider, Derived]]:
        for number, held in self._held.items():
            for decider in held.touched.values():
                yield from (
                    (number, decider, one) for one in decider.unwritten(self._step_events_max)
                )

    def _write(self, due: tuple[tuple[int, JobDecider, Derived], ...]) -> None:
        """One transaction. A refusal may come while another job's decision is written, or with the
        commit: the jobs are tried one by one then, and one that is refused alone is given up."""
        positions = {number: self._membership.position(number) for number, *_ in due}
        cases = dict.fromkeys(decider for _, decider, _ in due)
        self._membership.begin()
        try:
            for _, decider, derived in due:
                self._membership.write(decider.announcer.decision(derived))
            self._membership.commit(positions)
        except Invalid as exc:
            self._membership.abort()
            for decider in cases:
                if len(cases) == 1:
                    decider.give_up(exc)
                else:
                    self._insist(self._write, tuple(one for one in due if one[1] is decider))
            return
        for _, decider, _ in due:
            decider.ledger.wrote(1)

    def _insist(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Kafka's client drops a step more after one that was refused, whatever is in it: else each
        turn would end there."""
        try:
            write(*args, **kwargs)
        except Unavailable:
            self._membership.abort()
            write(*args, **kwargs)

    def _keep_all(self, held: _Held, position: int, number: int) -> None:
        found = ((job, decider.snapshot(position)) for job, decider in held.touched.items())
        kept = ((job, one) for job, one in found if one is not None)
        for batch in _batches(kept, _weight):
            self._keep_batch(held, batch, position, number)
        for ended in _batches(self._ended(held), lambda schedule: len(schedule.end())):
            written = {schedule: schedule.end() for schedule in ended.values()}
            if self._keep(written, {number: position}) is not None:
                return
            for job in ended:
                held.standings.pop(job, None)
                held.touched.pop(job, None)
                held.jobs.pop(job, None)
        held.outdated = ()

    def _ended(self, held: _Held) -> list[tuple[JobId, SnapshotSchedule]]:
        """Jobs that have ended, and of which the log holds nothing any more; and those of another
        log: one that has begun in this log writes over what stands of it instead."""
        touched = held.touched.items()
        ended = [
            (job, decider.schedule) for job, decider in touched if decider.is_forgotten(held.oldest)
        ]
        for job in held.outdated:
            if (standing := held.standings.get(job)) is not None:
                ended.append(
                    (job, SnapshotSchedule(self._settings, self._identity, standing, 0, 0))
                )
        return ended

    def _keep_batch(
        self, held: _Held, batch: Mapping[JobId, Snapshot], position: int, number: int
    ) -> None:
        """One transaction; a job whose snapshot cannot be made is given up, and the rest is due
        again when it is looked after next. So is a job whose snapshot the log does not take, which
        shows when each is tried alone."""
        needed, now_ms = held.needed(position, batch), self._me.clock.now_ms()
        written: dict[SnapshotSchedule, tuple[StateRecord, ...]] = {}
        for job, snapshot in batch.items():
            decider = held.jobs[job]
            try:
                written[decider.schedule] = decider.schedule.records(
                    replace(snapshot, needed=needed), now_ms
                )
            except Exception as exc:  # the next master would make the same
                decider.give_up(exc)
                return
        refusal = self._keep(written, {number: position})
        if refusal is not None and len(batch) == 1:
            held.jobs[next(iter(batch))].give_up(refusal)
        elif refusal is not None:
            for job, snapshot in batch.items():
                self._insist(self._keep_batch, held, {job: snapshot}, position, number)

    def _keep(
        self,
        written: Mapping[SnapshotSchedule, tuple[StateRecord, ...]],
        positions: Mapping[int, int],
    ) -> Invalid | None:
        """One transaction. Return why the log does not take it, if that is so."""
        if not any(written.values()):
            return None
        self._membership.begin()
        try:
            for records in written.values():
                for record in records:
                    self._membership.keep(record)
            self._membership.commit(positions)
        except Invalid as exc:
            self._membership.abort()
            _LOG.warning("the log does not take the state of %d jobs: %s", len(written), exc)
            return exc
        for schedule, records in written.items():
            if records:
                schedule.kept()
        return None

    def _settle(self, held: _Held) -> list[Deletion | Clearing]:
        found = [
            deletion for case in held.touched.values() for deletion in case.settle(self._cleared)
        ]
        held.touched = {job: case for job, case in held.touched.items() if case.unwritten(1)}
        return found


def _batches(due: Iterable[tuple[JobId, T]], weigh: Callable[[T], int]) -> Iterator[dict[JobId, T]]:
    """What one transaction carries: many small jobs, or a large one alone."""
    batch: dict[JobId, T] = {}
    weight = 0
    for job, one in due:
        more = weigh(one)
        if batch and weight + more > _KEPT_MAX:
            yield batch
            batch, weight = {}, 0
        batch[job] = one
        weight += more
    if batch:
        yield batch


def _weight(snapshot: Snapshot) -> int:
    """Return how many parts a snapshot has; what is large counts as several."""
    produced = [one for r in snapshot.state.results.values() for one in r.attempts.values()]
    segments = [segment for one in produced if one is not None for segment in one.segments]
    large = sum(len(segment.index) for segment in segments) // _PART_BYTES
    return 1 + len(snapshot.state.results) + len(produced) + large
