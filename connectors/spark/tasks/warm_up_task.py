"""The task that prepares a Python worker for the exchanges of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from .exchange_tasks import Meter, ReaderTask, WorkerSettings
from .frames import Volume


@dataclass(frozen=True, slots=True)
class WarmUpTask(ReaderTask):
    """Makes the environment of its worker, as the tasks of an exchange do, but reads, stores and
    announces nothing."""

    settings: WorkerSettings
    slots: int
    schema: pa.Schema
    """The columns of the rows that pass through the JVM: one, of whole numbers."""

    @property
    def count(self) -> int:
        return self.slots

    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        self._prepare()
        yield pa.RecordBatch.from_pydict({self.schema.names[0]: [number]}, self.schema)

    def write(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Volume]:
        """Drop all rows, and yield that none is stored."""
        self._prepare()
        for _ in batches:
            pass
        yield Volume(0, 0)

    def _prepare(self) -> None:
        from .worker import environment

        environment(self.settings)
