"""The task that combines the rows of many objects into few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .exchange_tasks import SUBPARTITION, MapTask, ReadTask

_NUMBER = pa.field(SUBPARTITION, pa.int32())


@dataclass(frozen=True, slots=True)
class CombineTask:
    """Reads parts of one result, and writes each part as a partition of another result."""

    read: ReadTask
    written: MapTask

    def write(self, index: int, numbers: Iterable[int]) -> Iterator[int]:
        """Write one part, and yield the number of its rows. `numbers` is the input of the task: its
        own number."""
        for number in numbers:
            yield from self.written.write(index, self._rows(number))

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        for subpartition, batch in self.read.numbered_of(number):
            repeated = pa.array(np.full(batch.num_rows, subpartition, np.int32))
            yield batch.append_column(_NUMBER, repeated)
