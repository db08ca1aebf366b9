"""Deleting what the log ordered to go: by name where the log knows it, inside the job's prefix."""

from __future__ import annotations

from collections.abc import Collection

from ..control.events import Produced
from ..control.ids import AttemptId, JobId, ResultId
from ..control.state import ResultState
from . import shards
from .blobs import BlobStore
from .layout import Layout


class StorageRelease:
    """Implements `PartitionStorage`, the master's only way to touch objects."""

    def __init__(self, store: BlobStore, root: str) -> None:
        self._store = store
        self._root = root

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        layout = Layout(self._root, job)
        gone = [name for a in attempts for name in self._names(layout, a, result.attempts[a])]
        if result.released is not None:
            said = result.registered
            gone += shards.names(layout, said.result, result.written.segments, said.subpartitions)
        self._store.delete(gone)
        return len(gone)

    def sweep(self, job: JobId, kept: Collection[ResultId] = ()) -> int:
        """Delete all of a job but the results that outlive it."""
        layout = Layout(self._root, job)
        for upload in list(self._store.uploads(layout.prefix)):
            if layout.result_of(upload.name) not in kept:
                self._store.abort(upload)
        names = [stat.name for stat in self._store.list(layout.prefix)]
        gone = [name for name in names if layout.result_of(name) not in kept]
        self._store.delete(gone)
        return len(gone)

    def close(self) -> None:
        self._store.close()

    def _names(self, layout: Layout, attempt: AttemptId, produced: Produced | None) -> list[str]:
        """An attempt that never announced its segments is looked up, which is no hot path."""
        if produced is not None:
            return [layout.segment(attempt, segment.number) for segment in produced.segments]
        return [stat.name for stat in self._store.list(layout.attempt(attempt))]
