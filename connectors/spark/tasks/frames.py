"""The forms in which rows and volumes go between the JVM and its Python workers."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark.serializers import NoOpSerializer, SpecialLengths, read_int, write_int

from ....control.errors import Corrupt
from .shipping import is_left, lead_nowhere

LONG_DIGITS = 18
"""Decimals of so many digits, or of fewer, are small: Spark's rows hold each in a long."""
VOLUME = struct.Struct(">qq")
"""A volume as the JVM reads it."""


class Volume(NamedTuple):
    """Stored rows that were written or read."""

    rows: int
    stored_bytes: int


class Frames(NoOpSerializer):
    """Reads batches of one schema from a stream. Each is a length and that many bytes, which are an
    Arrow stream of one batch. An end mark follows the last.

    Raises:
        EOFError: the stream ends without the mark, as it does when the JVM side of the task fails.
            Rows are missing then, and the partition must not be announced.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def load_stream(self, stream: Any) -> Iterator[pa.RecordBatch]:
        while (length := read_int(stream)) != SpecialLengths.END_OF_DATA_SECTION:  # type: ignore[no-untyped-call]
            # Arrow's allocator reuses pages; Python's asks the system for new ones each time.
            frame = pa.allocate_buffer(length)
            if stream.readinto(memoryview(frame).cast("B")) != length:
                raise EOFError(f"a batch of {length} bytes was cut off")
            yield self._batch(frame)

    def _batch(self, frame: pa.Buffer) -> pa.RecordBatch:
        messages = ipc.MessageReader.open_stream(frame)
        messages.read_next_message()  # the schema, which is known
        return ipc.read_record_batch(messages.read_next_message(), self._schema)


class RunFrames(Frames):
    """Reads the runs that `SortedRuns.java` makes.

    Raises:
        Corrupt: a run has more bytes than its columns.
    """

    def __init__(self, schema: pa.Schema, layout: str) -> None:
        super().__init__(schema)
        self._columns = [*zip([field.type for field in schema], layout, strict=True)]

    def _batch(self, frame: pa.Buffer) -> pa.RecordBatch:
        rows, *sizes = np.frombuffer(frame, np.int64, 1 + 2 * len(self._columns)).tolist()
        at = 8 + 8 * len(sizes)

        def taken(size_bytes: int) -> pa.Buffer:
            nonlocal at
            begin, at = at, at + (size_bytes + 7 & ~7)
            return frame.slice(begin, size_bytes)

        arrays = []
        for (kind, letter), nulls, text_bytes in zip(
            self._columns, sizes[::2], sizes[1::2], strict=True
        ):
            bitmap_bytes = (rows + 7) // 8
            buffers = [taken(bitmap_bytes) if nulls else None]
            if letter == "t":
                buffers += taken(4 * (rows + 1)), taken(text_bytes + 8).slice(0, text_bytes)
            elif letter == "b":
                buffers.append(taken(bitmap_bytes))
            elif letter != "n":
                buffers.append(taken(kind.bit_width // 8 * rows))
            arrays.append(
                pa.nulls(rows)
                if letter == "n"
                else pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)
            )
        if at != frame.size:
            raise Corrupt(f"a run has {frame.size} bytes, and its columns have {at}")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _ToTheJvm(NoOpSerializer):
    """Writes the output of a task to the JVM, which may have left before. A socket of TCP says so
    without a signal if rows were not read."""

    def dump_stream(self, iterator: Iterable[Any], stream: Any) -> None:
        try:
            super().dump_stream(iterator, stream)  # type: ignore[no-untyped-call]
            stream.flush()
        except ConnectionError:
            lead_nowhere(stream)
            raise
        if is_left(stream):
            lead_nowhere(stream)


class Volumes(_ToTheJvm):
    """Writes volumes, so that the JVM can pass them on without Python."""

    def dumps(self, obj: Volume) -> bytes:
        return VOLUME.pack(*obj)


class VolumeFrames(_ToTheJvm):
    """Writes messages, each with the volume behind it that was read for it. The JVM's loader reads
    the message and no further."""

    def _write_with_length(self, obj: tuple[pa.Buffer, Volume], stream: Any) -> None:
        message, volume = obj
        write_int(message.size + VOLUME.size, stream)  # type: ignore[no-untyped-call]
        stream.write(message)
        stream.write(VOLUME.pack(*volume))


class MessageFrames(_ToTheJvm):
    """Writes messages that have rows, without their volumes, for a JVM that cannot take these
    off."""

    def _write_with_length(self, obj: tuple[pa.Buffer, Volume], stream: Any) -> None:
        message, _ = obj
        if message.size:
            write_int(message.size, stream)  # type: ignore[no-untyped-call]
            stream.write(message)


def layout_of(schema: pa.Schema) -> str | None:
    """Return a letter for the form of each column, as the classes in `jvm/java` take it, None
    if they cannot carry one of them: `t` for text and bytes, `b` for bits, `d` for decimals, `n`
    for nothing but nulls, else the bytes of a value. Rows hold small decimals as whole numbers.
    Exchanges store them so, but functions return them in Arrow's form, which is not carried."""
    if sys.byteorder != "little":
        return None
    letters = [_letter(field.type) for field in schema]
    return "".join(letters) if all(letters) else None


def _letter(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "t"
    if pa.types.is_boolean(kind):
        return "b"
    if pa.types.is_decimal128(kind):
        return "d" if kind.precision > LONG_DIGITS else ""
    if pa.types.is_null(kind):
        return "n"
    is_value = pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64)
    return str(kind.bit_width // 8) if is_value else ""
