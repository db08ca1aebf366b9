"""Follow a log, and keep the numbers that an operator can alarm on.

Guarantees: a number of a job is a function of the log, so that a new process has the same. Nothing
is shown before the log was read up to the end that it had when the reading began: a counter that is
still on its way would be taken for one that began anew, and counted twice. Events and latencies,
which the states of jobs do not keep, are counted from that end on.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from threading import Event, Lock

from ...control.clock import PACE, SYSTEM_CLOCK, Clock, ProgressDeadline
from ...control.contract import PER_JOB, SESSION
from ...control.errors import HeadgateError, Lost
from ...control.events.types import ResultRegistered
from ...control.ids import JobId, ResultId
from ...control.inquiry.following import FollowedJobs
from ...control.inquiry.listing import ListedJob, list_jobs
from ...control.inquiry.neglected import JobLog
from ...control.inquiry.reading import READ_S_MAX
from ...control.log import EventLog, Placed
from ...control.model.state import is_over

_LOG = logging.getLogger(__name__)
LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LOOK_S = 5.0
_BEATS_S = 15.0
_ENDED_MS = 3_600_000  # how long the numbers of a job that is over are shown


@dataclass(frozen=True, slots=True)
class JobNumbers:
    listed: ListedJob
    due: int
    """The decisions that follow from the facts and are not in the log yet."""
    due_ms: int | None
    """The time of the fact that has waited longest for its decision."""
    oldest_ms: int | None
    """The time at which the oldest result that is not released was registered."""


@dataclass(frozen=True, slots=True)
class Latencies:
    counts: tuple[int, ...]
    """The decisions up to each of `LATENCIES_S`, and all of them."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class LogNumbers:
    """The numbers of a log at one moment."""

    jobs: tuple[ListedJob, ...]
    shown: tuple[JobNumbers, ...]
    """The jobs with numbers of their own: all but those that were over an hour ago."""
    events: Mapping[str, int]
    latencies: Mapping[str, Latencies]
    offsets: Mapping[int, range]
    lags: Mapping[int, int]
    """The records of each partition that were still to be read, up to `offsets`."""
    rejected: int
    read_ms: int
    """The time at which the log was last read, and has answered."""


