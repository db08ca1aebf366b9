"""Convert stored rows to the types that PySpark gives to a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..exchange_tasks import Meter, ReaderTask, ReadTask
from .key_order import numbers


@dataclass(frozen=True, slots=True)
class GivenTask(ReaderTask):
    """A reader task whose columns have the names and types that a function takes."""

    read: ReadTask
    schema: pa.Schema

    @property
    def count(self) -> int:
        return self.read.count

    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        for batch in self.read.batches_of(number, meter):
            columns = given(batch.columns, self.schema)
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


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
