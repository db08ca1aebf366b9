"""Merging of segments into one, by copying their bytes.

A slice is messages, plain or packed, so the slices of one subpartition can stand behind each other
as they are. Only the file's footer, which has the place of each plain message and the index, is
made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from ...control.errors import Corrupt
from ...control.ids import AttemptId
from ..format.segment import ARROW, TAIL, Longs, SegmentIndex, ending, footer_metadata
from ..stores.port import Bytes

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # behind the last message
_BATCHES_SLOT = 10  # of the footer's field `recordBatches`
_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])

Blocks = npt.NDArray[np.void]
Bools = npt.NDArray[np.bool_]


class SegmentPart(Protocol):
    """The bytes of a segment."""

    def __getitem__(self, place: slice, /) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class SpillSegment:
    """A segment that waits to be merged."""

    body: SegmentPart
    index: SegmentIndex
    wanted: Bools
    """True for each subpartition whose slice is merged."""

    @property
    def sizes(self) -> Longs:
        """Return the bytes of each slice that is merged."""
        return np.where(self.wanted, self.index.sizes, 0)

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.sum())


def merge(
    file: BinaryIO,
    segments: Sequence[SpillSegment],
    schema: pa.Schema,
    attempt: AttemptId,
    form: int,
) -> SegmentIndex:
    """Write the wanted rows of segments as one segment, and return its index. Rows of a
    subpartition are in the order of the segments, all of which have this format.

    Raises:
        Corrupt: the bytes of a segment are no longer those that were encoded.
    """
    indexes = [segment.index for segment in segments]
    starts: list[Longs] = [index.starts for index in indexes]
    sizes: Longs = np.stack([segment.sizes for segment in segments])
    checksums = np.zeros(sizes.shape[1], np.uint64)
    first = indexes[0].start
    file.write(segments[0].body[:first])
    for subpartition in np.flatnonzero(sizes.sum(axis=0)).tolist():
        digest = xxhash.xxh3_64()
        for at in np.flatnonzero(sizes[:, subpartition]).tolist():
            start, size = int(starts[at][subpartition]), int(sizes[at, subpartition])
            body = segments[at].body[start : start + size]
            if xxhash.xxh3_64_intdigest(body) != indexes[at].checksums[subpartition]:
                raise Corrupt("a slice in a local file does not match its checksum")
            digest.update(body)
            file.write(body)
        checksums[subpartition] = digest.intdigest()
    rows: Longs = np.sum([np.where(it.wanted, it.index.rows, 0) for it in segments], axis=0)
    index = SegmentIndex(first, rows, sizes.sum(axis=0), checksums)
    footer = b""
    if form == ARROW:
        ends = first + np.cumsum(sizes.T).reshape(sizes.T.shape).T
        moved = zip(segments, starts, ends - sizes, strict=True)
        blocks = np.sort(np.concatenate([_moved_blocks(*each) for each in moved]), order="offset")
        footer = _footer(schema, footer_metadata(attempt, len(rows)), blocks)
        file.write(_END)
    file.writelines([footer, ending(len(footer), index, attempt, form)])
    file.flush()
    return index


def _moved_blocks(segment: SpillSegment, starts: Longs, places: Longs) -> Blocks:
    """Return the places of a segment's messages after the wanted slices have moved."""
    footer = _footer_of(segment.body)
    field = _batches_field(footer)
    at = field + _number(footer, field)
    blocks = np.frombuffer(footer, _BLOCK, _number(footer, at), at + 4).copy()
    filled = np.flatnonzero(segment.index.sizes)
    slices = filled[np.searchsorted(starts[filled], blocks["offset"], "right") - 1]
    blocks["offset"] += places[slices] - starts[slices]
    return blocks[segment.wanted[slices]]


def _footer(schema: pa.Schema, metadata: dict[str, str], blocks: Blocks) -> bytes:
    """Return the footer of a file with these messages: that of a file without any, with the vector
    of its messages replaced by one at its end."""
    sink = pa.BufferOutputStream()
    ipc.new_file(sink, schema, metadata=metadata).close()
    footer = bytearray(_footer_of(memoryview(sink.getvalue())))
    field = _batches_field(footer)
    footer += bytes((4 - len(footer)) % 8)  # so that the messages behind their number are aligned
    footer[field : field + 4] = (len(footer) - field).to_bytes(4, "little")
    return bytes(footer) + len(blocks).to_bytes(4, "little") + blocks.tobytes()


def _footer_of(body: SegmentPart) -> memoryview:
    """Return the footer of an Arrow file."""
    length, _ = TAIL.unpack(body[-TAIL.size :])
    return body[-TAIL.size - length : -TAIL.size]


def _batches_field(footer: Bytes) -> int:
    """Return where a footer, a table of FlatBuffers, says where its vector of messages is."""
    table = _number(footer, 0)
    fields = table - int.from_bytes(footer[table : table + 4], "little", signed=True)
    slot = fields + _BATCHES_SLOT
    return table + int.from_bytes(footer[slot : slot + 2], "little")


def _number(footer: Bytes, at: int) -> int:
    return int.from_bytes(footer[at : at + 4], "little")
