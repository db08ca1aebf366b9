"""The segment: a valid Arrow IPC file whose batches are ordered by subpartition.

The footer's metadata has the format version, the attempt and the index. The index has the rows,
bytes and checksum of each subpartition that is not empty. Subpartitions follow each other without a
gap, so that neighbours are one byte range. The place of the first one follows from the schema.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from ...control.errors import Corrupt, Invalid, Lost
from ...control.ids import AttemptId
from ..stores.port import BlobStore, ByteRange, Bytes

P = ParamSpec("P")
T = TypeVar("T")

FORMAT = "1"

_MAGIC = b"ARROW1"
_MAGIC_BYTES = 8
_TAIL_BYTES = 10
ENTRY = np.dtype([("subpartition", "<u4"), ("rows", "<u4"), ("size", "<u4"), ("checksum", "<u8")])
HEAD_BYTES = 16  # of an index: its checksum, and the offset of the first batch
_SIZE_MAX = (1 << 32) - 1
_START_MAX = 1 << 40  # 1 TiB: far more than any schema needs
INDEX_KEY = "headgate.index"
_SERIAL = ipc.IpcReadOptions(use_threads=False, ensure_alignment=ipc.Alignment.DataTypeSpecific)
_COPIED_BYTES_MAX = 1 << 20
_JOINED_BYTES = 32 << 20
INLINE_BYTES_MAX, INLINE_TOTAL_BYTES = 128 << 10, 16 << 20
# of a footer, guessed before it is read: each subpartition has an entry and the place of a batch
_FOOTER_BYTES, _ENTRY_BYTES, _FOOTER_BYTES_MAX = 8 << 10, 52, 1 << 20

Longs = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]


def inline_bytes(partition: int) -> int:
    """Return the limit on the bytes of indexes in the event of a partition. The later a partition,
    the lower its limit, so that the log of a wide result stays small. Indexes beyond the limit are
    only in the footers of their segments."""
    return min(INLINE_BYTES_MAX, INLINE_TOTAL_BYTES // (partition + 1))


def checksum(body: Bytes | pa.Buffer) -> int:
    """Return a checksum of 64 bits, as a signed number."""
    return signed(xxhash.xxh3_64_intdigest(body))


def signed(digest: int) -> int:
    """Return 64 bits as a signed number, the form that Avro and Kafka's tools use."""
    return digest - (1 << 64) if digest >= 1 << 63 else digest


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The rows, bytes and checksum of each subpartition in one segment; zeros for an empty one."""

    start: int
    rows: Longs
    sizes: Longs
    checksums: Sums

    @property
    def starts(self) -> Longs:
        """Return the offset of each subpartition's bytes in the object."""
        return self.start + np.concatenate(([0], np.cumsum(self.sizes)[:-1]))

    def entries(self) -> bytes:
        """Return the index in its stored form, without empty subpartitions. The number of the
        others alone determines its length.

        Raises:
            Invalid: a subpartition has more bytes or rows than an index can state.
        """
        largest = int(max(self.sizes.max(initial=0), self.rows.max(initial=0)))
        if largest > _SIZE_MAX:
            raise Invalid(f"a subpartition has {largest} bytes or rows, over {_SIZE_MAX}")
        filled = np.flatnonzero(self.rows)
        packed = np.empty(len(filled), ENTRY)
        packed["subpartition"] = filled
        packed["rows"] = self.rows[filled]
        packed["size"] = self.sizes[filled]
        packed["checksum"] = self.checksums[filled]
        stated = self.start.to_bytes(8, "little") + packed.tobytes()
        return xxhash.xxh3_64_intdigest(stated).to_bytes(8, "little") + stated

    @classmethod
    def from_entries(cls, raw: bytes, subpartitions: int) -> SegmentIndex:
        """Read the stored form.

        Raises:
            Corrupt: the bytes are no index of so many subpartitions.
        """
        if len(raw) < HEAD_BYTES or (len(raw) - HEAD_BYTES) % ENTRY.itemsize:
            raise Corrupt(f"an index of {len(raw)} bytes is incomplete")
        if int.from_bytes(raw[:8], "little") != xxhash.xxh3_64_intdigest(raw[8:]):
            raise Corrupt(f"an index of {len(raw)} bytes does not match its checksum")
        packed = np.frombuffer(raw, ENTRY, offset=HEAD_BYTES)
        where, start = packed["subpartition"], int.from_bytes(raw[8:HEAD_BYTES], "little")
        if len(where) and where.max() >= subpartitions:
            raise Corrupt(
                f"an index names subpartition {where.max()}, and there are {subpartitions}"
            )
        if start > _START_MAX or not (packed["rows"].all() and packed["size"].all()):
            raise Corrupt(
                "an index names an empty subpartition, or starts after the end of any segment"
            )
        if (where[1:] <= where[:-1]).any():
            raise Corrupt("an index does not name its subpartitions in order, each once")
        rows, sizes = np.zeros((2, subpartitions), np.int64)
        sums = np.zeros(subpartitions, np.uint64)
        rows[where], sizes[where], sums[where] = packed["rows"], packed["size"], packed["checksum"]
        return cls(start, rows, sizes, sums)

    def packed(self) -> bytes:
        """Return the stored form, compressed for an event."""
        return zlib.compress(self.entries(), 1)

    @classmethod
    def unpacked(cls, raw: bytes, subpartitions: int) -> SegmentIndex:
        """Read the compressed form. Decompress no more bytes than so many subpartitions can have.

        Raises:
            Corrupt: the bytes are no index of so many subpartitions, or more than one.
        """
        stream = zlib.decompressobj()
        bytes_max = HEAD_BYTES + subpartitions * ENTRY.itemsize
        try:
            entries = stream.decompress(raw, bytes_max + 1)
        except zlib.error as exc:
            raise Corrupt("an event's index cannot be decompressed") from exc
        if len(entries) > bytes_max or not stream.eof or stream.unused_data:
            raise Corrupt(
                f"an event's index is incomplete, or not for {subpartitions} subpartitions"
            )
        return cls.from_entries(entries, subpartitions)


