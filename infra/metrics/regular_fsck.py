"""Compare the log with the bucket again and again, and keep the numbers of the last comparison."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from threading import Event

from ...control.clock import SYSTEM_CLOCK, Clock
from ...control.errors import HeadgateError
from ...control.inquiry.reading import states
from ...control.log import EventLog
from ...storage.stores.port import BlobStore
from ...storage.upkeep.fsck import Kind, check

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FsckNumbers:
    findings: Mapping[Kind, int]
    live_bytes: int
    took_s: float
    ended_ms: int


class RegularFsck:
    """Does what `headgate fsck` does, at an interval, and repairs nothing."""

    def __init__(
        self,
        log: EventLog,
        store: BlobStore,
        root: str,
        every_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.last: FsckNumbers | None = None
        """The numbers of the last comparison that came to its end."""
        self._log = log
        self._store = store
        self._root = root
        self._every_s = every_s
        self._clock = clock

    def run(self, ending: Event) -> None:
        with closing(self._store):
            while not ending.is_set():
                try:
                    self.last = self.check()
                except Exception as exc:  # the next comparison may come to its end
                    trace = not isinstance(exc, HeadgateError)
                    _LOG.warning("the bucket was not compared: %s", exc, exc_info=trace)
                ending.wait(self._every_s)

    def check(self) -> FsckNumbers:
        """Compare once.

        Raises:
            Unavailable, Throttled: the log or the store cannot be read.
        """
        began_s = self._clock.monotonic_s()
        findings = check(self._store, self._root, lambda: states(self._log, ""))
        return FsckNumbers(
            Counter(finding.kind for finding in findings.found),
            sum(stat.size_bytes for stat in findings.live),
            self._clock.monotonic_s() - began_s,
            self._clock.now_ms(),
        )
