"""Session masters that join, leave, are evicted and wake again decide every fact once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from headgate.control.contract import MasterSettings
from headgate.control.errors import Conflict, Fenced
from headgate.control.events.types import AttemptFailed, Fact, JobUnregistered, ReleaseRequested
from headgate.control.ids import JobId
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog

from ..doubles.groups import OPENING, Storage, audited, drive, state_facts
from ..doubles.jobs import RESULT, attempt, produced
from ..doubles.logs import STEP_EVENTS_MAX, FaultyLog
from ..doubles.steps import CLOCK

TAKE_OVER_STEPS = 12
SLOTS = ("a", "b", "c")
SETTINGS = MasterSettings(step_events_max=STEP_EVENTS_MAX, snapshot_events=3)
JOBS = [JobId(f"job-{number}") for number in range(4)]
NEXT: tuple[Fact, ...] = (
    *OPENING,
    produced(0, 1),
    produced(0, 2),
    AttemptFailed(attempt(1, 9), "oom"),
    produced(1, 3),
    ReleaseRequested(RESULT, "asked"),
    JobUnregistered("closed"),
)


class Interrupted(FaultyLog):
    """A log of one master, before whose commits a test can act."""

    def __init__(self, inner: MemoryEventLog) -> None:
        super().__init__(inner)
        self.before_commit: list[Callable[[], None]] = []
        self.may_commit.wait = self._interrupt  # type: ignore[method-assign]

    def _interrupt(self, timeout: float | None = None) -> bool:
        while self.before_commit:
            self.before_commit.pop()()
        return True


@dataclass
class World:
    """One log, its masters, the newest master of each slot, and the jobs' next facts."""

    log: MemoryEventLog = field(default_factory=lambda: MemoryEventLog(2))
    storage: Storage = field(default_factory=Storage)
    steps: list[tuple[GroupSteps, Interrupted]] = field(default_factory=list)
    of_slot: dict[str, tuple[GroupSteps, Interrupted]] = field(default_factory=dict)
    stepping: list[GroupSteps] = field(default_factory=list)
    said: dict[JobId, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 0))
    starts: count[int] = field(default_factory=count)

    def join(self, slot: str) -> None:
        log = Interrupted(self.log)
        me = MasterIdentity(slot, f"master {slot} {next(self.starts)}", CLOCK, "")
        self.of_slot[slot] = GroupSteps(log, me, SETTINGS), log
        self.steps.append(self.of_slot[slot])

    def say(self, job: JobId) -> None:
        if self.said[job] < len(NEXT):
            state_facts(self.log, job, NEXT[self.said[job]], by=f"task {self.said[job]}")
            self.said[job] += 1

    def evict(self, slot: str) -> None:
        if slot in self.of_slot:
            self.log.evict(slot)

    def end_step(self, slot: str) -> None:
        if slot in self.of_slot:
            self.log.end_step(slot)

    def step(self, number: int, steps: int = 1) -> None:
        """Let any master that ever joined take steps, also a replaced one."""
        master, _ = self.steps[number % len(self.steps)]
        if master not in self.stepping:
            self.stepping.append(master)
            with suppress(Conflict, Fenced):
                drive(self.log, self.storage, master, steps=steps)
            self.stepping.remove(master)

    def move(self, slot: str) -> None:
        """Evict a member, and let the others take over its partitions."""
        self.evict(slot)
        for number in range(len(self.steps)):
            self.step(number, TAKE_OVER_STEPS)

    def interrupt(self, slot: str, action: tuple[str, int]) -> None:
        """Do something else first in the next commit of a slot's master."""
        if slot in self.of_slot:
            self.of_slot[slot][1].before_commit.append(lambda: self.do(action))

    def do(self, action: tuple[str, int]) -> None:
        name, number = action
        slot = SLOTS[number % len(SLOTS)]
        match name:
            case "say":
                self.say(JOBS[number % len(JOBS)])
            case "join":
                self.join(slot)
            case "evict":
                self.evict(slot)
            case "move":
                self.move(slot)
            case "end step":
                self.end_step(slot)
            case "step":
                self.step(number)


ACTIONS = st.tuples(
    st.sampled_from(["say"] * 4 + ["join", "evict", "move", "end step"] + ["step"] * 4),
    st.integers(0, 60),
)


@given(st.lists(st.tuples(ACTIONS, st.lists(ACTIONS, max_size=4)), min_size=10, max_size=40))
def test_every_fact_is_decided_once(
    actions: list[tuple[tuple[str, int], list[tuple[str, int]]]],
) -> None:
    """Every fact is decided once, in whatever order masters join, step, leave and come back.

    They are also evicted, replaced and woken, even inside each other's commits. A last master
    starts at snapshots, agrees with the log, which explains itself, ends every job, and leaves
    nothing to delete.
    """
    world = World()
    for slot in SLOTS[:2]:
        world.join(slot)
    for action, inside in actions:
        for interruption in inside:
            world.interrupt(SLOTS[action[1] % len(SLOTS)], interruption)
        world.do(action)
    for _, log in world.steps:
        log.before_commit.clear()
    for slot in list(world.of_slot):
        world.join(slot)
        world.of_slot[slot][0].close()
    for job in JOBS:
        while world.said[job] < len(NEXT):
            world.say(job)
    world.join("last")
    drive(world.log, world.storage, world.of_slot["last"][0], steps=40)
    for job in JOBS:
        state = audited(world.log, job).state
        assert world.of_slot["last"][0].states[job] == state
        assert state.closed is not None
        assert {} == state.results[RESULT].production.attempts
        assert 4 == state.results[RESULT].fate.deleted
