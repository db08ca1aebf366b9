"""The segment: a valid Arrow IPC file whose batches are ordered by subpartition, or a packed file.

The footer's metadata has the format version and the attempt. The index is behind the footer's own
content, where Arrow does not look. It has the rows, bytes and checksum of each subpartition that is
not empty. Subpartitions follow each other without a gap, so that neighbours are one byte range. The
place of the first one follows from the schema.

A packed file is alike, but its messages are packed, and its footer has nothing but the index. It
does not begin and end as an Arrow file does, so that no other reader takes it for an empty one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ...control.errors import Corrupt, Invalid, Lost
from ...control.ids import AttemptId
from ..stores.port import BlobStore, ByteRange, Bytes, byte_view, forget_pages

P = ParamSpec("P")
T = TypeVar("T")

ARROW, PACKED = 2, 3  # the formats of segments
MAGICS = MappingProxyType({ARROW: b"ARROW1", PACKED: b"PACKED"})

_MAGIC_BYTES = 8
TAIL = struct.Struct("<i6s")  # the length of the footer, and the magic
ENTRY = np.dtype([("subpartition", "<u4"), ("rows", "<u4"), ("size", "<u4"), ("checksum", "<u8")])
_PACKED = 0.7  # of an entry's bytes are left when an index is compressed
HEAD_BYTES = 16  # of an index: its checksum, and the offset of the first batch
COUNT_MAX = (1 << 32) - 1  # of the bytes or rows of a subpartition
_START_MAX = 1 << 40  # 1 TiB: far more than any schema needs
READ_BYTES = 32 << 20
INLINE_BYTES_MAX, INLINE_TOTAL_BYTES = 128 << 10, 16 << 20
_SEAL = struct.Struct("<QI")  # a checksum of attempt and index, and the length of the index

Longs = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]


def inline_bytes(partition: int) -> int:
    """Return the limit on the bytes of indexes in the event of a partition. The later a partition,
    the lower its limit, so that the log of a wide result stays small. Indexes beyond the limit are
    only in the footers of their segments."""
    return min(INLINE_BYTES_MAX, INLINE_TOTAL_BYTES // (partition + 1))


def beyond_events(objects: int, filled: float) -> int:
    """Return how many indexes of so many partitions, with an object each, will be in no event, if
    an object has rows of `filled` subpartitions."""
    index_bytes = HEAD_BYTES + _PACKED * ENTRY.itemsize * filled
    fitting = INLINE_TOTAL_BYTES // index_bytes if index_bytes <= INLINE_BYTES_MAX else 0
    return max(0, objects - int(fitting))


def checksum(body: Bytes | pa.Buffer) -> int:
    """Return a checksum of 64 bits, as a signed number."""
    view, digest = byte_view(body), xxhash.xxh3_64()
    for start in range(0, len(view), READ_BYTES):
        digest.update(view[start : start + READ_BYTES])
        forget_pages(view)
    return signed(digest.intdigest())


def stored_checksum(store: BlobStore, name: str, size_bytes: int) -> int:
    """Return the checksum of an object, which may be larger than memory.

    Raises:
        Corrupt: the object has fewer bytes.
        Lost: the object is gone.
    """
    digest = xxhash.xxh3_64()
    for start in range(0, size_bytes, READ_BYTES):
        digest.update(store.get(name, ByteRange(start, min(READ_BYTES, size_bytes - start))))
    return signed(digest.intdigest())


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
            Invalid: a subpartition has more bytes or rows than an index can hold.
        """
        largest = int(max(self.sizes.max(initial=0), self.rows.max(initial=0)))
        if largest > COUNT_MAX:
            raise Invalid(f"a subpartition has {largest} bytes or rows, over {COUNT_MAX}")
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
    return len(packed_head(schema))


def packed_head(schema: pa.Schema) -> bytes:
    """Return the begin of a packed file."""
    stated: bytes = schema.serialize().to_pybytes()
    return MAGICS[PACKED].ljust(_MAGIC_BYTES, b"\0") + stated


def footer_metadata(attempt: AttemptId, subpartitions: int, form: int = ARROW) -> dict[str, str]:
    """Return the footer's metadata."""
    return {
        "headgate.format": str(form),
        "headgate.attempt": str(attempt),
        "headgate.subpartitions": str(subpartitions),
    }


def ending(footer_bytes: int, index: SegmentIndex, attempt: AttemptId, form: int) -> bytes:
    """Return the end of a file: the index, and the length of the footer with the index. A footer of
    so many bytes is before it."""
    entries = index.entries()
    seal = _seal(entries, attempt, len(index.rows), form)
    sealed = entries + _SEAL.pack(seal, len(entries))
    return sealed + TAIL.pack(footer_bytes + len(sealed), MAGICS[form])


def _seal(entries: bytes, attempt: AttemptId, subpartitions: int, form: int) -> int:
    known = " ".join(footer_metadata(attempt, subpartitions, form).values())
    return xxhash.xxh3_64_intdigest(known.encode() + entries)


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
    """Read a segment's index from the end of its object.

    Raises:
        Corrupt: the object is not a segment of this attempt in a known format.
        Lost: the object is gone.
    """
    rest_bytes = _SEAL.size + TAIL.size
    end_bytes = min(size_bytes, HEAD_BYTES + ENTRY.itemsize * subpartitions + rest_bytes)
    end = store.get(name, ByteRange(size_bytes - end_bytes, end_bytes))
    form = next((form for form, magic in MAGICS.items() if end[-len(magic) :] == magic), None)
    if len(end) < rest_bytes or form is None:
        raise Corrupt(f"{name} does not end as a segment does")
    seal, length = _SEAL.unpack(end[-rest_bytes : -TAIL.size])
    entries = bytes(end[:-rest_bytes][-length:])
    if len(entries) != length or _seal(entries, attempt, subpartitions, form) != seal:
        raise Corrupt(
            f"{name} is not a segment of attempt {attempt} with {subpartitions} subpartitions in "
            f"format {form}, or the index at its end is damaged"
        )
    return SegmentIndex.from_entries(entries, subpartitions)
