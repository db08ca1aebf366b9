"""The gate of a result that is still being written. No engine uses this yet.

Guarantees: as `SegmentGate`. Known partitions are read while the gate waits for the others. A
partition that nobody has announced is never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ...control.inquiry.job_view import JobView
from ...control.log import Receipt
from ..reading.gate import SegmentGate
from ..reading.range_cache import RangeCache
from ..reading.read_plan import Slice
from ..runtime import JobClients
from .channels import Channels


class StreamGate(SegmentGate):
    """Reads the known partitions first, then what the channels bring of the others."""

    def __init__(
        self, channels: Channels, clients: JobClients, range_cache: RangeCache, view: JobView
    ) -> None:
        super().__init__(channels.deployment, clients, range_cache, view)
        self._channels = channels

    def _read(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        try:
            yield from super()._read()
        finally:
            self._channels.close()

    def _next(self) -> Slice | None:
        piece = super()._next()
        if piece is None:
            piece = self._channels.next_slice()
            self._stated_rows += piece.rows if piece is not None else 0
        return piece

    def _end(self, requests: int) -> Receipt | None:
        """Announce `Consumed` if every partition is whole. If not, wait for news, unless there are
        rows to hand out."""
        if self._channels.ended:
            return super()._end(requests)
        if not self._ready:
            self._channels.wait(self._clients.runtime.deadline())
        return None
