"""The ways to carry an exchange: their requests are those that readers send, and stay bounded."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.control.ids import AttemptId, PartitionId, ResultId, job_id
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.manifest import Manifest, Source
from headgate.storage.format.manifest_shards import firsts
from headgate.storage.limits import Limits
from headgate.storage.reading.read_plan import group_bytes, plan
from headgate.storage.reading.ways import DIRECT, ExchangeSize, Way, choose, most_requests, predict
from headgate.storage.stores.costs import COSTS

RESULT = ResultId("r")
SCHEMA = pa.schema([("v", pa.int64())])
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def spread(objects: int, subpartitions: int, slice_bytes: int, skew: float, seed: int) -> Manifest:
    """Return a manifest whose slices have `slice_bytes` on average. The larger the skew, the more
    they differ."""
    draw = np.random.default_rng(seed)
    weights = draw.lognormal(sigma=skew, size=subpartitions)
    weights /= weights.mean()
    sources = []
    for at in range(objects):
        sizes = np.maximum(1, slice_bytes * weights * draw.uniform(0.8, 1.2, subpartitions))
        sizes = sizes.astype(np.int64)
        starts = 8 + np.cumsum(sizes) - sizes
        sums = np.zeros(subpartitions, np.uint64)
        attempt = AttemptId(PartitionId(RESULT, at), 1, at)
        sources.append(Source(attempt, f"o{at}", starts, sizes, sizes, sums))
    return Manifest(job_id("job"), RESULT, 1, 0, subpartitions, tuple(sources))


def strewn(objects: int, subpartitions: int, rows: int, row_bytes: int, seed: int) -> Manifest:
    """Return a manifest with rows at random, so that most slices are empty if there are few."""
    draw, sources = np.random.default_rng(seed), []
    for at in range(objects):
        count = rows * (at + 1) // objects - rows * at // objects
        counts = np.bincount(draw.integers(subpartitions, size=count), minlength=subpartitions)
        sizes = counts.astype(np.int64) * row_bytes
        attempt = AttemptId(PartitionId(RESULT, at), 1, at)
        sums = np.zeros(subpartitions, np.uint64)
        starts = 8 + np.cumsum(sizes) - sizes
        sources.append(Source(attempt, f"o{at}", starts, counts, sizes, sums))
    return Manifest(job_id("job"), RESULT, 1, 0, subpartitions, tuple(sources))


def combined(way: Way, subpartitions: int, slice_bytes: int) -> Manifest:
    """Return a manifest of combined rows: each object has the rows of a range of neighbours."""
    sources = []
    for at in range(way.bundles * way.ranges):
        first, end = (subpartitions * (at % way.ranges + more) // way.ranges for more in (0, 1))
        sizes = np.zeros(subpartitions, np.int64)
        sizes[first:end] = slice_bytes
        attempt = AttemptId(PartitionId(RESULT, at), 1, at)
        sums = np.zeros(subpartitions, np.uint64)
        starts = 8 + np.cumsum(sizes) - sizes
        sources.append(Source(attempt, f"o{at}", starts, sizes, sizes, sums))
    return Manifest(job_id("job"), RESULT, 1, 0, subpartitions, tuple(sources))


def sent(whole: Manifest, tasks: int, limits: Limits) -> int:
    """Return the different requests of all executors that share the tasks in turn, each through
    the shards of the manifest."""
    asked: set[object] = set()
    shards = firsts(len(whole.sources), whole.count) or range(0, whole.count, whole.count)
    ends = [whole.count * at // tasks for at in range(tasks + 1)]
    for task in range(tasks):
        executor, left = task % limits.executors, range(ends[task], ends[task + 1])
        while left:
            first = left.start // shards.step * shards.step
            shard = whole.part(first, min(shards.step, whole.count - first))
            count = min(len(left), first + shard.count - left.start)
            deployment = InputGateDeployment(shard, SCHEMA, left.start, count, task)
            asked |= {(executor, p.source.name, p.window) for p in plan(deployment, limits)}
            if len(shards) > 1:
                asked.add((task % limits.readers, "shard", first))
            left = left[count:]
    return len(asked)


@given(
    objects=st.integers(1, 40),
    subpartitions=st.integers(1, 1000),
    slice_bytes=st.integers(20, 4 * MIB),
    skew=st.sampled_from([0.0, 0.1, 0.3]),
    executors=st.integers(1, 8),
    share=st.integers(1, 8),
    seed=st.integers(0, 9),
)
@example(40, 120, 3000, 0.0, 4, 1, 0)
@example(1, 24, 1_019_559, 0.0, 3, 7, 0)  # about a window for each task
@example(1, 20, 3_962_994, 0.0, 1, 1, 0)  # about half a window each
@example(200, 2000, 3000, 0.14, 2, 1, 0)
@settings(max_examples=100)
def test_requests_are_those_of_the_readers(
    objects: int,
    subpartitions: int,
    slice_bytes: int,
    skew: float,
    executors: int,
    share: int,
    seed: int,
) -> None:
    """The number of requests is known before they are sent, to a quarter. Tasks whose ranges cross
    the borders of windows may send one more for each object."""
    limits, tasks = (
        replace(Limits(), readers=2 * executors, executors=executors),
        max(1, subpartitions // share),
    )
    whole = spread(objects, subpartitions, slice_bytes, skew, seed)
    rows, stored_bytes = 1 << 40, int(whole.sizes.sum())
    size = ExchangeSize(objects, objects, subpartitions, rows, stored_bytes, tasks)
    counted, predicted = (
        sent(whole, tasks, limits),
        predict(size, DIRECT, limits, COSTS["own"]).reading.gets,
    )
    borders = objects * min(tasks, subpartitions) if share > 1 else objects * executors
    assert abs(predicted - counted) <= 0.25 * counted + borders


@given(
    objects=st.integers(1, 10),
    subpartitions=st.integers(1, 3000),
    rows=st.integers(0, 3000),
    row_bytes=st.sampled_from([8, 4 * KIB, MIB]),
    executors=st.integers(1, 64),
    seed=st.integers(0, 9),
)
@example(10, 1000, 1000, MIB, 8, 0)
@example(7, 2858, 1917, MIB, 4, 7)  # few executors have rows in a window
@settings(max_examples=50)
def test_nobody_requests_an_empty_slice(
    objects: int, subpartitions: int, rows: int, row_bytes: int, executors: int, seed: int
) -> None:
    """Readers send at most one request for each slice that has rows, however many executors read
    them."""
    limits = replace(Limits(), readers=2 * executors, executors=executors)
    whole = strewn(objects, subpartitions, rows, row_bytes, seed)
    stored_bytes = int(whole.sizes.sum())
    size = ExchangeSize(objects, objects, subpartitions, rows, stored_bytes, subpartitions)
    counted = sent(whole, subpartitions, limits)
    predicted = predict(size, DIRECT, limits, COSTS["own"]).reading.gets
    assert predicted <= rows
    chance = 3 * sqrt(rows)  # few rows are far from evenly spread
    assert abs(predicted - counted) <= 0.25 * counted + objects * executors + chance


@given(
    way=st.builds(Way, st.integers(1, 12), st.integers(1, 12)),
    subpartitions=st.integers(12, 1000),
    slice_bytes=st.integers(20, MIB),
    executors=st.integers(1, 8),
    share=st.integers(1, 4),
)
@example(Way(10, 8), 40, 2 * KIB, 1, 4)
@example(Way(1, 3), 12, 20, 3, 4)
@example(Way(9, 12), 37, 232_985, 2, 3)  # an object has about the rows of a task
@example(Way(1, 5), 45, 838_861, 1, 1)  # and here of a window
@settings(max_examples=50)
def test_combined_rows_take_the_requests_that_were_predicted(
    way: Way, subpartitions: int, slice_bytes: int, executors: int, share: int
) -> None:
    """A window that goes on beyond the end of an object takes a request of the next one, too, and
    none of equal slices does if windows and objects happen to end at the same ones."""
    limits = replace(Limits(), readers=2 * executors, executors=executors, files=True)
    tasks = max(1, subpartitions // share)
    whole = combined(way, subpartitions, slice_bytes)
    stored_bytes, partitions = int(whole.sizes.sum()), 20 * way.bundles
    size = ExchangeSize(partitions, partitions, subpartitions, 1 << 40, stored_bytes, tasks)
    counted = sent(whole, tasks, limits)
    predicted = predict(size, way, limits, COSTS["own"]).reading.gets
    borders = way.bundles * (min(tasks, subpartitions) if share > 1 else executors)
    alone = replace(limits, executors=1)
    room_bytes = group_bytes(way.bundles, subpartitions, stored_bytes, alone)
    fit = max(1, room_bytes * subpartitions // stored_bytes)
    ends = [subpartitions * at // way.ranges for at in range(1, way.ranges)]
    same = way.bundles * sum(end % fit == 0 for end in ends)
    assert -borders - 0.25 * counted <= predicted - counted <= 0.25 * counted + borders + same


@given(
    partitions=st.integers(500, 20_000),
    subpartitions=st.integers(1, 20_000),
    partition_bytes=st.integers(1, 256 * MIB),
    files=st.booleans(),
    executors=st.integers(1, 2_000),
    store=st.sampled_from(list(COSTS)),
)
@example(10_000, 10_000, 10 * MIB, False, 1_000, "own")
@example(500, 20_000, 24 * MIB, False, 2_000, "s3-express")
@example(2_869, 2_869, 23_329_775, False, 1_085, "own")  # near the limit
@example(1_234, 937, 10 * MIB, False, 1_300, "s3-express")  # directly it would be cheaper
@example(20_000, 20_000, 256 * MIB, True, 2_000, "s3-standard")
def test_requests_grow_with_the_square_root(
    partitions: int,
    subpartitions: int,
    partition_bytes: int,
    files: bool,
    executors: int,
    store: str,
) -> None:
    """A wide exchange sends at most 2 P sqrt(P) requests, P being the larger of its two numbers,
    where a direct one may send the product of both. Where tasks write no files, this holds up to
    24 MiB for each map task."""
    if not files:
        partition_bytes = min(partition_bytes, 24 * MIB)
    limits = replace(Limits(), readers=2 * executors, executors=executors, files=files)
    stored_bytes = partitions * partition_bytes
    rows = ceil(stored_bytes / 20)
    size = ExchangeSize(partitions, partitions, subpartitions, rows, stored_bytes, subpartitions)
    wide = max(partitions, subpartitions)
    assert choose(size, limits, COSTS[store]).requests <= 2 * wide * sqrt(wide)


@pytest.mark.parametrize(
    ("wide", "executors", "store", "beyond"),
    [(2_215, 6, "s3-standard", 1.0), (2_719, 1_962, "own", 1.05)],
)
def test_large_partitions_are_looked_at_closely(
    wide: int, executors: int, store: str, beyond: float
) -> None:
    """Near the limit there may be one way within it. Beyond it, the fewest requests are sent."""
    limits = replace(Limits(), readers=2 * executors, executors=executors)
    size = ExchangeSize(wide, wide, wide, wide * MIB, wide * 32 * MIB, wide)
    assert choose(size, limits, COSTS[store]).requests <= beyond * most_requests(size)


@given(
    partitions=st.integers(1, 16),
    subpartitions=st.integers(1, 200),
    stored_bytes=st.integers(0, 64 * MIB),
    executors=st.integers(1, 8),
)
def test_small_exchanges_are_read_as_they_are(
    partitions: int, subpartitions: int, stored_bytes: int, executors: int
) -> None:
    limits = replace(Limits(), readers=2 * executors, executors=executors)
    size = ExchangeSize(
        partitions, partitions, subpartitions, stored_bytes, stored_bytes, subpartitions
    )
    assert choose(size, limits, COSTS["own"]).way == DIRECT


@pytest.mark.parametrize("files", [False, True])
def test_no_rows_take_no_requests(files: bool) -> None:
    """Every way can be predicted for an exchange without rows, and reads nothing."""
    nothing = ExchangeSize(4, 0, 8, 0, 0, 1)
    for way in (DIRECT, Way(4, 2)):
        predicted = predict(nothing, way, replace(Limits(), files=files), COSTS["own"])
        assert predicted.requests == 0
