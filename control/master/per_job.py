"""The steps of one job's master, facts in and decisions out, each step one transaction; or of its
driver, who follows what the master of a session decides.

Driven from outside, with no thread, clock or randomness of its own: the same calls on the same log
give the same steps. Guarantees: nothing is answered, shown as state or ordered to be deleted
before it is committed. After any error but `Corrupt` and `Fenced`, steps opened anew go on.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from ..clock import Deadline
from ..contract import PER_JOB, SESSION, MasterSettings
from ..errors import Invalid
from ..events.types import JobRegistered, LeaseExpired, Recorded
from ..log import Decisions, EventLog
from ..model.ledger import Decided, Ledger
from ..model.state import JobState
from ..snapshots.resume import Start, take_up
from ..snapshots.schedule import SnapshotSchedule
from .announcer import Announcer
from .deletions import Deletion, Orders
from .term import Term


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought: the state, once the log was read to the end that it had at the start;
    how many facts still wait for a master; whether its own master could go without anything of it
    being forgotten; answers to the author's own facts; and the deletions that are to be run now."""

    state: JobState | None
    undecided: int = 0
    may_part: bool = False
    answers: tuple[Decided, ...] = ()
    deletions: tuple[Deletion, ...] = ()


class JobSteps:
    """Without `decisions` it commits nothing and waits for what others do. Facts before
    `answers_from` are answered no more."""

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
        self._end = end
        self._term = term
        self._recovered = False
        self._mode = None if start.snapshot is None else start.snapshot.mode
        self._ledger = Ledger(announcer.job, start.snapshot)
        position = start.follower.position()
        self.answers_from = 0 if start.snapshot is None else position
        self._schedule = SnapshotSchedule(
            settings, start.log, start.standing, position, announcer.now_ms()
        )
        self._failed: deque[Deletion] = deque()
        self._orders = Orders(announcer, self._failed)
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
        deadline = Deadline.after(settings.wait_ms / 1000)
        term = term or Term(announcer.by)
        term.check(log, announcer.job, settings.step_events_max, deadline)
        with ExitStack() as opening:
            decisions = log.open_decisions(announcer.job)
            opening.callback(decisions.close)
            term.check(
                log, announcer.job, settings.step_events_max, deadline
            )  # now nobody can come
            start = take_up(log, announcer.job, deadline)
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
        """Leave the deciding to others. Start from the newest snapshot; so that what was asked
        behind the offset `known` is answered, from the job's first event where that is newer, and
        the log has it.

        Raises:
            Unavailable: the log cannot be reached.
        """
        with ExitStack() as opening:
            deadline = Deadline.after(settings.wait_ms / 1000)
            start = take_up(log, announcer.job, deadline, known)
            opening.callback(start.follower.close)
            end = start.follower.end()
            steps = cls(announcer, None, start, settings, end, term or Term(announcer.by))
            opening.pop_all()
            return steps

    def step(self, timeout_s: float) -> Outcome:
        """Take the next events, waiting no longer than told, and commit what follows from them.

        While older events are read, decisions that are there already are compared; what a
        predecessor left undecided is committed when its end is reached.

        Raises:
            Fenced: somebody else decides for the job, or speaks for it.
            Invalid: the job is one of another mode.
            Corrupt: the log holds another decision than the one that follows from its facts.
            Unavailable, OutcomeUnknown, Lost: open the steps anew.
        """
        starting = not self._recovered and self._follower.position() >= self._end
        if starting or self._keep_snapshot():
            timeout_s = 0.0  # this step has something to tell
        for recorded in self._follower.poll(self._step_events_max, timeout_s):
            self._check(recorded)
            self._ledger.observe(recorded)
            self._orders.observe(recorded)
            self._schedule.observe(recorded)
        recovering = not self._recovered
        if recovering and self._follower.position() < self._end:
            self._settle()
            return Outcome(None)
        self._term.position = self._follower.position()
        self._check_mode()
        self._commit()
        self._recovered = True
        answers = self._settle()
        state = self._ledger.state
        own, self._answers = tuple(self._answers), []
        ordered = self._ordered(state, answers, recovering) if self._decisions else ()
        may_part = self._decisions is None or self._schedule.may_part
        return Outcome(state, self._ledger.unsettled, may_part, own, ordered)

    def close(self) -> None:
        """Give back connections; an open step is dropped."""
        self._follower.close()
        if self._decisions is not None:
            self._decisions.close()

    def _check(self, recorded: Recorded) -> None:
        """A successor's decisions can be read before a commit of ours is refused."""
        event = recorded.event
        if isinstance(event.body, JobRegistered):
            self._mode = self._mode or event.body.mode
        if isinstance(event.body, LeaseExpired) and self._ledger.state.closed is None:
            self._term.expire(recorded)
        if self._decisions is not None:
            self._term.observe(recorded, self._recovered)

    def _check_mode(self) -> None:
        """A job stays where its first registration put it, lest two masters decide for it."""
        own = SESSION if self._decisions is None else PER_JOB
        if self._mode not in (None, own):
            raise Invalid(
                f"job {self._announcer.job} was first registered in mode {self._mode}, not {own}: "
                "keep to it, or give the job another name"
            )

    def _commit(self) -> None:
        decisions = self._decisions
        while decisions and (derived := self._ledger.unwritten(self._step_events_max)):
            decisions.begin()
            for one in derived:
                decisions.write(self._announcer.decision(one))
            decisions.commit(self._follower.position())
            self._ledger.wrote(len(derived))

    def _keep_snapshot(self) -> bool:
        """Before new facts are taken: whoever starts here finds no answer to those before, and so
        all of them must have been handed out. Whether one was due."""
        if self._decisions is None or not self._recovered:
            return False
        snapshot = self._ledger.snapshot(self._follower.position())
        now_ms = self._announcer.now_ms()
        if not (self._schedule.is_due(snapshot, now_ms) or self._schedule.is_parting_due(snapshot)):
            return False
        if records := self._schedule.records(snapshot, now_ms):
            self._decisions.begin()
            for record in records:
                self._decisions.keep(record)
            self._decisions.commit(self._follower.position())
            self._schedule.kept()
        return True

    def _ordered(
        self, state: JobState, answers: tuple[Decided, ...], recovering: bool
    ) -> tuple[Deletion, ...]:
        for _ in range(len(self._failed)):
            self._orders.take_back(self._failed.popleft())
        return self._orders.all(state) if recovering else self._orders.following(state, answers)

    def _settle(self) -> tuple[Decided, ...]:
        answers = self._ledger.settle()
        for one in answers:
            if one.by == self._announcer.by:
                self._answers.append(one)
            self._term.hear(one)
        self._term.check_epoch(self._ledger.state, self._recovered)
        return answers
