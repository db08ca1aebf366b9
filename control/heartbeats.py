"""A driver's signs of life.

They cause nothing by themselves: who masters a job that was silent for its lease states so, as a
fact. Assumes that one beat in three is heard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .errors import HeadgateError
from .ids import JobId
from .log import EventLog

_LOG = logging.getLogger(__name__)
_BEATS_A_LEASE = 3
_PERIOD_S_MAX = 300.0


class Heart:
    """Beats for one job until it is stopped, or its driver speaks no more."""

    def __init__(
        self, log: EventLog, job: JobId, lease_ms: int, speaks: Callable[[], bool]
    ) -> None:
        self._log = log
        self._job = job
        self._speaks = speaks
        self._period_s = min(lease_ms / _BEATS_A_LEASE / 1000, _PERIOD_S_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while self._speaks():
            try:
                self._log.beat(self._job)
            except HeadgateError as exc:
                _LOG.warning("a sign of life of job %s was not sent: %s", self._job, exc)
            if self._stopping.wait(self._period_s):
                return
