"""A driver's side of the log: it states facts until they are confirmed, and reads decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from headgate.control.clock import Deadline
from headgate.control.contract import SESSION
from headgate.control.errors import Fenced, Lost, OutcomeUnknown, Retryable, Unavailable
from headgate.control.events.types import (
    Decision,
    Fact,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
)
from headgate.control.ids import JobId
from headgate.control.log import Follower
from headgate.control.master.announcer import Announcer
from headgate.control.model.ledger import Ledger
from headgate.control.model.state import JobState
from headgate.control.snapshots.resume import begin, take_up

from .broker import SimLog
from .machines import WAIT_S, World
from .scheduler import Process, SimClock

T = TypeVar("T")

TELLS_MAX = 12


class Voice:
    def __init__(
        self,
        world: World,
        process: Process,
        job: JobId,
        patience_s: float = 3 * WAIT_S,
        lease_ms: int = 0,
    ) -> None:
        self.epoch = self._told_at = self._answers_from = 0
        self.log = SimLog(world.broker, process)
        self._mode = world.mode
        self._patience_s = patience_s
        self._lease_ms = lease_ms
        self.leaving = False
        self._scheduler = world.scheduler
        self._process = process
        self._name = process.name
        self._clock = SimClock(world.scheduler, process)
        self._announcer = Announcer(job, process.name, self._clock)
        self._ledger = Ledger(job)
        self._answers: dict[str, tuple[Decision, ...]] = {}
        self._follower: Follower | None = None
        self._unsettled: deque[int] = deque()  # the offsets of facts that are not settled

    @property
    def state(self) -> JobState:
        return self._ledger.state

    @property
    def position(self) -> int:
        return self._follower.position() if self._follower else 0

    @property
    def settled(self) -> int:
        """Return the position up to which the state covers the log."""
        return self._unsettled[0] if self._unsettled else self.position

    def register(self) -> None:
        """Become the job's driver."""
        if self._mode == SESSION:
            begin(self.log, self._announcer.job, Deadline.after(self._patience_s, self._clock))
        answer = self.ask(JobRegistered(self._mode, "0", self._name, "", self._lease_ms))
        assert isinstance(answer[0], JobAccepted), "a registered job is accepted"
        self.epoch = answer[0].epoch
        if self._lease_ms:
            self._scheduler.spawn(f"heart of {self._name}", self._process, self._beat)

    def leave(self) -> None:
        """State that the job has ended."""
        self.leaving = True
        self.ask(JobUnregistered("closed", self.epoch))

    def _beat(self) -> None:
        """Send heartbeats until the driver leaves."""
        while not self.leaving:
            with suppress(Retryable):
                self.log.beat(self._announcer.job)
            self._clock.sleep_s(self._lease_ms / 3000)

    def tell(self, body: Fact) -> str:
        """State a fact until the log has confirmed it, and return the id of the confirmed event."""
        for _ in range(TELLS_MAX):
            self.check_fence()
            event = self._announcer.fact(body)
            try:
                receipt = self.log.append(event)
                self._told_at = receipt.offset(Deadline.after(WAIT_S, self._clock))
                return event.id
            except (Retryable, OutcomeUnknown):
                self._clock.sleep_s(1.0)
        raise Unavailable(f"{body} could not be stated")

    def ask(self, body: Fact) -> tuple[Decision, ...]:
        while True:
            name = self.tell(body)
            self.wait(partial(self._is_answered, name), f"{body} to be decided")
            if name in self._answers:
                return self._answers[name]

    def _is_answered(self, name: str, _: JobState) -> bool | None:
        """Return True if the decision is known, or cannot become known because a snapshot has no
        answers."""
        return True if name in self._answers or self._told_at < self._answers_from else None

    def wait(self, find: Callable[[JobState], T | None], what: str) -> T:
        """Return the first answer that is not None on the settled state."""
        deadline = Deadline.after(self._patience_s, self._clock)
        while (answer := find(self.state)) is None:
            if deadline.passed:
                raise Unavailable(f"waited too long for {what}")
            self.take(2.0)
            self.check_fence()
        return answer

    def take(self, timeout_s: float) -> None:
        """Read further in the log."""
        try:
            if self._follower is None:
                self._follower = self._take_up()
            records = self._follower.poll(50, timeout_s)
        except Lost:
            self._follower = None
            return
        except Retryable:
            self._clock.sleep_s(0.5)
            return
        for recorded in records:
            self._ledger.observe(recorded)
            if recorded.event.basis is None:
                self._unsettled.append(recorded.offset)
        for answer in self._ledger.settle():
            self._unsettled.popleft()
            if answer.by == self._name:
                self._answers[answer.cause] = answer.decisions

    def _take_up(self) -> Follower:
        job = self._announcer.job
        start = take_up(self.log, job, Deadline.after(WAIT_S, self._clock), known=0)
        self._ledger = Ledger(job, start.snapshot)
        self._unsettled.clear()
        self._answers_from = start.snapshot.position if start.snapshot else 0
        return start.follower

    def catch_up(self) -> None:
        """Read everything that the log has by now."""
        end = None
        while end is None or self.position < end:
            self.take(0.2)
            with suppress(Retryable):
                end = end or (self._follower.end() if self._follower else None)
            self.check_fence()

    def check_fence(self) -> None:
        """Raise an error if the driver no longer speaks for the job.

        Raises:
            Fenced: another driver speaks for the job, or has ended it.
        """
        if self.epoch and self.state.epoch > self.epoch:
            raise Fenced(f"epoch {self.state.epoch} has begun")
        if self.epoch and self.state.closed is not None and not self.leaving:
            raise Fenced(f"the job was ended: {self.state.closed}")
