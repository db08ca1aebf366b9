"""Segments of rows that differ in width: the room for a file, and the size of its batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.storage.segment import encode, sort

ATTEMPT = AttemptId(PartitionId(ResultId("r1"), 0), 1, 0)
MANY = 100_000


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("value", ["abc", [1]], ids=str)
def test_empty_lists_take_no_room(codec: str, value: object) -> None:
    """Subpartitions whose lists are all empty are written without what others have in theirs."""
    subpartitions = 1_000
    lists = pa.array([[value] if at % subpartitions < 100 else [] for at in range(MANY)])
    rows = pa.record_batch([lists], ["c"])
    run = sort([rows], [np.arange(MANY) % subpartitions], subpartitions)
    sizes = encode([run], codec, ATTEMPT).index.sizes
    assert max(sizes[100:]) < 1_000
