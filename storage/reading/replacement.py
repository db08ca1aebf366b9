"""Replacement of lost bytes: report the loss, wait, and read the new attempt.

Guarantees: the slices that replace a part hold the same rows. A reader that has handed out some of
these may go on only if the bytes are the same, too.
"""

from __future__ import annotations

from ...control.errors import Corrupt, Lost
from ..format.manifest import locate
from ..runtime import JobClients
from .lost_objects import LostObjects
from .read_plan import Slice, alone


class Replacement:
    """Replaces what a reader has lost."""

    def __init__(self, clients: JobClients, lost: LostObjects) -> None:
        self._clients = clients
        self._lost = lost

    def replace(self, piece: Slice, failure: Lost | Corrupt) -> list[Slice]:
        """Return all slices of the subpartition from the attempt that replaced the lost one. They
        hold the same rows, but perhaps in another order and with other cuts.

        Raises:
            Lost, Corrupt: the failure, if no attempt can replace the lost one or none did in time.
        """
        clients, attempt = self._clients, piece.source.attempt
        result = self._lost.report(attempt, piece.source.name, failure)
        subpartitions = result.registered.subpartitions
        came = self._lost.made_again(attempt, failure)
        slices: list[Slice] = []
        for segment in came.segments:
            source = locate(clients.layout, clients.store, came.attempt, segment, subpartitions)
            slices += alone(source, piece.subpartition, 1)
        return slices
