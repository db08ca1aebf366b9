"""One job as the master that decides for it sees it, whoever commits the transactions.

Guarantees that a job's events reach its ledger, its orders to delete and its snapshot schedule
together, and that the first deletions that are handed out include those that were ordered earlier.
"""

from __future__ import annotations

from ..events.types import Recorded
from ..model.ledger import Decided, Ledger
from ..model.replay import Snapshot
from ..model.state import JobState
from ..snapshots.schedule import SnapshotSchedule
from .announcer import Announcer
from .deletions import Deletion, DeletionRetrier, Orders


class JobDecider:
    def __init__(
        self,
        announcer: Announcer,
        snapshot: Snapshot | None,
        schedule: SnapshotSchedule,
        failed: DeletionRetrier,
    ) -> None:
        self.announcer = announcer
        self.ledger = Ledger(announcer.job, snapshot)
        self.orders = Orders(announcer, failed)
        self.schedule = schedule
        self._fresh = True

    @property
    def state(self) -> JobState:
        """Return what is committed of the job."""
        return self.ledger.state

    def observe(self, recorded: Recorded) -> None:
        """Take in the next event of the job.

        Raises:
            Corrupt: the log holds another decision than the one that follows from its facts.
        """
        self.schedule.observe(recorded)
        self.ledger.observe(recorded)
        self.orders.observe(recorded)

    def ordered(self, answers: tuple[Decided, ...]) -> tuple[Deletion, ...]:
        """Return the deletions to run now that these answers are committed."""
        fresh, self._fresh = self._fresh, False
        return self.orders.all(self.state) if fresh else self.orders.following(self.state, answers)
