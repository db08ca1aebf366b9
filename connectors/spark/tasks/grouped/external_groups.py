"""Bring a task's rows together group by group in limited memory: rows beyond the limit are sorted,
written to files, and merged.

A group may have rows on several sides, which are read one after the other. A cogroup has two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from .....control.errors import Invalid
from .....storage.format.batches import split
from .....storage.local_file import LocalFile
from ..local_folders import local_folders
from .key_order import Longs, as_one, groups, indices

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Side:
    """The rows that come in on one side."""

    schema: pa.Schema
    keys: tuple[int, ...]
    """The places of the key columns."""
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Sorted:
    """The rows of one side in the order of their groups."""

    rows: pa.Table
    starts: Longs
    """The first row of each group, and at the end the number of rows."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Neighbouring groups."""

    keys: list[pa.Array]
    """The key columns, with one value for each group."""
    sides: list[Sorted]
    more: Iterable[pa.Table] = ()
    """The other rows of the last group, only where there is one side. Read them before the next
    groups are taken: rows that are left are then skipped."""


@dataclass(slots=True)
class _Run:
    """The rows of a side from one file, or from memory."""

    side: int
    """The number of the side."""
    held: pa.Table
    """The next rows, in memory."""
    waiting: Iterator[pa.RecordBatch]
    """The rows after `held`."""
    whole: bool
    """True when no rows wait any more."""

    def is_filled(self) -> bool:
        """Load rows if none are in memory, and return False if there are no more."""
        if not len(self.held):
            self.load(1)
        return len(self.held) > 0

    def load(self, least_bytes: int) -> None:
        """Load at least this many bytes, or all rows that wait."""
        taken, size = [self.held], 0
        while size < least_bytes and not self.whole:
            if (batch := next(self.waiting, None)) is None:
                self.whole = True
            else:
                taken.append(pa.Table.from_batches([batch]))
                size += batch.nbytes
        self.held = pa.concat_tables(taken)


def gathered(sides: Sequence[Side], most_bytes: int, streams: bool) -> Iterator[Groups]:
    """Yield all groups of the sides' rows, in Spark's order. With `streams` a group too large for
    memory comes in pieces, through `more`.

    Raises:
        Invalid: a group does not fit into memory, and `streams` is False.
    """
    with ExitStack() as files:
        runs: list[_Run] = []
        batches_by_side: list[list[pa.RecordBatch]] = [[] for _ in sides]
        size = 0
        for at, side in enumerate(sides):
            for batch in side.batches:
                batches_by_side[at].append(batch)
                size += batch.nbytes
                if size > most_bytes:
                    runs += _written(sides, batches_by_side, files)
                    size = 0
        if runs:
            runs += _written(sides, batches_by_side, files)
        else:
            runs = [
                _Run(at, _emptied(batches_by_side[at], side), iter(()), True)
                for at, side in enumerate(sides)
            ]
        yield from _merged(sides, runs, most_bytes, streams)


def _emptied(batches: list[pa.RecordBatch], side: Side) -> pa.Table:
    rows = pa.Table.from_batches(batches, side.schema)
    batches.clear()
    return rows


def _written(
    sides: Sequence[Side], batches_by_side: list[list[pa.RecordBatch]], files: ExitStack
) -> Iterator[_Run]:
    """Write the batches of each side to a file, sorted by group. The file has no name and goes with
    its process. It is in another folder if there is no room for it in the first one."""
    for at, side in enumerate(sides):
        if not batches_by_side[at]:
            continue
        unsorted = [_emptied(batches_by_side[at], side)]
        keys = [as_one(unsorted[0].column(key)) for key in side.keys]
        order, _ = groups(keys, len(unsorted[0]))
        rows = _taken(unsorted, order)
        local = files.enter_context(LocalFile(local_folders() or [Path(tempfile.gettempdir())]))
        file, _ = local.write(rows.nbytes, partial(_write, rows))
        yield _Run(at, side.schema.empty_table(), _read(file), False)


def _write(rows: pa.Table, file: IO[bytes]) -> None:
    with ipc.new_stream(file, rows.schema) as stream:
        for batch in rows.to_batches():
            for piece in split(batch, _PIECE_BYTES):
                stream.write_batch(piece)


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    file.seek(0)
    yield from ipc.open_stream(file)


def _merged(
    sides: Sequence[Side], runs: list[_Run], most_bytes: int, streams: bool
) -> Iterator[Groups]:
    """Yield the groups of sorted runs. Runs that are complete in memory need not be sorted."""
    while runs := [run for run in runs if run.is_filled()]:
        if (complete := _whole(sides, runs)) is not None:
            yield complete
            continue
        first, within, size = _unfinished(sides, runs)
        if size <= most_bytes:
            for run in within:
                run.load(max(1, size))
        elif streams:
            more = _streamed(sides[0].keys, runs, first)
            rows = next(more)
            yield Groups(first, [Sorted(rows, np.array([0, len(rows)]))], more)
            for _ in more:
                pass
        else:
            raise Invalid(
                f"the group of ({', '.join(str(key[0]) for key in first)}) takes more than "
                f"{most_bytes} bytes: raise spark.headgate.group.bytes, or write the function for "
                "an iterator of its batches"
            )


