"""Silent drivers: the end of their leases, its discovery, and the deletion of their objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Fenced, HeadgateError, Invalid, Unavailable
from headgate.control.events.types import (
    Deleted,
    Event,
    Fact,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    ResultRegistered,
    SegmentSummary,
    Tick,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.inquiry.audit import refused
from headgate.control.inquiry.neglected import Neglected, follow_jobs, neglected
from headgate.control.log import Receipt
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.job_steps import JobSteps
from headgate.control.master.silence import time_of
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState
from headgate.control.snapshots.resume import by_partition, read_snapshots
from headgate.infra import sweep as sweeping
from headgate.infra.sweep import FailedSweep, Swept, sweep, sweep_all
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.rooted import UnknownRoot
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from ..doubles.jobs import (
    JOB,
    OPENING,
    RESULT,
    SETTINGS,
    Job,
    OrderedStorage,
    attempt,
    audited,
    bodies,
    events,
    produced,
    state_facts,
)
from ..doubles.steps import StoppedClock, drive

pytestmark = pytest.mark.usefixtures("no_thread_stays")

LEASE_MS = 60_000
LIVED: tuple[Fact, ...] = (
    JobRegistered("per-job", "0", "tests", lease_ms=LEASE_MS),
    *OPENING[1:],
    produced(0, 1),
    produced(1, 2),
)

DEAF = (JobId("deaf-1"), JobId("deaf-3"))  # session jobs of one partition
OTHER_RESULT = ResultId("r2")
_OTHERS = AttemptId(PartitionId(OTHER_RESULT, 0), 1, 3)
OTHER: tuple[Fact, ...] = (
    ResultRegistered(OTHER_RESULT, 1, 3, "", ""),
    PartitionRegistered(OTHER_RESULT, 0, 1),
    Produced(_OTHERS, (SegmentSummary(0, 9, 1, 0, b""),)),
)


@dataclass
class SweptStorage(OrderedStorage):
    """A storage that also records the jobs whose prefix is swept."""

    swept: list[JobId] = field(default_factory=list)

    def sweep(self, closed: JobState) -> int:
        self.swept.append(closed.job)
        return 1


class FailingSweep(ObjectDeleter):
    """Deletes objects; its next sweeps raise these errors."""

    def __init__(self, store: MemoryBlobStore, root: str, errors: list[HeadgateError]) -> None:
        super().__init__(store, root)
        self._errors = errors

    def sweep(self, closed: JobState) -> int:
        if self._errors:
            raise self._errors.pop()
        return super().sweep(closed)


@dataclass
class World:
    """A log in which a driver has done its work, and a clock that the test moves on."""

    clock: StoppedClock = field(default_factory=lambda: StoppedClock(SYSTEM_CLOCK.now_ms()))

    def __post_init__(self) -> None:
        self.log = MemoryEventLog(clock=self.clock)
        self.storage = SweptStorage(self.log)

    def live(self, *facts: Fact, settings: MasterSettings = SETTINGS) -> None:
        """Run a driver that states facts, decides on them, and falls silent."""
        announcer = Announcer(JOB, f"driver {self.clock.at_ms} {len(facts)}", self.clock)
        with closing(JobSteps.open(self.log, announcer, settings)) as steps:
            for fact in facts:
                self.log.append(announcer.fact(fact))
                for _ in range(4):
                    steps.step(0.0)

    def end(self) -> None:
        """Close the job, and delete everything of it."""
        self.live(JobUnregistered("closed"))
        for candidate in self.neglected():
            sweep(self.log, self.storage, candidate, SETTINGS)

    def neglected(self) -> list[Neglected]:
        deadline = Deadline.after(1.0)
        snapshots = read_snapshots(self.log, None, deadline)
        beats = self.log.read_beats(None, deadline)
        jobs = follow_jobs(self.log.read_all(deadline), snapshots)
        oldest = by_partition(self.log, self.log.oldest)
        return list(neglected(jobs, beats, self.clock.at_ms, oldest))


@pytest.fixture
def world() -> World:
    return World()


def test_a_silent_driver_is_noticed_when_its_lease_is_over(world: World) -> None:
    """A silent driver is noticed exactly when its lease is over, and a heartbeat counts like an
    event."""
    world.live(*LIVED)
    world.clock.at_ms += LEASE_MS
    assert [] == world.neglected()
    world.log.beat(JOB)
    world.clock.at_ms += LEASE_MS
    assert [] == world.neglected()
    world.clock.at_ms += 1
    (candidate,) = world.neglected()
    assert (JOB, "per-job", LEASE_MS + 1) == (candidate.job, candidate.mode, candidate.silent_ms)


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_a_dead_driver_left_is_deleted(world: World, is_whole: bool) -> None:
    """A sweep ends a dead driver's lease in the log, deletes every object after that decision, and
    finds nothing the next time. That holds with the whole log, and with a snapshot alone."""
    world.live(*LIVED, settings=replace(SETTINGS, snapshot_events=2))
    (snapshot,) = read_snapshots(world.log, JOB, Deadline.after(1.0)).values()
    if not is_whole:
        world.log.expire(JOB, snapshot.position)
    world.clock.at_ms += 2 * LEASE_MS
    (candidate,) = world.neglected()
    swept = sweep(world.log, world.storage, candidate, SETTINGS)
    assert (2 + 1, 0, False) == (swept.objects, swept.kept, swept.came_back)
    assert {attempt(0, 1), attempt(1, 2)} == world.storage.deleted
    assert (set(), [JOB]) == (world.storage.early, world.storage.swept)
    assert [] == world.neglected()
    assert any(isinstance(body, LeaseExpired) for body in bodies(world.log))
    if is_whole:
        assert "its driver was silent for 120 s" == audited(world.log).state.closed


def test_a_job_is_forgotten_when_its_log_is_gone(world: World) -> None:
    """The state of an ended job is deleted after its last event has expired, unless the job is
    registered again by then."""
    world.live(*LIVED)
    world.end()
    assert [] == world.neglected()
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    (candidate,) = world.neglected()
    world.live(LIVED[0])
    standing = world.log.read_state(JOB, Deadline.after(1.0))
    assert sweep(world.log, world.storage, candidate, SETTINGS).came_back
    assert standing == world.log.read_state(JOB, Deadline.after(1.0))
    world.end()
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    (candidate,) = world.neglected()
    assert 2 == candidate.state.epoch
    assert sweep(world.log, world.storage, candidate, SETTINGS).forgotten
    assert {} == world.log.read_state(JOB, Deadline.after(1.0))
    assert [] == world.neglected()


@pytest.mark.parametrize("error", [Unavailable("no answer"), Invalid("403")])
def test_what_a_failed_sweep_has_left_is_deleted_before_the_job_is_forgotten(
    world: World, error: HeadgateError
) -> None:
    """The sweep of a job's prefix fails after all that the log knew is deleted. A later sweep, when
    the log has lost the job's events, deletes what is left. So the marker of the job's driver does
    not keep the next job from its name."""
    store = MemoryBlobStore()
    names = [f"root/{JOB}/_driver/1-0", f"root/{JOB}/00/r9/0/1-5/0"]
    for name in names:
        store.put(name, b"left", "write")
    world.live(*LIVED)
    world.clock.at_ms += 2 * LEASE_MS
    failing = FailingSweep(store, "root", [error])
    (failed,) = sweep_all(world.log, failing, world.neglected(), "", "sweep")
    assert isinstance(failed, FailedSweep)
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    (swept,) = sweep_all(world.log, failing, world.neglected(), "", "sweep")
    assert swept == Swept(JOB, objects=len(names), forgotten=True)
    assert [] == list(store.list(""))


def test_a_job_that_another_sweep_has_forgotten_may_have_begun_anew(world: World) -> None:
    """Another sweep forgets a job before this one comes to it, and a driver takes the name, with
    the first epoch: nothing of that driver is deleted, and it keeps its snapshot."""
    world.live(*LIVED)
    world.end()
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    (candidate,) = world.neglected()
    (forgotten,) = sweep_all(world.log, world.storage, [candidate], "", "sweep")
    assert isinstance(forgotten, Swept)
    assert forgotten.forgotten
    world.storage.swept.clear()
    world.live(*LIVED, settings=replace(SETTINGS, snapshot_events=1))
    standing = world.log.read_state(JOB, Deadline.after(1.0))
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    assert sweep(world.log, world.storage, candidate, SETTINGS).came_back
    assert [] == world.storage.swept
    assert standing == world.log.read_state(JOB, Deadline.after(1.0))


@pytest.mark.parametrize(
    "error",
    [UnknownRoot("the root is empty"), Unavailable("no answer"), Invalid("the token has expired")],
)
def test_a_job_without_objects_is_forgotten_in_an_empty_root(
    world: World, error: HeadgateError
) -> None:
    """An empty root refuses a sweep, and keeps no job from being forgotten; a store that does not
    answer, or refuses, does."""
    world.live(*LIVED)
    world.end()
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    failing = FailingSweep(MemoryBlobStore(), "root", [error])
    (swept,) = sweep_all(world.log, failing, world.neglected(), "", "sweep")
    assert isinstance(swept, Swept) == isinstance(error, UnknownRoot)
    assert len(world.neglected()) == isinstance(swept, FailedSweep)


def test_a_promoted_result_outlives_its_driver(world: World) -> None:
    """The sweep keeps a promoted result and deletes the rest of the job."""
    world.live(*LIVED, PromoteRequested(RESULT, 0))
    world.clock.at_ms += 2 * LEASE_MS
    (candidate,) = world.neglected()
    swept = sweep(world.log, world.storage, candidate, SETTINGS)
    assert (1, 1) == (swept.objects, swept.kept)
    assert (set(), [JOB]) == (world.storage.deleted, world.storage.swept)
    assert [] == world.neglected()


@pytest.mark.parametrize("promoted", [(RESULT,), (RESULT, OTHER_RESULT)])
def test_what_is_promoted_is_known_when_the_log_is_gone(
    world: World, promoted: tuple[ResultId, ...]
) -> None:
    """A driver that closes leaves its promoted results in a snapshot. When all events are gone, the
    next driver of that name has a new epoch and keeps the results, and a sweep deletes them at
    their time."""
    over_ms = world.clock.at_ms + 1_000
    driver = DriverMaster(world.log, world.storage, SETTINGS, DriverIdentity("first", "0"))
    driver.register_job(Job())
    state_facts(world.log, *LIVED[1:], *OTHER)
    state_facts(world.log, *[PromoteRequested(result, over_ms) for result in promoted])
    driver.unregister_job()
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    assert [] == events(world.log)
    second = DriverMaster(world.log, world.storage, SETTINGS, DriverIdentity("second", "0"))
    second.register_job(Job())
    state = second.state()
    assert (2, list(promoted)) == (state.epoch, [n for n, r in state.results.items() if r.kept])
    second.unregister_job()
    kept = {attempt(0, 1), attempt(1, 2)}
    assert set() == kept & world.storage.deleted
    world.log.expire(JOB, world.log.follow(JOB, None).end())
    assert [] == world.neglected()
    world.clock.at_ms = over_ms
    (candidate,) = world.neglected()
    assert len(kept) <= sweep(world.log, world.storage, candidate, SETTINGS).objects
    assert kept <= world.storage.deleted


def test_a_promoted_result_goes_when_its_time_is_over(world: World) -> None:
    """A sweep publishes the time and deletes an expired promoted result of a job without a
    master."""
    over_ms = SYSTEM_CLOCK.now_ms() + 86_400_000
    world.live(*LIVED, PromoteRequested(RESULT, over_ms), JobUnregistered("closed"))
    assert [] == world.neglected()
    world.clock.at_ms = over_ms
    (candidate,) = world.neglected()
    swept = sweep(world.log, world.storage, candidate, SETTINGS)
    assert (3, 0) == (swept.objects, swept.kept)
    assert {attempt(0, 1), attempt(1, 2)} == world.storage.deleted
    assert "expired" == audited(world.log).state.results[RESULT].fate.released
    assert [] == world.neglected()


def test_what_an_ended_job_left_is_deleted(world: World) -> None:
    """A sweep deletes the objects of a job whose master died before it deleted them."""
    world.live(*LIVED, JobUnregistered("closed"))
    (candidate,) = world.neglected()
    assert 0 == candidate.silent_ms
    assert 3 == sweep(world.log, world.storage, candidate, SETTINGS).objects
    assert "closed" == audited(world.log).state.closed
    assert [] == world.neglected()


def test_a_driver_that_came_back_is_left_alone(world: World) -> None:
    """A sweep touches nothing of a driver that has registered since the log was read."""
    world.live(*LIVED)
    world.clock.at_ms += 2 * LEASE_MS
    (candidate,) = world.neglected()
    world.live(LIVED[0])
    assert sweep(world.log, world.storage, candidate, SETTINGS).came_back
    assert audited(world.log).state.registered
    assert set() == world.storage.deleted


@contextmanager
def silent(world: World) -> Iterator[tuple[JobSteps, Announcer, Neglected]]:
    """Open the steps of a driver that a sweep finds neglected, although it still lives."""
    world.live(*LIVED)
    announcer = Announcer(JOB, "silent", world.clock)
    with closing(JobSteps.open(world.log, announcer, SETTINGS)) as steps:
        drive(steps, world.log, world.storage)
        world.clock.at_ms += 2 * LEASE_MS
        (candidate,) = world.neglected()
        yield steps, announcer, candidate


@pytest.mark.parametrize("sign", ["a heartbeat", "a fact"])
def test_a_driver_that_is_heard_again_keeps_its_lease_and_its_master(
    world: World, sign: str
) -> None:
    """A driver that was heard after the list of neglected jobs was made loses nothing, and decides
    on as if nobody had swept."""
    with silent(world) as (steps, announcer, candidate):
        if sign == "a fact":
            world.log.append(announcer.fact(OTHER[0]))
        else:
            world.log.beat(JOB)
        assert sweep(world.log, world.storage, candidate, SETTINGS).came_back
        world.log.append(announcer.fact(OTHER[1]))
        drive(steps, world.log, world.storage)
    assert audited(world.log).state.registered
    assert not any(isinstance(body, LeaseExpired) for body in bodies(world.log))
    assert (set(), []) == (world.storage.deleted, world.storage.swept)


def test_a_driver_that_is_heard_before_its_lease_ends_in_the_log_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact of the driver that the log takes just before `LeaseExpired` makes that fact void: the
    driver's own master goes on, and a later sweep may end the lease."""
    append = world.log.append
    with silent(world) as (steps, announcer, candidate):

        def overtaken(event: Event) -> Receipt:
            if isinstance(event.body, LeaseExpired):
                append(announcer.fact(OTHER[0]))
            return append(event)

        monkeypatch.setattr(world.log, "append", overtaken)
        assert sweep(world.log, world.storage, candidate, SETTINGS).came_back
        drive(steps, world.log, world.storage)
    assert (True, set()) == (audited(world.log).state.registered, world.storage.deleted)
    (void,) = refused(world.log.read_all(Deadline.after(1.0)), {})
    assert isinstance(void.event.body, LeaseExpired)
    monkeypatch.undo()
    world.clock.at_ms += 2 * LEASE_MS
    (candidate,) = world.neglected()
    assert 3 == sweep(world.log, world.storage, candidate, SETTINGS).objects


