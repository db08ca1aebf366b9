"""Deleting what the log ordered to go: by name where the log knows it, inside the job's prefix."""

from __future__ import annotations

from collections.abc import Collection

from ...control.events.types import Produced
from ...control.ids import AttemptId, JobId, ResultId
from ...control.model.state import JobState, ResultState
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
        gone = [name for a in attempts for name in self._names(layout, a, result.attempts[a])]
        if result.released is not None:
            said, segments = result.registered, result.written.segments
            for version in range(1, result.completions + 1):
                gone += manifest_shards.names(
                    layout, said.result, segments, said.subpartitions, version
                )
        self._store.delete(gone)
        return len(gone)

    def sweep(self, closed: JobState) -> int:
        layout = Layout(self._root, closed.job)
        for upload in list(self._store.uploads(layout.prefix)):
            if _is_over(closed, layout.owner(upload.name)):
                self._store.abort(upload)
        found = (stat.name for stat in self._store.list(layout.prefix))
        names = [name for name in found if _is_over(closed, layout.owner(name))]
        self._store.delete(names)
        return len(names)

    def _names(self, layout: Layout, attempt: AttemptId, produced: Produced | None) -> list[str]:
        """An attempt that never announced its segments is looked up, which is no hot path."""
        if produced is not None:
            return [layout.segment(attempt, segment.number) for segment in produced.segments]
        return [stat.name for stat in self._store.list(layout.attempt(attempt))]


def _is_over(closed: JobState, owner: tuple[ResultId, int | None] | None) -> bool:
    """Whether an object is of a released result, or of one that the job never had, under an epoch
    that has ended: what it does not know, a later epoch may have begun."""
    if owner is None:
        return False
    result, epoch = owner
    if (known := closed.results.get(result)) is not None:
        return known.released is not None
    return epoch is not None and epoch <= closed.epoch
