"""Manifests that are too large to travel with a task are stored as shards."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.errors import Corrupt, Lost
from headgate.control.ids import AttemptId, PartitionId, ResultId, job_id
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format import manifest_shards
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import Manifest, PlacedResult, PlacedSegment, Source
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.testing.faulty_store import (
    Effect,
    FaultPlan,
    FaultyBlobStore,
    Operation,
    PlannedFault,
)

JOB, RESULT = job_id("job"), ResultId("1-0001")
LAYOUT = Layout("root", JOB)


def manifest(sources: int, subpartitions: int) -> Manifest:
    numbers = np.random.default_rng(sources)
    made = []
    for index in range(sources):
        attempt = AttemptId(PartitionId(RESULT, index), 2, 70 + index)
        sizes = numbers.integers(0, 99, subpartitions)
        starts = 8 + np.cumsum(sizes) - sizes
        sums = numbers.integers(0, 2**63, subpartitions).astype(np.uint64)
        made.append(Source(attempt, LAYOUT.segment(attempt, 0), starts, sizes * 3, sizes, sums))
    return Manifest(JOB, RESULT, 2, 0, subpartitions, tuple(made))


def placed(whole: Manifest) -> PlacedResult:
    segments = tuple(PlacedSegment(0, source) for source in whole.sources)
    return PlacedResult.of(replace(whole, sources=()), segments)


def of(subpartition: int, segment: PlacedSegment) -> int:
    """Return the bytes of a subpartition in one object."""
    inside = subpartition - segment.first in range(len(segment.source.sizes))
    return int(segment.source.sizes[subpartition - segment.first]) if inside else 0


def same(expected: Manifest, actual: Manifest) -> None:
    assert (expected.first, expected.count) == (actual.first, actual.count)
    for left, right in zip(expected.sources, actual.sources, strict=True):
        assert (left.attempt, left.name) == (right.attempt, right.name)
        for field in ("starts", "rows", "sizes", "checksums"):
            assert getattr(left, field).tolist() == getattr(right, field).tolist()


def test_a_small_manifest_travels() -> None:
    """A manifest that fits a task's closure is not stored."""
    store, whole = MemoryBlobStore(), manifest(8, 200)
    sent = manifest_shards.store_manifest(store, LAYOUT, placed(whole), 1)
    assert isinstance(sent, Manifest)
    same(whole, sent)
    assert [] == list(store.list(""))


@pytest.mark.slow
@pytest.mark.parametrize(("sources", "subpartitions"), [(100, 500), (1000, 40), (9, 2000)])
def test_every_subpartition_finds_its_shard(sources: int, subpartitions: int) -> None:
    """A shard holds exactly the part of the manifest that its readers need."""
    store, whole = MemoryBlobStore(), manifest(sources, subpartitions)
    stored = manifest_shards.store_manifest(store, LAYOUT, placed(whole), 1)
    assert isinstance(stored, manifest_shards.StoredManifest)
    for subpartition in range(0, subpartitions, 7):
        shard = manifest_shards.load_shard(store, stored, subpartition)
        assert shard.first <= subpartition < shard.first + shard.count
        same(whole.part(shard.first, shard.count), shard)


def test_a_later_version_is_not_mixed_with_an_earlier_one() -> None:
    """A process that reads a later version of a result uses that version's shards, which are cut
    elsewhere."""
    store = MemoryBlobStore()
    with closing(
        ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", Limits())
    ) as environment:
        for version, sources in ((1, 100), (2, 101)):
            whole = manifest(sources, 500)
            stored = manifest_shards.store_manifest(store, LAYOUT, placed(whole), version)
            for subpartition in (325, 499):
                shard = environment.manifest_of(stored, subpartition, 7)
                assert shard.first <= subpartition < shard.first + shard.count
                same(whole.part(shard.first, shard.count), shard)


def test_a_release_knows_the_names() -> None:
    """The names of all shards can be derived from numbers in the log."""
    store, whole = MemoryBlobStore(), manifest(100, 500)
    manifest_shards.store_manifest(store, LAYOUT, placed(whole), 1)
    expected = sorted(stat.name for stat in store.list(""))
    assert expected == sorted(manifest_shards.names(LAYOUT, RESULT, 100, 500, 1))


