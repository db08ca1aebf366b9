"""The heartbeats of a driver.

They cause nothing by themselves: the master of a job publishes that the driver was silent for its
lease. A driver whose heartbeats are not confirmed stops before its lease ends, because its objects
may be deleted from then on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..clock import Deadline
from ..contract import MasterSettings, beat_ms
from ..errors import HeadgateError, Unavailable
from ..ids import JobId
from ..log import EventLog

_LOG = logging.getLogger(__name__)
_ANSWER_S_MAX = 5.0


class HeartbeatThread:
    """Sends heartbeats for one job until it is stopped, `speaks` returns False, or none was
    confirmed for nearly a lease."""

    def __init__(
        self,
        log: EventLog,
        job: JobId,
        settings: MasterSettings,
        speaks: Callable[[], bool],
        unheard: Callable[[Unavailable], None],
    ) -> None:
        self._log = log
        self._job = job
        self._speaks = speaks
        self._unheard = unheard
        self._lease_s = settings.lease_ms / 1000
        self._period_s = beat_ms(settings.lease_ms, settings.pace) / 1000
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        lease = Deadline.after(self._lease_s)
        while self._speaks():
            begun = Deadline.after(self._lease_s)
            if self._is_heard():
                lease = begun
            elif lease.left_s < self._period_s:
                self._unheard(
                    Unavailable(
                        f"no heartbeat of job {self._job} was confirmed for nearly its lease of "
                        f"{self._lease_s:g} s: its results may be deleted"
                    )
                )
                return
            if self._stopping.wait(self._period_s):
                return

    def _is_heard(self) -> bool:
        answer = Deadline.after(min(self._period_s, _ANSWER_S_MAX))
        try:
            self._log.beat(self._job).offset(answer)
            return True
        except HeadgateError as exc:
            _LOG.warning("a heartbeat of job %s was not confirmed: %s", self._job, exc)
            return False
