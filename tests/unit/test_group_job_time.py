"""The effects of time on the jobs of a session: results expire, and drivers fall silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Body,
    Fact,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    PromoteRequested,
    Tick,
)
from headgate.control.ids import JobId
from headgate.control.log import EventLog
from headgate.control.master.deletions import Deletion
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.master.silence import MASTERS, SilenceTimer
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState
from headgate.testing.faulty_log import LogFault

from ..doubles.group_masters import mastering
from ..doubles.groups import JOBS, OPENING, STEPS, Storage, audited, drive, events, state_facts
from ..doubles.jobs import HURRIED, JOB, RESULT, Job, attempt, produced
from ..doubles.logs import STEP_EVENTS_MAX, FaultyLog
from ..doubles.stacks import Stack
from ..doubles.steps import StoppedClock

T = TypeVar("T", bound=Body)

DAY_MS = 86_400_000
LEASE_MS = 60_000
SETTINGS = MasterSettings(step_events_max=STEP_EVENTS_MAX)
OFTEN = replace(SETTINGS, snapshot_events=2)
LIVED: tuple[Fact, ...] = (
    JobRegistered(SESSION, "0", "tests", lease_ms=LEASE_MS),
    *OPENING[1:],
    produced(0, 1),
    produced(1, 2),
    AttemptStarted(attempt(1, 7), "host"),
)


@dataclass
class Swept(Storage):
    swept: list[JobId] = field(default_factory=list)
    failing: bool = False

    def sweep(self, closed: JobState) -> int:
        if self.failing:
            raise Unavailable("the store is away")
        self.swept.append(closed.job)
        return 1


@dataclass
class Ahead:
    """A clock that is ahead of another one, or behind it, by a fixed time."""

    clock: StoppedClock
    ahead_ms: int

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.ahead_ms

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def sleep_s(self, seconds: float) -> None:
        self.clock.sleep_s(seconds)


@dataclass
class World:
    """A log and a master that share a clock, and a driver that falls silent."""

    settings: MasterSettings = SETTINGS
    clock: StoppedClock = field(default_factory=lambda: StoppedClock(1_000_000))
    storage: Swept = field(default_factory=Swept)

    def __post_init__(self) -> None:
        self.log = MemoryEventLog(2, self.clock)

    @contextmanager
    def master(self, log: EventLog | None = None, ahead_ms: int = 0) -> Iterator[GroupSteps]:
        clock = Ahead(self.clock, ahead_ms)
        me = MasterIdentity("one", f"master {self.clock.at_ms}", clock, "")
        with closing(GroupSteps(log or self.log, me, self.settings)) as steps:
            drive(self.log, self.storage, steps)
            yield steps

    def live(self, *facts: Fact) -> None:
        by = f"driver {self.clock.at_ms}"
        state_facts(self.log, JOBS[0], *facts, by=by, clock=self.clock)

    def look(self, steps: GroupSteps, beat: bool = True) -> bool:
        """Do what a master does now and then; return True if the master asked for heartbeats."""
        asks = steps.look()
        if asks:
            if beat:
                self.log.beat(MASTERS)
            steps.hear(self.log.read_beats(None, Deadline.after(1.0)))
        drive(self.log, self.storage, steps)
        return asks

    def bodies(self, kind: type[T]) -> list[T]:
        bodies = [r.event.body for r in events(self.log, JOBS[0])]
        return [body for body in bodies if isinstance(body, kind)]

    @property
    def state(self) -> JobState:
        return audited(self.log, JOBS[0]).state


def test_a_promoted_result_goes_when_its_time_is_over() -> None:
    """A promoted result expires exactly at its time, and that is published once, even after its job
    has ended and another master has started at a snapshot."""
    world = World(OFTEN)
    with world.master() as steps:
        world.live(*LIVED, PromoteRequested(RESULT, 1_500_000), JobUnregistered("closed"))
        drive(world.log, world.storage, steps)
        world.clock.at_ms = 1_499_999
        world.look(steps)
    with world.master() as steps:
        world.look(steps)
        assert ([], []) == (world.bodies(Tick), world.storage.deleted)
        world.clock.at_ms += 1
        world.look(steps)
        world.look(steps)
    assert [Tick(1_500_000)] == world.bodies(Tick)
    assert "expired" == world.state.results[RESULT].fate.released
    assert {attempt(0, 1), attempt(1, 2), attempt(1, 7)} == {a for _, a in world.storage.deleted}
    assert {} == world.state.results[RESULT].production.attempts


@pytest.mark.parametrize("days", [2, -2, -400])
def test_a_master_whose_clock_is_days_off_ends_nothing_early_or_late(days: int) -> None:
    """A master with a wrong clock ends promoted results and leases in time, because it asks the
    log's clock once."""
    world = World(clock=StoppedClock(10**12))
    with world.master(ahead_ms=days * DAY_MS) as steps:
        over_ms = world.clock.at_ms + DAY_MS
        world.live(*LIVED, PromoteRequested(RESULT, over_ms))
        drive(world.log, world.storage, steps)
        assert [True, False, False] == [world.look(steps) for _ in range(3)]
        assert ([], []) == (world.bodies(Tick), world.bodies(LeaseExpired))
        world.clock.at_ms = over_ms
        world.look(steps)
        world.look(steps)
    assert [Tick(over_ms)] == world.bodies(Tick)


