"""The group of masters in memory: members, the partitions that they hold, and their steps.

Keeps the guarantees of Kafka's groups. A partition is granted once its former holder has let it go
or was given up. A member that was given up commits nothing, learns of it at its next poll, and
enters again. A step that such a member left open stalls readers until its slot is joined again or
the log ends the step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Condition

from ..errors import Conflict, Fenced
from ..log import Grant, GroupMember, Holder, MasterGroup, Placed, is_state_of
from .partitions import MemoryReader, MemoryTransactions, Partition

_LOG = logging.getLogger(__name__)


class MemoryGroup:
    """The members of the group and their partitions. Callers hold the log's lock."""

    def __init__(self, partitions: list[Partition], changed: Condition) -> None:
        self.partitions = partitions
        self.changed = changed
        self.members: dict[str, MemoryMembership] = {}
        self.holders: dict[int, MemoryMembership] = {}
        self.decided: dict[int, int] = {}

    def join(self, slot: str, holder: Holder) -> MemoryMembership:
        with self.changed:
            if (former := self.members.get(slot)) is not None:
                self.drop(former)
                former.fence()
                former.replaced = True
            member = MemoryMembership(slot, holder, self)
            self.enter(member)
            return member

    def described(self) -> MasterGroup:
        members = [
            GroupMember(
                slot, "", tuple(sorted(p for p, holder in self.holders.items() if holder is member))
            )
            for slot, member in sorted(self.members.items())
            if not member.evicted
        ]
        ends = {partition.number: len(partition.entries) for partition in self.partitions}
        return MasterGroup(tuple(members), dict(self.decided), ends)

    def evict(self, slot: str) -> None:
        with self.changed:
            self.drop(self.members[slot])

    def end_step(self, slot: str) -> None:
        with self.changed:
            self.members[slot].fence()

    def enter(self, member: MemoryMembership) -> None:
        self.members[member.slot] = member
        member.evicted = False
        self.changed.notify_all()

    def drop(self, member: MemoryMembership) -> None:
        """Give up a member: others may be granted its partitions at once."""
        member.evicted = True
        self.holders = {p: holder for p, holder in self.holders.items() if holder is not member}
        self.changed.notify_all()

    def wanted(self, member: MemoryMembership) -> set[int]:
        """Return the member's share of the partitions, by round robin in the order of the slots."""
        slots = sorted(slot for slot, other in self.members.items() if not other.evicted)
        if member.evicted:
            return set()
        at = slots.index(member.slot)
        return set(range(at, len(self.partitions), len(slots)))


class MemoryMembership(MemoryTransactions, MemoryReader):
    def __init__(self, slot: str, holder: Holder, group: MemoryGroup) -> None:
        super().__init__(group.partitions, group.changed, f"the partitions of slot {slot}")
        self.slot = slot
        self.evicted = False
        self.replaced = False
        self._holder = holder
        self._group = group
        self._positions: dict[int, int] = {}
        self._next = 0  # the partition to read first, so that each has its turn

    def poll(self, limit: int, timeout_s: float) -> list[Placed]:
        assert not self._begun, "a step lies between two polls"
        events: list[Placed] = []
        with self._changed:
            self._changed.wait_for(lambda: self._advance(limit, events), timeout_s)
        return events

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def end(self, partition: int) -> int | None:
        with self._changed:
            return len(self._partitions[partition].entries)

    def commit(self, positions: Mapping[int, int]) -> None:
        with self._changed:
            self.check_place()
            self._commit()
            self._group.decided |= positions

    def check_place(self) -> None:
        """Check, before a step is committed, that the member belongs to the group.

        Raises:
            Fenced: the member was given up; the step is dropped.
        """
        with self._changed:
            if self.evicted and not self.fenced:
                self.abort()
                raise Fenced(f"the group of masters went on without slot {self.slot}")

    def close(self) -> None:
        with self._changed:
            super().close()
            self._revoke(set(self._positions))
            if self._group.members.get(self.slot) is self:
                del self._group.members[self.slot]
            self._group.drop(self)

    def _advance(self, limit: int, events: list[Placed]) -> bool:
        if self.replaced:
            raise Conflict(f"another master has joined under slot {self.slot}")
        self._check_fence()
        if self.evicted:
            _LOG.warning("slot %s was fenced: the group of masters went on without it", self.slot)
            self._revoke(set(self._positions))
            self._group.enter(self)
        moved = self._rebalance()
        before = dict(self._positions)
        for number in sorted(self._positions, key=lambda n: (n < self._next, n)):
            at, left = self._positions[number], limit - len(events)
            more, self._positions[number] = self.read_on(self._partitions[number], at, left)
            events += (Placed(number, recorded) for recorded in more)
        self._next = events[-1].partition + 1 if events else 0
        return moved or before != self._positions

    def _rebalance(self) -> bool:
        wanted, holders = self._group.wanted(self), self._group.holders
        self._revoke(self._positions.keys() - wanted)
        free = sorted(number for number in wanted if number not in holders)
        for number in free:
            holders[number] = self
            partition = self._partitions[number]
            offsets = range(partition.first, len(partition.entries))
            state = {key: body for key, body in partition.state.items() if is_state_of(None, key)}
            grant = Grant(number, state, offsets)
            self._positions[number] = self._holder.granted(grant)
        return bool(free)

    def _revoke(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            del self._positions[number]
            self._holder.revoked(number)
            if self._group.holders.get(number) is self:
                del self._group.holders[number]
        self._changed.notify_all()
