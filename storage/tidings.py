"""What the log tells readers of partitions that were not known when their gates were made.

Guarantees: a blocking attempt is told of only when it is consumable, a pipelined one segment by
segment; an attempt that will never be the partition is told of as failed. A log that cannot be read
for a while is read on later: how long a reader waits is its gate's to say.
"""

from __future__ import annotations

from ..control.clock import SYSTEM_CLOCK
from ..control.errors import Lost, Retryable
from ..control.events import (
    Body,
    Consumable,
    JobUnregistered,
    Produced,
    Recorded,
    Released,
    SegmentSummary,
    Superseded,
)
from ..control.ids import AttemptId, JobId, ResultId
from ..control.log import EventLog, Follower
from .contract import PartitionInfo

_EVENTS_MAX = 500


class LogTidings:
    """Implements `Tidings`; opens the log at the first question, for a gate asks when it waits."""

    def __init__(self, log: EventLog, job: JobId, result: ResultId, position: int | None) -> None:
        self._log = log
        self._job = job
        self._position = position
        self._follower: Follower | None = None
        self._fold = Fold(result)

    def hear(self, timeout_s: float) -> list[PartitionInfo]:
        try:
            if self._follower is None:
                self._follower = self._log.follow(self._job, self._position)
            records = self._follower.poll(_EVENTS_MAX, timeout_s)
            self._position = self._follower.position()
        except Retryable:
            self.close()
            SYSTEM_CLOCK.sleep_s(timeout_s)
            return []
        return [told for record in records for told in self._fold.observe(record)]

    def close(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()


class Fold:
    """What events of one result say to its readers."""

    def __init__(self, result: ResultId) -> None:
        self._result = result
        self._produced: dict[AttemptId, tuple[SegmentSummary, ...]] = {}

    def observe(self, recorded: Recorded) -> list[PartitionInfo]:
        """What follows for readers from the next event.

        Raises:
            Lost: nobody may read the result any more.
        """
        body = recorded.event.body
        match body:
            case Released() if body.result == self._result:
                raise self._over(recorded, f"was released: {body.reason}")
            case JobUnregistered():
                raise self._over(recorded, f"went with its job: {body.reason}")
            case _ if _result_of(body) != self._result:
                return []
            case Produced():
                self._produced[body.attempt] = body.segments
            case Consumable() if body.attempt in self._produced:
                segments = self._produced.pop(body.attempt)
                return [PartitionInfo(body.attempt, segments, whole=True)]
            case Superseded():
                self._produced.pop(body.attempt, None)
                return [PartitionInfo(body.attempt, failed=body.reason)]
        return []

    def _over(self, recorded: Recorded, how: str) -> Lost:
        return Lost(f"result {self._result} {how}, while it was waited for", (recorded.offset,))


def _result_of(body: Body) -> ResultId | None:
    attempt = getattr(body, "attempt", None)
    return attempt.partition.result if attempt is not None else None
