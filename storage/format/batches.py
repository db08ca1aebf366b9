"""The sizes of batches: each has a bounded number of bytes, because readers hold it as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa

BATCH_BYTES = 4 << 20


def batch_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of rows in memory, at least one for each: a row may have no column."""
    return max(int(rows.nbytes), int(rows.num_rows))


def split(rows: pa.RecordBatch, bytes_max: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield batches of as many rows as fit into `bytes_max`, and of one row if that does not."""
    while rows.num_rows > 1 and _is_over(rows, bytes_max):
        counts = range(1, rows.num_rows)
        fit = bisect_right(counts, bytes_max, key=lambda n: batch_bytes(rows.slice(0, n)))
        yield rows.slice(0, max(1, fit))
        rows = rows.slice(max(1, fit))
    yield rows


def _is_over(rows: pa.RecordBatch, bytes_max: int) -> bool:
    """Return True if rows have more bytes. The size of all their buffers, which is no less unless
    columns share some, is known in a small part of the time."""
    most_bytes = max(int(rows.get_total_buffer_size()), rows.num_rows)
    return most_bytes > bytes_max and batch_bytes(rows) > bytes_max
