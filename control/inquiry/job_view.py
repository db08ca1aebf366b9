"""Read the state of a job in a process that does not decide.

Guarantees that all answers are committed. The first question starts at the job's newest snapshot,
and later ones go on from there. Threads may share a view: while one waits for news, others may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from ..clock import Deadline
from ..errors import Lost, Unavailable
from ..ids import JobId, ResultId
from ..log import EventLog, Follower
from ..model.ledger import Ledger
from ..model.state import JobState
from ..snapshots.resume import take_up

_EVENTS_MAX = 500

T = TypeVar("T")


class JobView:
    def __init__(self, log: EventLog, job: JobId) -> None:
        self._log = log
        self._ledger = Ledger(job)
        self._job = job
        self._follower: Follower | None = None
        self._lock = Lock()

    def state(self, deadline: Deadline) -> JobState:
        """Return the state of the job at the current end of its log.

        Raises:
            Unavailable: the log cannot be read, or not to its end before the deadline.
        """
        with self._lock:
            end = self._open(deadline).end()
            while (follower := self._open(deadline)).position() < end:
                if deadline.passed:
                    raise Unavailable(f"the log of job {self._job} was not read to {end} in time")
                self._poll(follower, deadline.poll_s)
            return self._ledger.state

    def wait(
        self,
        result: ResultId,
        answer_of: Callable[[JobState], T | None],
        fresh: Callable[[], Deadline],
    ) -> T | None:
        """Wait for the first answer that is not None, and return it. Return None if a deadline
        passes without a change of the result; each change starts a fresh deadline."""
        deadline, before = fresh(), None
        while True:
            with self._lock:
                self._poll(self._open(deadline), 0.0)
                state = self._ledger.state
            if (answer := answer_of(state)) is not None:
                return answer
            if (now := state.results.get(result)) is not before:
                before, deadline = now, fresh()
            if deadline.passed:
                return None
            deadline.pause()  # others may ask meanwhile

    def close(self) -> None:
        with self._lock:
            self._close()

    def _open(self, deadline: Deadline) -> Follower:
        if self._follower is None:
            start = take_up(self._log, self._job, deadline)
            self._ledger = Ledger(self._job, start.snapshot)
            self._follower = start.follower
        return self._follower

    def _poll(self, follower: Follower, timeout_s: float) -> None:
        try:
            for recorded in follower.poll(_EVENTS_MAX, timeout_s):
                self._ledger.observe(recorded)
        except Lost:  # away for longer than the log keeps events: start again
            self._close()
        self._ledger.settle()

    def _close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
