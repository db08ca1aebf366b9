"""The steps of one job's master: facts in, decisions out, each step one transaction. They also
serve a driver that follows the decisions of session masters.

The caller drives the steps: these steps have no thread or randomness, and without a time to wait no
clock, so the same calls on the same log give the same steps. Guarantees: nothing is answered, shown
as state or ordered to be deleted before it is committed. After any error but `Corrupt` and
`Fenced`, steps opened anew go on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from ..clock import Deadline
from ..contract import PER_JOB, SESSION, MasterSettings
from ..errors import Invalid
from ..events.log_lines import write_line
from ..events.types import (
    Consumable,
    Decision,
    JobRegistered,
    LeaseExpired,
    PartitionAccepted,
    Recorded,
)
from ..log import Decisions, EventLog
from ..model.ledger import Decided, Ledger
from ..model.state import JobState
from ..snapshots.records import keep_all
from ..snapshots.resume import Start, take_up
from ..snapshots.schedule import SnapshotSchedule
from .announcer import Announcer
from .deletions import Deletion, DeletionRetrier, Orders
from .term import Term


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one step."""

    state: JobState | None
    """The committed state; None before the log was read to the end that it had at the start."""
    undecided: int = 0
    """The number of facts that wait for a master."""
    may_part: bool = False
    """True if the job's master could stop and nothing of the job would be forgotten."""
    answers: tuple[Decided, ...] = ()
    """The answers to the author's own facts."""
    deletions: tuple[Deletion, ...] = ()
    """The deletions to run now."""
    store: str = ""
    """The address of the store that the job's newest driver has registered; '' before."""


