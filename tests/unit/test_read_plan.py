"""The requests of a reader to the store: neighbours in one request, and requests made ahead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.ids import AttemptId, PartitionId, ResultId, job_id
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.manifest import Manifest, Source
from headgate.storage.limits import Limits
from headgate.storage.reading.range_cache import RangeCache
from headgate.storage.reading.read_plan import bounded_ranges, group_bytes, plan, read_on
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.port import ByteRange

RESULT = ResultId("r")
MIB = 1 << 20


def manifest(subpartitions: int, slice_bytes: int, objects: int = 2) -> Manifest:
    sources = []
    for index in range(objects):
        attempt = AttemptId(PartitionId(RESULT, index), 1, index)
        sizes = np.full(subpartitions, slice_bytes)
        starts = 8 + np.cumsum(sizes) - sizes
        sums = np.zeros(subpartitions, np.uint64)
        sources.append(Source(attempt, f"object-{index}", starts, sizes, sizes, sums))
    return Manifest(job_id("job"), RESULT, 1, 0, subpartitions, tuple(sources))


def skewed(subpartitions: int, heavy: range, factor: int, objects: int) -> Manifest:
    """Make a manifest whose slices have a kilobyte, except for some heavy subpartitions."""
    whole = manifest(subpartitions, 1_000, objects)
    sizes = np.full(subpartitions, 1_000)
    sizes[heavy] *= factor
    starts = 8 + np.cumsum(sizes) - sizes
    return replace(
        whole,
        sources=tuple(replace(source, starts=starts, sizes=sizes) for source in whole.sources),
    )


def asked_for(whole: Manifest, limits: Limits) -> list[int]:
    """Return the bytes of each request of a process that reads all subpartitions one after the
    other."""
    asked: list[int] = []

    class Store(MemoryBlobStore):
        def get(self, name: str, span: ByteRange | None = None) -> memoryview:
            assert span is not None
            asked.append(span.length)
            return memoryview(b"")

    with ThreadPoolExecutor(1) as fetchers:
        cache = RangeCache(Store(), limits.cache_bytes, fetchers)
        for at in range(whole.count):
            gate = deployment(whole, at)
            for piece in chain(plan(gate, limits), read_on(gate, limits)):
                cache.fetch(piece.source.name, piece.window).result()
    return asked


def group_of(whole: Manifest, limits: Limits) -> int:
    """Return the number of subpartitions in the first group."""
    bytes_max = group_bytes(len(whole.sources), limits)
    return len(next(bounded_ranges(np.cumsum(whole.sizes), range(whole.count), bytes_max)))


def deployment(
    whole: Manifest, first: int, count: int = 1, executors: int = 1
) -> InputGateDeployment:
    return InputGateDeployment(whole, pa.schema([]), first, count, 1, executors=executors)


@pytest.mark.parametrize(
    ("executors", "slice_bytes", "joins"),
    [
        (1, 900_000, True),
        (2, 900_000, True),
        (3, 900_000, False),
        (100, 100_000, False),
        (100, 10_000, True),
    ],
)
def test_neighbours_come_along_where_they_are_wanted(
    executors: int, slice_bytes: int, joins: bool
) -> None:
    """A neighbour is read along only while that costs less than the requests that it saves; many
    parallel readers make it cost more."""
    gate = deployment(manifest(1_000, slice_bytes), 0, executors=executors)
    assert {joins} == {piece.shared for piece in plan(gate, Limits())}


def test_small_neighbours_of_large_ones_come_along() -> None:
    """One hot subpartition does not keep the readers of small ones from sharing their requests."""
    whole = skewed(1_000, range(500, 501), 1_000_000, objects=8)
    for at in (0, 700):
        assert all(piece.shared for piece in plan(deployment(whole, at, executors=8), Limits()))
    hot = deployment(whole, 500, executors=8)
    assert not any(piece.shared for piece in plan(hot, Limits()))


def test_an_object_with_most_rows_is_cut_into_fewer_neighbours() -> None:
    """If one object has far more rows than the others, its windows are narrower, and still serve
    many readers."""
    whole = manifest(400, 1_000, objects=8)
    sizes = np.full(400, 100_000)
    large = replace(whole.sources[0], starts=8 + np.cumsum(sizes) - sizes, sizes=sizes)
    asked = asked_for(replace(whole, sources=(large, *whole.sources[1:])), Limits())
    assert sum(asked) == 400 * 107_000
    assert len(asked) < 30


def test_a_group_fits_half_the_cache() -> None:
    """The cache has room for the group that is read and for the group that is asked for ahead."""
    whole = manifest(1_000, 100_000, objects=64)
    limits = Limits()
    group = group_of(whole, limits)
    assert 1 < group
    assert 2 * group * 64 * 100_000 <= limits.cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "requests"),
    [
        (skewed(1_000, range(80), 20, 64), 1_000),
        (skewed(200, range(20), 100, 300), 20_000),
    ],
    ids=["few", "many"],
)
def test_heavy_neighbours_are_read_once(whole: Manifest, requests: int) -> None:
    """A group that is heavier than average fits the cache too: no byte is read twice, and most
    requests still serve several readers."""
    stored = sum(int(source.sizes.sum()) for source in whole.sources)
    asked = asked_for(whole, Limits())
    assert stored == sum(asked)
    assert len(asked) < requests < whole.count * len(whole.sources)


def test_every_reader_of_a_group_asks_for_the_same_windows() -> None:
    """Windows do not overlap, so that one request serves all readers of a group."""
    whole = manifest(40, 200_000)
    windows = {
        (piece.source.name, piece.window)
        for first in range(40)
        for piece in plan(deployment(whole, first), Limits())
    }
    assert sum(window.length for _, window in windows) == 2 * 40 * 200_000


def test_the_next_group_is_asked_for_near_the_end_of_one() -> None:
    """Readers in the later half of a group ask for the next group's windows; earlier readers, and
    readers at the end of the result, ask for nothing ahead."""
    whole, limits = manifest(40, 200_000), Limits(join_bytes=2 * MIB)
    group = group_of(whole, limits)
    assert 10 == group
    assert [] == list(read_on(deployment(whole, 0), limits))
    assert [] == list(read_on(deployment(whole, 39), limits))
    for last in (5, 9):
        ahead = {(p.source.name, p.window) for p in read_on(deployment(whole, last), limits)}
        own = {(p.source.name, p.window) for p in plan(deployment(whole, group), limits)}
        assert own == ahead


def test_nothing_is_asked_ahead_without_neighbours() -> None:
    """Large slices are read alone, and never ahead."""
    whole = manifest(40, 5 * MIB)
    assert 1 == group_of(whole, Limits())
    assert [] == list(read_on(deployment(whole, 20), Limits()))


def test_what_is_large_by_itself_waits_for_its_reader() -> None:
    """A subpartition that is too large for a group is not asked for ahead."""
    whole, limits, group = manifest(40, 200_000), Limits(join_bytes=2 * MIB), 8
    sizes = np.full(40, 150_000)
    sizes[group] = 5 * MIB
    hot = replace(whole.sources[0], starts=8 + np.cumsum(sizes) - sizes, sizes=sizes)
    mixed = replace(whole, sources=(hot, whole.sources[1]))
    assert group == group_of(mixed, limits)
    assert [] == list(read_on(deployment(mixed, group - 1), limits))


@pytest.mark.slow
def test_uneven_subpartitions_fill_their_groups() -> None:
    """Groups that exceed the limit by little are not halved: a process sends few more requests
    than the bytes need."""
    whole, draw = manifest(800, 3_000, objects=100), np.random.default_rng(1)
    sizes = draw.integers(1_500, 4_500, 800)
    starts = 8 + np.cumsum(sizes) - sizes
    uneven = tuple(replace(source, starts=starts, sizes=sizes) for source in whole.sources)
    limits = Limits()
    groups = 100 * int(sizes.sum()) / (limits.cache_bytes // 2)
    assert len(asked_for(replace(whole, sources=uneven), limits)) < 100 * (groups + 1)


def test_two_groups_of_many_objects_fit_the_cache() -> None:
    """A cached range takes room besides its bytes, which counts: the group that is read is not
    dropped for the next one."""
    whole = manifest(200, 3_000, objects=100)
    limits = Limits(cache_bytes=2 * 20 * 100 * 3_000)
    assert len(asked_for(whole, limits)) <= 100 * (200 // 19 + 1)


def test_a_reader_of_whole_groups_reads_no_neighbours() -> None:
    """Its windows begin and end with the subpartitions that it wants."""
    whole = manifest(100, 200_000)
    gate = deployment(whole, 7, 50, executors=2)
    windows = {(p.source.name, p.window) for p in plan(gate, Limits())}
    assert sum(window.length for _, window in windows) == 2 * 50 * 200_000
    assert [] == list(read_on(gate, Limits()))


def test_windows_leave_room_for_all_requests() -> None:
    """Windows are small enough that all parallel requests fit the limit of fetched bytes."""
    limits = Limits(fetch_bytes=4 * MIB, fetch_parallel=16)
    windows = [piece.window for piece in plan(deployment(manifest(1_000, 1_000), 0), limits)]
    assert windows
    assert 16 * max(window.length for window in windows) <= limits.fetch_bytes
