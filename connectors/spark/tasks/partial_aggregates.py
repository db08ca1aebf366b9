"""Merge rows that Spark has partially aggregated, in the tasks that read them.

Spark's final aggregate merges rows that are still apart. So tasks merge rows only where every order
gives the same result, and only while merging reduces the rows enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .exchange_tasks import Meter, ReaderTask, ReadTask

_ROWS_AT_ONCE, _HELD_BYTES_MAX = 1 << 18, 64 << 20
_LEAST_GAIN, _LEAST_PARTITIONS = 1.5, 3
_LEAST_ROWS = 10_000  # the JVM merges fewer in less time than Arrow needs to begin
_WHOLE_BELOW = {pa.int64(): 2.0**63, pa.float64(): 2.0**53}


@dataclass(frozen=True, slots=True)
class Merging:
    """The way to merge rows of equal keys into one row."""

    keys: int
    """Number of key columns, which come first."""
    kernels: tuple[str, ...]
    """The Arrow kernel for each column after the keys."""


def may_gain(rows: int, tasks: int, partitions: int) -> bool:
    """Return True if the rows that a task merges at once come from several partitions, and are not
    few. The rows of one partition do not merge any further: its map task has aggregated them by
    key."""
    mixed = rows * _LEAST_PARTITIONS <= _ROWS_AT_ONCE * tasks * partitions
    return mixed and rows >= _LEAST_ROWS


@dataclass(frozen=True, slots=True)
class MergeTask(ReaderTask):
    """Reads like a `ReadTask`, and merges the rows."""

    read: ReadTask
    merging: Merging

    @property
    def count(self) -> int:
        return self.read.count

    def batches_of(self, number: int, meter: Meter) -> Iterator[pa.RecordBatch]:
        return merged(self.read.batches_of(number, meter), self.merging)


def merged(batches: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[pa.RecordBatch]:
    """Yield batches in which rows of equal keys are merged. After a merge that gains too little,
    the rest is yielded unchanged."""
    pending: list[pa.RecordBatch] = []
    fresh, fresh_bytes, before, worth = 0, 0, 0, True
    for batch in batches:
        if not worth:
            yield batch
            continue
        pending.append(batch)
        fresh += len(batch)
        fresh_bytes += batch.nbytes
        if fresh < _ROWS_AT_ONCE and fresh_bytes <= _HELD_BYTES_MAX:
            continue
        pending = _merge(pending, merging)
        after = sum(map(len, pending))
        worth = (after - before) * _LEAST_GAIN <= fresh
        fresh, fresh_bytes, before = 0, 0, after
        if not worth or sum(merged_batch.nbytes for merged_batch in pending) > _HELD_BYTES_MAX:
            yield from pending
            pending, before = [], 0
    yield from _merge(pending, merging) if fresh else pending


def _merge(batches: list[pa.RecordBatch], merging: Merging) -> list[pa.RecordBatch]:
    """Merge the rows of equal keys, unless the order of merging could change the result."""
    rows = pa.Table.from_batches(batches)
    if not all(
        _is_exact(*pair) for pair in zip(rows.columns[merging.keys :], merging.kernels, strict=True)
    ):
        return batches
    names = [str(at) for at in range(rows.num_columns)]
    kernels = list(zip(names[merging.keys :], merging.kernels, strict=True))
    groups = rows.rename_columns(names).group_by(names[: merging.keys], use_threads=False)
    aggregated = groups.aggregate(kernels)
    columns = [*names[: merging.keys], *(f"{name}_{kernel}" for name, kernel in kernels)]
    table = pa.Table.from_arrays([aggregated[name] for name in columns], schema=rows.schema)
    return table.combine_chunks().to_batches()  # type: ignore[no-any-return]


def _is_exact(column: pa.ChunkedArray, kernel: str) -> bool:
    """Return True if a kernel gives the same in every order: a sum does while all values are whole
    numbers and no partial sum exceeds the whole numbers that the type holds."""
    if kernel != "sum":
        return True
    if pa.types.is_floating(column.type):
        are_whole = pc.all(pc.equal(pc.floor(column), column)).as_py()
        if are_whole is False:  # None without values
            return False
    most = max(abs(end or 0) for end in pc.min_max(column).as_py().values())
    return bool(most * len(column) < _WHOLE_BELOW[column.type])
