"""A world from a seed, which is run to its end and checked there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from headgate.control.clock import Deadline
from headgate.control.contract import PER_JOB, SESSION
from headgate.control.errors import HeadgateError
from headgate.control.events.types import Lost
from headgate.control.ids import JobId
from headgate.control.inquiry.audit import audit, fold
from headgate.control.model.state import JobState
from headgate.control.snapshots.resume import read_snapshots
from headgate.storage.upkeep.object_deletion import ObjectDeleter
from tests.doubles.next_version import spoken

from .application import Application, JobHasFailed
from .broker import OTHER, Broker
from .bucket import Bucket, flipped, lost
from .bystander import Bystander
from .cluster import Cluster
from .combining import CombiningApplication
from .faults import Chaos
from .machines import GivenUp, World
from .masters import Master
from .neighbour import Neighbour
from .oracle import JOB, PREFIX, ROOT, Oracle, attempt_of
from .scheduler import STEPS_MAX, Actor, Process, Scheduler, SimClock, Stuck, Versions
from .sweeper import Sweeper

QUIET_MS = 90_000.0
FROZEN_MS_MAX = 40_000.0
CUT_OFF_MS_MAX = 40_000.0
JUMP_MS_MAX = 400_000_000.0  # several days
DRIVERS_MAX = 5
EXCHANGE_STEPS_MAX = 3_000
SETTLE_MS = 120_000.0
SESSION_SHARE = 0.3
STREAM_SHARE = 0.25
COMBINING_SHARE = 0.35
MOUNTS_SHARE = 0.2
UNMOUNTED_MS_MAX = 10_000.0
VERSIONS_SHARE = 0.15
UPGRADE_MS_MAX, ROLLED_BACK_MS_MAX = 15_000.0, 40_000.0
LEASES_MS = (0, 0, 9_000, 18_000)
SWEEP_SHARE = 0.2
NEIGHBOUR_SHARE = 0.2
UNSWEPT_SHARE = 0.7  # of the sessions; their masters end leases without a sweeper
TICK_SHARE = 0.2
FOR_EVER_MS = 10**10
SUCCESSOR_SHARE = 0.15  # small, so that the lease may end before the next driver comes
SLOTS = ("a", "b", "c")
BESIDE = (JobId("beside"), JobId("elsewhere"))  # on the job's partition, and on another
NEIGHBOURS = (f"{ROOT}/job-2/00/r/0/1-0/0", f"{ROOT}/jobs", "elsewhere/job/00/r/0/1-0/0")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    trace: str
    faults: Counter[str]
    chances: int
    steps: int
    events: int
    left: int
    violations: tuple[str, ...]
    copies: Counter[str]
    told: tuple[str, ...] = ()


class Operator:
    """An operator that keeps a driver and a master running until the job is closed, and never
    dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = Process("operator", mortal=False)
        self.left = 0  # the objects that the last sweep found, after the close
        self._cluster = Cluster(world)
        self._abandoned = world.lease_ms > 0 and world.scheduler.random.random() < 0.5
        self._sweeps = count()
        alone = world.scheduler.dice("sweeps").random() < UNSWEPT_SHARE
        self._unswept = alone and world.mode == SESSION
        self._masters: list[tuple[Actor, Master]] = []
        self._slots = SLOTS[: world.scheduler.random.randint(2, 3)]
        if world.mode == PER_JOB:
            self._slots = SLOTS[:1]
        self._beside = [Bystander(world, job) for job in BESIDE if world.mode == SESSION]
        self._drivers: list[tuple[Actor, Application]] = []
        self._older: list[Process] = []

    def run(self) -> None:
        """Run until a driver has closed the job, and then until everyone else has ended."""
        scheduler = self.world.scheduler
        while not self._is_over():
            self._upgrade()
            self._keep_masters()
            self._keep_driver()
            self._sweep()
            if self.world.stream_at is not None and self.world.chaos.strikes("object reported"):
                self._report()
            if self.world.chaos.strikes("head forgotten"):
                self.world.broker.forget_head()
            if scheduler.random.random() < TICK_SHARE:
                self.world.broker.tick(self.world.broker.now_ms())
            scheduler.pause("watch", 500.0 + 1000.0 * scheduler.random.random())
        fall_quiet(self.world)
        self._upgrade()
        self._settle()
        self.world.oracle.outlives()
        if self.world.oracle.promoted:
            self.world.broker.tick(self.world.broker.now_ms() + FOR_EVER_MS)
            self._settle()
        if not all(job.finished for job in self._beside):
            self.world.oracle.violated("a job beside it has come to no end")
        storage = ObjectDeleter(self.world.bucket.client(SimClock(scheduler, self.process)), ROOT)
        self.left = sum(storage.sweep(state) for state in _folded(self.world) if state.job == JOB)

    def _settle(self) -> None:
        until_ms = self.world.scheduler.now_ms + SETTLE_MS
        while self.world.scheduler.now_ms < until_ms:
            self._keep_masters()
            self.world.scheduler.pause("settle", 5_000.0)

    def _is_over(self) -> bool:
        if self._abandoned and self.world.oracle.closed:
            return True
        return self.world.oracle.closed and any(app.finished for _, app in self._drivers)

    def _sweep(self) -> None:
        """Start a sweeper from time to time."""
        scheduler = self.world.scheduler
        swept = self.world.lease_ms and not self._unswept
        if swept and scheduler.random.random() < SWEEP_SHARE:
            sweeper = Sweeper(self.world, self._process(f"sweeper-{next(self._sweeps)}"))
            scheduler.spawn(sweeper.process.name, sweeper.process, sweeper.run)

    def _report(self) -> None:
        """Delete an object of a stream, and state it as lost, as fsck would."""
        names = [name for name in self.world.bucket.objects if name.startswith(PREFIX)]
        winners = self.world.oracle.streaming
        if choices := [(name, writer) for name in names if (writer := attempt_of(name)) in winners]:
            name, attempt = self.world.scheduler.random.choice(choices)
            self.world.oracle.damaged.add(name)
            self.world.scheduler.note(f"missed {name}")
            del self.world.bucket.objects[name]
            self.world.broker.say(Lost(attempt, name, "404"), "fsck")

    def _keep_masters(self) -> None:
        scheduler, session = self.world.scheduler, self.world.mode == SESSION
        for slot in self._slots:
            alive = [m for a, m in self._masters if m.slot == slot and self._decides(a, m)]
            if alive and not self.world.chaos.strikes("second master"):
                continue
            if session and scheduler.random.random() < 0.7:
                continue  # leave others the time to take over
            process = self._process(f"master-{len(self._masters)}")
            master = Master(self.world, process, slot)
            self._masters.append((scheduler.spawn(process.name, process, master.run), master))

    def _decides(self, actor: Actor, master: Master) -> bool:
        """Return True if a master is there. In a session a frozen master comes back as a zombie and
        counts."""
        there = not actor.over and not master.process.dead
        return there and (self.world.mode == SESSION or self._lively(master.process))

    def _keep_driver(self) -> None:
        alive = [app for a, app in self._drivers if not a.over and self._lively(app.process)]
        if alive and self.world.exchanges:
            return
        if alive and self.world.lease_ms:
            self._silence(alive[-1].process)
        if alive and not self.world.chaos.strikes("second driver"):
            return
        if self._drivers and self.world.lease_ms and not self._may_follow():
            return
        if len(self._drivers) >= DRIVERS_MAX:
            fall_quiet(self.world)
        if len(self._drivers) >= 2 * DRIVERS_MAX:
            raise Stuck(f"{len(self._drivers)} drivers have come to no end")
        process = self._process(f"driver-{len(self._drivers)}")
        process.mortal = not self.world.exchanges
        process.is_next |= any(app.process.is_next for _, app in self._drivers[:-1])
        app = CombiningApplication(self.world, self._cluster, process)
        self._drivers.append((self.world.scheduler.spawn(process.name, process, app.run), app))

    def _process(self, name: str) -> Process:
        """Start a process, of the version that the deployment has now, or for a while again."""
        versions, now_ms = self.world.versions, self.world.scheduler.now_ms
        is_next = versions is None or self.world.chaos.quiet or versions.is_next(now_ms)
        process = Process(name, is_next=is_next)
        if versions is not None and not process.is_next:
            self._older.append(process)
        return process

    def _upgrade(self) -> None:
        """End the processes of the older version once the upgrade is over."""
        versions, scheduler = self.world.versions, self.world.scheduler
        if versions is not None and (
            scheduler.now_ms >= versions.ends_ms or self.world.chaos.quiet
        ):
            for process in self._older:
                if not process.dead:
                    scheduler.kill(process)
            self._older.clear()

    def _may_follow(self) -> bool:
        """Return True if another driver comes now. An abandoned job gets none once it is
        registered."""
        if self._abandoned and self.world.oracle.epoch:
            return False
        share = SUCCESSOR_SHARE / 3 if self._unswept else SUCCESSOR_SHARE
        return self.world.chaos.quiet or self.world.scheduler.random.random() < share

    def _silence(self, driver: Process) -> None:
        """Kill a driver, or freeze it until its lease may be over."""
        if self.world.chaos.strikes("driver goes silent"):
            scheduler = self.world.scheduler
            if scheduler.random.random() < 0.5:
                scheduler.kill(driver)
            else:
                silent_ms = 3.0 * self.world.lease_ms * scheduler.random.random()
                driver.thaws_ms = scheduler.now_ms + silent_ms

    def _lively(self, process: Process) -> bool:
        return not process.dead and process.thaws_ms - self.world.scheduler.now_ms < 3_000.0


