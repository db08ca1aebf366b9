"""A user's function for each group of rows, called by the task that reads them: no row goes through
the JVM before it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from .grouping import Longs, groups, numbers
from .worker import ReadTask, messages

_ROWS_AT_ONCE, _TABLES_AT_ONCE = 65_536, 4_096


@dataclass(frozen=True, slots=True)
class Call:
    """What to call: a function as PySpark has pickled it; by their places among what is read, the
    keys and the columns that it takes; the names and types under which it does; and whether columns
    of its results are taken by their names."""

    function: bytes
    keys: tuple[int, ...]
    columns: tuple[int, ...]
    schema: bytes
    by_name: bool


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Reads as a reader task does, and hands out what the function makes of it."""

    read: ReadTask
    call: Call

    @property
    def count(self) -> int:
        """How many tasks it takes."""
        return self.read.count

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[pa.Buffer]:
        """What the function gives for each group of one task's rows, as messages that the JVM
        loads."""
        stored = ipc.read_schema(pa.py_buffer(self.read.schema))
        results = self._results(pa.Table.from_batches(self.read.batches_of(index), stored))
        batches = (batch for table in _together(results) for batch in table.to_batches())
        return messages(nothing, batches)

    def _results(self, rows: pa.Table) -> Iterator[pa.Table]:
        call, names = self.call, ipc.read_schema(pa.py_buffer(self.call.schema))
        function, returned = pickle.loads(call.function)
        check = _check(returned, call.by_name)
        order, starts = groups([rows.column(at).combine_chunks() for at in call.keys])
        sorted_rows = _Sorted(rows, order, names)
        whole = sorted_rows.columns(call.columns)
        slices = (whole.slice(start, end - start) for start, end in pairwise(starts.tolist()))
        if len(inspect.getfullargspec(function).args) == 1:
            yield from (check(function(group)) for group in slices)
            return
        firsts = _Sorted(rows, order[starts[:-1]], names).columns(call.keys).columns
        for at, group in enumerate(slices):
            yield check(function(tuple(key[at] for key in firsts), group))


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Stored rows in some order, with the names and types of which the function knows them."""

    rows: pa.Table
    order: Longs
    schema: pa.Schema

    def columns(self, places: Iterable[int]) -> pa.Table:
        places_of_rows = pa.py_buffer(self.order)  # Arrow's own way from numpy imports pandas
        order = pa.Array.from_buffers(pa.int64(), len(self.order), [None, places_of_rows])
        fields = [self.schema.field(at) for at in places]
        stored = [self.rows.column(at).combine_chunks().take(order) for at in places]
        given = [_given(one, field.type) for one, field in zip(stored, fields, strict=True)]
        return pa.Table.from_arrays(given, [field.name for field in fields])


def _check(returned: StructType, by_name: bool) -> Callable[[Any], pa.Table]:
    """What PySpark makes of a function's result, or says of it."""
    schema = pa.schema(list(to_arrow_type(returned, timezone="UTC")))

    def check(result: Any) -> pa.Table:
        if type(result) is pa.Table and result.schema.equals(schema):
            return result
        from pyspark.sql.conversion import ArrowBatchTransformer
        from pyspark.worker import verify_return_type

        verify_return_type(result, pa.Table)
        made = ArrowBatchTransformer.enforce_schema(
            result, schema, arrow_cast=False, reorder_by_name=by_name
        )
        columns = made.columns if made.num_columns else schema.empty_table().columns
        return pa.Table.from_arrays(columns, schema=schema)

    return check


def _given(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A stored column as the function takes it."""
    if column.type.equals(kind):
        return column
    if pa.types.is_decimal(kind) and pa.types.is_int64(column.type):
        return _decimals(column, kind)
    return column.cast(kind)


def _decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers without their scale as decimals: 128 bits each."""
    held = numbers(column, np.int64)
    halves = np.empty((len(column), 2), np.int64)
    halves[:, 0], halves[:, 1] = held, held >> 63
    valid = column.is_valid().buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(kind, len(column), [valid, pa.py_buffer(halves)])


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables, many at a time, as one."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows >= _ROWS_AT_ONCE or len(held) >= _TABLES_AT_ONCE:
            yield pa.concat_tables(held).combine_chunks()
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()