def test_a_task_whose_clock_is_days_ahead_keeps_no_lease_alive() -> None:
    """An event with a time in the future does not extend the driver's lease."""
    world = World()
    with world.master() as steps:
        world.live(*LIVED[:-1])
        ahead = StoppedClock(world.clock.at_ms + 2 * DAY_MS)
        state_facts(world.log, JOBS[0], LIVED[-1], clock=ahead)
        drive(world.log, world.storage, steps)
        for _ in range(2):
            world.clock.at_ms += LEASE_MS + 1
            world.look(steps)
        assert 1 == len(world.bodies(LeaseExpired))


@pytest.mark.parametrize("settings", [SETTINGS, OFTEN], ids=["whole", "snapshot"])
def test_a_silent_driver_loses_its_lease(settings: MasterSettings) -> None:
    """A silent driver loses its lease after a lease and a half, also under a master that started
    meanwhile. Its objects are deleted after that decision, and its prefix is swept once."""
    world = World(settings)
    with world.master() as steps:
        world.live(*LIVED)
        drive(world.log, world.storage, steps)
        world.clock.at_ms += LEASE_MS
        assert world.look(steps)
        assert not world.look(steps)
    with world.master() as steps:
        world.clock.at_ms += 1
        assert world.look(steps)
        world.clock.at_ms += LEASE_MS // 2
        world.look(steps)
        assert [] == world.bodies(LeaseExpired)
        world.clock.at_ms += 1
        assert world.look(steps)
        assert not world.look(steps)
    (expired,) = world.bodies(LeaseExpired)
    assert ("its driver was silent for 90 s", 1) == (expired.reason, expired.epoch)
    assert "its driver was silent for 90 s" == world.state.closed
    assert {attempt(0, 1), attempt(1, 2), attempt(1, 7)} == {a for _, a in world.storage.deleted}
    assert [JOBS[0]] == world.storage.swept
    with world.master() as steps:
        world.look(steps)
        assert 1 == len(world.bodies(LeaseExpired))


def test_what_a_master_still_had_to_delete_is_not_lost() -> None:
    """The next master deletes everything of an ended job whose deletions the former master did not
    start, including objects that the log does not know."""
    world = World(OFTEN)
    with world.master() as steps:
        world.live(*LIVED, LeaseExpired("late", 1), *[Tick(1)] * 4)
        for _ in range(STEPS):
            steps.step(0.0)
    with world.master():
        assert {attempt(0, 1), attempt(1, 2), attempt(1, 7)} == {
            a for _, a in world.storage.deleted
        }
        assert [JOBS[0]] == world.storage.swept
    with world.master():
        assert [JOBS[0]] == world.storage.swept


def test_what_cannot_be_swept_is_swept_later() -> None:
    """A sweep that fails because the store is away is repeated at the next look."""
    world = World(OFTEN, storage=Swept(failing=True))
    with world.master() as steps:
        world.live(*LIVED, LeaseExpired("late", 1), *[Tick(1)] * 4)
        drive(world.log, world.storage, steps)
        world.storage.failing = False
        for _ in range(3):
            world.look(steps)
        assert [JOBS[0]] == world.storage.swept
    with world.master():
        assert [JOBS[0]] == world.storage.swept


def test_a_job_that_was_not_swept_is_swept_by_the_next_master() -> None:
    """The next master sweeps an ended job even if all objects that the log knows are already
    deleted."""
    world = World(OFTEN)
    with world.master() as steps:
        world.live(*LIVED, LeaseExpired("late", 1), *[Tick(1)] * 4)
        for _ in range(STEPS):
            for deletion in steps.step(0.0):
                if isinstance(deletion, Deletion):
                    deletion.run(world.storage, world.log, Deadline.after(1.0))
    assert not world.state.results[RESULT].production.attempts
    assert [] == world.storage.swept
    with world.master():
        assert [JOBS[0]] == world.storage.swept


