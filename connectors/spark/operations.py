"""Answer an operator's questions about the job of an attached session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from ...control.clock import Deadline
from ...control.errors import Unavailable
from ...control.ids import PartitionId, ResultId
from ...control.inquiry.history import Made, why
from ...control.snapshots.resume import follow_all
from .exchanges.stored import StoredResults
from .services import JobServices
from .tables import ShownTuple, Table

_EVENTS_MAX = 500
_CELL_MAX = 72


class Attempts(ShownTuple[Made]):
    """Attempts at a partition, in the order in which they were started."""

    __slots__ = ()
    kind = Made

    def table_of(self, shown: Sequence[Made], hint: tuple[str, ...]) -> Table:
        rows = [
            (str(made.attempt), made.outcome, made.reason, ", ".join(map(str, made.offsets)))
            for made in shown
        ]
        words = ("attempt", "outcome", "because")
        return Table(words, ("offsets",), rows, feet=hint, cell_max=_CELL_MAX)


@dataclass(frozen=True, slots=True)
class Operations:
    """The questions about one job."""

    _results: StoredResults
    _services: JobServices
    _require_open: Callable[[], None]

    def is_available(self, result: str, partition: int | None = None) -> bool:
        """Return True if a whole result, or one whole partition of it, can be read now."""
        self._require_open()
        return self._results.master.is_available(ResultId(result), partition)

    def may_release_executor(self, host: str) -> bool:
        """Return True if this job loses nothing with the executors of a host."""
        self._require_open()
        return self._results.master.may_release_executor(host)

    def why(self, result: str, partition: int) -> Attempts:
        """Return every attempt at a partition, with its reason and its outcome.

        Raises:
            Closed: the session has closed its headgate.
            Unavailable: the log was not read in time.
        """
        self._require_open()
        job = self._results.worker.job
        deadline = Deadline.after(self._results.worker.wait_s)
        with closing(follow_all(self._services.log, job, deadline)) as follower:
            records, end = [], follower.end()
            while follower.position() < end:
                if deadline.passed:
                    at = follower.position()
                    raise Unavailable(f"the log of job {job} was read up to {at} of {end}")
                records += follower.poll(_EVENTS_MAX, deadline.poll_s)
        return Attempts(why(records, PartitionId(ResultId(result), partition)))
