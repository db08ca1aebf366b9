"""Replacement of lost bytes: report the loss, wait, and read the new attempt.

Guarantees: the slices that replace a part hold the same rows. A reader that has handed out some of
these may go on only if the bytes are the same, too.
"""

from __future__ import annotations

from ...control.contract import ShuffleDescriptor
from ...control.errors import Corrupt, Lost
from ..runtime import JobClients
from .lost_objects import LostObjects, place_sound
from .read_plan import Slice, alone


class Replacement:
    """Replaces the bytes that a reader has lost."""

    def __init__(self, clients: JobClients, lost: LostObjects) -> None:
        self._clients = clients
        self._lost = lost

    def replace(self, piece: Slice, failure: Lost | Corrupt) -> list[Slice]:
        """Return all slices of the subpartition from the attempt that replaced the lost one. They
        hold the same rows, but perhaps in another order and with other cuts.

        Raises:
            Lost, Corrupt: the failure, if no attempt can replace the lost one or none did in time.
        """
        lost, layout, attempt = self._lost, self._clients.layout, piece.source.attempt
        it = lost.report(attempt, piece.source.name, failure).registered
        came = lost.made_again(attempt, failure)
        segments = tuple((came.attempt, segment) for segment in came.segments)
        descriptor = ShuffleDescriptor(
            layout.job, it.result, it.partitions, it.subpartitions, came.attempt.epoch
        )
        placed = place_sound(descriptor, segments, layout, self._clients.store, lost)
        sources = placed.part(0, it.subpartitions).sources
        return [each for source in sources for each in alone(source, piece.subpartition, 1)]
