"""The bytes of batches in a segment: Arrow messages, plain or packed.

A message of Arrow has 16 bytes for each column, 16 for each of its buffers, and pads the buffers.
For many columns with few rows, that is far more than the rows take. A packed message is the same
message in two parts: its head, in which each number is replaced by the difference to the last one
of its kind, and all its buffers. Both are compressed, and nearly nothing is left of the head.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from ...control.errors import Corrupt
from ..stores.port import Bytes

_MARK = b"\xff\xff\xff\xff"  # the first bytes of a plain message
_PREFIX_BYTES = 8  # the mark, and the length of the rest of a message's head
_PACKED = struct.Struct("<4sIIQQ")  # the codec; the bytes of head and buffers: plain, stored
_HEAD_CODEC = "lz4"
_HEAD_BYTES_MAX = 255  # of a head for each stored byte: LZ4 can do no more
_CODECS = MappingProxyType({b"none": None, b"lz4\0": "lz4", b"zstd": "zstd"})
_BYTES_MAX = 1 << 15  # of buffers for each stored byte: zstd can do no more
_SERIAL = ipc.IpcReadOptions(use_threads=False, ensure_alignment=ipc.Alignment.DataTypeSpecific)
_COPIED_BYTES_MAX = 1 << 20
_JOINED_BYTES = 32 << 20
_COLUMN_BYTES = 400  # of the objects that Arrow makes for each column of a batch


def kinds(schema: pa.Schema) -> list[pa.DataType]:
    """Return the types of all columns, with those inside of others."""
    all_kinds = [field.type for field in schema]
    for kind in all_kinds:  # which grow meanwhile
        all_kinds += [kind.field(at).type for at in range(kind.num_fields)]
        if isinstance(kind, pa.BaseExtensionType):
            all_kinds.append(kind.storage_type)
    return all_kinds


def pack(batch: pa.RecordBatch, codec: str) -> tuple[bytes, Bytes]:
    """Return a batch as the two parts of a packed message."""
    message = batch.serialize()
    head_bytes = _PREFIX_BYTES + int.from_bytes(message[4:_PREFIX_BYTES], "little")
    numbers = np.frombuffer(message, "<i8", head_bytes // 8)
    steps = numbers.copy()
    steps[2:] -= numbers[:-2]
    head, buffers = pa.compress(steps, _HEAD_CODEC, asbytes=True), message[head_bytes:]
    stored = buffers if codec == "none" else pa.compress(buffers, codec, asbytes=True)
    sizes = head_bytes, len(head), len(buffers), len(stored)
    return _PACKED.pack(codec.encode(), *sizes) + head, memoryview(stored)


def decode(part: memoryview, schema: bytes, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches in a slice's bytes, whose checksum was verified, one at a time.

    Raises:
        Corrupt: the bytes are no batches of this schema, or have another number of rows.
    """
    try:
        left = rows
        for batch in _plain(part, schema) if part[:4] in (_MARK, b"") else _unpacked(part, schema):
            left -= batch.num_rows
            if left < 0:
                break
            yield batch
    except (pa.ArrowException, EOFError, OSError) as exc:
        raise Corrupt(f"the bytes are not batches of the result's schema: {exc}") from exc
    if left:
        raise Corrupt(f"{rows - left} rows, expected {rows}")


def _plain(part: memoryview, schema: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of plain messages. Few bytes are copied after the schema, because that
    costs less than reading them piece by piece."""
    few = len(part) <= _COPIED_BYTES_MAX
    stream = schema + part if few else pa.PythonFile(_Chain(schema, part), "r")
    with ipc.open_stream(stream, options=_SERIAL) as batches:
        yield from batches


def _unpacked(part: memoryview, schema: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of packed messages."""
    while part:
        if len(part) < _PACKED.size:
            raise Corrupt(f"a message of {len(part)} bytes is incomplete")
        codec, head_bytes, head_size, size_bytes, size = _PACKED.unpack_from(part)
        stored, part = part[_PACKED.size :], part[_PACKED.size + head_size + size :]
        if codec not in _CODECS or len(stored) < head_size + size:
            raise Corrupt(f"a message has {len(stored)} bytes of {codec!r}")
        if head_bytes > _HEAD_BYTES_MAX * head_size or size_bytes > _BYTES_MAX * size:
            raise Corrupt(f"a message cannot have {head_bytes} and {size_bytes} bytes")
        head = _decompressed(stored[:head_size], head_bytes, _HEAD_CODEC)
        numbers = np.frombuffer(head[: head_bytes // 8 * 8], "<i8").copy()
        for first in range(2):
            np.cumsum(numbers[first::2], out=numbers[first::2])
        buffers = stored[head_size : head_size + size]
        if name := _CODECS[codec]:
            buffers = _decompressed(buffers, size_bytes, name)
        else:
            buffers = memoryview(bytes(buffers))  # which are aligned
        with pa.PythonFile(_Chain(numbers.data, buffers), "r") as file:
            message = next(ipc.MessageReader.open_stream(file), None)
        if message is None or message.metadata.size != head_bytes - _PREFIX_BYTES:
            raise Corrupt(f"the head of a message does not have {head_bytes} bytes")
        yield ipc.read_record_batch(message, _schema(schema))


def _decompressed(stored: Bytes, size_bytes: int, codec: str) -> pa.Buffer:
    """Return exactly so many bytes."""
    if codec != "lz4":
        return pa.decompress(stored, size_bytes, codec)
    # if these are fewer, `decompress` leaves the rest of its memory as it was
    with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
        plain = stream.read_buffer(size_bytes + 1)
    if plain.size != size_bytes:
        raise Corrupt(f"a message does not have {size_bytes} bytes")
    return plain


@lru_cache(8)
def _schema(raw: bytes) -> pa.Schema:
    return ipc.read_schema(pa.py_buffer(raw))


def decode_joined(part: memoryview, schema: bytes, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the bytes of neighbouring slices as few batches, none of which takes much
    memory. Their checksums were verified.

    Raises:
        Corrupt: the bytes are no batches of this schema, or have another number of rows.
    """
    waiting, size_bytes = list[pa.RecordBatch](), 0
    objects_bytes = _COLUMN_BYTES * (1 + len(kinds(_schema(schema))))
    for batch in decode(part, schema, rows):
        waiting.append(batch)
        size_bytes += batch.get_total_buffer_size() + objects_bytes
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
