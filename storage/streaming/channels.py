"""A gate's channels: one for each partition that was not known when the gate was made. No engine
uses this yet.

Guarantees: slices of a partition are handed out from one attempt only, each once. The channels end
only when every partition is announced as whole. An attempt that fails before any of its bytes were
handed out is forgotten. An attempt that fails later is an error, because its rows may have been
read already. An attempt that was handed out whole may fail without an error, except in a pipelined
result: all its readers must begin again together.

Any thread may bring news. Only the gate's reader takes slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Protocol

from ...control.clock import Deadline
from ...control.errors import Corrupt, Lost, Unavailable
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId
from ..contract import InputGateDeployment, PartitionInfo
from ..format.manifest import locate
from ..reading.read_plan import Slice, alone
from ..runtime import JobClients

_NAMED_MAX = 10  # partitions that an error names; it counts the others


@dataclass(slots=True)
class _Announced:
    """The announcements of one attempt."""

    segments: dict[int, SegmentSummary] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    """The numbers of the segments that were handed out."""
    whole: bool = False
    failed: str = ""
    """The reason why the attempt failed, else ''."""
    wrong: str = ""
    """The contradiction between two announcements, else ''."""

    @property
    def ended(self) -> bool:
        return self.whole and len(self.taken) == len(self.segments)

    def add(self, info: PartitionInfo) -> bool:
        """Take in an announcement. Return True if it changed anything."""
        before = len(self.segments), self.whole, self.failed, self.wrong
        for segment in info.segments:
            earlier = self.segments.setdefault(segment.number, segment)
            if replace(earlier, index=b"") != replace(segment, index=b""):
                name = f"segment {segment.number} of {info.attempt}"
                self.wrong = f"{name} was announced twice, with different contents"
        if info.whole and len(self.segments) != len(info.segments):
            self.wrong = (
                f"attempt {info.attempt} announced {len(self.segments)} segments one by one, and "
                f"{len(info.segments)} in all"
            )
        self.whole = self.whole or info.whole
        self.failed = self.failed or info.failed
        return before != (len(self.segments), self.whole, self.failed, self.wrong)


@dataclass(slots=True)
class _Channel:
    subpartitions: int
    pipelined: bool = False
    attempts: dict[AttemptId, _Announced] = field(default_factory=dict)
    read: AttemptId | None = None
    """The attempt from which slices are handed out."""

    @property
    def chosen(self) -> AttemptId | None:
        """Return the attempt to read: the attempt that was begun, else the first whole attempt,
        else the first one announced; None if all failed."""
        if self.read is not None:
            return self.read
        alive = [name for name, announced in self.attempts.items() if not announced.failed]
        whole = [name for name in alive if self.attempts[name].whole]
        return next(iter(whole or alive), None)

    @property
    def ended(self) -> bool:
        chosen = self.chosen
        return chosen is not None and self.attempts[chosen].ended

    def next(self) -> tuple[AttemptId, SegmentSummary] | None:
        """Take the next segment that is announced and not taken; return None if there is none.

        Raises:
            Lost: the attempt that was begun has failed.
            Corrupt: the attempt's announcements contradict each other.
        """
        chosen = self.chosen
        if chosen is None:
            return None
        announced = self.attempts[chosen]
        if announced.wrong:
            raise Corrupt(announced.wrong)
        failed = announced.failed or self._overtaken(announced)
        if announced.ended and not self.pipelined:
            failed = ""  # the attempt that takes its place has the same rows
        if failed:
            raise Lost(
                f"attempt {chosen} failed when {len(announced.taken)} of its segments were read: "
                f"{failed}. Readers of partition {chosen.partition} must start again"
            )
        number = min(announced.segments.keys() - announced.taken, default=None)
        if number is None:
            return None
        announced.taken.add(number)
        return chosen, announced.segments[number]

    def _overtaken(self, mine: _Announced) -> str:
        """Return the reason why this attempt will never be whole, else ''. Only the partition's
        attempt becomes whole: if another attempt is, the end of this one will not be announced."""
        whole = [name for name, other in self.attempts.items() if other.whole and other is not mine]
        return f"readers read attempt {whole[0]}" if whole and not mine.whole else ""

    def __str__(self) -> str:
        chosen = self.chosen
        if chosen is None:
            return "no attempt is known"
        return f"attempt {chosen} announced {len(self.attempts[chosen].segments)} segments so far"


class PartitionUpdates(Protocol):
    """A source that channels ask for news of partitions."""

    def hear(self, timeout_s: float) -> list[PartitionInfo]:
        """Return the news since the last call; nothing if none came within the time.

        Raises:
            Lost: no news will come any more: the result or its job was given up.
        """

    def close(self) -> None: ...


class Channels:
    def __init__(
        self,
        deployment: InputGateDeployment,
        clients: JobClients,
        updates: PartitionUpdates | None = None,
    ) -> None:
        self.deployment = deployment
        self._clients = clients
        self._updates = updates
        self._channels = {
            descriptor.partition: _Channel(descriptor.subpartitions, descriptor.pipelined)
            for descriptor in deployment.unknown
        }
        self._slices: deque[Slice] = deque()
        self._changed = Condition()
        self._news = False
        self.update(deployment.told)

    def update(self, infos: Iterable[PartitionInfo]) -> None:
        """Take in news. News of partitions that this gate does not wait for is ignored."""
        with self._changed:
            for info in infos:
                channel = self._channels.get(info.attempt.partition)
                if channel is not None:
                    announced = channel.attempts.setdefault(info.attempt, _Announced())
                    self._news = announced.add(info) or self._news
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Return True if every partition is whole and handed out."""
        with self._changed:
            return not self._slices and all(channel.ended for channel in self._channels.values())

    def next_slice(self) -> Slice | None:
        """Return the next slice that can be read now, or None.

        Raises:
            Lost: an attempt that was half handed out has failed.
            Corrupt: an attempt's announcements contradict each other, or a segment's index is not
                what was announced.
        """
        while not self._slices:
            with self._changed:
                following = next(filter(None, map(_Channel.next, self._channels.values())), None)
            if following is None:
                return None
            attempt, segment = following
            channel, clients = self._channels[attempt.partition], self._clients
            source = locate(clients.layout, clients.store, attempt, segment, channel.subpartitions)
            self._slices.extend(alone(source, self.deployment.first, self.deployment.count))
            if self._slices:
                with self._changed:
                    channel.read = attempt
        return self._slices.popleft()

    def wait(self, deadline: Deadline) -> None:
        """Return when there was news since the last wait.

        Raises:
            Unavailable: no news came in time; the message names the partitions that are missing.
            Lost: no news will come any more.
        """
        while not self._heard(0.0 if self._updates else deadline.left_s):
            if deadline.passed:
                raise Unavailable(self._waiting_for())
            if self._updates is not None:
                self.update(self._updates.hear(deadline.poll_s))

    def close(self) -> None:
        if self._updates is not None:
            self._updates.close()

    def _heard(self, timeout_s: float) -> bool:
        with self._changed:
            heard = self._changed.wait_for(lambda: self._news, timeout_s)
            self._news = False
        return heard

    def _waiting_for(self) -> str:
        """Return a message that names the partitions that are missing, with the news of them."""
        missing = {name: channel for name, channel in self._channels.items() if not channel.ended}
        named = "; ".join(f"{name}: {missing[name]}" for name in sorted(missing)[:_NAMED_MAX])
        more = f"; and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
        job = self.deployment.manifest.job
        return f"no news came in time of these partitions of job {job}: {named}{more}"
