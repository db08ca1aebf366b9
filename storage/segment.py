"""The segment: a valid Arrow IPC file whose batches are ordered by subpartition.

The footer's metadata holds the format version, the attempt and the index: for each subpartition
that is not empty its rows, bytes and checksum. Subpartitions follow each other without a gap, so
that neighbours are one byte range, and where the first one starts follows from the schema.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from ..control.errors import Corrupt, Invalid
from ..control.ids import AttemptId
from .blobs import BlobStore, ByteRange, Bytes

FORMAT = "1"
BATCH_BYTES = 4 << 20

_MAGIC = b"ARROW1"
_MAGIC_BYTES = 8
_TAIL_BYTES = 10
_ENTRY = np.dtype([("subpartition", "<u4"), ("rows", "<u4"), ("size", "<u4"), ("checksum", "<u8")])
_HEAD_BYTES = 16  # of an index: its checksum, and where the first batch starts
_SIZE_MAX = (1 << 32) - 1
_START_MAX = 1 << 40  # 1 TiB: far more than any schema takes
_INDEX_KEY = "headgate.index"
_SERIAL = ipc.IpcReadOptions(use_threads=False, ensure_alignment=ipc.Alignment.DataTypeSpecific)
_COPIED_BYTES_MAX = 1 << 20

Longs = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]


def checksum(body: Bytes | pa.Buffer) -> int:
    """64 bits over the bytes."""
    return signed(xxhash.xxh3_64_intdigest(body))


def signed(digest: int) -> int:
    """64 bits as Avro and Kafka's tools like them."""
    return digest - (1 << 64) if digest >= 1 << 63 else digest


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """Rows, bytes and checksum of each subpartition in one segment; zero where it is empty."""

    start: int
    rows: Longs
    sizes: Longs
    checksums: Sums

    @property
    def starts(self) -> Longs:
        """Where each subpartition's bytes start in the object."""
        return self.start + np.concatenate(([0], np.cumsum(self.sizes)[:-1]))

    def entries(self) -> bytes:
        """The index as stored: only what is not empty, at a length known before the bytes are.

        Raises:
            Invalid: a subpartition takes more than an index can state.
        """
        largest = int(max(self.sizes.max(initial=0), self.rows.max(initial=0)))
        if largest > _SIZE_MAX:
            raise Invalid(f"a subpartition has {largest} bytes or rows, over {_SIZE_MAX}")
        filled = np.flatnonzero(self.rows)
        packed = np.empty(len(filled), _ENTRY)
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
        if len(raw) < _HEAD_BYTES or (len(raw) - _HEAD_BYTES) % _ENTRY.itemsize:
            raise Corrupt(f"an index of {len(raw)} bytes is not whole")
        if int.from_bytes(raw[:8], "little") != xxhash.xxh3_64_intdigest(raw[8:]):
            raise Corrupt(f"an index of {len(raw)} bytes does not match its checksum")
        packed = np.frombuffer(raw, _ENTRY, offset=_HEAD_BYTES)
        where, start = packed["subpartition"], int.from_bytes(raw[8:_HEAD_BYTES], "little")
        if len(where) and where.max() >= subpartitions:
            raise Corrupt(f"index names subpartition {where.max()} of {subpartitions}")
        if start > _START_MAX or not (packed["rows"].all() and packed["size"].all()):
            raise Corrupt("an index names a subpartition without rows or bytes, or starts nowhere")
        if (where[1:] <= where[:-1]).any():
            raise Corrupt("an index does not name its subpartitions in order, each once")
        index = cls(
            start,
            np.zeros(subpartitions, np.int64),
            np.zeros(subpartitions, np.int64),
            np.zeros(subpartitions, np.uint64),
        )
        index.rows[where] = packed["rows"]
        index.sizes[where] = packed["size"]
        index.checksums[where] = packed["checksum"]
        return index

    def packed(self) -> bytes:
        """The stored form made small for an event."""
        return zlib.compress(self.entries(), 1)

    @classmethod
    def unpacked(cls, raw: bytes, subpartitions: int) -> SegmentIndex:
        """Read the form that an event has; never makes more than so many subpartitions take.

        Raises:
            Corrupt: the bytes are no index of so many subpartitions, or more than one.
        """
        stream = zlib.decompressobj()
        bytes_max = _HEAD_BYTES + subpartitions * _ENTRY.itemsize
        try:
            found = stream.decompress(raw, bytes_max + 1)
        except zlib.error as exc:
            raise Corrupt("an event's index cannot be decompressed") from exc
        if len(found) > bytes_max or not stream.eof or stream.unused_data:
            raise Corrupt(f"an event's index is not whole, or not of {subpartitions} subpartitions")
        return cls.from_entries(found, subpartitions)


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ordered by subpartition, `rows[i]` of them for subpartition i."""

    batch: pa.RecordBatch
    rows: Longs


@dataclass(frozen=True, slots=True)
class Segment:
    body: memoryview
    index: SegmentIndex


def sort(batches: list[pa.RecordBatch], targets: list[Longs], subpartitions: int) -> Run:
    """Order rows by subpartition; those of one subpartition keep their order."""
    wide = np.concatenate(targets)
    low, high = int(wide.min()), int(wide.max())
    if low < 0 or high >= subpartitions:
        raise Invalid(f"a row is for subpartition {low if low < 0 else high} of {subpartitions}")
    where = wide.astype(np.min_scalar_type(subpartitions - 1))  # small numbers sort by digits
    order = np.argsort(where, kind="stable").astype(np.uint32)
    rows = np.bincount(where, minlength=subpartitions).astype(np.int64)
    taken = pa.Array.from_buffers(pa.uint32(), len(order), [None, pa.py_buffer(order)])
    return Run(pa.concat_batches(batches).take(taken), rows)


def encode(runs: list[Run], codec: str, attempt: AttemptId) -> Segment:
    """Merge runs into one file, ordered by subpartition."""
    rows: Longs = np.sum([run.rows for run in runs], axis=0)
    schema = runs[0].batch.schema
    filled = int(np.count_nonzero(rows))
    blank = base64.b64encode(bytes(_HEAD_BYTES + filled * _ENTRY.itemsize)).decode()
    metadata = {**_stated(attempt, len(rows)), _INDEX_KEY: blank}
    options = ipc.IpcWriteOptions(compression=None if codec == "none" else codec, use_threads=False)
    room = pa.allocate_buffer(_bytes_max(runs, schema, filled) + 2 * len(blank))
    with pa.FixedSizeBufferWriter(room) as sink:
        with ipc.new_file(sink, schema, options=options, metadata=metadata) as writer:
            sizes = _write_batches(writer, sink, runs, rows)
            footer = sink.tell()
        body = memoryview(room).cast("B")[: sink.tell()]
    index = _index(body, schema, rows, sizes)
    _fill_blank(body[footer:], blank, base64.b64encode(index.entries()))
    return Segment(body, index)


def _bytes_max(runs: list[Run], schema: pa.Schema, filled: int) -> int:
    """What the file can at most take. Only what is written is ever touched, so room costs nothing,
    while a sink that grows by copying costs more than compressing does."""
    raw = sum(_batch_bytes(run.batch) + sum(map(_nulls_bytes, run.batch.columns)) for run in runs)
    batches = filled + 2 * (raw // BATCH_BYTES)  # two neighbours are larger than one may be
    fields = sum(1 + _inner_fields(field.type) for field in schema)
    head = 2 * int(schema.serialize().size)
    return head + raw + raw // 64 + (batches + 2) * (1024 + 512 * fields)


def _inner_fields(kind: pa.DataType) -> int:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return len(inner) + sum(map(_inner_fields, inner))


def _nulls_bytes(column: pa.Array) -> int:
    """The room for all that tells nulls: a column without any has none when it stands beside one
    of another run that has them, and that of structs is not counted as their bytes."""
    inner: list[pa.Array] = []
    if isinstance(column, pa.StructArray):
        inner = [column.field(at) for at in range(column.type.num_fields)]
    elif isinstance(column, (pa.ListArray, pa.LargeListArray)):
        inner = [column.values]
    return len(column) // 8 + 1 + sum(map(_nulls_bytes, inner))


def _batch_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of rows in memory; rows of nothing are many too."""
    return max(int(rows.nbytes), int(rows.num_rows))


