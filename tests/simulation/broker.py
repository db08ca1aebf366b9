"""The log as a job meets it: the product's log in memory, behind a broker that fails at times.

It keeps Kafka's promises. Records of one producer stay in order and are not repeated, and records
of several producers interleave freely. An unconfirmed record may be missing, present, or late. A
step without an answer is settled by the next holder of the decisions, and dropped if it is open too
long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from headgate.control.clock import Deadline
from headgate.control.contract import SESSION
from headgate.control.errors import Fenced, OutcomeUnknown, Unavailable
from headgate.control.events.types import (
    Event,
    Fact,
    JobFailed,
    JobRegistered,
    LeaseExpired,
    Recorded,
    Tick,
)
from headgate.control.ids import JobId
from headgate.control.kafka.settings import KafkaSettings
from headgate.control.log import (
    Decisions,
    Follower,
    Holder,
    MasterGroup,
    Membership,
    Receipt,
    StateRecord,
    Tail,
)
from headgate.control.memory.log import MemoryDecisions, MemoryEventLog
from headgate.control.snapshots.resume import read_snapshots

from .faults import Chaos
from .group import OPEN_MS_MAX, SimMembership
from .oracle import JOB, Oracle
from .scheduler import Process, Scheduler, Signal, SimClock

REQUEST_MS = 8_000.0
HELD_UP_MS = 1_000.0
LATE_SHARE = 0.5  # of the ends of leases, on their way while the driver may be heard
SETTINGS = KafkaSettings("", "head-gate")
OTHER = JobId("other")
KEPT_MS = 30_000  # how long the log keeps an event that no snapshot needs


class Broker:
    """The log that all processes share."""

    def __init__(
        self, scheduler: Scheduler, chaos: Chaos, oracle: Oracle, mode: str, partitions: int
    ) -> None:
        self.scheduler = scheduler
        self.chaos = chaos
        self.oracle = oracle
        self.mode = mode
        self.partitions = partitions
        self._me = Process("broker")
        self._clock = SimClock(scheduler, self._me)
        self.memory = MemoryEventLog(partitions, self._clock)
        self.members: dict[str, SimMembership] = {}  # the newest member of each slot
        self.changed = Signal(scheduler)
        self.back_ms = 0.0
        self._watcher = self.memory.follow(JOB)
        self._others = 0
        self._claimed: dict[str, MemoryDecisions] = {}

    def claim(self, name: str, decisions: MemoryDecisions) -> None:
        """Fence the former holder of this transactional id, in whatever deployment it is."""
        former = self._claimed.get(name)
        self._claimed[name] = decisions
        if former is not None:
            with former._changed:
                former.fence()

    def is_away(self, process: Process) -> bool:
        return self.scheduler.now_ms < max(self.back_ms, process.back_ms)

    def meet(self) -> None:
        """Draw the faults of one visit to the broker, which may go away now."""
        if self.chaos.strikes("broker outage"):
            self.back_ms = self.scheduler.now_ms + 20_000.0 * self.scheduler.random.random()
        if self.chaos.strikes("foreign record"):
            self._others += 1
            self.memory.append(self._foreign())

    def _foreign(self) -> Event:
        """Make an event of another job: its registration, or later in a session a decision that no
        fact explains."""
        name = f"{self._others}"
        if self.mode == SESSION and self._others > 1:
            return Event(name, OTHER, "", 0, "another", 0, JobFailed("for no reason"))
        body = JobRegistered(self.mode, "0", "another")
        return Event(name, OTHER, "", 0, "another", None, body)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def tick(self, now_ms: int) -> None:
        """State the time to the job, as an outsider."""
        self.say(Tick(now_ms), "clock")
        self.scheduler.note(f"tick {now_ms}")

    def forget_head(self) -> None:
        """Let retention remove old events, but none that the job's newest snapshot still needs."""
        snapshots = read_snapshots(self.memory, JOB, Deadline.after(0.0))
        if JOB not in snapshots:
            return
        before = snapshots[JOB].needed if self.mode == SESSION else snapshots[JOB].position
        records = self.memory.read_all(Deadline.after(0.0))
        fresh = [record.offset for record in records if record.at_ms > self.now_ms() - KEPT_MS]
        before = min([before, *fresh])
        if self.memory.oldest(JOB) < before:
            self.show()
            self.memory.expire(JOB, before)
            self.scheduler.note(f"forgotten before {before}")

    def say(self, body: Fact, by: str) -> None:
        """State a fact of the job on behalf of an outsider."""
        self._others += 1
        self.memory.append(Event(f"{self._others}", JOB, "", self.now_ms(), by, None, body))

    def take(self, event: Event, said_ms: float) -> int:
        offset = self.memory.append(event).offset(Deadline.after(0.0))
        self.scheduler.note(f"{offset} {event.id} {event.body}")
        self.oracle.heard(event.job, event.by, said_ms)
        if event.job == JOB and self.chaos.strikes("tick between"):
            self.tick(self.now_ms())
        self.show()
        return offset

    def show(self) -> None:
        """Show newly visible events to the oracle first, and then wake everyone who waits."""
        self.oracle.now_ms = self.scheduler.now_ms
        with self.scheduler.speaking(self._me):
            self.oracle.read_log(self._watcher.poll(1000, 0))
        self.changed.fire()