def test_whoever_is_heard_keeps_its_lease() -> None:
    """A driver keeps its lease with a heartbeat or an event, even with one that comes after the
    lease."""
    world = World()
    with world.master() as steps:
        world.live(*LIVED)
        for number in range(8):
            world.clock.at_ms += LEASE_MS + 1
            world.look(steps)
            if number % 2:
                world.log.beat(JOBS[0])
            else:
                world.live(AttemptStarted(attempt(1, 100 + number), "host"))
            world.clock.at_ms += LEASE_MS // 2
            world.look(steps)
    assert [] == world.bodies(LeaseExpired)
    assert world.state.registered


def test_a_driver_that_attached_meanwhile_is_left_alone() -> None:
    """The end of a silent driver's lease does not end a driver that registered before that end is
    in the log."""
    world = World()
    with world.master() as steps:
        world.live(*LIVED)
        drive(world.log, world.storage, steps)
        world.clock.at_ms += 2 * LEASE_MS
        world.look(steps)
        world.clock.at_ms += LEASE_MS
        world.live(LIVED[0])
        world.look(steps)
    assert [1] == [body.epoch for body in world.bodies(LeaseExpired)]
    assert (2, True) == (world.state.epoch, world.state.registered)
    assert ([], []) == (world.storage.deleted, world.storage.swept)


def test_only_the_logs_clock_ends_a_lease() -> None:
    """A master whose own clock is ahead ends no lease, and neither does a master that cannot read
    its own heartbeat."""
    world = World()
    with world.master() as steps:
        world.live(*LIVED)
        drive(world.log, world.storage, steps)
        world.clock.at_ms += LEASE_MS
        world.log.beat(MASTERS)
        world.clock.at_ms += 10 * LEASE_MS
        for _ in range(3):
            assert world.look(steps, beat=False)
            world.clock.at_ms += LEASE_MS
        assert [] == world.bodies(LeaseExpired)


def test_who_could_not_be_heard_has_time_to_be() -> None:
    """After a time in which nobody reached the log, a driver keeps its lease if it sends a
    heartbeat within half a lease."""
    world = World()
    with world.master() as steps:
        world.live(*LIVED)
        drive(world.log, world.storage, steps)
        world.clock.at_ms += 100 * LEASE_MS
        world.look(steps)
        world.clock.at_ms += LEASE_MS // 3
        world.look(steps)
        world.log.beat(JOBS[0])
        world.clock.at_ms += LEASE_MS // 3
        world.look(steps)
        assert [] == world.bodies(LeaseExpired)
        world.clock.at_ms += LEASE_MS
        world.look(steps)
        assert [] == world.bodies(LeaseExpired)


def test_without_a_lease_nobody_is_late() -> None:
    watch = SilenceTimer()
    watch.hear(1)
    assert not watch.is_due(0, 10**15)
    assert 0 == watch.silent_ms(0, 10**15)


def test_what_is_not_said_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    """A fact that the log does not take is published later, and a job that cannot be swept is named
    in the log file."""
    world = World(storage=Swept(failing=True))
    faulty = FaultyLog(world.log, LogFault("append", 1, Unavailable("injected")))
    with world.master(faulty) as steps:
        world.live(*LIVED)
        drive(world.log, world.storage, steps)
        for _ in range(3):
            world.clock.at_ms += 2 * LEASE_MS
            world.look(steps)
    assert "could not announce" in caplog.text
    assert 1 == len(world.bodies(LeaseExpired))
    assert f"could not sweep job {JOBS[0]}: the store is away" in caplog.text
    assert {} == world.state.results[RESULT].production.attempts


# Tests with threads and the machine's clock


def wait_until_over(log: EventLog, job: JobId) -> JobState:
    deadline = Deadline.after(5.0)
    while True:
        state = audited_or_none(log, job)
        if (
            state is not None
            and state.closed is not None
            and not state.results[RESULT].production.attempts
        ):
            return state
        assert not deadline.passed, state
        SYSTEM_CLOCK.sleep_s(0.02)


def audited_or_none(log: EventLog, job: JobId) -> JobState | None:
    try:
        return audited(log, job).state
    except AssertionError:  # a decision is on its way
        return None


@pytest.mark.usefixtures("no_thread_stays")
def test_a_master_looks_by_itself() -> None:
    """A session master ends the lease of a driver without heartbeats, and spares a driver that
    sends them."""
    stack = Stack()
    registered = JobRegistered(SESSION, "0", "tests", lease_ms=300)
    settings = MasterSettings(2_000, STEP_EVENTS_MAX, SESSION, lease_ms=300, pace=HURRIED)
    driver = DriverMaster(stack.inner, Storage(), settings, DriverIdentity("driver", "0"))
    with mastering(stack, look_ms=20):
        driver.register_job(Job())
        state_facts(stack.inner, JOBS[0], registered, *LIVED[1:], clock=SYSTEM_CLOCK)
        assert (wait_until_over(stack.inner, JOBS[0]).closed or "").startswith("its driver was")
        assert driver.state().registered
        driver.close()


