"""Facts that the log holds and that nothing follows from: late, repeated, or about what is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .events import Fact, Recorded, Tick
from .ids import JobId
from .replay import Replay


def refused(records: Iterable[Recorded]) -> Iterator[Recorded]:
    """Each job's facts that changed nothing and led to no decision; a tick need not.

    Raises:
        Corrupt: the log holds another decision than the one that follows from its facts.
    """
    replays: dict[JobId, Replay] = {}
    for recorded in records:
        replay = replays.setdefault(recorded.event.job, Replay(recorded.event.job))
        before = replay.state
        derived = replay.observe(recorded)
        told = isinstance(recorded.event.body, Fact) and not isinstance(recorded.event.body, Tick)
        if told and not derived and replay.state is before:
            yield recorded
