"""The ways to carry an exchange: their requests are those that readers send, and stay bounded."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.control.ids import AttemptId, PartitionId, ResultId, job_id
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.manifest import Manifest, Source
from headgate.storage.limits import Limits
from headgate.storage.reading.read_plan import plan
from headgate.storage.reading.ways import DIRECT, ExchangeSize, choose, reads, requests

RESULT = ResultId("r")
SCHEMA = pa.schema([("v", pa.int64())])
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def even(objects: int, subpartitions: int, slice_bytes: int) -> Manifest:
    """Return a manifest whose slices all have the same size."""
    sizes = np.full(subpartitions, slice_bytes)
    starts = 8 + np.cumsum(sizes) - sizes
    sums = np.zeros(subpartitions, np.uint64)
    sources = tuple(
        Source(AttemptId(PartitionId(RESULT, at), 1, at), f"o{at}", starts, sizes, sizes, sums)
        for at in range(objects)
    )
    return Manifest(job_id("job"), RESULT, 1, 0, subpartitions, sources)


def sent(manifest: Manifest, tasks: int, limits: Limits) -> int:
    """Return the different requests of all processes that share the tasks in turn."""
    asked = set()
    ends = [manifest.count * at // tasks for at in range(tasks + 1)]
    for task in range(tasks):
        first, last = ends[task], ends[task + 1]
        deployment = InputGateDeployment(manifest, SCHEMA, first, last - first, task)
        for piece in plan(deployment, limits):
            asked.add((task % limits.readers, piece.source.name, piece.window))
    return len(asked)


@given(
    objects=st.integers(1, 40),
    subpartitions=st.integers(1, 120),
    slice_bytes=st.integers(1, 4 * MIB),
    readers=st.integers(1, 8),
    share=st.integers(1, 8),
)
@example(objects=40, subpartitions=120, slice_bytes=3000, readers=4, share=1)
def test_requests_are_those_of_the_readers(
    objects: int, subpartitions: int, slice_bytes: int, readers: int, share: int
) -> None:
    """The number of requests is known before they are sent, to a quarter. Tasks whose ranges cross
    the borders of windows may send one more for each object."""
    limits, tasks = replace(Limits(), readers=readers), max(1, subpartitions // share)
    size = ExchangeSize(
        objects, objects, subpartitions, objects * subpartitions * slice_bytes, tasks
    )
    counted = sent(even(objects, subpartitions, slice_bytes), tasks, limits)
    predicted = reads(size, limits)
    borders = objects * min(tasks, subpartitions) if share > 1 else objects * readers
    assert abs(predicted - counted) <= 0.25 * counted + borders


@given(
    partitions=st.integers(1, 20_000),
    subpartitions=st.integers(1, 20_000),
    partition_bytes=st.integers(1, 32 * MIB),
    readers=st.integers(1, 2_000),
)
@example(partitions=10_000, subpartitions=10_000, partition_bytes=10 * MIB, readers=1_000)
@example(partitions=500, subpartitions=20_000, partition_bytes=32 * MIB, readers=2_000)
def test_requests_grow_with_the_square_root(
    partitions: int, subpartitions: int, partition_bytes: int, readers: int
) -> None:
    """A wide exchange sends at most 2 P sqrt(P) requests, P being the larger of its two numbers,
    where a direct one may send the product of both."""
    limits = replace(Limits(), readers=readers)
    stored_bytes = partitions * partition_bytes
    size = ExchangeSize(partitions, partitions, subpartitions, stored_bytes, subpartitions)
    wide = max(partitions, subpartitions, 500)
    assert requests(size, choose(size, limits), limits) <= 2 * wide * sqrt(wide)


@given(
    partitions=st.integers(1, 16),
    subpartitions=st.integers(1, 200),
    stored_bytes=st.integers(0, 64 * MIB),
    readers=st.integers(1, 8),
)
def test_small_exchanges_are_read_as_they_are(
    partitions: int, subpartitions: int, stored_bytes: int, readers: int
) -> None:
    limits = replace(Limits(), readers=readers)
    size = ExchangeSize(partitions, partitions, subpartitions, stored_bytes, subpartitions)
    assert choose(size, limits) == DIRECT
