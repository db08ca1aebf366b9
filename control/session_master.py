"""A session master: a member of the group that decides for many jobs, until it is closed.

Guarantees: whatever fails, it joins again and goes on from the log; deletions run beside the steps,
after the order to delete is committed. It ends by itself only when another master has taken its
slot, or when something happens that nobody foresaw.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from .clock import Deadline
from .contract import MasterSettings, PartitionStorage
from .deletion import Deletion
from .errors import Fenced, Lost, OutcomeUnknown, Retryable
from .log import EventLog
from .session_steps import SessionSteps, Speaking

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_PAUSE_S = 0.5
_DELETERS = 4


class SessionMaster:
    def __init__(
        self,
        log: EventLog,
        storage: PartitionStorage,
        settings: MasterSettings,
        speaking: Speaking,
    ) -> None:
        self._log = log
        self._storage = storage
        self._settings = settings
        self._speaking = speaking
        self._stopping = threading.Event()

    def run(self) -> None:
        """Decide until `stop`.

        Raises:
            Conflict: another master has joined under the same slot.
        """
        with ThreadPoolExecutor(_DELETERS, thread_name_prefix="headgate-delete") as deleter:
            try:
                while not self._stopping.is_set():
                    self._join(deleter)
            finally:
                deleter.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Leave the group after the step that is under way; may be called by any thread."""
        self._stopping.set()

    def _join(self, deleter: ThreadPoolExecutor) -> None:
        try:
            steps = SessionSteps(self._log, self._speaking, self._settings.step_events_max)
            with closing(steps):
                while not self._stopping.is_set():
                    for deletion in steps.step(_POLL_S):
                        deleter.submit(self._delete, deletion)
        except (Retryable, OutcomeUnknown, Fenced, Lost) as exc:
            said = "was fenced" if isinstance(exc, Fenced) else "starts over"
            _LOG.warning("slot %s %s, and joins again: %s", self._speaking.slot, said, exc)
            self._stopping.wait(_PAUSE_S)

    def _delete(self, deletion: Deletion) -> None:
        deadline = Deadline.after(self._settings.wait_ms / 1000, self._speaking.clock)
        deletion.run(self._storage, self._log, deadline)
