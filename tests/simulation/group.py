"""A membership in the group of masters, as a simulated process meets it.

It is the product's group in memory, whose members may be given up, and whose steps are accepted
first and end later. It keeps Kafka's promises. The coordinator accepts a step's positions only from
a member of the group at that time. The step's last records and its end may come after that. An
accepted step is settled when its slot is joined again, and dropped if it is open too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headgate.control.errors import Fenced, OutcomeUnknown, Unavailable
from headgate.control.events.types import Event
from headgate.control.log import Grant, Holder, Placed, StateRecord, partition_of
from headgate.control.memory.group import MemoryMembership

from .scheduler import Process

if TYPE_CHECKING:
    from .broker import Broker

SILENT_MS_MAX = 6_000.0
LOOK_MS = 2_000.0
OPEN_MS_MAX = 10_000.0
ENDS_MS_MAX = 6_000.0


class SimMembership:
    def __init__(self, broker: Broker, slot: str, holder: Holder, process: Process) -> None:
        self.rejected = 0
        self._broker = broker
        self._holder = holder
        self._process = process
        self._inner: MemoryMembership = broker.memory.join(slot, self)
        self._ends: dict[int, int | None] = {}
        self._late: list[Event] = []  # written, but not in the log yet
        self._written: list[Event] = []
        self._accepted: frozenset[int] = frozenset()
        self._step = 0
        self._open = False
        self._closed = False
        self._silent_ms = 0.0
        broker.members[slot] = self
        self._look()

    def granted(self, grant: Grant) -> int:
        self._ends.pop(grant.partition, None)
        return self._holder.granted(grant)

    def revoked(self, partition: int) -> None:
        self._holder.revoked(partition)

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        broker, scheduler = self._broker, self._broker.scheduler
        self._visit("poll", None)
        if broker.chaos.strikes("log unreadable"):
            raise Unavailable("the log cannot be read")
        deadline_ms = scheduler.now_ms + 1000.0 * timeout_s
        limit = scheduler.random.randint(1, limit)
        while True:
            before = dict(self._inner._positions)
            away = broker.is_away(self._process)
            placed = [] if away else self._inner.poll(limit, 0)
            left_ms = deadline_ms - scheduler.now_ms
            if placed or before != self._inner._positions or left_ms <= 0:
                return placed
            broker.changed.wait(left_ms, "poll")

    def position(self, partition: int) -> int:
        return self._inner.position(partition)

    def end(self, partition: int) -> int | None:
        if partition in self._ends:
            return self._ends[partition]
        self._visit("end", "log unreadable")
        if any(member.may_end(partition) for member in self._broker.members.values()):
            return None
        if not self._inner.evicted:
            self._broker.oracle.opened(partition, self)
        self._ends[partition] = self._inner.end(partition)
        return self._ends[partition]

    def may_end(self, partition: int) -> bool:
        """Return True if a step that was accepted for the partition is open, and the member is not
        fenced."""
        return partition in self._accepted and self._open and not self._inner.fenced

    def begin(self) -> None:
        self._visit("begin", "begin refused")
        self._inner.begin()
        self._open, self._written, self._late = True, [], []
        self._step += 1
        step = self._step
        self._broker.scheduler.later(OPEN_MS_MAX, lambda: self._time_out(step))

    def write(self, decision: Event) -> None:
        self._visit(f"write {decision.kind}", "write refused")
        if self._late or self._broker.chaos.strikes("record delayed"):
            self._late.append(decision)
        else:
            self._inner.write(decision)
        self._written.append(decision)

    def keep(self, record: StateRecord) -> None:
        self._visit("keep", "write refused")
        self._inner.keep(record)

    def commit(self, positions: Mapping[int, int]) -> None:
        chaos, scheduler = self._broker.chaos, self._broker.scheduler
        self._visit("commit", None)
        if chaos.strikes("commit dropped") or self._broker.is_away(self._process):
            self._drop()
            raise Unavailable("the step was dropped")
        if chaos.strikes("commit unknown, dropped"):
            self._drop()
            raise OutcomeUnknown("no answer to the commit")
        self._accept(positions)
        if chaos.strikes("commit unknown, open"):
            self._arrives_late()
            raise OutcomeUnknown("no answer to the commit")
        late = chaos.strikes("step ends late")
        scheduler.pause("accepted", ENDS_MS_MAX * scheduler.random.random() if late else None)
        self._done()
        if chaos.strikes("commit unknown, done"):
            raise OutcomeUnknown("no answer to the commit")

    def abort(self) -> None:
        self._visit("abort", None)
        self._drop()

    def _drop(self) -> None:
        self._open, self._accepted = False, frozenset()
        self._inner.abort()
        self._broker.show()

    def close(self) -> None:
        """Leave the group; a step that was accepted ends by itself."""
        if self._process.dead:
            return
        if self._accepted and self._open:
            self._give_up()
        else:
            self._open = False
            self._inner.close()
        self._closed = True
        self._broker.show()

    def _accept(self, positions: Iterable[int]) -> None:
        self._inner.check_place()
        self._accepted = frozenset(positions)
        if self._broker.chaos.strikes("member given up"):
            self._give_up()

    def _done(self) -> None:
        """Write the last records of the step, and end it."""
        for decision in self._late:
            self._inner.write(decision)
        with self._inner._changed:
            self._inner._commit()
        self._open, self._accepted = False, frozenset()
        count = self._broker.partitions
        for number in sorted({partition_of(event.job, count) for event in self._written}):
            there = [event for event in self._written if partition_of(event.job, count) == number]
            self._broker.oracle.committed(number, self, there)
        self._broker.show()

    def _arrives_late(self) -> None:
        """Let the step's end take effect later, unless the slot is joined again before."""
        step = self._step

        def arrive() -> None:
            if self._open and self._step == step:
                with suppress(Fenced):
                    self._done()

        self._broker.scheduler.later(ENDS_MS_MAX * self._broker.scheduler.random.random(), arrive)

    def _time_out(self, step: int) -> None:
        """Drop a step that is open too long and fence its holder, as Kafka's coordinator does."""
        if self._open and self._step == step and self._is_newest:
            self._open = False
            self._broker.memory.end_step(self._inner.slot)
            self._broker.show()

    @property
    def _is_newest(self) -> bool:
        return self._broker.members.get(self._inner.slot) is self and not self._inner.replaced

    def _look(self) -> None:
        """Give the member up if it was silent for too long, and look again later."""
        if not self._is_newest or self._closed:
            return
        here = not self._process.dead and self._process.thaws_ms <= self._broker.scheduler.now_ms
        self._silent_ms = 0.0 if here else self._silent_ms + LOOK_MS
        if self._silent_ms >= SILENT_MS_MAX:
            self._give_up()
        self._broker.scheduler.later(LOOK_MS, self._look)

    def _give_up(self) -> None:
        if self._is_newest and not self._closed and not self._inner.evicted:
            self._broker.memory.evict(self._inner.slot)
            self._broker.changed.fire()

    def _visit(self, what: str, fault: str | None) -> None:
        chaos = self._broker.chaos
        self._broker.scheduler.pause(what)
        self._broker.meet()
        if chaos.strikes("member given up"):
            self._give_up()
        if fault is not None and (self._broker.is_away(self._process) or chaos.strikes(fault)):
            raise Unavailable(f"{what}: the broker does not answer")
