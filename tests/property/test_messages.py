"""The bytes of batches: read as they were written, or `Corrupt`."""

from __future__ import annotations

import itertools
import struct
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.errors import Corrupt
from headgate.storage.format import messages
from headgate.storage.format.messages import pack

from ..doubles.segments import CODECS


@pytest.mark.slow
@pytest.mark.parametrize("packed", [None, *CODECS])
def test_bytes_cut_short_are_never_fewer_rows(packed: str | None) -> None:
    """Bytes that end too early are `Corrupt`, wherever they end, and whether or not they are
    copied."""
    numbers = pa.record_batch({"a": np.arange(50), "b": pa.array(map(str, range(50)))})
    schema = numbers.schema.serialize().to_pybytes()
    tenths = [numbers.slice(at, 10) for at in range(0, 50, 10)]
    pieces = [
        b"".join(pack(it, packed)) if packed else it.serialize().to_pybytes() for it in tenths
    ]
    part, borders = b"".join(pieces), list(itertools.accumulate(map(len, pieces)))
    for copied in (0, 1 << 20):
        with patch.object(messages, "_COPIED_BYTES_MAX", copied):
            whole = list(messages.decode(memoryview(part), schema, 50))
            assert pa.Table.from_batches(whole) == pa.Table.from_batches([numbers])
            for end in range(8, len(part)):
                batches: list[pa.RecordBatch] = []
                with pytest.raises(Corrupt):
                    batches.extend(messages.decode(memoryview(part)[:end], schema, 50))
                assert len(batches) == sum(border <= end for border in borders)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("rows", [100, 5_000])
def test_other_bytes_than_stated_are_corrupt(codec: str, rows: int) -> None:
    """Buffers that decompress to fewer bytes than their message says are not read as rows of
    whatever was in memory, and no more bytes are dropped."""
    numbers = pa.record_batch({"a": np.arange(4_096)})
    part = b"".join(pack(numbers, codec))
    sizes = struct.Struct("<4sIIQQ")
    name, head_bytes, head_size, size_bytes, _ = sizes.unpack_from(part)
    head = part[sizes.size :][:head_size]
    stored = pa.compress(np.arange(rows).tobytes(), codec, asbytes=True)
    other = sizes.pack(name, head_bytes, head_size, size_bytes, len(stored)) + head + stored
    with pytest.raises(Corrupt):
        list(messages.decode(memoryview(other), numbers.schema.serialize().to_pybytes(), 4_096))


@pytest.mark.parametrize("nested", [False, True])
def test_joined_batches_count_the_objects_of_their_columns(nested: bool) -> None:
    """Few batches of rows with many columns wait to be joined: Arrow takes far more memory for
    the objects of a column than one of its values takes."""
    columns = {f"c{at}": pa.array(np.arange(20)) for at in range(300)}
    rows = pa.record_batch(columns)
    if nested:
        rows = pa.record_batch({"s": pa.StructArray.from_arrays(columns.values(), [*columns])})
    part = b"".join(b"".join(pack(rows.slice(at, 1), "lz4")) for at in range(20))
    with patch.object(messages, "_JOINED_BYTES", 400_000):
        schema = rows.schema.serialize().to_pybytes()
        joined = list(messages.decode_joined(memoryview(part), schema, 20))
    assert [4, 4, 4, 4, 4] == [batch.num_rows for batch in joined]
    assert pa.Table.from_batches([rows]) == pa.Table.from_batches(joined)
