"""Call functions that take a group as Arrow tables, or as batches of a table, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.worker import verify_return_type

from .external_groups import Groups, Sorted
from .function import Function

_BYTES_AT_ONCE = 1 << 18


def results(function: Function, groups: Iterable[Groups]) -> Iterator[pa.Table]:
    """Yield the function's results, those of many groups in a table. PySpark checks each result and
    raises its own errors."""
    schema = pa.schema(list(to_arrow_type(function.returned, timezone="UTC")))
    called = _of_batches(function, groups) if function.by_batch else _of_tables(function, groups)
    for table in _written(called):
        enforced = ArrowBatchTransformer.enforce_schema(
            table, schema, arrow_cast=False, reorder_by_name=function.settings.by_name
        )
        columns = enforced.columns if enforced.num_columns else schema.empty_table().columns
        yield pa.Table.from_arrays(columns, schema=schema)


def _of_tables(function: Function, groups: Iterable[Groups]) -> Iterator[pa.Table]:
    call = function.call
    for neighbours in groups:
        arguments_by_side: list[Iterable[Any]] = [_tables(side) for side in neighbours.sides]
        if function.takes_key:
            arguments_by_side.insert(0, _keys(neighbours))
        for arguments in zip(*arguments_by_side, strict=True):
            result = call(*arguments)
            if not isinstance(result, pa.Table):
                verify_return_type(result, pa.Table)
            yield result


def _of_batches(function: Function, groups: Iterable[Groups]) -> Iterator[pa.Table]:
    most = max(0, function.settings.batch_rows) or None
    for neighbours in groups:
        tables = list(_tables(neighbours.sides[0]))
        for at, (key, table) in enumerate(zip(_keys(neighbours), tables, strict=True)):
            parts = chain([table], neighbours.more) if at == len(tables) - 1 else [table]
            batches = (batch for part in parts for batch in part.to_batches(max_chunksize=most))
            result = function.call(*([key] if function.takes_key else []), batches)
            for batch in verify_return_type(result, Iterator[pa.RecordBatch]):
                yield pa.Table.from_batches([batch])


def _tables(side: Sorted) -> Iterator[pa.Table]:
    cut = side.rows.slice
    return (cut(start, end - start) for start, end in pairwise(side.starts.tolist()))


def _keys(groups: Groups) -> Iterable[tuple[pa.Scalar, ...]]:
    return zip(*groups.keys, strict=True) if groups.keys else [()]


def _written(results: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield neighbouring results of one schema as one table. Each result is copied before the
    function is called again, because the function may reuse the memory."""
    first = next(results, None)
    while first is not None:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, first.schema) as stream:
            stream.write_table(first)
            first = None
            while sink.tell() < _BYTES_AT_ONCE and (result := next(results, None)) is not None:
                try:
                    stream.write_table(result)
                except pa.ArrowInvalid:  # it has another schema
                    first = result
                    break
        yield ipc.open_stream(sink.getvalue()).read_all()
        if first is None:
            first = next(results, None)
