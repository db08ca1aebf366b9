"""Call a user's function for each group of rows in the task that reads the rows: they do not go
through the JVM first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..exchange_tasks import Meter, ReaderTask, ReadTask
from .external_groups import Groups, Side, Sorted, gathered
from .function import Call, load_function
from .key_order import as_one, numbers

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class GroupTask(ReaderTask):
    """A task that reads all sides of its groups, and gives the results of a function for them."""

    reads: tuple[ReadTask, ...]
    """A reader task for each side."""
    call: Call

    @property
    def count(self) -> int:
        return self.reads[0].count

    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        """Yield the function's results for the groups of one task."""
        call, limits = self.call, self.reads[0].settings.limits
        sides = [
            Side(read.schema, columns[: call.keys], read.batches_of(number, meter))
            for read, columns in zip(self.reads, call.columns, strict=True)
        ]
        groups = map(_Given(call).groups, gathered(sides, limits.group_bytes, call.by_batch))
        if call.in_pandas:  # to import pandas takes a second
            from .pandas_functions import results
        else:
            from .arrow_functions import results
        for table in results(load_function(call), groups):
            yield from table.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE)


class _Given:
    """Gives groups the columns and types that a function takes."""

    def __init__(self, call: Call) -> None:
        schemas = [list(schema) for schema in call.schemas]
        self._keys = schemas[0][: call.keys]
        self._sides = [
            (columns[call.keys :], fields[call.keys :])
            for columns, fields in zip(call.columns, schemas, strict=True)
        ]

    def groups(self, groups: Groups) -> Groups:
        keys = _columns(groups.keys, self._keys)
        sides = [
            Sorted(_rows(side.rows, *columns_and_fields), side.starts)
            for side, columns_and_fields in zip(groups.sides, self._sides, strict=True)
        ]
        return Groups(keys, sides, (_rows(rows, *self._sides[0]) for rows in groups.more))


def _rows(rows: pa.Table, columns: Sequence[int], fields: Sequence[pa.Field]) -> pa.Table:
    """Return these columns of the rows, with the names and types of these fields."""
    taken = _columns((as_one(rows.column(at)) for at in columns), fields)
    return pa.Table.from_arrays(taken, [field.name for field in fields])


def _columns(columns: Iterable[pa.Array], fields: Iterable[pa.Field]) -> list[pa.Array]:
    return [_converted(column, field.type) for column, field in zip(columns, fields, strict=True)]


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
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
