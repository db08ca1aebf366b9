"""Deletion of the objects that the log ordered to go, below the job's prefix. Their names come from
the log, or from a listing where the log does not know them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...control.errors import Unavailable
from ...control.events.types import Produced
from ...control.ids import AttemptId, JobId
from ...control.model.state import JobState, ResultState, is_over
from ..format import manifest_shards
from ..format.layout import Layout
from ..stores.port import BlobStore


class ObjectDeleter:
    """Implements `PartitionStorage`, the master's only way to touch objects."""

    def __init__(self, store: BlobStore, root: str) -> None:
        self._store = store
        self._root = root

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        layout = Layout(self._root, job)
        known, is_released = result.production.attempts, result.fate.released is not None
        # The objects of the result are deleted, and perhaps the job is swept: an attempt that comes
        # late may have stored nothing, and nothing is left that proves the root.
        is_late = is_released and not result.production.accepted
        gone = [
            name
            for attempt in attempts
            for name in (
                self._listed(layout, attempt) if is_late else self._names(layout, attempt, known)
            )
        ]
        if is_released and not is_late:
            registered, segments = result.registered, result.totals.written.segments
            for version in range(1, result.totals.completions + 1):
                gone += manifest_shards.names(
                    layout, registered.result, segments, registered.subpartitions, version
                )
        self._store.delete(gone)
        return len(gone)

    def sweep(self, closed: JobState) -> int:
        layout = Layout(self._root, closed.job)
        for upload in list(self._store.uploads(layout.prefix)):
            if _is_over(closed, layout, upload.name):
                self._store.abort(upload)
        listed = (stat.name for stat in self._store.list(layout.prefix))
        names = [name for name in listed if _is_over(closed, layout, name)]
        markers = [name for name in names if layout.driver_of(name) is not None]
        if len(markers) < len(names):  # what proves the root goes last
            self._store.delete([name for name in names if name not in markers])
        if markers or not names:
            self._store.delete(markers)
        return len(names)

    def _names(
        self, layout: Layout, attempt: AttemptId, known: Mapping[AttemptId, Produced | None]
    ) -> list[str]:
        """Return the names of an attempt's objects. List them if it is not known which there are,
        which is rare. A look at an object that is not there proves the place that was listed.

        Raises:
            Unavailable, Invalid: the place is not the job's, or was not when it was listed.
        """
        if (produced := known[attempt]) is not None:
            return [layout.segment(attempt, segment.number) for segment in produced.segments]
        names, first = self._listed(layout, attempt), layout.segment(attempt, 0)
        if not names and self._store.size_bytes(first) is not None:
            raise Unavailable(f"object {first} is there, and was not listed")
        return names

    def _listed(self, layout: Layout, attempt: AttemptId) -> list[str]:
        listed = (stat.name for stat in self._store.list(layout.attempt(attempt)))
        return [name for name in listed if layout.owner(name) is not None]


def _is_over(closed: JobState, layout: Layout, name: str) -> bool:
    """Return True if an object belongs to a released result, or to an epoch that has ended and an
    unknown result or none. A later epoch may have begun an unknown result, so its objects stay.
    Markers stay for as long as there is a result to be deleted."""
    if (marked := layout.driver_of(name)) is not None:
        return marked <= closed.epoch and is_over(closed)
    owner = layout.owner(name)
    if owner is None:
        return False
    result, epoch = owner
    if (state := closed.results.get(result)) is not None:
        return state.fate.released is not None
    return epoch is not None and epoch <= closed.epoch