def batches_start(schema: pa.Schema) -> int:
    """Return the offset of the first batch in a file of this schema."""
    return _MAGIC_BYTES + int(schema.serialize().size)


def footer_metadata(attempt: AttemptId, subpartitions: int) -> dict[str, str]:
    """Return the footer's metadata without the index."""
    return {
        "headgate.format": FORMAT,
        "headgate.attempt": str(attempt),
        "headgate.subpartitions": str(subpartitions),
    }


def read_twice(read: Callable[P, T]) -> Callable[P, T]:
    """Read once more if the bytes are wrong or seem to be gone: the answer may have been damaged
    on its way."""

    @wraps(read)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        with suppress(Corrupt, Lost):
            return read(*args, **kwargs)
        return read(*args, **kwargs)

    return again


@read_twice
def fetch_index(
    store: BlobStore, name: str, size_bytes: int, attempt: AttemptId, subpartitions: int
) -> SegmentIndex:
    """Read a segment's index from the footer of its object.

    Raises:
        Corrupt: the object is not a segment of this attempt in a known format.
        Lost: the object is gone.
    """
    guess_bytes = min(size_bytes, _FOOTER_BYTES_MAX, _FOOTER_BYTES + _ENTRY_BYTES * subpartitions)
    end = store.get(name, ByteRange(size_bytes - guess_bytes, guess_bytes))
    tail = end[-_TAIL_BYTES:]
    footer_bytes = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < footer_bytes <= size_bytes - _TAIL_BYTES:
        raise Corrupt(f"{name} does not end as an Arrow file does")
    length = footer_bytes + _TAIL_BYTES
    if length > guess_bytes:
        end = store.get(name, ByteRange(size_bytes - length, length))
    end = end[-length:]
    # A file that is only its own footer is enough to read the footer's metadata.
    stub = _MAGIC + bytes(_MAGIC_BYTES - len(_MAGIC)) + bytes(end)
    try:
        metadata = ipc.open_file(pa.py_buffer(stub)).metadata
    except (pa.ArrowException, OSError) as exc:
        raise Corrupt(f"the footer of {name} cannot be read") from exc
    return read_index(metadata, name, attempt, subpartitions)


def read_index(
    metadata: pa.KeyValueMetadata | None, name: str, attempt: AttemptId, subpartitions: int
) -> SegmentIndex:
    """Return the index in a segment's footer metadata.

    Raises:
        Corrupt: the object is not a segment of this attempt in a known format.
    """
    values = metadata or {}
    for key, expected in footer_metadata(attempt, subpartitions).items():
        if values.get(key.encode()) != expected.encode():
            raise Corrupt(
                f"{name} is not a segment of this attempt: {key} is {values.get(key.encode())!r}, "
                f"expected {expected!r}"
            )
    try:
        raw = base64.b64decode(values[INDEX_KEY.encode()], validate=True)
        return SegmentIndex.from_entries(raw, subpartitions)
    except (KeyError, ValueError, Corrupt) as exc:
        raise Corrupt(f"{name} has no valid index in its footer: {exc}") from exc


def decode(part: memoryview, schema: bytes, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches in a slice's bytes, whose checksum was verified, one at a time. Few bytes
    are copied after the schema, because that costs less than reading them piece by piece.

    Raises:
        Corrupt: the bytes are no batches of this schema, or have another number of rows.
    """
    try:
        left, few = rows, len(part) <= _COPIED_BYTES_MAX
        stream = schema + part if few else pa.PythonFile(_Chain(schema, part), "r")
        with ipc.open_stream(stream, options=_SERIAL) as batches:
            for batch in batches:
                left -= batch.num_rows
                if left < 0:
                    break
                yield batch
    except (pa.ArrowException, EOFError, OSError) as exc:
        raise Corrupt(f"the bytes are not batches of the result's schema: {exc}") from exc
    if left:
        raise Corrupt(f"{rows - left} rows, expected {rows}")


def decode_joined(part: memoryview, schema: bytes, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the bytes of neighbouring slices as few batches, none of which takes much
    memory. Their checksums were verified.

    Raises:
        Corrupt: the bytes are no batches of this schema, or have another number of rows.
    """
    waiting, size_bytes = list[pa.RecordBatch](), 0
    for batch in decode(part, schema, rows):
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= _JOINED_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


class _Chain:
    """Joins buffers into one file that is read without copying. It has the methods that Arrow
    calls."""

    closed = False

    def __init__(self, *parts: Bytes) -> None:
        self._parts = deque(map(pa.py_buffer, parts))

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return up to `size` bytes, all of them from one part."""
        if not self._parts:
            return pa.py_buffer(b"")
        part = self._parts.popleft()
        if size < part.size:
            self._parts.appendleft(part.slice(size))
        return part.slice(0, size)

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def close(self) -> None:
        self._parts.clear()
