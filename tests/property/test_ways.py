"""The ways to carry an exchange: their requests are those that readers send, and stay bounded."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.connectors.spark.exchanges.combining import exchange_size, parts_over
from headgate.connectors.spark.tasks.combine_task import share as share_of
from headgate.connectors.spark.tasks.combine_task import share_reader
from headgate.control.ids import AttemptId, PartitionId, ResultId, job_id
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.manifest import Manifest, Source
from headgate.storage.format.manifest_shards import firsts
from headgate.storage.format.segment import Longs, SegmentIndex, beyond_events, inline_bytes
from headgate.storage.limits import Limits
from headgate.storage.reading.read_plan import plan
from headgate.storage.reading.slices import Slices
from headgate.storage.reading.ways import (
    DIRECT,
    ExchangeSize,
    Readers,
    Way,
    choose,
    most_requests,
    predict,
    puts,
    shares_of,
)
from headgate.storage.stores.costs import COSTS

from ..doubles.segments import Part, exchange

RESULT = ResultId("r")
SCHEMA = pa.schema([("v", pa.int64())])
KIB, MIB = 1 << 10, 1 << 20
Weights: TypeAlias = Callable[[np.random.Generator, int, int], np.ndarray]


def hot(share: float, keys: int = 1) -> Weights:
    """Return weights by which some subpartitions have such a share of all bytes."""

    def weights(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
        few = draw.choice(subpartitions, min(keys, subpartitions), replace=False)
        each = np.full(subpartitions, (1 - share) / subpartitions)
        each[few] += share / len(few)
        return each * np.ones((objects, 1))

    return weights


def zipf(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    each = 1 / np.arange(1, subpartitions + 1)
    return draw.permutation(each) * np.ones((objects, 1))


def even(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    return draw.uniform(0.8, 1.2, (objects, subpartitions))


def uneven(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    return even(draw, objects, subpartitions) * draw.lognormal(sigma=1.0, size=subpartitions)


def few(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    """Return weights of rows so few that most slices have none."""
    weights = draw.random((objects, subpartitions)) < min(1.0, 3 / subpartitions)
    weights[:, draw.integers(subpartitions)] = True
    return weights


def one_each(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    """Return weights of one row of each object, as partial aggregates have."""
    return np.eye(subpartitions)[draw.integers(subpartitions, size=objects)]


def ordered(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    """Return weights by which an object has rows of neighbours, as of sorted input."""
    place = (np.arange(objects)[:, None] + 0.5) / objects * subpartitions
    near = np.abs(np.arange(subpartitions) - place) <= max(1, subpartitions / objects)
    return near * draw.uniform(0.8, 1.2, near.shape)


def one_object(draw: np.random.Generator, objects: int, subpartitions: int) -> np.ndarray:
    """Return weights by which one object has nearly all rows."""
    weights = even(draw, objects, subpartitions)
    weights[draw.integers(objects)] *= 20
    return weights


SPREADS = {
    "even": even,
    "uneven": uneven,
    "hot 30": hot(0.3),
    "hot 60": hot(0.6, 3),
    "hot 99": hot(0.99),
    "zipf": zipf,
    "few": few,
    "one each": one_each,
    "ordered": ordered,
    "one object": one_object,
}


def spread(kind: str, objects: int, subpartitions: int, slice_bytes: int, seed: int) -> Longs:
    """Return the bytes of the subpartitions in each object, `slice_bytes` on average."""
    weights = SPREADS[kind](np.random.default_rng(seed), objects, subpartitions)
    sizes = weights / weights.mean() * slice_bytes
    return np.where(weights > 0, np.maximum(1, sizes), 0).astype(np.int64)


def manifest(sizes: Longs) -> Manifest:
    """Return the manifest of objects that have rows of such sizes."""
    sources = []
    for at, object_sizes in enumerate(sizes):
        attempt = AttemptId(PartitionId(RESULT, at), 1, at)
        starts = 8 + np.cumsum(object_sizes) - object_sizes
        sums = np.zeros(len(object_sizes), np.uint64)
        sources.append(Source(attempt, f"o{at}", starts, object_sizes, object_sizes, sums))
    return Manifest(job_id("job"), RESULT, 1, 0, sizes.shape[1], tuple(sources))


def size_of(sizes: Longs, readers: Readers) -> ExchangeSize:
    """Return the size of an exchange, as the driver knows it from the indexes of its objects."""
    known = Slices.of(((each, each) for each in sizes), sizes.shape[1])
    return ExchangeSize(len(sizes), len(sizes), 0, int(sizes.sum()), known, readers)


def even_size(
    partitions: int, subpartitions: int, rows: int, stored_bytes: int, executors: int
) -> ExchangeSize:
    readers = Readers(np.arange(subpartitions), 2 * executors, executors)
    known = Slices.even(partitions, subpartitions, rows, stored_bytes)
    return ExchangeSize(partitions, partitions, 0, stored_bytes, known, readers)


def sharing(subpartitions: int, share: int, executors: int) -> Readers:
    """Return tasks that read so many neighbours each."""
    return Readers(np.arange(0, subpartitions, share), 2 * executors, executors)


def sent(whole: Manifest, readers: Readers, limits: Limits) -> int:
    """Return the different requests of all executors that share the tasks in turn, each through
    the shards of the manifest."""
    asked: set[object] = set()
    shards = firsts(len(whole.sources), whole.count) or range(0, whole.count, whole.count)
    begins = readers.firsts.tolist()
    for task, (first, end) in enumerate(zip(begins, [*begins[1:], whole.count], strict=True)):
        executor, left = task % readers.executors, range(first, end)
        while left:
            first = left.start // shards.step * shards.step
            shard = near(whole, first, min(shards.step, whole.count - first))
            count = min(len(left), first + shard.count - left.start)
            deployment = InputGateDeployment(
                shard, SCHEMA, left.start, count, task, executors=readers.executors
            )
            asked |= {(executor, p.source.name, p.window) for p in plan(deployment, limits)}
            if len(shards) > 1:
                asked.add((task % readers.slots, "shard", first))
            left = left[count:]
    return len(asked)


def near(whole: Manifest, first: int, count: int) -> Manifest:
    """Return a shard of a manifest. It has only the objects with rows near it."""
    part = whole.part(first, count)
    kept = zip(whole.sources, part.sources, strict=True)
    return Manifest(
        part.job,
        part.result,
        1,
        first,
        count,
        tuple(p for s, p in kept if reaches(s, first, count)),
    )


def reaches(source: Source, first: int, count: int) -> bool:
    filled = np.flatnonzero(source.sizes)
    return len(filled) > 0 and filled[0] < first + count and filled[-1] >= first


@given(
    kind=st.sampled_from(list(SPREADS)),
    objects=st.integers(1, 40),
    subpartitions=st.integers(1, 400),
    slice_bytes=st.integers(20, 4 * MIB),
    executors=st.integers(1, 8),
    share=st.integers(1, 8),
    seed=st.integers(0, 9),
)
@settings(max_examples=80)
def test_requests_are_those_of_the_readers(
    kind: str,
    objects: int,
    subpartitions: int,
    slice_bytes: int,
    executors: int,
    share: int,
    seed: int,
) -> None:
    """The number of requests is known before they are sent, to a quarter, however the rows are
    spread. Tasks whose ranges cross the borders of windows may send one more for each object."""
    limits, readers = Limits(), sharing(subpartitions, share, executors)
    sizes = spread(kind, objects, subpartitions, slice_bytes, seed)
    counted = sent(manifest(sizes), readers, limits)
    predicted = predict(size_of(sizes, readers), DIRECT, limits, COSTS["own"]).reading.gets
    assert predicted <= np.count_nonzero(sizes)  # nobody requests an empty slice
    borders = objects if share > 1 else 0
    assert abs(predicted - counted) <= 0.25 * counted + 2 * executors + borders


def combined(sizes: Longs, way: Way, limits: Limits) -> Longs:
    """Return the bytes of the subpartitions in each combined object."""
    first, tasks = shares_of(sizes.sum(axis=0), len(sizes), way, limits)
    by_partition = np.add.reduceat(sizes, first, axis=1).T
    objects = []
    for part in parts_over(first, tasks, by_partition, sizes.shape[1]):
        assert part.partitions is not None
        rows = np.zeros(sizes.shape[1], np.int64)
        reach = slice(part.subpartitions.start, part.subpartitions.stop)
        rows[reach] = sizes[part.partitions.start : part.partitions.stop, reach].sum(axis=0)
        objects.append(rows)
    return np.array([rows for rows in objects if rows.any()])


@given(
    kind=st.sampled_from([kind for kind in SPREADS if kind != "one object"]),
    way=st.builds(Way, st.integers(1, 12), st.integers(1, 12)),
    objects=st.integers(12, 60),
    subpartitions=st.integers(12, 400),
    slice_bytes=st.integers(20, MIB),
    executors=st.integers(1, 8),
    share=st.integers(1, 4),
)
@settings(max_examples=40)
def test_combined_rows_take_the_requests_that_were_predicted(
    kind: str,
    way: Way,
    objects: int,
    subpartitions: int,
    slice_bytes: int,
    executors: int,
    share: int,
) -> None:
    """Tasks that combine store as many objects as was predicted, and these take as many requests of
    their readers, also if objects have few rows, or rows of neighbours."""
    limits, readers = Limits(files=True), sharing(subpartitions, share, executors)
    sizes = spread(kind, objects, subpartitions, slice_bytes, 0)
    stored = combined(sizes, way, limits)
    counted = sent(manifest(stored), readers, limits)
    prediction = predict(size_of(sizes, readers), way, limits, COSTS["own"])
    borders = way.bundles * (min(readers.tasks, subpartitions) if share > 1 else executors)
    assert abs(prediction.reading.gets - counted) <= 0.25 * counted + borders
    expected = puts(len(stored), int(stored.sum()))
    assert abs(prediction.combining.puts - expected) <= 0.25 * expected + way.bundles


@pytest.mark.slow
@pytest.mark.parametrize("fetch_bytes", [10_000, 60_000])
@pytest.mark.parametrize("hot", [0.3, 0.99])
@pytest.mark.parametrize(("merges", "empty"), [(True, 0), (True, 2), (False, 0)])
def test_partitions_of_many_bytes_are_combined_as_predicted(
    merges: bool, empty: int, hot: float, fetch_bytes: int
) -> None:
    """A task reads a partition in as many parts as it has to, whatever its objects have: what is
    hot has some of its own. Beside each partition there may be some without rows."""
    draw = np.random.default_rng(1)
    nothing = Part(pa.RecordBatch.from_pylist([], SCHEMA), np.zeros(0, np.int64), ())
    made = list[Part]()
    for _ in range(12):
        rows = pa.record_batch([draw.integers(0, 1 << 60, 20_000)], schema=SCHEMA)
        targets = np.where(draw.random(20_000) < hot, 7, draw.integers(0, 40, 20_000))
        made += [Part(rows, targets, tuple(range(0, 20_000, 5_000))), *[nothing] * empty]
    way = Way(2, 2)
    limits = Limits(segment_bytes=40_000, fetch_bytes=fetch_bytes, files=merges)
    with exchange(SCHEMA, made, 40, "none", limits) as written:
        sizes = written.manifest().sizes
        first, tasks = shares_of(sizes, len(made), way, limits)
        by_partition = np.tile([1, *[0] * empty], (len(first), 12))
        parts = parts_over(first, tasks, by_partition, 40)
        before = written.store.requests.gets
        for part in parts:
            wanted, bytes_max = share_of(part, written.state), fetch_bytes if merges else None
            reader = share_reader(
                written.environment, written.descriptor, wanted, SCHEMA, 7, bytes_max
            )
            for group in reader.groups(1 << 20):
                list(group)
        counted = written.store.requests.gets - before
        size = exchange_size(written.state, lambda sizes: Readers(np.arange(len(sizes))))
        predicted = predict(size, way, limits, COSTS["own"]).combining.gets
        assert abs(predicted - counted) <= 0.25 * counted


@pytest.mark.parametrize("kind", ["even", "uneven", "hot 60", "zipf"])
def test_objects_without_an_index_are_like_the_others(kind: str) -> None:
    """The log has the indexes of the first objects of a wide exchange. The rest is predicted by
    them."""
    limits, readers = Limits(), sharing(200, 1, 2)
    sizes = spread(kind, 40, 200, 30 * KIB, 0)
    some = Slices.of(((each, each) for each in sizes[:10]), 200)
    known = some.extended(40, int(sizes.sum()))
    size = ExchangeSize(40, 40, 30, int(sizes.sum()), known, readers)
    counted = sent(manifest(sizes), readers, limits)
    predicted = predict(size, DIRECT, limits, COSTS["own"]).reading.gets
    assert abs(predicted - counted) <= 0.25 * counted


def test_the_driver_reads_the_indexes_that_no_event_has() -> None:
    """The driver sends one request for each of them, whoever reads the rows."""
    sizes = spread("even", 40, 200, 30 * KIB, 0)
    size = size_of(sizes, sharing(200, 1, 2))
    costs = Limits(), COSTS["s3-standard"]
    known, unknown = (predict(replace(size, unindexed=n), DIRECT, *costs) for n in (0, 30))
    assert (known.requests + 30, known.reading) == (unknown.requests, unknown.reading)
    assert known.usd < unknown.usd


@pytest.mark.parametrize(("filled", "objects"), [(500, 20_000), (6_000, 300), (12_000, 10)])
def test_indexes_fill_the_events(filled: int, objects: int) -> None:
    """The number of indexes for which events have no room is known before they are made."""
    draw, count = np.random.default_rng(0), 20_000
    rows = np.zeros(count, np.int64)
    rows[draw.permutation(count)[:filled]] = draw.integers(1, 9, filled)
    sums = np.where(rows, draw.integers(1 << 63, size=count), 0).astype(np.uint64)
    packed = len(SegmentIndex(8, rows, rows * 320, sums).packed())
    beyond = sum(packed > inline_bytes(at) for at in range(objects))
    assert abs(beyond_events(objects, filled) - beyond) <= 0.2 * objects
    assert bool(beyond_events(objects, filled)) == bool(beyond)


@given(
    kind=st.sampled_from(list(SPREADS)),
    way=st.builds(Way, st.integers(1, 12), st.integers(1, 12)),
    objects=st.integers(1, 60),
    subpartitions=st.integers(1, 400),
    slice_bytes=st.integers(20, MIB),
    files=st.booleans(),
)
@example(kind="one object", way=Way(5, 6), objects=5, subpartitions=1, slice_bytes=40, files=False)
@settings(max_examples=50)
def test_no_task_copies_more_than_its_share(
    kind: str, way: Way, objects: int, subpartitions: int, slice_bytes: int, files: bool
) -> None:
    """If one key has most rows, more tasks copy them, and each about as much as other tasks do.
    A single object and a single subpartition are not cut."""
    sizes, limits = spread(kind, objects, subpartitions, slice_bytes, 0), Limits(files=files)
    first, tasks = shares_of(sizes.sum(axis=0), objects, way, limits)
    parts = parts_over(first, tasks, np.add.reduceat(sizes, first, axis=1).T, subpartitions)
    fair_bytes = sizes.sum() / min(way.bundles, objects) / way.ranges
    copied = np.zeros_like(sizes)
    for part in parts:
        assert part.partitions is not None
        reach = slice(part.subpartitions.start, part.subpartitions.stop)
        mine = sizes[part.partitions.start : part.partitions.stop, reach]
        least_bytes = sizes[:, reach].sum() / objects  # there are no more tasks than objects
        copied[part.partitions.start : part.partitions.stop, reach] += 1
        largest = mine.sum(axis=1).max(initial=0)
        assert mine.sum() <= 2.5 * max(fair_bytes, least_bytes) + largest
    assert (copied == 1).all()


def test_a_hot_subpartition_keeps_its_pieces() -> None:
    """Adaptive execution cuts a hot subpartition of combined rows into as many pieces as before:
    the rows of a piece have about the bytes of a segment."""
    sizes = spread("hot 99", 200, 2_000, 50 * KIB, 0)
    limits = Limits(files=True)
    for way in (Way(1, 20), Way(2, 40)):
        stored = combined(sizes, way, limits)
        (at,) = np.flatnonzero(stored.sum(axis=0) > stored.sum() / 2)
        pieces = stored[:, at][stored[:, at] > 0]
        assert len(pieces) >= min(200, sizes[:, at].sum() // limits.segment_bytes)
        assert pieces.max() <= 1.5 * limits.segment_bytes + sizes[:, at].max()


@pytest.mark.slow
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
@settings(max_examples=25)
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
    stored_bytes = partitions * partition_bytes
    rows = ceil(stored_bytes / 20)
    size = even_size(partitions, subpartitions, rows, stored_bytes, executors)
    wide = max(partitions, subpartitions)
    assert choose(size, Limits(files=files), COSTS[store]).requests <= 2 * wide * sqrt(wide)


@pytest.mark.parametrize(
    ("wide", "executors", "store", "beyond"),
    [(2_215, 6, "s3-standard", 1.0), (2_719, 1_962, "own", 1.05)],
)
def test_large_partitions_are_looked_at_closely(
    wide: int, executors: int, store: str, beyond: float
) -> None:
    """Near the limit there may be one way within it. Beyond it, the fewest requests are sent."""
    size = even_size(wide, wide, wide * MIB, wide * 32 * MIB, executors)
    assert choose(size, Limits(), COSTS[store]).requests <= beyond * most_requests(size)


def test_a_wide_exchange_is_looked_at_quickly() -> None:
    """Also where no way is within the limit, the driver predicts few ways, each in a moment."""
    wide = 10_000
    size = even_size(wide, wide, wide * 100_000, wide * (5 << 30), 50)
    before_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert choose(size, Limits(files=True), COSTS["s3-standard"]).requests > most_requests(size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before_s < 2.5


@given(
    partitions=st.integers(1, 16),
    subpartitions=st.integers(1, 200),
    stored_bytes=st.integers(0, 64 * MIB),
    executors=st.integers(1, 8),
)
def test_small_exchanges_are_read_as_they_are(
    partitions: int, subpartitions: int, stored_bytes: int, executors: int
) -> None:
    size = even_size(partitions, subpartitions, stored_bytes, stored_bytes, executors)
    assert choose(size, Limits(), COSTS["own"]).way == DIRECT


@pytest.mark.parametrize("files", [False, True])
def test_no_rows_take_no_requests(files: bool) -> None:
    """Every way can be predicted for an exchange without rows, and reads nothing."""
    nothing = ExchangeSize(4, 0, 0, 0, Slices.of((), 8), Readers(np.arange(8)))
    for way in (DIRECT, Way(4, 2)):
        assert predict(nothing, way, Limits(files=files), COSTS["own"]).requests == 0


@pytest.mark.parametrize(("subpartitions", "stored_bytes"), [(7, 20), (100_000, 200 << 40)])
def test_even_sizes_are_those_of_all_bytes(subpartitions: int, stored_bytes: int) -> None:
    sizes = Slices.even(1_000, subpartitions, stored_bytes, stored_bytes).sizes
    assert (stored_bytes, 1) == (int(sizes.sum()), int(np.ptp(sizes)))
