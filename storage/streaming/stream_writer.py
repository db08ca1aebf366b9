"""The writer of a result that is read while it is written. No engine uses this yet."""

from __future__ import annotations

from ...control.events.types import SegmentProduced
from ..writing.encoding import Segment
from ..writing.writer import SegmentWriter


class StreamWriter(SegmentWriter):
    """Announces each segment, too, as soon as it is stored."""

    def _put(self, number: int, segment: Segment) -> None:
        super()._put(number, segment)
        produced = SegmentProduced(self._deployment.attempt, self._summaries[number])
        receipt = self._clients.log.append(self._announcer.fact(produced))
        receipt.offset(self._clients.runtime.deadline())