@pytest.mark.usefixtures("no_thread_stays")
def test_a_driver_states_the_time_for_its_own_job() -> None:
    """A promoted result expires while its driver is its master."""
    log, storage = MemoryEventLog(), Storage()
    settings = MasterSettings(2_000, STEP_EVENTS_MAX, look_ms=20, pace=HURRIED)
    driver = DriverMaster(log, storage, settings, DriverIdentity("driver", "0"))
    driver.register_job(Job())
    over_ms = SYSTEM_CLOCK.now_ms() + 200
    promoted = PromoteRequested(RESULT, over_ms)
    state_facts(log, JOB, *LIVED[1:-1], promoted, clock=SYSTEM_CLOCK)
    deadline = Deadline.after(5.0)
    while not storage.deleted:
        assert not deadline.passed, driver.state()
        SYSTEM_CLOCK.sleep_s(0.02)
    driver.unregister_job()
    ticks = [r.event.body for r in events(log, JOB) if isinstance(r.event.body, Tick)]
    assert [True] == [tick.now_ms >= over_ms for tick in ticks]
    assert "expired" == audited(log, JOB).state.results[RESULT].fate.released


@pytest.mark.usefixtures("no_thread_stays")
def test_a_driver_asks_for_the_time_under_a_name_of_its_own() -> None:
    """An old heartbeat of the job is not taken for the answer to a driver's question."""
    log, storage = MemoryEventLog(), Storage()
    settings = MasterSettings(2_000, STEP_EVENTS_MAX, look_ms=20, pace=HURRIED)
    driver = DriverMaster(log, storage, settings, DriverIdentity("driver", "0"))
    driver.register_job(Job())
    promoted = PromoteRequested(RESULT, SYSTEM_CLOCK.now_ms() + 100)
    state_facts(log, JOB, *LIVED[1:-1], promoted, clock=SYSTEM_CLOCK)
    deadline = Deadline.after(5.0)
    while not (beats := log.read_beats(None, deadline)):
        assert not deadline.passed, driver.state()
        SYSTEM_CLOCK.sleep_s(0.02)
    driver.unregister_job()
    assert JOB not in beats


@pytest.mark.usefixtures("no_thread_stays")
def test_a_driver_does_not_wait_for_the_time() -> None:
    """A driver continues while heartbeats cannot be read, and asks for them again much later."""
    asked = list[float]()

    class NoBeats(MemoryEventLog):
        def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
            asked.append(deadline.left_s)
            raise Unavailable("the partition has no leader")

    log = NoBeats()
    settings = MasterSettings(5_000, STEP_EVENTS_MAX, look_ms=20, pace=HURRIED)
    driver = DriverMaster(log, Storage(), settings, DriverIdentity("driver", "0"))
    driver.register_job(Job())
    state_facts(log, JOB, *LIVED[1:-1], PromoteRequested(RESULT, 2**60), clock=SYSTEM_CLOCK)
    deadline = Deadline.after(5.0)
    while not asked:
        assert not deadline.passed, driver.state()
        SYSTEM_CLOCK.sleep_s(0.02)
    SYSTEM_CLOCK.sleep_s(0.3)
    driver.unregister_job()
    (waits_s,) = asked
    assert waits_s < settings.wait_ms / 2_000


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("ahead", [2, -3])
def test_a_driver_whose_clock_is_days_off_deletes_in_time(ahead: int) -> None:
    """A promoted result expires at its time by the log's clock, although the driver's clock is days
    off."""
    there = StoppedClock(SYSTEM_CLOCK.now_ms() - ahead * DAY_MS)
    log, storage = MemoryEventLog(clock=there), Storage()
    pace = replace(HURRIED, refresh_s=0.1)
    settings = MasterSettings(2_000, STEP_EVENTS_MAX, look_ms=20, pace=pace)
    driver = DriverMaster(log, storage, settings, DriverIdentity("driver", "0"))
    driver.register_job(Job())
    over_ms = there.at_ms + DAY_MS
    state_facts(log, JOB, *LIVED[1:-1], PromoteRequested(RESULT, over_ms), clock=there)
    SYSTEM_CLOCK.sleep_s(0.3)
    assert not storage.deleted
    there.at_ms = over_ms
    deadline = Deadline.after(5.0)
    while not storage.deleted:
        assert not deadline.passed, driver.state()
        SYSTEM_CLOCK.sleep_s(0.02)
    driver.unregister_job()