def simulate(
    seed: int,
    nth: int | None = None,
    calm: bool = False,
    tell: bool = False,
    exchanges: int = 0,
    chained: bool = False,
) -> Outcome:
    """Run one world. With `nth` only that chance for a fault is taken. With `exchanges` the driver
    has that many and no fault strikes it, only other processes."""
    scheduler = Scheduler(seed, STEPS_MAX + EXCHANGE_STEPS_MAX * exchanges)
    scheduler.told = [] if tell else None
    chaos = Chaos(scheduler, nth, calm, exchanges)
    oracle = Oracle()
    oracle.bad_answers = chaos.bad_answers
    mode = SESSION if scheduler.random.random() < SESSION_SHARE else PER_JOB
    partitions = scheduler.random.choice((1, 2)) if mode == SESSION else 1
    broker = Broker(scheduler, chaos, oracle, mode, partitions)
    bucket = Bucket(scheduler, chaos, oracle)
    lease_ms = scheduler.random.choice(LEASES_MS)
    oracle.objects = bucket.objects
    oracle.has_one_master = mode == PER_JOB
    streams = scheduler.dice("streams")
    stream_at = streams.randrange(2) if streams.random() < STREAM_SHARE else None
    combines = scheduler.dice("combining").random() < COMBINING_SHARE
    mounts = scheduler.dice("mounts").random() < MOUNTS_SHARE
    versions = None if exchanges else _versions(scheduler)
    drawn = (mode, lease_ms, stream_at, exchanges, chained, combines, versions, mounts)
    world = World(scheduler, chaos, oracle, broker, bucket, *drawn)
    if versions is not None:
        scheduler.speaking = lambda process: spoken(process.is_next)
    for name in NEIGHBOURS:
        bucket.objects[name] = b"theirs", "theirs"
    if mode == PER_JOB and scheduler.dice("deployments").random() < NEIGHBOUR_SHARE:
        Neighbour(world)
    operator = Operator(world)
    scheduler.hazard = _hazard(world)
    if not exchanges:
        scheduler.later(QUIET_MS, lambda: fall_quiet(world))
    running = scheduler.spawn("operator", operator.process, operator.run)
    with scheduler.speaking(operator.process):
        try:
            scheduler.run(lambda: running.over)
            if running.error is not None:
                raise running.error
        except Stuck as exc:
            oracle.violated(f"no end: {exc}")
        finally:
            scheduler.hazard = lambda process: None
            scheduler.end()
        for name, error in scheduler.failures:
            if not isinstance(error, (HeadgateError, GivenUp, JobHasFailed, Stuck)):
                oracle.violated(f"{name} ended with {error!r}")
        if not oracle.violations:
            _check_end(world)
    return Outcome(
        seed,
        scheduler.trace,
        chaos.struck,
        chaos.chances,
        scheduler.steps,
        len(oracle.events),
        operator.left,
        tuple(oracle.violations),
        oracle.copies,
        tuple(scheduler.told or ()),
    )


