"""Fingerprints of rows in any order: for each subpartition their number and the sum of their hashes
of 64 bits.

Guarantees: the same rows in the same subpartitions have the same fingerprint, in any order and with
any cuts into batches. A row that is changed, missing or there twice gives another fingerprint. The
hash of a row depends on the bits of its values only. The bytes under a null do not count, nor does
the order of a map's entries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ..format.segment import Longs, Sums, signed
from .encoding import Run

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xD6E8FEB86659FD93)
_NULL = np.uint64(0xA0761D6478BD642F)
_HALF = np.uint64(32)
_WORD_BYTES = 8
_LONG_BYTES = 128  # for longer values a call each costs less than a pass over all for each word
_FACTORS = np.cumprod(np.full(_LONG_BYTES // _WORD_BYTES, _ODD))
_BLOCK_ROWS = 32 * 1024  # the hashes of so many rows stay in the processor's caches

Bits = npt.NDArray[np.uint8]


class Fingerprint:
    """The fingerprint of one partition. Its digest is None if a column's type has no hash."""

    def __init__(self, subpartitions: int) -> None:
        self._hashed = True
        self._rows = np.zeros(subpartitions, np.int64)
        self._sums: Sums = np.zeros(subpartitions, np.uint64)

    def add(self, run: Run) -> None:
        """Add the rows of a run."""
        filled = np.flatnonzero(run.rows)
        starts = (np.cumsum(run.rows) - run.rows)[filled]
        try:
            self._sums[filled] += np.add.reduceat(row_hashes(run.batch), starts)
        except pa.ArrowNotImplementedError:
            self._hashed = False
        self._rows += run.rows

    def digest(self) -> int | None:
        if not self._hashed:
            return None
        return signed(xxhash.xxh3_64_intdigest(self._rows.tobytes() + self._sums.tobytes()))


def row_hashes(batch: pa.RecordBatch) -> Sums:
    """Return one hash for each row.

    Raises:
        ArrowNotImplementedError: a column's type has no hash.
    """
    hashes = np.empty(batch.num_rows, np.uint64)
    for at in range(0, batch.num_rows, _BLOCK_ROWS):
        block = batch.slice(at, _BLOCK_ROWS)
        block_hashes = _of_columns(block.columns, block.num_rows)
        hashes[at : at + _BLOCK_ROWS] = _mix(block_hashes, _OTHER)
    return hashes


def _mix(hashes: Sums, factor: np.uint64 = _ODD) -> Sums:
    """Spread every bit of the hashes, in place."""
    hashes *= factor
    hashes ^= hashes >> _HALF
    return hashes


def _of_columns(columns: list[pa.Array], rows: int) -> Sums:
    hashes = np.full(rows, _OTHER, np.uint64)
    for column in columns:
        hashes ^= _values(column)
        _mix(hashes)
    return hashes


def _values(array: pa.Array) -> Sums:
    """Return 64 bits for each value: the value itself if it has no more, else its hash."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, np.uint64)
    values = _of_kind(array, kind)
    if array.null_count:
        values = np.where(np.from_dlpack(array.is_valid().cast(pa.uint8())), values, _NULL)
    return values


def _of_kind(array: pa.Array, kind: pa.DataType) -> Sums:
    if pa.types.is_struct(kind):
        fields = [array.field(at) for at in range(kind.num_fields)]
        return _of_columns(fields, len(array))
    if pa.types.is_map(kind):
        entries = [array.keys, array.items]
        return _of_lists(array.offsets, _of_columns(entries, len(array.keys)), ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(array.offsets, _values(array.values), ordered=True)
    if pa.types.is_boolean(kind):
        return _values(array.cast(pa.uint8()))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _of_bytes(array, "<i8")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_bytes(array, "<i4")
    fixed = pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    if fixed or pa.types.is_primitive(kind):
        return _of_width(array, kind.bit_width // 8)
    raise pa.ArrowNotImplementedError(f"values of {kind} have no hash")


def _of_width(array: pa.Array, width: int) -> Sums:
    raw = _bytes_of(array, 1)[array.offset * width : (array.offset + len(array)) * width]
    if width in (1, 2, 4, _WORD_BYTES):
        return raw.view(f"<u{width}").astype(np.uint64)
    words = -(-width // _WORD_BYTES)
    padded = np.zeros((len(array), words * _WORD_BYTES), np.uint8)
    padded[:, :width] = raw.reshape(len(array), width)
    return _of_words(padded.view("<u8"))


def _of_words(words: Sums) -> Sums:
    hashes = np.full(len(words), _OTHER, np.uint64)
    for at in range(words.shape[1]):
        hashes ^= words[:, at]
        _mix(hashes)
    return hashes


def _of_bytes(array: pa.Array, offset: str) -> Sums:
    """Return a hash for each value of any length. Take one word of all values at a time, but hash
    each of the few long values by itself."""
    offsets = _bytes_of(array, 1).view(offset)[array.offset : array.offset + len(array) + 1]
    offsets = offsets.astype(np.int64)
    data = _bytes_of(array, 2)[offsets[0] : offsets[-1]]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _OTHER
    long = np.flatnonzero(lengths > _LONG_BYTES)
    if len(long):
        hashes[long] += _of_long(data, starts[long].tolist(), lengths[long].tolist())
        lengths[long] = 0
    words, longest = _words(data), int(lengths.max(initial=0))
    rows: slice | Longs = slice(None)
    for word in range(-(-longest // _WORD_BYTES)):
        done = word * _WORD_BYTES
        if done:
            rows = np.flatnonzero(lengths > done)
        hashes[rows] += _of_word(words, starts[rows] + done, lengths[rows] - done) * _FACTORS[word]
    return _mix(hashes)


def _of_long(data: Bits, starts: list[int], lengths: list[int]) -> Sums:
    body = data.data
    digests = [
        xxhash.xxh3_64_intdigest(body[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]
    return np.array(digests, np.uint64)


def _words(data: Bits) -> Sums:
    """Return the eight bytes from each byte on, as one word. Zeros follow the last byte."""
    padded = np.zeros(len(data) + _WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    return np.ndarray((len(data) + 1,), np.dtype("<u8"), padded, strides=(1,))


def _of_word(words: Sums, starts: Longs, left: Longs) -> Sums:
    """Return a hash of the next word of each value that has `left` bytes left; 0 if none are."""
    unused = 64 - 8 * np.minimum(left, _WORD_BYTES)
    return _mix(words[starts] << unused.view(np.uint64))


def _of_lists(offsets: pa.Array, values: Sums, ordered: bool) -> Sums:
    """Return one hash for the values of each list. `ordered`: their places in the list count."""
    ends = np.from_dlpack(offsets).astype(np.int64)
    lengths = np.diff(ends)
    inner = values[ends[0] : ends[-1]].copy()
    if ordered:
        places = np.arange(len(inner)) - np.repeat(ends[:-1] - ends[0], lengths)
        inner ^= _mix(places.astype(np.uint64) + _OTHER)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mix(_mix(inner), _OTHER))))
    hashes = sums[ends[1:] - ends[0]] - sums[ends[:-1] - ends[0]]
    return _mix(hashes ^ lengths.astype(np.uint64))


def _bytes_of(array: pa.Array, buffer: int) -> Bits:
    content = array.buffers()[buffer]
    return np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
