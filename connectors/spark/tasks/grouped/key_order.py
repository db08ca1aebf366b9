"""Group rows by keys, in the order in which Spark sorts the groups of a partition.

Each key column becomes lanes: columns of integers in the order of the keys. Spark sorts nulls
first, strings by their bytes, NaN after every number, and nested values by the first value that
differs. It takes -0.0 for 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Longs = npt.NDArray[np.int64]
Lane = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
Word = npt.NDArray[np.uint64]
_WORD_BITS, _DIGIT_BITS = 64, 16
_BYTES = (
    *(pa.types.is_string, pa.types.is_binary),
    *(pa.types.is_large_string, pa.types.is_large_binary),
)


def groups(keys: Sequence[pa.Array], rows: int) -> tuple[Longs, Longs]:
    """Return the order of the rows by keys, equal keys in their old order. Return also the start of
    each group in that order, and at the end the number of rows."""
    words = list(_words(lane for key in keys for lane in _lanes(key))) if rows else []
    if not words:
        return np.arange(rows), np.array([0, rows] if rows else [0])
    order = _order(words)
    differs = np.zeros(rows, np.bool_)
    differs[0] = True
    for word, _ in words:
        sorted_word = word[order]
        differs[1:] |= sorted_word[1:] != sorted_word[:-1]
    return order, np.append(np.flatnonzero(differs), rows)


def _words(lanes: Iterable[Lane]) -> Iterator[tuple[Word, int]]:
    """Pack neighbouring lanes into words of 64 bits, as far as they fit. Yield each word with the
    number of its bits."""
    word, bits = None, 0
    for lane in lanes:
        offsets = (lane - lane.min()).view(np.uint64)
        more = int(offsets.max()).bit_length()
        if word is not None and bits + more <= _WORD_BITS:
            word, bits = word << np.uint64(more) | offsets, bits + more
            continue
        if word is not None:
            yield word, bits
        word, bits = offsets, more
    if word is not None:
        yield word, bits


def _order(words: Sequence[tuple[Word, int]]) -> Longs:
    """Return the order of rows by their words. This is a radix sort: numpy sorts small integers
    several times faster than words."""
    order = None
    for word, bits in reversed(words):
        for shift in range(0, max(1, bits), _DIGIT_BITS):
            kind = np.uint8 if bits - shift <= _DIGIT_BITS // 2 else np.uint16
            digit = (word >> np.uint64(shift)).astype(kind)
            step = np.argsort(digit if order is None else digit[order], kind="stable")
            order = step if order is None else order[step]
    assert order is not None, "there is a word"
    return order


def _lanes(key: pa.Array) -> Iterator[Lane]:
    if key.null_count:
        yield numbers(key.is_valid().cast(pa.int64()), np.int64)
    if key.null_count == len(key):
        return
    kind = key.type
    if pa.types.is_decimal(kind):
        yield from _halves(key)
    elif pa.types.is_floating(kind):
        yield _ordered(numbers(_filled(key.cast(pa.float64())), np.float64))
    elif pa.types.is_struct(kind):
        for field in key.flatten():
            yield from _lanes(field)
    elif pa.types.is_list(kind):
        yield _ranks(_spelled(key))
    elif any(is_of_kind(kind) for is_of_kind in _BYTES):
        yield _ranks(key)
    else:
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            key = key.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        yield numbers(_filled(key.cast(pa.int64())), np.int64)


def _halves(key: pa.Array) -> Iterator[Lane]:
    """Yield the upper half of a decimal, with its sign, then the lower half."""
    halves = np.frombuffer(key.buffers()[1], np.int64)[2 * key.offset : 2 * (key.offset + len(key))]
    filled = numbers(key.is_valid().cast(pa.int8()), np.int8).astype(np.bool_)
    yield np.where(filled, halves[1::2], 0)
    yield np.where(filled, halves[::2], 0).view(np.uint64)


def _ordered(floats: npt.NDArray[np.float64]) -> Lane:
    """Return integers in the order of these floating point numbers."""
    bits: Longs = np.where(np.isnan(floats), np.nan, floats + 0.0).view(np.int64)
    ordered: Longs = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return ordered


def _spelled(key: pa.Array) -> pa.Array:
    """Return lists as byte strings: each value becomes its rank among all values."""
    values = key.flatten()
    order, starts = groups([values], len(values))
    letters = np.empty(len(values), ">u4")
    letters[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    lengths = numbers(_filled(pc.list_value_length(key)), np.int32)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))) * letters.itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.large_binary(), len(key), buffers)


def _ranks(key: pa.Array) -> Lane:
    """Return the rank of each string among the distinct strings."""
    encoded = key.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary.cast(pa.large_binary()))
    ranks = np.empty(len(order), np.int64)
    ranks[numbers(order, np.uint64)] = np.arange(len(order))
    key_ranks: Longs = ranks[numbers(_filled(encoded.indices), np.int32)]
    return key_ranks


def _filled(key: pa.Array) -> pa.Array:
    return key.fill_null(0) if key.null_count else key  # `fill_null` always copies


def as_one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. Arrow's `combine_chunks` copies even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def indices(order: Longs) -> pa.Array:
    """Return places of rows as an Arrow array. Arrow's conversion from numpy imports pandas."""
    return pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])


def numbers(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return an array's values, with any value for a null. Arrow's `to_numpy` imports pandas."""
    buffer: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind)
    values: npt.NDArray[Any] = buffer[array.offset : array.offset + len(array)]
    return values