def test_a_session_job_without_a_master_is_named_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep waits for the masters of a partition once: each session job of it is named, with the
    reason, and the jobs behind it are swept."""
    world.live(*LIVED)
    for job in DEAF:
        announcer = Announcer(job, "driver", world.clock)
        for fact in (JobRegistered(SESSION, "0", "tests", lease_ms=LEASE_MS), *LIVED[1:]):
            world.log.append(announcer.fact(fact))
    world.clock.at_ms += 2 * LEASE_MS
    jobs = sorted(world.neglected(), key=lambda each: each.job == JOB)
    settings = partial(replace, SETTINGS, wait_ms=300)
    monkeypatch.setattr(sweeping, "MasterSettings", settings)
    *deaf, swept = sweep_all(world.log, world.storage, jobs, "", "sweep")
    first, second = deaf
    assert isinstance(first, FailedSweep)
    assert isinstance(second, FailedSweep)
    assert "waited 300 ms for the end of the lease of job" in first.error
    assert first.error.endswith("of its facts wait, and no master has answered")
    assert f"no master answered for job {first.job}, which is in the same partition" == second.error
    assert isinstance(swept, Swept)
    assert (JOB, 3) == (swept.job, swept.objects)


def test_the_sweeper_fences_who_was_only_silent(world: World) -> None:
    """A sweep fences a driver that was silent and still lives."""
    with silent(world) as (steps, _, candidate):
        sweep(world.log, world.storage, candidate, SETTINGS)
        with pytest.raises(Fenced):
            drive(steps, world.log, world.storage)


def test_a_master_is_no_sign_of_its_driver(world: World) -> None:
    """Facts that a master states, a tick, a deletion or a lease that has not ended, do not extend
    the driver's lease."""
    world.live(*LIVED)
    world.clock.at_ms += 2 * LEASE_MS
    master = Announcer(JOB, "master", world.clock)
    not_ended = LeaseExpired("the driver was heard", 1, heard=0)
    for fact in (Tick(world.clock.at_ms), Deleted(RESULT, (), 0), not_ended):
        world.log.append(master.fact(fact))
    assert [JOB] == [candidate.job for candidate in world.neglected()]


