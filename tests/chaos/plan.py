"""The plan of a run: each process's faults and their times. One seed always gives one plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from headgate.control.contract import PER_JOB, SESSION
from tests.doubles.tpcds import QUERIES as TESTED

VICTIMS = ("master", "driver", "executor", "worker", "leader", "coordinator", "store")
KILLED, PAUSED, REPLACED = "killed", "paused", "replaced"
FAULTS = (
    *((victim, how) for victim in VICTIMS for how in (KILLED, PAUSED)),
    ("driver", REPLACED),
)
_OF_TASKS = ("executor", "worker")

EXCHANGES, TPCDS, LONG = "exchanges", "tpcds", "long"
APPLICATIONS = (EXCHANGES, TPCDS)  # the applications of rounds
OFFLOAD, ACTION = "offload", "action"
QUERIES = tuple(TESTED)
IN_TURN = ("first", "second", "third", "fourth")

# The phases that an application prints, in order; no fault strikes in the last one.
PHASES = {
    EXCHANGES: ("attaching", "writing", "rewriting", "reading", "closing", "closed"),
    TPCDS: ("attaching", *IN_TURN, "closing", "closed"),
    LONG: ("attaching", "working", "closing", "closed"),
}

AFTER_S_MAX = 3.0
LASTS_S = (1.0, 8.0)
# Up to longer than a group session and a transaction, so that their holder is given up meanwhile.
LASTS_LONG_S = (1.0, 14.0)
BETWEEN_S = (3.0, 8.0)
STRIKES_MAX = 12
COMBINED_SHARE, BUNDLES_MAX, RANGES_MAX = 0.5, 4, 3

# The faults of a run of hours.
LINK, CUT = "link", "cut"
SOAKED = (*((victim, how) for victim in VICTIMS for how in (KILLED, PAUSED)), (LINK, CUT))
SOAKED_BETWEEN_S, SOAKED_LASTS_S = (5.0, 25.0), (1.0, 25.0)
# A broker that hangs keeps its connections: whoever has asked it would wait for as long.
HUNG_S, HUNG_SHARE, BROKERS = 75.0, 0.25, ("leader", "coordinator")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a round's application: its kind, its mode, its queries, and the sets of
    partitions and ranges of subpartitions that it combines."""

    application: str
    mode: str
    way: str = ""
    queries: tuple[int, ...] = ()  # of TPC-DS, in this order
    combined: tuple[int, int] | None = None

    @property
    def phases(self) -> tuple[str, ...]:
        return PHASES[self.application]

    def __str__(self) -> str:
        asked = f" {self.way} {','.join(map(str, self.queries))}" if self.queries else ""
        combined = " combined {} x {}".format(*self.combined) if self.combined else ""
        return f"{self.mode} {self.application}{asked}{combined}"


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill or pause, a while after its phase began or after the strike before it."""

    phase: str
    after_s: float
    lasts_s: float
    choice: float  # chooses among several victims

    def __str__(self) -> str:
        return f"{self.after_s:.1f} s into {self.phase}, for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Round:
    """One application, and the faults of its processes or services."""

    number: int
    work: Work
    victim: str
    how: str
    strikes: tuple[Strike, ...]

    @property
    def what(self) -> str:
        return f"{self.victim} {self.how}"


def plan(seed: int, applications: Sequence[str] = APPLICATIONS) -> Iterator[Round]:
    """Yield rounds without end; every fault comes once before any comes again."""
    chance, number = Random(seed), 0
    while True:
        faults = list(FAULTS)
        chance.shuffle(faults)
        for victim, how in faults:
            number += 1
            work = _work(chance.choice(applications), victim, chance)
            strikes = tuple(_strikes(work, victim, how, chance))
            yield Round(number, work, victim, how, strikes)


def _work(application: str, victim: str, chance: Random) -> Work:
    always = victim in ("master", "coordinator")
    mode = SESSION if always else chance.choice((PER_JOB, SESSION))
    way = chance.randint(1, BUNDLES_MAX), chance.randint(1, RANGES_MAX)
    combined = way if chance.random() < COMBINED_SHARE else None
    if application == EXCHANGES:
        return Work(application, mode, combined=combined)
    drawn = tuple(chance.sample(QUERIES, len(IN_TURN)))
    return Work(application, mode, chance.choice((OFFLOAD, ACTION)), drawn, combined)


def _strikes(work: Work, victim: str, how: str, chance: Random) -> Iterator[Strike]:
    """Draw the strikes of a round: queries lose executors and workers again and again, and a
    service once or twice."""
    again = work.application == TPCDS
    if again and victim in _OF_TASKS:
        for _ in range(STRIKES_MAX):
            lasts_s = 0.0 if how == KILLED else chance.uniform(*LASTS_S)
            yield Strike(IN_TURN[0], chance.uniform(*BETWEEN_S), lasts_s, chance.random())
        return
    times = chance.choice((1, 2)) if again and victim != "driver" else 1
    phases = _phases(work, victim, how)
    long = how != KILLED and victim in ("master", "driver")
    for phase in sorted((chance.choice(phases) for _ in range(times)), key=phases.index):
        lasts_s = chance.uniform(*(LASTS_LONG_S if long else LASTS_S))
        yield Strike(phase, chance.uniform(0, AFTER_S_MAX), lasts_s, chance.random())


def _phases(work: Work, victim: str, how: str) -> tuple[str, ...]:
    """Return the phases in which a strike is useful. Closing takes no time after queries, so it is
    left out. A driver is replaced once it has attached: one that registers behind its successor
    would take the job back."""
    if victim in _OF_TASKS:
        return work.phases[1:-2]
    first = 1 if how == REPLACED else 0
    return work.phases[first : -2 if work.application == TPCDS else -1]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the application with this number, a while after the fault before it."""

    at: int
    victim: str
    how: str
    between_s: float
    lasts_s: float
    choice: float


def faults(seed: int, applications: int) -> Iterator[Fault]:
    """Yield faults without end. Every other driver is never killed, because its memory is
    watched."""
    chance = Random(seed)
    while True:
        at, (victim, how) = chance.randrange(applications), chance.choice(SOAKED)
        if victim == "driver" and at % 2:
            how = PAUSED
        between_s, lasts_s = chance.uniform(*SOAKED_BETWEEN_S), chance.uniform(*SOAKED_LASTS_S)
        if victim in BROKERS and how == PAUSED and chance.random() < HUNG_SHARE:
            lasts_s = HUNG_S
        yield Fault(at, victim, how, between_s, lasts_s, chance.random())
