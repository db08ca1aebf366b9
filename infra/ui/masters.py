"""The page of the masters: who belongs to the group, for which partitions it decides, and how fast.

Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...control.contract import SESSION
from ...control.events.types import Recorded
from ...control.ids import JobId
from ...control.inquiry.listing import JobCondition, ListedJob
from ...control.log import MasterGroup
from ..cli.fields import Fields
from ..master_command import slot_of

_RECENT_S = 60
_SEEN_S = 3_600  # for so long a master is named that has left the group


@dataclass(frozen=True, slots=True)
class Decider:
    """A master that has decided, as far as the log was read."""

    slot: str
    recent: int
    """Its decisions of the last minute."""
    last_ms: int
    """The time of its last decision."""
    last_job: JobId


class DecisionCounts:
    """Counts the decisions of the masters among the events that pass by, each of them once."""

    def __init__(self) -> None:
        self._passed: dict[JobId, int] = {}
        self._seconds: dict[str, Counter[int]] = defaultdict(Counter)
        self._last: dict[str, tuple[int, JobId]] = {}

    def see(self, recorded: Recorded) -> None:
        event = recorded.event
        slot = slot_of(event.by) if event.basis is not None else None
        if slot is not None and recorded.offset > self._passed.get(event.job, -1):
            self._passed[event.job] = recorded.offset
            at_ms = recorded.at_ms or event.time_ms
            self._seconds[slot][at_ms // 1000] += 1
            self._last[slot] = max(self._last.get(slot, (0, event.job)), (at_ms, event.job))

    def deciders(self, now_ms: int) -> tuple[Decider, ...]:
        """Return all masters that have decided in the last hour, in the order of their slots."""
        now_s = now_ms // 1000
        since_s = now_s - _RECENT_S
        for slot, seconds in self._seconds.items():
            recent = {at_s: number for at_s, number in seconds.items() if at_s > since_s}
            self._seconds[slot] = Counter(recent)
        return tuple(
            Decider(slot, self._seconds[slot].total(), *self._last[slot])
            for slot in sorted(self._last)
            if self._last[slot][0] // 1000 > now_s - _SEEN_S
        )


def masters_page(
    group: MasterGroup,
    deciders: Iterable[Decider],
    jobs: Iterable[ListedJob],
    due: Mapping[JobId, int],
    partition_of: Callable[[JobId], int],
) -> Fields:
    """Return the members of the group and its partitions. `due` has the number of decisions that
    follow from a job's facts and are not in the log."""
    holders = {number: member.slot for member in group.members for number in member.partitions}
    own: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    for listed in jobs:
        if listed.mode == SESSION and listed.condition is not JobCondition.ENDED:
            number = partition_of(listed.job)
            own[number] += 1
            waiting[number] += due.get(listed.job, 0)
    partitions = [
        {
            "partition": number,
            "slot": holders.get(number),
            "jobs": own[number],
            "due": waiting[number],
            "decided": group.decided.get(number),
            "end": end,
            "lag": max(0, end - group.decided[number]) if number in group.decided else None,
        }
        for number, end in sorted(group.ends.items())
    ]
    by_slot = {decider.slot: decider for decider in deciders}
    hosts = {member.slot: member.host for member in group.members}
    masters = [
        {
            "slot": slot,
            "host": hosts.get(slot),
            "is_member": slot in hosts,
            "partitions": sorted(number for number, holder in holders.items() if holder == slot),
            "jobs": sum(own[number] for number, holder in holders.items() if holder == slot),
            "due": sum(waiting[number] for number, holder in holders.items() if holder == slot),
            "decisions_per_s": decider.recent / _RECENT_S if decider else 0.0,
            "last_ms": decider.last_ms if decider else None,
            "last_job": decider.last_job if decider else None,
        }
        for slot in sorted(hosts.keys() | by_slot.keys())
        for decider in (by_slot.get(slot),)
    ]
    return {"jobs": own.total(), "masters": masters, "partitions": partitions}
