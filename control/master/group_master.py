"""A session master: a member of the group that decides for many jobs, until it is closed.

Guarantees: after a failure it joins again and goes on from the log; deletions run beside the steps,
after the order to delete is committed. It ends by itself only when another master has taken its
slot, or on an unexpected error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from ..clock import Clock, Deadline
from ..contract import MasterSettings, PartitionStorage
from ..errors import Fenced, HeadgateError, Lost, OutcomeUnknown, Retryable
from ..ids import JobId
from ..log import EventLog
from .deletions import Clearing, Deleter, Deletion
from .group_steps import GroupSteps, MasterIdentity
from .silence import MASTERS

_LOG = logging.getLogger(__name__)


class GroupMaster:
    def __init__(
        self,
        log: EventLog,
        storage: PartitionStorage,
        settings: MasterSettings,
        me: MasterIdentity,
    ) -> None:
        self._log = log
        self._storage = storage
        self._settings = settings
        self._me = me
        self._stopping = threading.Event()

    def run(self) -> None:
        """Decide until `stop` is called.

        Raises:
            Conflict: another master has joined under the same slot.
        """
        with (
            closing(Deleter(self._delete)) as turns,
            ThreadPoolExecutor(1, thread_name_prefix="headgate-beats") as listener,
        ):
            while not self._stopping.is_set():
                self._join(turns, listener)

    def stop(self) -> None:
        """Leave the group after the current step. Any thread may call this."""
        self._stopping.set()

    def _join(self, turns: Deleter, listener: ThreadPoolExecutor) -> None:
        try:
            steps = GroupSteps(self._log, self._me, self._settings)
            lookout = Lookout(steps, self._settings.look_ms / 1000, self._me.clock)
            with closing(steps):
                while not self._stopping.is_set():
                    for deletion in steps.step(self._settings.pace.poll_s):
                        turns.add(deletion)
                    lookout.look(lambda: listener.submit(self._ask_beats))
        except (Retryable, OutcomeUnknown, Fenced, Lost) as exc:
            turns.forget()  # the next steps hand out all deletions again
            outcome = "was fenced" if isinstance(exc, Fenced) else "starts over"
            _LOG.warning("slot %s %s, and joins again: %s", self._me.slot, outcome, exc)
            self._stopping.wait(self._settings.pace.retry_s)

    def _delete(self, deletion: Deletion | Clearing) -> None:
        deletion.run(self._storage, self._log, self._settings.deadline(self._me.clock))

    def _ask_beats(self) -> dict[JobId, int]:
        self._log.beat(MASTERS)
        return self._log.read_beats(None, self._settings.deadline(self._me.clock))


class Lookout:
    """Looks every `look_s` seconds for silent drivers and for times that have come. Heartbeats are
    read in another thread, beside the steps."""

    def __init__(self, steps: GroupSteps, look_s: float, clock: Clock) -> None:
        self._steps = steps
        self._look_s = look_s
        self._clock = clock
        self._next = Deadline.after(look_s, clock)
        self._asked: Future[dict[JobId, int]] | None = None

    def look(self, ask: Callable[[], Future[dict[JobId, int]]]) -> None:
        if self._asked is not None and self._asked.done():
            self._hear(self._asked)
            self._asked = None
        if self._next.passed:
            self._next = Deadline.after(self._look_s, self._clock)
            if self._steps.look() and self._asked is None:
                self._asked = ask()

    def _hear(self, asked: Future[dict[JobId, int]]) -> None:
        try:
            self._steps.hear(asked.result())
        except HeadgateError as exc:
            _LOG.warning("could not read the heartbeats of drivers: %s", exc)
