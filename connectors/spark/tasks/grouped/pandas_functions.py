"""Call functions that take a group as pandas frames, group by group.

PySpark converts the rows of each group, and each result, separately. This module converts many at
once, where that gives the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.worker import verify_pandas_result, verify_return_type

from .column_copies import copied
from .external_groups import Groups, Sorted
from .function import Function, FunctionSettings
from .key_order import Longs, as_one, indices, numbers

_WINDOW_BYTES = 32 << 20
_ROWS_AT_ONCE, _FRAMES_AT_ONCE, _LABELS_MAX = 65_536, 512, 1_000


def results(function: Function, groups: Iterable[Groups]) -> Iterator[pa.Table]:
    """Yield the function's results, those of many groups in a table. PySpark checks each result and
    raises its own errors."""
    windows = (window for neighbours in groups for window in _windows(neighbours))
    called = _of_batches(function, windows) if function.by_batch else _of_frames(function, windows)
    return _Results(function).tables(called)


def _windows(groups: Groups) -> Iterator[Groups]:
    """Yield the groups in windows of limited size, with at least one group each."""
    first, last = 0, len(groups.sides[0].starts) - 1
    while first < last:
        ends = range(first + 1, last + 1)
        fit = bisect_right(ends, _WINDOW_BYTES, key=lambda end: _bytes(groups, first, end))
        end = first + max(1, fit)
        keys = [key.slice(first, end - first) for key in groups.keys]
        sides = [_part(side, first, end) for side in groups.sides]
        yield Groups(keys, sides, groups.more) if end == last else Groups(keys, sides)
        first = end


def _bytes(groups: Groups, first: int, end: int) -> int:
    return sum(int(_part(side, first, end).rows.nbytes) for side in groups.sides)


def _part(side: Sorted, first: int, end: int) -> Sorted:
    starts = side.starts[first : end + 1]
    return Sorted(side.rows.slice(starts[0], starts[-1] - starts[0]), starts - starts[0])


def _of_frames(function: Function, groups: Iterable[Groups]) -> Iterator[pd.DataFrame]:
    for window in groups:
        arguments_by_side: list[Iterable[Any]] = [
            _Frames(side, function.settings).all() for side in window.sides
        ]
        if function.takes_key:
            arguments_by_side.insert(0, _keys(window, function.settings))
        for arguments in zip(*arguments_by_side, strict=True):
            yield function.call(*arguments)


def _of_batches(function: Function, groups: Iterable[Groups]) -> Iterator[pd.DataFrame]:
    settings = function.settings
    for window in groups:
        side, count = window.sides[0], len(window.sides[0].starts) - 1
        rest = (frame for rows in window.more for frame in _batches(rows, settings))
        for at, (key, batches) in enumerate(
            zip(_keys(window, settings), _pieces(side, settings), strict=True)
        ):
            group_batches = chain(batches, rest) if at == count - 1 else batches
            yield from function.call(*([key] if function.takes_key else []), group_batches)


def _pieces(side: Sorted, settings: FunctionSettings) -> Iterator[Iterator[pd.DataFrame]]:
    """Yield the batches of each group. Those of a single large group are converted one by one."""
    if len(side.starts) == 2 and side.rows.nbytes > _WINDOW_BYTES:
        yield _batches(side.rows, settings)
        return
    pieces, firsts = _in_batches(side, settings.batch_rows)
    frames = _Frames(pieces, settings)
    for first, end in pairwise(firsts.tolist()):
        yield map(frames.cut, range(first, end))


def _in_batches(side: Sorted, most: int) -> tuple[Sorted, Longs]:
    """Cut groups into pieces no larger than a batch. Return the pieces, and the number of each
    group's first piece."""
    rows = np.diff(side.starts)
    counts = np.maximum(1, -(-rows // most)) if most > 0 else np.ones_like(rows)
    firsts = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    starts = np.repeat(side.starts[:-1], counts) + within * most
    return Sorted(side.rows, np.append(starts, side.starts[-1])), firsts


def _batches(rows: pa.Table, settings: FunctionSettings) -> Iterator[pd.DataFrame]:
    for batch in rows.to_batches(max_chunksize=max(0, settings.batch_rows) or None):
        yield _frame(batch, settings)


def _keys(groups: Groups, settings: FunctionSettings) -> Iterable[tuple[Any, ...]]:
    return (
        zip(*[_values(key, settings) for key in groups.keys], strict=True) if groups.keys else [()]
    )


def _values(key: pa.Array, settings: FunctionSettings) -> list[Any]:
    """Return the values as pandas converts each alone: beside a null some get another type."""
    if _has_nulls_inside(key) and len(key) > 1:
        return [value for at in range(len(key)) for value in _values(key.slice(at, 1), settings)]
    table = pa.table({"key": key})
    if not 0 < key.null_count < len(key):
        values = _columns(table, settings)[0].array
        return [values[at] for at in range(len(values))]
    nothing = _values(key.filter(key.is_null())[:1], settings)[0]
    others = iter(_values(key.drop_null(), settings))
    return [next(others) if is_there else nothing for is_there in key.is_valid().to_pylist()]


def _columns(rows: pa.Table | pa.RecordBatch, settings: FunctionSettings) -> list[pd.Series]:
    return ArrowBatchTransformer.to_pandas(
        rows, timezone=settings.zone, prefer_int_ext_dtype=settings.nullable_ints
    )


def _frame(rows: pa.Table | pa.RecordBatch, settings: FunctionSettings) -> pd.DataFrame:
    return pd.concat(_columns(rows, settings), axis=1)


class _Frames:
    """Frames for pieces of rows, each as if it were converted alone. pandas gives integers and
    booleans beside a null another type. So pieces are converted together only if they have nulls in
    the same columns."""

    def __init__(self, side: Sorted, settings: FunctionSettings) -> None:
        self._side = side
        self._settings = settings
        self._frames: list[pd.DataFrame] = []
        self._places: dict[int, tuple[int, int, int]] = {}
        if any(_has_nulls_inside(as_one(column)) for column in side.rows.columns):
            return
        lengths = np.diff(side.starts)
        kinds = _kinds(side, settings)
        for kind in range(int(kinds.max(initial=0)) + 1):
            of_kind = kinds == kind
            picked = indices(np.flatnonzero(np.repeat(of_kind, lengths)))
            rows = side.rows if of_kind.all() else side.rows.take(picked)
            ends = np.concatenate(([0], np.cumsum(lengths[of_kind]))).tolist()
            for piece, (start, end) in zip(np.flatnonzero(of_kind), pairwise(ends), strict=True):
                self._places[int(piece)] = len(self._frames), start, end
            self._frames.append(_frame(rows, settings))

    def all(self) -> Iterator[pd.DataFrame]:
        return map(self.cut, range(len(self._side.starts) - 1))

    def cut(self, at: int) -> pd.DataFrame:
        if not self._frames:
            start, end = self._side.starts[at : at + 2]
            return _frame(self._side.rows.slice(start, end - start), self._settings)
        number, start, end = self._places[at]
        frame = self._frames[number]
        if end - start == len(frame):
            return frame
        piece = frame.iloc[start:end].copy()
        piece.index = pd.RangeIndex(end - start)
        return piece


def _kinds(side: Sorted, settings: FunctionSettings) -> Longs:
    """Return a number for each piece: equal numbers mean that nulls change the type of the same
    columns."""
    has_null = [np.zeros(len(side.starts) - 1, np.bool_)]
    for column in side.rows.columns:
        is_plain_integer = pa.types.is_integer(column.type) and not settings.nullable_ints
        if column.null_count and (is_plain_integer or pa.types.is_boolean(column.type)):
            valid = numbers(as_one(column).is_valid().cast(pa.int8()), np.int8)
            nulls = np.concatenate(([0], np.cumsum(valid == 0)))
            has_null.append(np.diff(nulls[side.starts]) > 0)
    _, kinds = np.unique(np.stack(has_null, axis=1), axis=0, return_inverse=True)
    return kinds.reshape(-1)


def _has_nulls_inside(column: pa.Array) -> bool:
    """Return True if a value has nulls inside: these may change the type of all its values."""
    kind = column.type
    inner: list[pa.Array] = []
    if pa.types.is_struct(kind):
        inner = column.flatten()
    elif pa.types.is_map(kind):
        inner = [column.keys, column.items]
    elif pa.types.is_list(kind):
        inner = [column.values]
    return any(child.null_count or _has_nulls_inside(child) for child in inner)


@dataclass(frozen=True, slots=True)
class _Result:
    """The columns of a frame that a function has returned."""

    labels: Sequence[Hashable]
    columns: list[Any]

    def frame(self) -> pd.DataFrame:
        series = (pd.Series(column, dtype=column.dtype) for column in self.columns)
        return pd.DataFrame(dict(zip(self.labels, series, strict=True)))


class _Results:
    """Converts the frames that functions return to Arrow."""

    def __init__(self, function: Function) -> None:
        self._returned = returned = function.returned
        self._settings = settings = function.settings
        self._schema = pa.schema(list(to_arrow_type(returned, timezone=settings.zone)))
        self._known: dict[tuple[Hashable, ...], Sequence[Hashable]] = {}
        self._alone = False

    def tables(self, frames: Iterable[pd.DataFrame]) -> Iterator[pa.Table]:
        waiting: list[_Result] = []
        kinds: list[Any] = []
        rows = 0
        for frame in frames:
            result = self._kept(frame)
            frame_kinds = [column.dtype for column in result.columns]
            if waiting and (
                frame_kinds != kinds or rows >= _ROWS_AT_ONCE or len(waiting) >= _FRAMES_AT_ONCE
            ):
                yield self._table(waiting)
                waiting, rows = [], 0
            if not result.columns:
                yield self._converted(frame, cast=True)
                continue
            waiting.append(result)
            kinds, rows = frame_kinds, rows + len(frame)
        if waiting:
            yield self._table(waiting)

    def _kept(self, frame: pd.DataFrame) -> _Result:
        """Copy the columns, in the schema's order. Copy none where the frame must be converted
        alone."""
        verify_return_type(frame, pd.DataFrame)
        labels = tuple(frame.columns)
        if (order := self._known.get(labels)) is None:
            by_name = self._settings.by_name
            verify_pandas_result(frame, self._returned, by_name, truncate_return_schema=False)
            order = self._known[labels] = self._order(labels)
        columns = [] if self._alone else [copied(frame[label]) for label in order]
        return _Result(order, [] if any(column is None for column in columns) else columns)

    def _order(self, labels: tuple[Hashable, ...]) -> Sequence[Hashable]:
        if len(self._known) > _LABELS_MAX:
            self._known.clear()
        names = self._returned.names
        if len(set(labels)) < len(labels) or len(set(names)) < len(names):
            return ()
        by_name = self._settings.by_name and any(isinstance(label, str) for label in labels)
        return names if by_name else labels

    def _table(self, waiting: list[_Result]) -> pa.Table:
        if len(waiting) > 1:
            try:
                columns = zip(*(result.columns for result in waiting), strict=True)
                return self._converted([_joined(column) for column in columns], cast=False)
            except Exception:  # a result is wrong, or gets another type beside others
                self._alone = True
        return pa.concat_tables([self._converted(result.frame(), cast=True) for result in waiting])

    def _converted(self, data: pd.DataFrame | list[pd.Series], cast: bool) -> pa.Table:
        settings = self._settings
        batch = PandasToArrowConversion.convert(
            data,
            self._returned,
            timezone=settings.zone,
            safecheck=settings.safely,
            arrow_cast=cast,
            assign_cols_by_name=settings.by_name,
            int_to_decimal_coercion_enabled=settings.decimals_from_ints,
        )
        return pa.Table.from_arrays(batch.columns, schema=self._schema)


def _joined(columns: Sequence[Any]) -> pd.Series:
    if isinstance(columns[0], np.ndarray):
        return pd.Series(np.concatenate(columns))
    return pd.concat([pd.Series(column) for column in columns], ignore_index=True)
