"""A user's function for each group of rows, called by the task that reads them: no row goes through
the JVM before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.ipc as ipc

from ..worker import ReadTask, messages
from .external_groups import Groups, Side, Sorted, gathered
from .function import Call, Function, load_function
from .key_order import as_one
from .stored_columns import given

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Reads as reader tasks do, a side each, and hands out what the function makes of it."""

    reads: tuple[ReadTask, ...]
    call: Call

    @property
    def count(self) -> int:
        """How many tasks it takes."""
        return self.reads[0].count

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[pa.Buffer]:
        """What the function gives for each group of one task's rows, as messages that the JVM
        loads."""
        return messages(nothing, self._results(index))

    def _results(self, index: int) -> Iterator[pa.RecordBatch]:
        call, limits = self.call, self.reads[0].settings.limits
        sides = [
            Side(_schema(read.schema), columns[: call.keys], read.batches_of(index))
            for read, columns in zip(self.reads, call.columns, strict=True)
        ]
        groups = map(_Given(call).groups, gathered(sides, limits.group_bytes, call.by_batch))
        for table in _results_of(call)(load_function(call), groups):
            yield from table.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE)


def _results_of(call: Call) -> Callable[[Function, Iterator[Groups]], Iterator[pa.Table]]:
    """How functions of a kind are called; pandas is imported, in a second, where it is needed."""
    if call.in_pandas:
        from . import pandas_functions

        return pandas_functions.results
    from . import arrow_functions

    return arrow_functions.results


def _schema(schema: bytes) -> pa.Schema:
    return ipc.read_schema(pa.py_buffer(schema))


class _Given:
    """Groups as functions take them."""

    def __init__(self, call: Call) -> None:
        schemas = [list(_schema(schema)) for schema in call.schemas]
        self._keys = schemas[0][: call.keys]
        self._sides = [
            (columns[call.keys :], fields[call.keys :])
            for columns, fields in zip(call.columns, schemas, strict=True)
        ]

    def groups(self, groups: Groups) -> Groups:
        keys = given(groups.keys, self._keys)
        sides = [
            Sorted(_rows(side.rows, *own), side.starts)
            for side, own in zip(groups.sides, self._sides, strict=True)
        ]
        return Groups(keys, sides, (_rows(rows, *self._sides[0]) for rows in groups.more))


def _rows(rows: pa.Table, columns: Sequence[int], fields: Sequence[pa.Field]) -> pa.Table:
    """The rows without their keys."""
    taken = given((as_one(rows.column(at)) for at in columns), fields)
    return pa.Table.from_arrays(taken, [field.name for field in fields])
