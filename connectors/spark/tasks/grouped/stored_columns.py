"""Convert stored rows to the types that PySpark gives to a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from ..exchange_tasks import ReadTask
from .key_order import numbers


@dataclass(frozen=True, slots=True)
class GivenTask:
    """A reader task whose columns have the names and types that a function takes."""

    read: ReadTask
    schema: bytes

    def batches(self, index: int, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the tasks whose numbers come in as rows."""
        schema = ipc.read_schema(pa.py_buffer(self.schema))
        for batch in self.read.batches(index, tasks):
            yield pa.RecordBatch.from_arrays(given(batch.columns, schema), schema=schema)


def given(columns: Iterable[pa.Array], fields: Iterable[pa.Field]) -> list[pa.Array]:
    return [_given(column, field.type) for column, field in zip(columns, fields, strict=True)]


def _given(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_decimal(kind) and pa.types.is_int64(column.type):
        return _decimals(column, kind)
    return column.cast(kind)


def _decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return unscaled integers as decimals of 128 bits."""
    unscaled = numbers(column, np.int64)
    halves = np.empty((len(column), 2), np.int64)
    halves[:, 0], halves[:, 1] = unscaled, unscaled >> 63
    valid = column.is_valid().buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(kind, len(column), [valid, pa.py_buffer(halves)])