class _Latency:
    """A histogram of one mode."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCIES_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCIES_S, seconds)] += 1
        self.sum_s += seconds


class LogNumbersReader:
    """Reads a log in one thread; others may ask for its numbers."""

    def __init__(self, log: EventLog, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._followed = FollowedJobs(log, clock)
        self._is_ready = False
        self._events: Counter[str] = Counter()
        self._latencies = {mode: _Latency() for mode in (PER_JOB, SESSION)}
        self._asked: dict[JobId, dict[int, int]] = {}  # times of facts whose decisions are due
        self._registered: dict[JobId, dict[ResultId, int]] = {}
        self._offsets: Mapping[int, range] = {}
        self._lags: Mapping[int, int] = {}
        self._look_due_s = self._beats_due_s = 0.0
        self._beats: dict[JobId, int] = {}
        self._rejected = self._rejected_before = 0
        self._read_ms = self._now_ms = 0

    def run(self, ending: Event) -> None:
        """Read until `ending` is set. While the log cannot be read, its last numbers stay, and the
        first error is logged."""
        is_away = False
        while not ending.is_set():
            try:
                self.step(PACE.poll_s)
                is_away = False
            except HeadgateError as exc:
                if not is_away:
                    _LOG.warning("the log was not read: %s", exc)
                is_away = True
                ending.wait(PACE.retry_s)

    def step(self, timeout_s: float) -> None:
        """Take the next events.

        Raises:
            Unavailable: the log cannot be read.
            Lost: the log has lost events that were still to be read. The next step begins anew.
        """
        try:
            self._step(timeout_s)
        except Lost:
            with self._lock:
                self._is_ready = False
                self._asked, self._registered = {}, {}
            raise

    def _step(self, timeout_s: float) -> None:
        self._followed.open()
        events = self._followed.poll(timeout_s)
        with self._lock:
            for placed in events:
                self._observe(placed)
        now_s = self._clock.monotonic_s()
        if now_s >= self._beats_due_s:
            beats = self._log.read_beats(None, ProgressDeadline(READ_S_MAX))
            # a driver is not silent because its heartbeats are not read all the time
            self._beats, self._now_ms = beats, max([self._clock.now_ms(), *beats.values()])
            self._beats_due_s = self._clock.monotonic_s() + _BEATS_S
        if now_s >= self._look_due_s or not self._is_ready:
            self._look()

    def _look(self) -> None:
        """Compare with the offsets that the log has, and with those that it had at the last look:
        under load, the reader never stands at the end that the log has now."""
        starts, positions = self._followed.starts, self._followed.positions()
        with self._lock:
            if not self._is_ready and all(positions[at] >= end for at, end in starts.items()):
                self._is_ready, self._rejected_before = True, self._followed.rejected
                self._offsets = {}
        if not self._is_ready:
            return
        if self._offsets and not self._followed.lag(self._offsets):
            self._followed.forget(self._offsets)
        offsets = self._followed.offsets()
        lags = {at: max(0, there.stop - positions[at]) for at, there in offsets.items()}
        self._look_due_s = self._clock.monotonic_s() + _LOOK_S
        with self._lock:
            # a client whose broker is away may only say that there are no events
            self._read_ms = self._clock.now_ms()
            self._offsets, self._lags = offsets, lags
            new = self._followed.rejected - self._rejected_before
            self._rejected, self._rejected_before = self._rejected + new, self._followed.rejected
            self._prune()

    def _observe(self, placed: Placed) -> None:
        recorded, event = placed.recorded, placed.recorded.event
        at_ms = recorded.at_ms or event.time_ms
        entry = self._followed.observe(recorded)
        is_new = recorded.offset >= self._followed.starts[placed.partition]
        if is_new:
            self._events[event.kind] += 1
        if isinstance(event.body, ResultRegistered):
            registered = self._registered.setdefault(event.job, {})
            registered.setdefault(event.body.result, at_ms)
        due = entry.replay.due
        if event.basis is None:
            if due and due[-1].basis == recorded.offset:
                self._asked.setdefault(event.job, {})[recorded.offset] = at_ms
            return
        asked = self._asked.get(event.job, {})
        asked_ms = asked.get(event.basis, 0)
        if is_new and recorded.at_ms and asked_ms:
            latency = self._latencies[SESSION if entry.replay.mode == SESSION else PER_JOB]
            latency.add(max(0, recorded.at_ms - asked_ms) / 1000)
        if not due or due[0].basis != event.basis:
            asked.pop(event.basis, None)

    def _prune(self) -> None:
        """Drop the numbers of jobs and results that are no longer there."""
        jobs = self._followed.jobs
        self._asked = {job: asked for job, asked in self._asked.items() if asked and job in jobs}
        kept: dict[JobId, dict[ResultId, int]] = {}
        for job, times in self._registered.items():
            if job in jobs and times:
                state = jobs[job].replay.state
                kept[job] = {name: at for name, at in times.items() if state.unreleased(name)}
        self._registered = kept

    def numbers(self) -> LogNumbers | None:
        """Return the numbers of now; None before the log was read to its end."""
        with self._lock:
            if not self._is_ready:
                return None
            logs, now_ms = self._followed.jobs, self._now_ms
            jobs = tuple(list_jobs(logs, self._beats, now_ms))
            return LogNumbers(
                jobs,
                tuple(self._numbers(it, logs[it.job]) for it in jobs if _is_shown(it, now_ms)),
                dict(self._events),
                {mode: _latencies(latency) for mode, latency in self._latencies.items()},
                self._offsets,
                self._lags,
                self._rejected,
                self._read_ms,
            )

    def _numbers(self, listed: ListedJob, entry: JobLog) -> JobNumbers:
        asked, times = self._asked.get(listed.job, {}), self._registered.get(listed.job, {})
        due = entry.replay.due
        names = [name for name in listed.state.results if listed.state.unreleased(name)]
        # the log has lost a registration that is older than what it keeps: the job is older, too
        ages = (times.get(name, listed.began_ms) for name in names)
        return JobNumbers(
            listed,
            len(due),
            (asked.get(due[0].basis) or None) if due else None,
            min(ages, default=None),
        )

    def close(self) -> None:
        self._followed.close()


def _is_shown(listed: ListedJob, now_ms: int) -> bool:
    return not is_over(listed.state) or now_ms - listed.heard_ms < _ENDED_MS


def _latencies(latency: _Latency) -> Latencies:
    return Latencies(tuple(accumulate(latency.counts)), latency.sum_s)