def _has_lists(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return isinstance(kind, (pa.ListType, pa.LargeListType, pa.MapType)) or any(
        map(_has_lists, inner)
    )


def _write_batches(
    writer: ipc.RecordBatchFileWriter, sink: pa.NativeFile, runs: list[Run], rows: Longs
) -> Longs:
    """Write each subpartition as batches of bounded size; the bytes that each one took."""
    firsts = [(np.cumsum(run.rows) - run.rows).tolist() for run in runs]
    counts = [run.rows.tolist() for run in runs]
    sizes = np.zeros(len(rows), np.int64)
    schema = runs[0].batch.schema
    # Of a piece whose lists are all empty Arrow writes the offsets that the whole run has in them
    copied = any(_has_lists(field.type) for field in schema)
    before = batches_start(schema)
    for subpartition in np.flatnonzero(rows).tolist():
        pieces = [
            run.batch.slice(first[subpartition], count[subpartition])
            for run, first, count in zip(runs, firsts, counts, strict=True)
            if count[subpartition]
        ]
        merged = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        for batch in cut(merged):
            writer.write_batch(pa.concat_batches([batch]) if copied else batch)
        sizes[subpartition] = sink.tell() - before
        before += int(sizes[subpartition])
    return sizes


def cut(rows: pa.RecordBatch, bytes_max: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Batches of as many rows as fit, and of one that does not."""
    while rows.num_rows > 1 and _batch_bytes(rows) > bytes_max:
        counts = range(1, rows.num_rows)
        fit = bisect_right(counts, bytes_max, key=lambda n: _batch_bytes(rows.slice(0, n)))
        yield rows.slice(0, max(1, fit))
        rows = rows.slice(max(1, fit))
    yield rows


def batches_start(schema: pa.Schema) -> int:
    """Where the first batch stands in a file of this schema."""
    return _MAGIC_BYTES + int(schema.serialize().size)


def _index(body: memoryview, schema: pa.Schema, rows: Longs, sizes: Longs) -> SegmentIndex:
    index = SegmentIndex(batches_start(schema), rows, sizes, np.zeros(len(rows), np.uint64))
    starts = index.starts
    for subpartition in np.flatnonzero(rows).tolist():
        start = int(starts[subpartition])
        part = body[start : start + int(sizes[subpartition])]
        index.checksums[subpartition] = xxhash.xxh3_64_intdigest(part)
    return index


def _fill_blank(footer: memoryview, blank: str, entries: bytes) -> None:
    """The footer is written before its index is known: put the index where a blank was left."""
    at = bytes(footer).index(blank.encode())
    assert len(blank) == len(entries), "the index has the length that was left for it"
    footer[at : at + len(entries)] = entries


def _stated(attempt: AttemptId, subpartitions: int) -> dict[str, str]:
    """What the footer says besides the index."""
    return {
        "headgate.format": FORMAT,
        "headgate.attempt": str(attempt),
        "headgate.subpartitions": str(subpartitions),
    }


def fetch_index(
    store: BlobStore, name: str, size_bytes: int, attempt: AttemptId, subpartitions: int
) -> SegmentIndex:
    """Read the index of a stored segment that an attempt announced from its footer.

    Raises:
        Corrupt: the object is no segment of this attempt in a known format.
        Lost: it is gone.
    """
    tail = store.get(name, ByteRange(size_bytes - _TAIL_BYTES, _TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < footer_bytes <= size_bytes - _TAIL_BYTES:
        raise Corrupt(f"{name} does not end as an Arrow file does")
    start = size_bytes - _TAIL_BYTES - footer_bytes
    end = store.get(name, ByteRange(start, size_bytes - start))
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
    """The index from a segment's footer metadata.

    Raises:
        Corrupt: the object is no segment of this attempt in a known format.
    """
    found = metadata or {}
    for key, expected in _stated(attempt, subpartitions).items():
        if found.get(key.encode()) != expected.encode():
            raise Corrupt(
                f"{name} is no segment of this attempt: {key} is {found.get(key.encode())!r}, "
                f"expected {expected!r}"
            )
    try:
        raw = base64.b64decode(found[_INDEX_KEY.encode()], validate=True)
        return SegmentIndex.from_entries(raw, subpartitions)
    except (KeyError, ValueError, Corrupt) as exc:
        raise Corrupt(f"{name} has no sound index in its footer: {exc}") from exc


def decode(part: memoryview, schema: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of a whole subpartition's bytes, checked before by checksum, one at a time.

    Raises:
        Corrupt: the bytes are no batches of this schema.
    """
    try:
        with ipc.open_stream(_stream(schema, part), options=_SERIAL) as batches:
            yield from batches
    except (pa.ArrowException, EOFError, OSError) as exc:
        raise Corrupt(f"bytes are no batches of the result's schema: {exc}") from exc


def _stream(schema: bytes, part: memoryview) -> pa.Buffer | pa.PythonFile:
    """What an Arrow stream starts with, and a subpartition's bytes, which only when they are few
    cost less to copy than to be asked for piece by piece."""
    if len(part) <= _COPIED_BYTES_MAX:
        return pa.py_buffer(schema + part)
    return pa.PythonFile(_Chain(schema, part), "r")


class _Chain:
    """Buffers after each other as one file, read without copying; Arrow asks for no more."""

    closed = False

    def __init__(self, *parts: Bytes) -> None:
        self._parts = deque(map(pa.py_buffer, parts))

    def read_buffer(self, size: int) -> pa.Buffer:
        """Up to so many bytes: those of one part."""
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