@dataclass(eq=False)
class SimReceipt:
    """A receipt that waits at most the client's own limit on a delivery."""

    signal: Signal
    at: int | None = None
    error: Exception | None = None

    def offset(self, deadline: Deadline) -> int:
        if self.at is None and self.error is None:
            self.signal.wait(REQUEST_MS, "receipt")
        if self.error is not None:
            raise self.error
        if self.at is None:
            raise OutcomeUnknown("no confirmation in time")
        return self.at

    def settle(self, at: int | None, error: Exception | None) -> None:
        self.at, self.error = at, error
        self.signal.fire()


@dataclass(eq=False)
class _Record:
    event: Event
    receipt: SimReceipt
    said_ms: float
    due_ms: float
    confirmed: bool = True


@dataclass(eq=False)
class SimLog:
    """One process's client: one idempotent producer, and any number of readers."""

    broker: Broker
    process: Process
    queue: deque[_Record] = field(default_factory=deque)

    def prepare(self, deadline: Deadline) -> None:
        """Do nothing: the log is ready."""

    def retention_ms(self, deadline: Deadline) -> int:
        return -1  # retention here never removes what snapshots need

    def identity(self, deadline: Deadline) -> str:
        return "simulated"

    def append(self, fact: Event) -> SimReceipt:
        scheduler, chaos = self.broker.scheduler, self.broker.chaos
        scheduler.pause(f"append {fact.kind}")
        self.broker.meet()
        if chaos.strikes("append refused"):
            raise Unavailable("the producer's queue is full")
        receipt = SimReceipt(Signal(scheduler))
        said_ms = scheduler.now_ms
        due_ms = said_ms + 3.0 * scheduler.random.random()
        if isinstance(fact.body, LeaseExpired):
            due_ms += self._end_lease(fact, said_ms)
        if chaos.strikes("record delayed"):
            due_ms += 300.0 * scheduler.random.random()
        if chaos.strikes("append arrives late"):
            due_ms += REQUEST_MS * (1.0 + 2.0 * scheduler.random.random())
        if chaos.strikes("append never arrives"):
            return receipt
        due_ms = max(due_ms, self.queue[-1].due_ms) if self.queue else due_ms
        self.queue.append(
            _Record(fact, receipt, said_ms, due_ms, not chaos.strikes("confirmation lost"))
        )
        scheduler.later(due_ms - scheduler.now_ms, self._deliver)
        return receipt

    def _end_lease(self, fact: Event, said_ms: float) -> float:
        """Let the oracle look at a fact that is to end a lease, and return its delay."""
        if self.process.thaws_ms < said_ms - HELD_UP_MS:
            self.broker.oracle.ends_lease(fact, said_ms)
        dice = self.broker.scheduler.dice(f"lease {fact.by} {fact.id}")
        late = not self.broker.chaos.quiet and dice.random() < LATE_SHARE
        return REQUEST_MS * dice.random() if late else 0.0

    def _deliver(self) -> None:
        """Let the broker take the oldest record, or try later if the broker is away."""
        broker = self.broker
        if not self.queue:
            return
        if broker.is_away(self.process):
            back_ms = max(broker.back_ms, self.process.back_ms)
            broker.scheduler.later(back_ms - broker.scheduler.now_ms + 1.0, self._deliver)
            return
        if self.process.dead and broker.scheduler.random.random() < 0.5:
            self.queue.clear()  # the process died before it sent these
            return
        record = self.queue.popleft()
        with broker.scheduler.speaking(self.process):
            at = broker.take(record.event, record.said_ms)
        if record.confirmed and not self.process.dead:
            broker.scheduler.later(
                2.0 * broker.scheduler.random.random(), lambda: record.receipt.settle(at, None)
            )

    def follow(self, job: JobId, position: int | None = 0) -> SimFollower:
        self._visit("follow", "log unreadable")
        inner = self.broker.memory.follow(job, position)
        return SimFollower(self.broker, self.process, inner)

    def written(self, job: JobId) -> int:
        self._visit("written", "log unreadable")
        return self.broker.memory.written(job)

    def open_decisions(self, job: JobId) -> SimDecisions:
        self._visit("open decisions", "log unreadable")
        inner = self.broker.memory.open_decisions(job)
        self.broker.claim(SETTINGS.group(job), inner)
        self.broker.show()
        opened = SimDecisions(self.broker, job, inner, self.process)
        self.broker.oracle.opened(job, opened)
        return opened

    def join(self, slot: str, holder: Holder) -> Membership:
        self._visit("join", "log unreadable")
        membership = SimMembership(self.broker, slot, holder, self.process)
        self.broker.show()
        return membership

    def group(self, deadline: Deadline) -> MasterGroup:
        raise AssertionError("no process of a simulation asks for the group")

    def partition(self, job: JobId) -> int:
        return self.broker.memory.partition(job)

    def oldest(self, job: JobId) -> int:
        return self.broker.memory.oldest(job)

    def read_state(
        self, job: JobId | None, deadline: Deadline, whole: bool = False
    ) -> dict[str, bytes]:
        self._visit("read state", "log unreadable")
        return self.broker.memory.read_state(job, deadline)

    def beat(self, job: JobId) -> Receipt:
        self._visit("beat", "append refused")
        receipt = self.broker.memory.beat(job)
        self.broker.oracle.beats(job, self.process.name, self.broker.scheduler.now_ms)
        return receipt

    def read_beats(self, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        self._visit("read beats", "log unreadable")
        return self.broker.memory.read_beats(job, deadline)

    def read_all(
        self, deadline: Deadline, known: Mapping[JobId, int] = MappingProxyType({})
    ) -> Iterator[Recorded]:
        return self.broker.memory.read_all(deadline, known)

    def tail(self, known: Mapping[JobId, int] = MappingProxyType({})) -> Tail:
        return self.broker.memory.tail(known)

    def close(self) -> None:
        """Do nothing: all processes share the broker."""

    def _visit(self, what: str, fault: str) -> None:
        self.broker.scheduler.pause(what)
        self.broker.meet()
        if self.broker.is_away(self.process) or self.broker.chaos.strikes(fault):
            raise Unavailable(f"{what}: the broker does not answer")


@dataclass(eq=False)
class SimFollower:
    broker: Broker
    process: Process
    inner: Follower
    rejected: int = 0

    def poll(self, limit: int, timeout_s: float) -> list[Recorded]:
        broker, scheduler = self.broker, self.broker.scheduler
        scheduler.pause("poll")
        if broker.chaos.strikes("log unreadable"):
            raise Unavailable("the log cannot be read")
        deadline_ms = scheduler.now_ms + 1000.0 * timeout_s
        limit = scheduler.random.randint(1, limit)
        while True:
            before = self.inner.position()
            records = [] if broker.is_away(self.process) else self.inner.poll(limit, 0)
            left_ms = deadline_ms - scheduler.now_ms
            if records or before < self.inner.position() or left_ms <= 0:
                return records
            broker.changed.wait(left_ms, "poll")

    def position(self) -> int:
        return self.inner.position()

    def end(self) -> int:
        self.broker.scheduler.pause("end")
        away = self.broker.is_away(self.process)
        if away or self.broker.chaos.strikes("log unreadable"):
            raise Unavailable("the log does not answer")
        return self.inner.end()

    def close(self) -> None:
        self.inner.close()


class SimDecisions:
    """A holder whose steps may be refused, dropped, or end without an answer."""

    def __init__(self, broker: Broker, job: JobId, inner: Decisions, process: Process) -> None:
        self._broker = broker
        self._job = job
        self._inner = inner
        self._process = process
        self._step = 0
        self._open = False
        self._written: list[Event] = []

    def begin(self) -> None:
        self._visit("begin", "begin refused")
        self._inner.begin()
        self._open, self._written = True, []
        self._step += 1
        step = self._step
        self._broker.scheduler.later(OPEN_MS_MAX, lambda: self._time_out(step))

    def write(self, decision: Event) -> None:
        self._visit(f"write {decision.kind}", "write refused")
        self._inner.write(decision)
        self._written.append(decision)

    def keep(self, record: StateRecord) -> None:
        self._visit("keep", "write refused")
        self._inner.keep(record)

    def commit(self, position: int) -> None:
        chaos = self._broker.chaos
        self._visit("commit", None)
        if chaos.strikes("commit dropped") or self._broker.is_away(self._process):
            self._end(self._inner.abort)
            raise Unavailable("the step was dropped")
        if chaos.strikes("commit unknown, dropped"):
            self._end(self._inner.abort)
            raise OutcomeUnknown("no answer to the commit")
        if chaos.strikes("commit unknown, open"):
            self._arrives_late(position)
            raise OutcomeUnknown("no answer to the commit")
        self._done(position)
        if chaos.strikes("commit unknown, done"):
            raise OutcomeUnknown("no answer to the commit")

    def abort(self) -> None:
        self._visit("abort", None)
        self._end(self._inner.abort)

    def close(self) -> None:
        if not self._process.dead:
            self._end(self._inner.close)

    def _done(self, position: int) -> None:
        self._end(lambda: self._inner.commit(position))
        self._broker.oracle.committed(self._job, self, self._written)

    def _end(self, act: Callable[[], None]) -> None:
        self._open = False
        act()
        self._broker.show()

    def _arrives_late(self, position: int) -> None:
        """Let the commit take effect later, unless a successor comes first."""
        step = self._step

        def arrive() -> None:
            if self._open and self._step == step:
                with suppress(Fenced):
                    self._done(position)

        self._broker.scheduler.later(3_000.0 * self._broker.scheduler.random.random(), arrive)

    def _time_out(self, step: int) -> None:
        """Drop a step that is open too long and fence its holder, as Kafka's coordinator does."""
        if self._open and self._step == step and self._broker.oracle.holds(self._job, self):
            self._open = False
            self._broker.oracle.opened(self._job, None)
            self._broker.memory.open_decisions(self._job)
            self._broker.show()

    def _visit(self, what: str, fault: str | None) -> None:
        self._broker.scheduler.pause(what)
        self._broker.meet()
        away = self._broker.is_away(self._process)
        if fault is not None and (away or self._broker.chaos.strikes(fault)):
            raise Unavailable(f"{what}: the broker does not answer")