class JobSteps:
    """Takes the steps of one job. Without `decisions` it commits nothing and waits for the
    decisions of others. Facts before `answers_from` are not answered."""

    def __init__(
        self,
        announcer: Announcer,
        decisions: Decisions | None,
        start: Start,
        settings: MasterSettings,
        end: int,
        term: Term,
    ) -> None:
        self._announcer = announcer
        self._decisions = decisions
        self._follower = start.follower
        self._step_events_max = settings.step_events_max
        self._gather_s = settings.pace.gather_s
        self._end = end
        self._term = term
        self._recovered = False
        self._mode = None if start.snapshot is None else start.snapshot.mode
        self._stands = bool(start.standing.keys)
        position = start.follower.position()
        self.answers_from = 0 if start.snapshot is None else position
        self._failed = DeletionRetrier(announcer.clock, settings.look_ms / 1000)
        self._ledger = Ledger(announcer.job, start.snapshot)
        self._orders = Orders(announcer, self._failed)
        self._schedule = SnapshotSchedule(
            settings, start.log, start.standing, position, announcer.clock.now_ms()
        )
        self._answers: list[Decided] = []

    @classmethod
    def open(
        cls, log: EventLog, announcer: Announcer, settings: MasterSettings, term: Term | None = None
    ) -> Self:
        """Fence the predecessor, then start from its newest snapshot, or from the oldest event.

        Raises:
            Fenced: a successor has come since the term began.
            Unavailable: the log cannot be reached.
        """
        deadline = settings.deadline()
        term = term or Term(announcer.by)
        limit = settings.step_events_max
        term.check(log, announcer.job, limit, deadline)
        with ExitStack() as opening:
            decisions = log.open_decisions(announcer.job)
            opening.callback(decisions.close)
            term.check(log, announcer.job, limit, deadline)  # now nobody else can commit
            start = take_up(log, announcer.job, deadline, is_master=True)
            opening.callback(start.follower.close)
            kept = settings.within(log.retention_ms(deadline))
            steps = cls(announcer, decisions, start, kept, log.written(announcer.job), term)
            opening.pop_all()
            return steps

    @classmethod
    def follow(
        cls,
        log: EventLog,
        announcer: Announcer,
        settings: MasterSettings,
        term: Term | None = None,
        known: int | None = None,
    ) -> Self:
        """Follow the decisions of others, from the newest snapshot on.

        A snapshot newer than the offset `known` is not used if the log still has the job's first
        event: then the log is read from there, and the facts after `known` are answered.

        Raises:
            Unavailable: the log cannot be reached.
        """
        with ExitStack() as opening:
            start = take_up(log, announcer.job, settings.deadline(), known)
            opening.callback(start.follower.close)
            end = start.follower.end()
            steps = cls(announcer, None, start, settings, end, term or Term(announcer.by))
            opening.pop_all()
            return steps

    def step(self, timeout_s: float) -> Outcome:
        """Take one turn, waiting at most `timeout_s` for events, and a moment for more of them:

        1. Begin the snapshot if it is due, before new facts are read: a process that starts there
           finds no answers to earlier facts, so all of these must have been handed out. Write one
           step of it.
        2. Read the next events. Decisions that are recorded already are only compared.
        3. Stop here until the log is read to the end that it had at the start.
        4. Commit what follows; at first, also what a predecessor left open.
        5. Take the state and the answers that the commit has settled.
        6. Hand out the deletions that it has ordered.

        Raises:
            Fenced: somebody else decides for the job, or speaks for it.
            Invalid: the job is one of another mode.
            Corrupt: the log holds another decision than the one that follows from its facts.
            Unavailable, OutcomeUnknown, Lost: open the steps anew.
        """
        # 1. Write the snapshot
        starting = not self._recovered and self._follower.position() >= self._end
        if starting or self._write_snapshot():
            timeout_s = 0.0  # this step has an outcome even without events
        # 2. Read
        self._read(timeout_s)
        # 3. Stop while older events are read
        if not self._recovered and self._follower.position() < self._end:
            self._settle()
            return Outcome(None)
        # 4. Commit
        self._term.position = self._term.logged = self._follower.position()
        self._check_mode()
        self._commit()
        self._begin()
        self._recovered = True
        # 5. Settle
        answers = self._settle()
        own_answers, self._answers = tuple(self._answers), []
        # 6. Hand out deletions
        deletions = self._deletions(answers) if self._decisions else ()
        may_part = self._decisions is None or self._schedule.unsaved is None
        ledger, registered = self._ledger, self._ledger.registered
        store = registered.store if registered else ""
        return Outcome(ledger.state, ledger.unsettled, may_part, own_answers, deletions, store)

    def close(self) -> None:
        """Give back connections; an open step is dropped."""
        self._follower.close()
        if self._decisions is not None:
            self._decisions.close()

    def _read(self, timeout_s: float) -> None:
        """Read the next events. While nobody needs what follows from them yet, wait a moment for
        more: one transaction then serves them all."""
        left, logged, moment = self._step_events_max, self._term.logged, None
        while True:
            events = self._follower.poll(left, timeout_s)
            left -= len(events)
            for recorded in events:
                self._check(recorded)
                self._observe(recorded)
                if logged is not None and recorded.offset >= logged:
                    write_line(recorded)
            if logged is not None:
                self._term.logged = max(logged, self._follower.position())
            if timeout_s == 0 or left == 0 or not self._can_wait():
                return
            moment = moment or Deadline.after(self._gather_s, self._announcer.clock)
            timeout_s = moment.left_s

    def _observe(self, recorded: Recorded) -> None:
        self._schedule.observe(recorded)
        self._ledger.observe(recorded)
        self._orders.observe(recorded)

    def _can_wait(self) -> bool:
        """Return True if there are decisions to commit, and nobody needs one before others come."""
        if self._decisions is None or not self._recovered:
            return False
        due, newest = self._ledger.unwritten(self._step_events_max), self._ledger.newest
        return bool(due) and all(_is_of_a_part(entry.decision, newest) for entry in due)

    def _check(self, recorded: Recorded) -> None:
        """Check whether a successor has come: its decisions can be read before a commit of ours is
        refused."""
        event = recorded.event
        if isinstance(event.body, JobRegistered):
            self._mode = self._mode or event.body.mode
        newest = self._ledger.newest
        if isinstance(event.body, LeaseExpired) and newest.closed is None:
            self._term.expire(recorded, newest)
        if self._decisions is not None:
            self._term.observe(recorded, self._recovered)

    def _check_mode(self) -> None:
        """Refuse a job of another mode. A job keeps the mode of its first registration, because
        otherwise two masters could decide for it."""
        mode = SESSION if self._decisions is None else PER_JOB
        if self._mode not in (None, mode):
            raise Invalid(
                f"job {self._announcer.job} was first registered in mode {self._mode}, not {mode}: "
                "keep to it, or give the job another name"
            )

    def _commit(self) -> None:
        decisions, ledger = self._decisions, self._ledger
        while decisions and (derived := ledger.unwritten(self._step_events_max)):
            decisions.begin()
            for decision in derived:
                decisions.write(self._announcer.decision(decision))
            decisions.commit(self._follower.position())
            ledger.wrote(len(derived))

    def _begin(self) -> None:
        """Write a snapshot in which nothing has happened, if there is none: a sweep may have
        deleted the one that the driver saw when it began. The driver publishes nothing before."""
        has_begun = self._recovered or self._stands or self._ledger.newest.epoch
        if self._decisions is None or has_begun:
            return
        position = self._follower.position()
        keep_all(self._decisions, self._schedule.nothing(self._ledger.snapshot(position)), position)

    def _write_snapshot(self) -> bool:
        """Write the next step of a snapshot if one is due or begun, and return True if so."""
        if self._decisions is None or not self._recovered:
            return False
        schedule, position = self._schedule, self._follower.position()
        if not schedule.is_writing:
            snapshot = self._ledger.snapshot(position)
            now_ms = self._announcer.clock.now_ms()
            if not (schedule.is_due(snapshot, now_ms) or schedule.is_parting_due(snapshot)):
                return False
            schedule.begin(snapshot, now_ms)
        keep_all(self._decisions, schedule.step(), position)
        schedule.kept()
        return True

    def _deletions(self, answers: tuple[Decided, ...]) -> tuple[Deletion, ...]:
        for failed in self._failed.take():
            self._orders.take_back(failed)
        return self._orders.following(self._ledger.state, answers)

    def _settle(self) -> tuple[Decided, ...]:
        answers = self._ledger.settle()
        for answer in answers:
            if answer.by == self._announcer.by:
                self._answers.append(answer)
            self._term.hear(answer)
        self._term.check_epoch(self._ledger.state, self._recovered)
        return answers


def _is_of_a_part(decision: Decision, state: JobState) -> bool:
    """Return True if a decision is about a part of a result that nobody may read before the whole
    of it is decided. Readers wait for parts that are streams, or are made again."""
    match decision:
        case PartitionAccepted():
            result = state.results.get(decision.result)
        case Consumable():
            result = state.results.get(decision.attempt.partition.result)
        case _:
            return False
    return result is not None and not (result.registered.pipelined or result.reproduction.before)
