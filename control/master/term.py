"""Follow what a job's driver or master has said in the log since it began, and whether another one
has come in its place.

After a lost connection the log would let a master open the job's decisions again, even if somebody
else has taken over the job meanwhile. So a master first reads what was written in its absence.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from ..clock import Deadline
from ..errors import Fenced, Lost
from ..events.codec import check_known
from ..events.types import JobAccepted, JobRegistered, LeaseExpired, Recorded
from ..ids import JobId
from ..log import EventLog, Follower, read_to
from ..model.ledger import Decided
from ..model.state import JobState, is_fenced
from ..snapshots.resume import take_up


@dataclass(slots=True)
class Term:
    """The term of one driver or master. It outlives steps that are opened anew."""

    by: str
    """The name under which the driver or master writes events."""
    position: int | None = None
    """Nobody has replaced the master before this offset; None until the log is read to its end."""
    logged: int | None = None
    """The master's own log has lines about the events before this offset; None as `position`."""
    registered: int | None = None
    """The offset of the driver's first registration."""
    epoch: int = 0
    """The epoch under which the driver was accepted; 0 before."""
    is_over: bool = False
    """True once a later driver speaks for the job, or the driver's lease has ended."""

    def observe(self, recorded: Recorded, recovered: bool) -> None:
        """Take in the next event. A registration of another driver after this driver's own fences.
        So does a decision of another master, at `position` or later, and anywhere once this master
        decides itself (`recovered`).

        Raises:
            Fenced: another driver has attached to the job, or another master decides for it.
            Invalid: a newer version has written the event: nobody may be fenced because of it.
        """
        event, at = recorded.event, recorded.offset
        check_known(recorded)
        registers = isinstance(event.body, JobRegistered)
        if not registers and event.basis is None:
            return
        if event.by == self.by:
            if registers and self.registered is None:
                self.registered = at
        elif registers:
            if self.registered is not None and self.registered < at:
                self._end(recorded, f"another driver, {event.by}, has attached to job {event.job}")
        elif recovered or (self.position is not None and self.position <= at):
            self.is_over = self.epoch > 0  # before that, the driver that registers last has the job
            raise Fenced(f"{event.by} decides for job {event.job} now", (recorded.offset,))

    def expire(self, recorded: Recorded, before: JobState) -> None:
        """Take in that a driver's lease has ended: the job is closed, and its objects are to be
        deleted. `before` is the state before the event, in which the driver may be known to live.

        Raises:
            Fenced: it was the lease of this driver.
        """
        body = recorded.event.body
        assert isinstance(body, LeaseExpired), "nothing else ends a lease"
        if body.epoch == self.epoch > 0 and not is_fenced(before, body):
            self._end(recorded, f"the lease of job {recorded.event.job} has ended: {body.reason}")

    def hear(self, answer: Decided) -> None:
        """Take in the decisions on a fact."""
        for decision in answer.decisions:
            if isinstance(decision, JobAccepted) and answer.by == self.by:
                self.epoch = decision.epoch

    def check_epoch(self, state: JobState, recovered: bool) -> None:
        """Compare the job's epoch with that of this term. A later epoch fences at any time. Once
        the log is read to its end, so does any other epoch: the job has begun anew without this
        driver.

        Raises:
            Fenced: a later driver was accepted.
        """
        if 0 < self.epoch < state.epoch or (recovered and self.epoch not in (0, state.epoch)):
            self.is_over = True
            raise Fenced(
                f"a later driver has attached to job {state.job}, with epoch {state.epoch}"
            )

    def check(self, log: EventLog, job: JobId, limit: int, deadline: Deadline) -> None:
        """Read the events written since `position`, `limit` at a time, also those after steps that
        are still open. Where the log has lost some of them, start at the newest snapshot.

        Raises:
            Fenced: somebody else decides for the job, or speaks for it.
            Unavailable: the log cannot be read in time.
        """
        if self.position is None:
            return
        try:
            self._read(log.follow(job, self.position), log.written(job), limit, deadline)
        except Lost:
            start = take_up(log, job, deadline)
            if start.snapshot is not None and start.snapshot.position > self.position:
                self.is_over = True  # our own snapshots have only what we have read
                raise Fenced(f"another master decides for job {job} now") from None
            self._read(start.follower, log.written(job), limit, deadline)

    def _read(self, follower: Follower, end: int, limit: int, deadline: Deadline) -> None:
        with closing(follower):
            for recorded in read_to(follower, end, limit, deadline):
                self.observe(recorded, recovered=False)
            self.position = follower.position()

    def _end(self, recorded: Recorded, reason: str) -> None:
        self.is_over = True
        raise Fenced(reason, (recorded.offset,))
