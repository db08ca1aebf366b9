"""What happens to whom and when: the same seed gives the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headgate.control.contract import PER_JOB, SESSION

VICTIMS = ("master", "driver", "executor", "worker", "leader", "coordinator", "store")
KILLED, PAUSED, REPLACED = "killed", "paused", "replaced"
FAULTS = (
    *((victim, how) for victim in VICTIMS for how in (KILLED, PAUSED)),
    ("driver", REPLACED),
)

# The phases that an application tells, in their order; in the last one nothing can happen.
PHASES = ("attaching", "writing", "rewriting", "reading", "closing", "closed")
_BUSY = ("writing", "rewriting", "reading")

AFTER_S_MAX = 3.0
LASTS_S = (1.0, 8.0)
# Longer than a session of the group and than a transaction: its holder is given up meanwhile.
LASTS_LONG_S = (1.0, 14.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One application, and what is done to one process of it or of its services."""

    number: int
    mode: str
    victim: str
    how: str
    phase: str
    after_s: float
    lasts_s: float
    choice: float  # which one, where there are several

    @property
    def what(self) -> str:
        return f"{self.victim} {self.how}"


def plan(seed: int) -> Iterator[Round]:
    """Rounds without end; every fault comes once before any comes again."""
    chance, number = Random(seed), 0
    while True:
        faults = list(FAULTS)
        chance.shuffle(faults)
        for victim, how in faults:
            number += 1
            yield _round(number, victim, how, chance)


def _round(number: int, victim: str, how: str, chance: Random) -> Round:
    always = victim not in ("executor", "worker")
    long = how != KILLED and victim in ("master", "driver")
    return Round(
        number,
        SESSION if victim in ("master", "coordinator") else chance.choice((PER_JOB, SESSION)),
        victim,
        how,
        chance.choice(PHASES[:-1] if always else _BUSY),
        chance.uniform(0, AFTER_S_MAX),
        chance.uniform(*(LASTS_LONG_S if long else LASTS_S)),
        chance.random(),
    )
