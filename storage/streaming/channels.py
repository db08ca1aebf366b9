"""A gate's channels: one for each partition that was not known when the gate was made.

Guarantees: slices of a partition are handed out from one attempt only, each once, and the channels
end only when every partition is stated to be whole. An attempt that fails before any of its bytes
were handed out is forgotten; one that fails later is an error, for its rows may be out already. Of
a pipelined result also one that was handed out whole is: the others start anew with it.
Told from any thread; asked by the gate's reader alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Protocol, TypeAlias

from ...control.clock import Deadline
from ...control.errors import Corrupt, Lost, Unavailable
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId
from ..contract import InputGateDeployment, PartitionInfo
from ..format.manifest import Source
from ..reading.read_plan import Slice, alone

_HEAR_S = 0.2
_NAMED_MAX = 10  # partitions that an error names; it counts the others

Locate: TypeAlias = Callable[[AttemptId, SegmentSummary, int], Source]


@dataclass(slots=True)
class _Announced:
    """What an attempt has announced; `taken` are the numbers of the segments handed out."""

    segments: dict[int, SegmentSummary] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    whole: bool = False
    failed: str = ""
    wrong: str = ""

    @property
    def ended(self) -> bool:
        return self.whole and len(self.taken) == len(self.segments)

    def add(self, told: PartitionInfo) -> bool:
        """Whether it says anything new."""
        before = len(self.segments), self.whole, self.failed, self.wrong
        for segment in told.segments:
            known = self.segments.setdefault(segment.number, segment)
            if replace(known, index=b"") != replace(segment, index=b""):
                self.wrong = f"segment {segment.number} of {told.attempt} was announced as two"
        if told.whole and len(self.segments) != len(told.segments):
            self.wrong = (
                f"attempt {told.attempt} announced {len(self.segments)} segments one by one, and "
                f"{len(told.segments)} in all"
            )
        self.whole = self.whole or told.whole
        self.failed = self.failed or told.failed
        return before != (len(self.segments), self.whole, self.failed, self.wrong)


@dataclass(slots=True)
class _Channel:
    subpartitions: int
    pipelined: bool = False
    attempts: dict[AttemptId, _Announced] = field(default_factory=dict)
    read: AttemptId | None = None

    @property
    def chosen(self) -> AttemptId | None:
        """The attempt to read on: the one begun, else a whole one, else the first announced."""
        if self.read is not None:
            return self.read
        alive = [name for name, said in self.attempts.items() if not said.failed]
        whole = [name for name in alive if self.attempts[name].whole]
        return next(iter(whole or alive), None)

    @property
    def ended(self) -> bool:
        chosen = self.chosen
        return chosen is not None and self.attempts[chosen].ended

    def next(self) -> tuple[AttemptId, SegmentSummary] | None:
        """Take the next segment that is stored and not taken.

        Raises:
            Lost: the attempt that was begun has failed.
            Corrupt: it contradicts itself.
        """
        chosen = self.chosen
        if chosen is None:
            return None
        said = self.attempts[chosen]
        if said.wrong:
            raise Corrupt(said.wrong)
        failed = said.failed or self._overtaken(said)
        if said.ended and not self.pipelined:
            failed = ""  # what takes its place has the same rows
        if failed:
            raise Lost(
                f"attempt {chosen} failed when {len(said.taken)} of its segments were read: "
                f"{failed}. Whoever reads partition {chosen.partition} must begin again"
            )
        number = min(said.segments.keys() - said.taken, default=None)
        if number is None:
            return None
        said.taken.add(number)
        return chosen, said.segments[number]

    def _overtaken(self, said: _Announced) -> str:
        """Only the partition's attempt is whole: of others nobody will hear the end."""
        others = [name for name, one in self.attempts.items() if one.whole and one is not said]
        return f"attempt {others[0]} is the partition" if others and not said.whole else ""

    def __str__(self) -> str:
        chosen = self.chosen
        if chosen is None:
            return "no attempt is known"
        return f"attempt {chosen} announced {len(self.attempts[chosen].segments)} segments so far"


class PartitionUpdates(Protocol):
    """Where channels hear of partitions, besides being told."""

    def hear(self, timeout_s: float) -> list[PartitionInfo]:
        """What has become known since; nothing when nothing has within the time.

        Raises:
            Lost: nothing more will come: the result was released or its driver replaced.
        """

    def close(self) -> None: ...


class Channels:
    def __init__(
        self,
        deployment: InputGateDeployment,
        locate: Locate,
        updates: PartitionUpdates | None = None,
    ) -> None:
        self._deployment = deployment
        self._locate = locate
        self._updates = updates
        self._channels = {
            one.partition: _Channel(one.subpartitions, one.pipelined) for one in deployment.unknown
        }
        self._cut: deque[Slice] = deque()
        self._changed = Condition()
        self._news = False
        self.update(deployment.told)

    def update(self, infos: Iterable[PartitionInfo]) -> None:
        """Take in what has become known; what is of other partitions is not for this gate."""
        with self._changed:
            for told in infos:
                channel = self._channels.get(told.attempt.partition)
                if channel is not None:
                    said = channel.attempts.setdefault(told.attempt, _Announced())
                    self._news = said.add(told) or self._news
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether every partition is whole and handed out."""
        with self._changed:
            return not self._cut and all(one.ended for one in self._channels.values())

    def take(self) -> Slice | None:
        """The next slice that can be read now.

        Raises:
            Lost: an attempt that was half handed out has failed.
            Corrupt: a segment's index is not what was announced.
        """
        while not self._cut:
            with self._changed:
                found = next(filter(None, map(_Channel.next, self._channels.values())), None)
            if found is None:
                return None
            self._cut_up(*found)
        return self._cut.popleft()

    def wait(self, deadline: Deadline) -> None:
        """Return when something was told since the last wait.

        Raises:
            Unavailable: nothing was, naming the partitions that are waited for.
            Lost: nothing more will be.
        """
        while not self._heard(0.0 if self._updates else deadline.left_s):
            if deadline.passed:
                raise Unavailable(self.waiting_for())
            if self._updates is not None:
                self.update(self._updates.hear(min(_HEAR_S, deadline.left_s)))

    def close(self) -> None:
        if self._updates is not None:
            self._updates.close()

    def _heard(self, timeout_s: float) -> bool:
        with self._changed:
            heard = self._changed.wait_for(lambda: self._news, timeout_s)
            self._news = False
        return heard

    def waiting_for(self) -> str:
        """The partitions that are not whole, and what is known of them."""
        open_ones = {name: one for name, one in self._channels.items() if not one.ended}
        named = "; ".join(f"{name}: {open_ones[name]}" for name in sorted(open_ones)[:_NAMED_MAX])
        more = f"; and {len(open_ones) - _NAMED_MAX} more" if len(open_ones) > _NAMED_MAX else ""
        job = self._deployment.manifest.job
        return f"nothing was heard in time of partitions of job {job}: {named}{more}"

    def _cut_up(self, attempt: AttemptId, segment: SegmentSummary) -> None:
        channel = self._channels[attempt.partition]
        source = self._locate(attempt, segment, channel.subpartitions)
        self._cut.extend(alone(source, self._deployment.first, self._deployment.count))
        if self._cut:
            with self._changed:
                channel.read = attempt