def _versions(scheduler: Scheduler) -> Versions | None:
    dice = scheduler.dice("versions")
    if dice.random() >= VERSIONS_SHARE:
        return None
    begins_ms = UPGRADE_MS_MAX * dice.random()
    return Versions(dice, begins_ms, begins_ms + ROLLED_BACK_MS_MAX * dice.random())


def _hazard(world: World) -> Callable[[Process], None]:
    """Return the function that draws the faults of a process at each of its waits."""
    scheduler, chaos = world.scheduler, world.chaos

    def meet(process: Process) -> None:
        if not process.mortal or process.dead:
            return
        if chaos.strikes("process killed"):
            scheduler.kill(process)
        elif chaos.strikes("process frozen"):
            process.thaws_ms = scheduler.now_ms + FROZEN_MS_MAX * scheduler.random.random()
            scheduler.pause("thawed", 0.0)
        elif chaos.strikes("process cut off"):
            process.back_ms = scheduler.now_ms + CUT_OFF_MS_MAX * scheduler.random.random()
        elif chaos.strikes("clock jump"):
            process.skew_ms += JUMP_MS_MAX * (2 * scheduler.random.random() - 1)
        elif _may_lack_mount(world, process) and chaos.strikes("mount missing"):
            process.mounted_ms = scheduler.now_ms + UNMOUNTED_MS_MAX * scheduler.random.random()
        elif chaos.strikes("object lost"):
            world.bucket.harm("", lost)
        elif chaos.strikes("object damaged"):
            world.bucket.harm("", flipped)

    return meet