def _whole(sides: Sequence[Side], runs: Sequence[_Run]) -> Groups | None:
    """Take the first groups, as far as they are complete, out of the runs. Return None if not even
    the first group is complete."""
    keys = _keys(sides, runs)
    ends = np.cumsum([len(run.held) for run in runs])
    order, starts = groups(keys, int(ends[-1]))
    last_rows = [end - 1 for run, end in zip(runs, ends, strict=True) if not run.whole]
    count = len(starts) - 1
    if last_rows:
        number = np.empty(len(order), np.int64)
        number[order] = np.repeat(np.arange(count), np.diff(starts))
        count = int(number[last_rows].min())
    if not count:
        return None
    firsts = [key.take(indices(order[starts[:count]])) for key in keys]
    return Groups(firsts, _take_first(sides, runs, order, starts[: count + 1]))


def _unfinished(
    sides: Sequence[Side], runs: Sequence[_Run]
) -> tuple[list[pa.Array], list[_Run], int]:
    """Return the keys of the first group, the runs that may have more of its rows, and the size of
    its rows in memory."""
    keys = _keys(sides, runs)
    ends = np.cumsum([len(run.held) for run in runs])
    order, starts = groups(keys, int(ends[-1]))
    counts, _ = np.histogram(order[: starts[1]], np.concatenate(([0], ends)))
    shares = list(zip(runs, counts.tolist(), strict=True))
    within = [run for run, count in shares if count == len(run.held)]
    size = sum(run.held.nbytes * count // len(run.held) for run, count in shares)
    return [key.take(indices(order[:1])) for key in keys], within, size


def _keys(sides: Sequence[Side], runs: Sequence[_Run]) -> list[pa.Array]:
    """Return the keys of all rows in memory, run by run."""
    columns = [[run.held.column(at) for at in sides[run.side].keys] for run in runs]
    return [_joined(key) for key in zip(*columns, strict=True)]


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    chunks = [chunk for column in columns for chunk in column.chunks]
    return as_one(pa.chunked_array(chunks, columns[0].type))


def _take_first(
    sides: Sequence[Side], runs: Sequence[_Run], order: Longs, starts: Longs
) -> list[Sorted]:
    """Take the rows of the first groups, which are complete, out of the runs."""
    picked, sorted_sides, begin = order[: starts[-1]], [], 0
    for at, side in enumerate(sides):
        side_runs = [run for run in runs if run.side == at]
        tables = [run.held for run in side_runs] or [side.schema.empty_table()]
        end = begin + sum(map(len, tables))
        if len(sides) > 1:
            mine = (picked >= begin) & (picked < end)
            places = picked[mine] - begin
            own_starts = np.concatenate(([0], np.cumsum(mine)))[starts]
        else:
            places, own_starts = picked, starts
        _drop(side_runs, places)
        sorted_sides.append(Sorted(_taken(tables, places), own_starts))
        begin = end
    return sorted_sides


def _drop(runs: Sequence[_Run], places: Longs) -> None:
    """Remove the rows at these places from the runs. They are the first rows of each run."""
    end = 0
    for run in runs:
        begin, end = end, end + len(run.held)
        count = int(np.count_nonzero((places >= begin) & (places < end)))
        is_emptied = count == len(run.held)
        run.held = run.held.schema.empty_table() if is_emptied else run.held.slice(count)


def _streamed(
    places: tuple[int, ...], runs: Sequence[_Run], first: Sequence[pa.Array]
) -> Iterator[pa.Table]:
    """Yield all rows of the first group that is left, run by run."""
    for run in runs:
        while len(run.held) or not run.whole:
            keys = [
                _joined([pa.chunked_array([key]), run.held.column(at)])
                for key, at in zip(first, places, strict=True)
            ]
            _, starts = groups(keys, len(run.held) + 1)
            count = int(starts[1]) - 1
            if count:
                yield run.held.slice(0, count)
            run.held = run.held.slice(count)
            if len(run.held):
                break
            run.load(1)


def _taken(tables: list[pa.Table], order: Longs) -> pa.Table:
    """Return the tables' rows in this order. The tables are emptied, and each column's memory is
    freed as soon as the column is taken."""
    rows = pa.concat_tables(tables)
    tables.clear()
    schema, columns = rows.schema, rows.columns[::-1]
    del rows
    places, taken = indices(order), []
    while columns:
        taken.append(as_one(columns.pop()).take(places))
    return pa.Table.from_arrays(taken, schema=schema)