def test_a_job_without_a_lease_never_ends(world: World) -> None:
    """A job with `lease_ms` 0 never loses its lease, and neither does a job with a forged
    decision."""
    world.live(*OPENING)
    world.clock.at_ms += 1_000 * LEASE_MS
    assert [] == world.neglected()
    world.live(LIVED[0])
    world.clock.at_ms += 2 * LEASE_MS
    assert [JOB] == [candidate.job for candidate in world.neglected()]
    with closing(world.log.open_decisions(JOB)) as decisions:
        decisions.begin()
        forged = Announcer(JOB, "forger", world.clock).fact(LeaseExpired(""))
        decisions.write(replace(forged, basis=0))
        decisions.commit(0)
    world.clock.at_ms += 2 * LEASE_MS
    assert [] == world.neglected()


def test_however_many_jobs_are_swept_a_partition_is_asked_for_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of many ended jobs asks for each partition's offsets only once."""
    asked = Counter[str]()

    def count(name: str, ask: Callable[[JobId], int]) -> None:
        def counted(job: JobId) -> int:
            asked[name] += 1
            return ask(job)

        monkeypatch.setattr(world.log, name, counted)

    jobs = [JobId(f"job-{number}") for number in range(20)]
    for job in jobs:
        announcer = Announcer(job, "driver", world.clock)
        with closing(JobSteps.open(world.log, announcer, SETTINGS)) as steps:
            for fact in (LIVED[0], JobUnregistered("closed")):
                world.log.append(announcer.fact(fact))
                drive(steps, world.log, world.storage)
    count("written", world.log.written)
    count("oldest", world.log.oldest)
    assert {*jobs} == read_snapshots(world.log, None, Deadline.after(1.0)).keys()
    asked.clear()
    assert [] == world.neglected()
    assert {"written": 4, "oldest": 4} == asked


def test_whoever_sweeps_asks_the_log_what_time_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep takes the time from the log's clock, because its own clock may be wrong."""
    world.clock.at_ms = 4_711
    assert 4_711 == time_of(world.log, JobId("sweep-1"), Deadline.after(1.0))
    monkeypatch.setattr(world.log, "read_beats", lambda job, deadline: {})
    with pytest.raises(Unavailable, match="its time"):
        time_of(world.log, JobId("sweep-2"), Deadline.after(0.0))
