"""The bytes of batches: read as they were written, or `Corrupt`."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.errors import Corrupt
from headgate.storage.format import messages
from headgate.storage.format.messages import pack

from ..doubles.segments import CODECS


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