def test_a_repaired_result_has_another_manifest() -> None:
    """A repaired result's manifest is stored under other names; the same manifest, under the same
    names."""
    store, before, after = MemoryBlobStore(), manifest(100, 500), manifest(101, 500)
    first = manifest_shards.store_manifest(store, LAYOUT, placed(before), 1)
    assert first == manifest_shards.store_manifest(store, LAYOUT, placed(before), 1)
    second = manifest_shards.store_manifest(store, LAYOUT, placed(after), 2)
    assert isinstance(first, manifest_shards.StoredManifest)
    assert isinstance(second, manifest_shards.StoredManifest)
    same(after.part(0, second.width), manifest_shards.load_shard(store, second, 0))
    same(before.part(0, first.width), manifest_shards.load_shard(store, first, 0))


def test_a_damaged_shard_is_found() -> None:
    """A damaged shard is `Corrupt`, and the error names it."""
    store, whole = MemoryBlobStore(), manifest(100, 500)
    stored = manifest_shards.store_manifest(store, LAYOUT, placed(whole), 1)
    assert isinstance(stored, manifest_shards.StoredManifest)
    body = bytearray(store.get(stored.names[0]))
    body[100] ^= 1
    store.delete([stored.names[0]])
    store.put(stored.names[0], body, "damaged")
    with pytest.raises(Corrupt, match=stored.names[0]):
        manifest_shards.load_shard(store, stored, 0)


@pytest.mark.parametrize("effect", [Effect.FLIP, Effect.TRUNCATE, Effect.FAIL])
def test_a_shard_that_is_damaged_on_its_way_is_read_again(effect: Effect) -> None:
    """One wrong answer fails no task, whether its bytes are wrong or it says that there is no
    object."""
    whole, objects = manifest(100, 500), MemoryBlobStore()
    stored = manifest_shards.store_manifest(objects, LAYOUT, placed(whole), 1)
    assert isinstance(stored, manifest_shards.StoredManifest)
    fault = PlannedFault(Operation.GET, 1, effect, Lost("404"))
    store = FaultyBlobStore(objects, FaultPlan((fault,)))
    shard = manifest_shards.load_shard(store, stored, 0)
    same(whole.part(shard.first, shard.count), shard)


def test_a_rebalance_of_many_partitions_knows_all_of_its_subpartitions() -> None:
    """A rebalance cuts each of them, not only the few that are much larger than the others."""
    whole = manifest(1, 200)
    result = PlacedResult.of(replace(whole, sources=()), (PlacedSegment(0, whole.sources[0]),))
    assert 200 == len(result.largest(10_000))


@given(
    subpartitions=st.integers(1, 60),
    reaches=st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)), max_size=8),
    borders=st.lists(st.integers(0, 60), max_size=5),
)
def test_objects_of_a_few_subpartitions_are_found_by_their_readers(
    subpartitions: int, reaches: list[tuple[int, int]], borders: list[int]
) -> None:
    """Each part of a result has the objects with rows of it, where they are in the object."""
    whole = manifest(len(reaches), subpartitions)
    segments = []
    for source, (first, count) in zip(whole.sources, reaches, strict=True):
        reach = slice(min(first, subpartitions - 1), first + count)
        trimmed = replace(
            source,
            starts=source.starts[reach],
            rows=source.rows[reach],
            sizes=source.sizes[reach],
            checksums=source.checksums[reach],
        )
        segments.append(PlacedSegment(reach.start, trimmed))
    result = PlacedResult.of(replace(whole, sources=()), tuple(segments))
    rows, sizes = result.totals()
    for at, by_partition in result.largest(len(segments)).items():
        assert [of(at, each) for each in segments] == by_partition.tolist()
    assert list(range(subpartitions)) == list(result.largest(len(segments)))
    (largest,) = result.largest(1 << 21)  # so many partitions leave room for one
    assert sizes.max() == sizes[largest]
    assert len(PlacedResult.of(replace(whole, sources=()), ()).largest(0)) == subpartitions
    cuts = sorted({0, subpartitions, *(min(border, subpartitions) for border in borders)})
    for first, last in pairwise(cuts):
        part = result.part(first, last - first)
        assert part.rows.tolist() == rows[first:last].tolist()
        assert part.sizes.tolist() == sizes[first:last].tolist()
        for source in part.sources:
            (original,) = (each for each in whole.sources if each.name == source.name)
            filled = np.flatnonzero(source.sizes)
            assert source.starts[filled].tolist() == original.starts[first + filled].tolist()
            assert source.checksums[filled].tolist() == original.checksums[first + filled].tolist()
            last_byte = source.range_of(0, last - first).end
            assert last_byte == (source.starts + source.sizes).max()
