"""Indexes of foreign writers are sound or `Corrupt`, and never larger than they may be."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.control.errors import Corrupt
from headgate.storage.format import segment

from ..doubles.damaged import SUBPARTITIONS, sound

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def stated(start: int, entries: list[tuple[int, int, int, int]]) -> bytes:
    """Return a stored index of any content with a right checksum."""
    packed = b"".join(struct.pack("<IIIQ", *entry) for entry in entries)
    body = start.to_bytes(8, "little") + packed
    return xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body


SMALL = st.integers(0, SUBPARTITIONS + 1)
U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
ENTRIES = st.lists(st.tuples(SMALL, SMALL | U32, SMALL | U32, U64), max_size=SUBPARTITIONS + 2)


@given(SMALL | U64, ENTRIES)
@example(1 << 63, [])
@example(0, [(1, 1, 1, 0), (1, 2, 2, 0)])
def test_an_index_of_any_content_is_sound_or_corrupt(
    start: int, entries: list[tuple[int, int, int, int]]
) -> None:
    """A foreign index with a right checksum is sound or `Corrupt`. In a sound one each subpartition
    has rows and bytes or neither, and the slices follow each other."""
    try:
        index = segment.SegmentIndex.from_entries(stated(start, entries), SUBPARTITIONS)
    except Corrupt:
        return
    assert entries == [
        (at, int(index.rows[at]), int(index.sizes[at]), int(index.checksums[at]))
        for at in range(SUBPARTITIONS)
        if index.rows[at]
    ]
    assert not index.sizes[index.rows == 0].any()
    starts = index.starts
    assert start == starts[0]
    assert np.array_equal(starts[1:], (starts + index.sizes)[:-1])


@pytest.mark.parametrize("size", [1 << 20, 1 << 28])
def test_an_index_is_never_larger_than_its_subpartitions(size: int) -> None:
    """An index that unpacks to more than its subpartitions need is `Corrupt` before it takes the
    memory."""
    bomb = zlib.compress(bytes(size), 9)
    tracemalloc.start()
    with pytest.raises(Corrupt):
        segment.SegmentIndex.unpacked(bomb, SUBPARTITIONS)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_an_index_with_something_behind_it_is_corrupt() -> None:
    """A compressed index that is cut short, or has more bytes behind it, is `Corrupt`."""
    packed = sound("none").state.produced(0).segments[0].index
    segment.SegmentIndex.unpacked(packed, SUBPARTITIONS)
    for wrong in (packed[:-1], packed + b"\0", packed + packed):
        with pytest.raises(Corrupt):
            segment.SegmentIndex.unpacked(wrong, SUBPARTITIONS)