def _may_lack_mount(world: World, process: Process) -> bool:
    return world.mounts and process.name.startswith(("executor", "master", "sweeper"))


def fall_quiet(world: World) -> None:
    world.chaos.quiet = True
    world.broker.back_ms = 0.0
    world.scheduler.note("quiet")


def _check_end(world: World) -> None:
    """Check that nothing of the job is left after its close and a later sweep."""
    objects, oracle = world.bucket.objects, world.oracle
    left = [name for name in objects if name.startswith(PREFIX)]
    if left:
        oracle.violated(f"left behind: {left}")
    world.bucket.check_elsewhere()
    for name in NEIGHBOURS:
        if objects.get(name) != (b"theirs", "theirs"):
            oracle.violated(f"{name} was touched")
    snapshots = read_snapshots(world.broker.memory, JOB, Deadline.after(1.0))
    events = list(world.broker.memory.read_all(Deadline.after(1.0)))
    ended = [state for state in _folded(world) if state.job == JOB]
    kept = [snapshot.state for snapshot in snapshots.values()]
    if oracle.closed and ended != kept:  # a late record may have opened it again
        oracle.violated(f"the last snapshot is not the end: {snapshots}")
    for audited in audit(events, read_snapshots(world.broker.memory, None, Deadline.after(1.0))):
        if audited.job != OTHER and (audited.violation or audited.due):
            oracle.violated(f"audit: {audited}")


def _folded(world: World) -> tuple[JobState, ...]:
    """Fold the log and its snapshots into the state of every job."""
    log, deadline = world.broker.memory, Deadline.after(1.0)
    return fold(log.read_all(deadline), read_snapshots(log, None, deadline))
