"""News of a result that is still being written: from the job's state at first, then from the log.
No engine uses this yet.

Guarantees: segments are reported only of consumable attempts. Those of a blocking attempt are
reported all at once; those of a pipelined attempt one by one, and the attempt as whole when its
result is complete. An attempt that is superseded is reported as failed. If the log cannot be read
for a while, reading goes on later: the gate limits how long its reader waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...control.contract import ShuffleDescriptor, UnknownShuffleDescriptor
from ...control.errors import Lost, Retryable
from ...control.events import types as ev
from ...control.ids import AttemptId, PartitionId
from ...control.log import Follower
from ...control.model.state import ResultState
from ..contract import InputGateDeployment, PartitionInfo
from ..format.layout import Layout
from ..format.manifest import Manifest, build
from ..runtime import JobClients
from ..stores.port import BlobStore

_EVENTS_MAX = 500


@dataclass(frozen=True, slots=True)
class KnownPartitions:
    manifest: Manifest
    """The partitions that are whole."""
    unknown: tuple[UnknownShuffleDescriptor, ...]
    """The other partitions."""
    told: tuple[PartitionInfo, ...]
    """The news of the unknown partitions so far."""


def known(
    descriptor: ShuffleDescriptor, state: ResultState, layout: Layout, store: BlobStore
) -> KnownPartitions:
    """Return the partitions of a result, which need not be complete, as its readers get them."""
    attempts, winners = state.production.attempts, state.production.winners
    whole = [index for index, name in winners.items() if attempts[name] is not None]
    unknown = tuple(
        UnknownShuffleDescriptor(
            descriptor.job,
            PartitionId(descriptor.result, index),
            descriptor.subpartitions,
            state.registered.pipelined,
        )
        for index in sorted(set(range(descriptor.partitions)) - set(whole))
    )
    news = tuple(
        PartitionInfo(name, state.production.streams.get(name, ()))
        for name in winners.values()
        if attempts[name] is None
    )
    return KnownPartitions(build(descriptor, state, layout, store, sorted(whole)), unknown, news)


class LogUpdates:
    """Implements `PartitionUpdates`. Opens the log at the first `hear`, since a gate that does not
    have to wait never asks."""

    def __init__(self, deployment: InputGateDeployment, clients: JobClients) -> None:
        self._clients = clients
        self._position = deployment.position
        self._follower: Follower | None = None
        self._fold = Fold(deployment)

    def hear(self, timeout_s: float) -> list[PartitionInfo]:
        try:
            if self._follower is None:
                job = self._clients.layout.job
                self._follower = self._clients.log.follow(job, self._position)
            records = self._follower.poll(_EVENTS_MAX, timeout_s)
            self._position = self._follower.position()
        except Retryable:
            self.close()
            self._clients.runtime.clock.sleep_s(timeout_s)
            return []
        except Lost as exc:
            raise Lost(
                f"the log no longer has all events of result {self._fold.result} that this reader "
                f"needs: {exc}"
            ) from exc
        return [info for record in records for info in self._fold.observe(record)]

    def close(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()


class Fold:
    """Turns events into news for the readers of one result.

    A pipelined attempt is consumable before it is whole. A fact that stands before its last segment
    in the log may supersede it by a decision that stands after it. So all pipelined attempts are
    reported whole together, when the result is complete. A reader that took an unfinished attempt
    for whole begins again.
    """

    def __init__(self, deployment: InputGateDeployment) -> None:
        self.result = deployment.manifest.result
        self._pipelined = any(descriptor.pipelined for descriptor in deployment.unknown)
        self._unknown = {descriptor.partition for descriptor in deployment.unknown}
        self._consumable = {info.attempt for info in deployment.told}
        self._segments: dict[AttemptId, tuple[ev.SegmentSummary, ...]] = {}
        self._whole: dict[AttemptId, tuple[int, PartitionInfo]] = {}  # offset of `Produced`

    def observe(self, recorded: ev.Recorded) -> tuple[PartitionInfo, ...]:
        """Take in the next event, and return the news that readers get of it.

        Raises:
            Lost: nothing more of the result can be read.
        """
        body = recorded.event.body
        match body:
            case ev.Released() if body.result == self.result:
                raise self._over(recorded, f"result {self.result} was released: {body.reason}")
            case ev.JobFailed():
                raise self._over(recorded, f"the job failed: {body.reason}")
            case ev.TrackingStopped() if self._pipelined and body.result == self.result:
                self._check_taken(recorded, body)
                return ()
            case ev.ResultComplete() if body.result == self.result:
                # Attempts that were whole later are left out: if a region was restarted since,
                # they may be whole before the log has the decision.
                basis = recorded.event.basis or 0
                return tuple(info for at, info in self._whole.values() if at <= basis)
            case ev.SegmentProduced() | ev.Produced() | ev.Consumable() | ev.Superseded():
                ours = body.attempt.partition.result == self.result
                return self._of_attempt(body, recorded.offset) if ours else ()
            case _:
                return ()

    def _check_taken(self, recorded: ev.Recorded, stopped: ev.TrackingStopped) -> None:
        """Raise `Lost` if a partition that the manifest has is not tracked any more. Partitions are
        compared, not attempts: the manifest names no attempt of an empty partition."""
        for attempt in stopped.attempts:
            if attempt.partition not in self._unknown:
                raise self._over(recorded, f"attempt {attempt} failed: {stopped.reason}")

    def _of_attempt(
        self, body: ev.SegmentProduced | ev.Produced | ev.Consumable | ev.Superseded, offset: int
    ) -> tuple[PartitionInfo, ...]:
        attempt = body.attempt
        match body:
            case ev.SegmentProduced():
                self._segments[attempt] = (*self._segments.get(attempt, ()), body.segment)
            case ev.Produced():
                self._segments[attempt] = body.segments
                self._whole[attempt] = offset, PartitionInfo(attempt, body.segments, whole=True)
            case ev.Consumable():
                self._consumable.add(attempt)
            case ev.Superseded():
                self._segments.pop(attempt, None)
                self._whole.pop(attempt, None)
                return (PartitionInfo(attempt, failed=body.reason),)
        if attempt not in self._consumable or attempt not in self._segments:
            return ()
        segments = self._segments.pop(attempt)
        if not self._pipelined and attempt in self._whole:
            return (self._whole.pop(attempt)[1],)
        return (PartitionInfo(attempt, segments),)

    def _over(self, recorded: ev.Recorded, why: str) -> Lost:
        waited = f"a reader waited for partitions of result {self.result} when "
        return Lost(waited + why, (recorded.offset,))
