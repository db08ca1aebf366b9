"""Rows that Spark has aggregated in part, merged further by the tasks that read them.

Spark merges whatever is left apart. So rows are merged only where any order gives the same, and
where there is something to be gained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .worker import ReadTask, messages

_ROWS_AT_ONCE, _HELD_BYTES_MAX = 1 << 18, 64 << 20
_LEAST_GAIN, _LEAST_PARTITIONS = 1.5, 3
_WHOLE_BELOW = {pa.int64(): 2.0**63, pa.float64(): 2.0**53}


@dataclass(frozen=True, slots=True)
class Merging:
    """How rows become one whose first columns, so many, are the same: by an Arrow kernel for each
    column behind them."""

    keys: int
    kernels: tuple[str, ...]


def may_gain(rows: int, tasks: int, partitions: int) -> bool:
    """Whether what a task merges at once comes from several of the partitions that it reads: the
    keys of each have been brought together where it was made."""
    return rows * _LEAST_PARTITIONS <= _ROWS_AT_ONCE * tasks * partitions


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Reads as a reader task does, and hands out fewer rows."""

    read: ReadTask
    merging: Merging

    @property
    def count(self) -> int:
        """How many tasks it takes."""
        return self.read.count

    def frames(self, index: int, nothing: Iterable[object]) -> Iterator[pa.Buffer]:
        """The batches of one task, as the messages that the JVM loads."""
        return messages(nothing, merged(self.read.batches_of(index), self.merging))


def merged(batches: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[pa.RecordBatch]:
    """Rows of the same keys as one; as they come from where on that is not worth it."""
    held: list[pa.RecordBatch] = []
    fresh, fresh_bytes, before, worth = 0, 0, 0, True
    for batch in batches:
        if not worth:
            yield batch
            continue
        held.append(batch)
        fresh += len(batch)
        fresh_bytes += batch.nbytes
        if fresh < _ROWS_AT_ONCE and fresh_bytes <= _HELD_BYTES_MAX:
            continue
        held = _merge(held, merging)
        after = sum(map(len, held))
        worth = (after - before) * _LEAST_GAIN <= fresh
        fresh, fresh_bytes, before = 0, 0, after
        if not worth or sum(one.nbytes for one in held) > _HELD_BYTES_MAX:
            yield from held
            held, before = [], 0
    yield from _merge(held, merging) if fresh else held


def _merge(batches: list[pa.RecordBatch], merging: Merging) -> list[pa.RecordBatch]:
    """The batches as they are, where the order in which they are merged could be told."""
    rows = pa.Table.from_batches(batches)
    if not all(
        _is_exact(*one) for one in zip(rows.columns[merging.keys :], merging.kernels, strict=True)
    ):
        return batches
    names = [str(at) for at in range(rows.num_columns)]
    kernels = list(zip(names[merging.keys :], merging.kernels, strict=True))
    groups = rows.rename_columns(names).group_by(names[: merging.keys], use_threads=False)
    made = groups.aggregate(kernels)
    columns = [*names[: merging.keys], *(f"{name}_{kernel}" for name, kernel in kernels)]
    whole = pa.Table.from_arrays([made[name] for name in columns], schema=rows.schema)
    return whole.combine_chunks().to_batches()  # type: ignore[no-any-return]


def _is_exact(column: pa.ChunkedArray, kernel: str) -> bool:
    """Whether sums stay whole numbers that the type can hold, whatever is added first."""
    if kernel != "sum":
        return True
    if pa.types.is_floating(column.type) and not _are_whole(column):
        return False
    most = max(abs(end or 0) for end in pc.min_max(column).as_py().values())
    return bool(most * len(column) < _WHOLE_BELOW[column.type])


def _are_whole(column: pa.ChunkedArray) -> bool:
    return pc.all(pc.equal(pc.floor(column), column)).as_py() is not False
