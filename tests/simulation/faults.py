"""The faults of a simulated world: their kinds, their rates, and how often each one struck.

Every place where something may fail asks `strikes` with the kind of fault. A seed chooses the kinds
that happen in its world and their rates; or exactly the n-th chance is taken.
"""

from __future__ import annotations

from collections import Counter

from headgate.control.errors import Invalid, Throttled, Unavailable
from headgate.testing.faulty_store import Effect, FaultPlan, Operation, PlannedFault

from .scheduler import Scheduler

RATES = {
    # of the log
    "append refused": 0.01,
    "append never arrives": 0.01,
    "append arrives late": 0.02,
    "confirmation lost": 0.02,
    "record delayed": 0.10,
    "broker outage": 0.003,
    "log unreadable": 0.005,
    "begin refused": 0.01,
    "write refused": 0.01,
    "commit dropped": 0.02,
    "commit unknown, done": 0.02,
    "commit unknown, dropped": 0.02,
    "commit unknown, open": 0.02,
    "foreign record": 0.05,
    "tick between": 0.03,
    "member given up": 0.005,
    "step ends late": 0.05,
    # of the store
    "throttled": 0.02,
    "store unavailable": 0.02,
    "put request lost": 0.03,
    "put answer lost": 0.05,
    "put arrives late": 0.02,
    "bytes cut short": 0.02,
    "bytes flipped": 0.02,
    "half deleted": 0.05,
    "object lost": 0.003,
    "object damaged": 0.003,
    # of the machines
    "process killed": 0.001,
    "process frozen": 0.001,
    "process cut off": 0.001,
    "clock jump": 0.002,
    "head forgotten": 0.1,
    "second attempt": 0.25,
    "second master": 0.05,
    "second driver": 0.05,
    "driver goes silent": 0.05,
    "task given up": 0.03,
}
HARM = {
    "object lost",
    "object damaged",
    "bytes cut short",
    "bytes flipped",
    "original harmed",
    "combined object harmed",
}
HARMED_EXCHANGES = 10  # as many as in a small world, however many exchanges there are
STREAM_RATES = {"object reported": 0.1}  # only with a pipelined result
COMBINING_RATES = {  # only where objects are combined
    "share cut short": 0.05,
    "original harmed": 0.2,
    "combined object harmed": 0.4,
}
DENIAL_RATES = {"access denied": 0.005}  # only where the store refuses all requests for a while
DENIAL_SHARE, DENIED_MS_MAX = 0.15, 30_000.0
MOUNT_RATES = {"mount missing": 0.01}  # only where executors may be without their mount
_STORE = {
    Operation.CREATE: {
        "put request lost": Effect.LOSE_REQUEST,
        "put answer lost": Effect.LOSE_ANSWER,
    },
    Operation.GET: {"bytes cut short": Effect.TRUNCATE, "bytes flipped": Effect.FLIP},
}


class Chaos:
    """The faults of one world. With `nth` only that chance is taken."""

    def __init__(
        self,
        scheduler: Scheduler,
        nth: int | None = None,
        calm: bool = False,
        exchanges: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._nth = nth
        self.chances = 0
        self.quiet = False
        self.struck: Counter[str] = Counter()
        self._rates = {
            kind: 0.0 if calm or dice.random() < 0.4 else rate * dice.choice((0.5, 1.0, 3.0))
            for rates, dice in (
                (RATES, scheduler.random),
                (STREAM_RATES, scheduler.dice("faults of streams")),
                (COMBINING_RATES, scheduler.dice("faults of combining")),
                (MOUNT_RATES, scheduler.dice("faults of mounts")),
                (DENIAL_RATES, scheduler.dice("faults of denials")),
            )
            for kind, rate in rates.items()
        }
        self._denies = scheduler.dice("denials").random() < DENIAL_SHARE
        self._granted_ms = 0.0
        for kind in HARM if exchanges else ():
            self._rates[kind] *= min(1.0, HARMED_EXCHANGES / exchanges)

    def strikes(self, kind: str) -> bool:
        """Return True if this fault happens here and now."""
        if self.quiet:
            return False
        self.chances += 1
        if self._nth is None:
            rate = self._rates[kind]
            hit = rate > 0.0 and self._scheduler.random.random() < rate
        else:
            hit = self.chances == self._nth
        if hit:
            self.struck[kind] += 1
            self._scheduler.note(f"! {kind}")
        return hit

    def denies(self) -> bool:
        """Return True while the store refuses all requests, as those with an expired token."""
        if self._denies and self.strikes("access denied"):
            ms = DENIED_MS_MAX * self._scheduler.random.random()
            self._granted_ms = self._scheduler.now_ms + ms
        return not self.quiet and self._scheduler.now_ms < self._granted_ms

    def bad_answers(self) -> bool:
        """Return True if bytes of any answer were broken on their way. A reader that gets them
        twice in a row reports it."""
        return bool(self.struck["bytes cut short"] + self.struck["bytes flipped"])


class StorePlan(FaultPlan):
    """The faults of the store, drawn at each of its operations."""

    __slots__ = ("_chaos",)

    def __init__(self, chaos: Chaos) -> None:
        super().__init__()
        object.__setattr__(self, "_chaos", chaos)

    def at(self, operation: Operation, nth: int) -> PlannedFault | None:
        chaos: Chaos = self._chaos  # type: ignore[attr-defined]
        if chaos.denies():
            return PlannedFault(operation, nth, error=Invalid("403"))
        if chaos.strikes("throttled"):
            return PlannedFault(operation, nth, error=Throttled("503", retry_after_s=0.2))
        if chaos.strikes("store unavailable"):
            return PlannedFault(operation, nth, error=Unavailable("connection reset"))
        for kind, effect in _STORE.get(operation, {}).items():
            if chaos.strikes(kind):
                return PlannedFault(operation, nth, effect)
        return None
