"""The gate of a result that is still being written. No engine uses this yet.

Guarantees: as `SegmentGate`. Known partitions are read while the gate waits for the others. A
partition that nobody has announced is never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from weakref import WeakSet

import pyarrow as pa

from ...control.ids import JobId
from ...control.log import EventLog, Receipt
from ..contract import InputGateDeployment, PartitionInfo
from ..format.manifest import Locate
from ..limits import Limits
from ..reading.gate import SegmentGate
from ..reading.range_cache import RangeCache
from ..reading.read_plan import Slice
from ..reading.replacement import Replacement
from ..runtime import Runtime
from ..writing.writer import Announce
from .channels import Channels
from .partition_updates import LogUpdates


class StreamGate(SegmentGate):
    """Reads the known partitions first, then what the channels bring of the others."""

    def __init__(
        self,
        channels: Channels,
        range_cache: RangeCache,
        limits: Limits,
        replacement: Replacement,
        announce: Announce,
        runtime: Runtime,
    ) -> None:
        super().__init__(channels.deployment, range_cache, limits, replacement, announce, runtime)
        self._channels = channels

    def _read(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from super()._read()
        finally:
            self._channels.close()

    def _next(self) -> Slice | None:
        piece = super()._next()
        if piece is None:
            piece = self._channels.take()
            self._stated_rows += piece.rows if piece is not None else 0
        return piece

    def _end(self, requests: int) -> Receipt | None:
        """Announce `Consumed` if every partition is whole. If not, wait for news, unless there are
        rows to hand out."""
        if self._channels.ended:
            return super()._end(requests)
        if not self._ready:
            self._channels.wait(self._runtime.deadline())
        return None


class OpenChannels:
    """Opens the channels of a process's gates, and brings news to all of them."""

    def __init__(self, job: JobId, log: EventLog, locate: Locate, runtime: Runtime) -> None:
        self._job = job
        self._log = log
        self._locate = locate
        self._runtime = runtime
        self._channels: WeakSet[Channels] = WeakSet()
        self._lock = Lock()

    def open(self, deployment: InputGateDeployment) -> Channels:
        updates = None
        if deployment.position is not None:
            updates = LogUpdates(self._log, self._job, deployment, self._runtime.clock)
        channels = Channels(deployment, self._locate, updates)
        with self._lock:
            self._channels.add(channels)
        return channels

    def update(self, infos: Iterable[PartitionInfo]) -> None:
        news = tuple(infos)
        with self._lock:
            waiting = tuple(self._channels)
        for channels in waiting:
            channels.update(news)
