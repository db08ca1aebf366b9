"""Partitions that are larger than a task may hold: their rows wait in files and become few
objects."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import Corrupt
from headgate.storage.format import segment
from headgate.storage.format.batches import BATCH_BYTES
from headgate.storage.format.segment import ARROW, PACKED, Longs, SegmentIndex
from headgate.storage.limits import Limits
from headgate.storage.stores.conditional_put import PutAnswer
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.request_meter import RequestMeter
from headgate.storage.stores.retries import Retrier, RetrySettings
from headgate.storage.stores.s3.multipart import MultipartUploads
from headgate.storage.stores.s3.settings import MultipartSettings
from headgate.storage.writing import merging, spill

from ..doubles.full_folders import fill_up
from ..doubles.segments import LAYOUT, Part, Written, attempt_of, exchange, packed_from

SCHEMA = pa.schema([pa.field("n", pa.int64())])
LIMITS = Limits(segment_bytes=1 << 20, files=True)
MANY = 1_000_000  # rows of 8 MB


def numbers(rows: int) -> pa.RecordBatch:
    """Return rows that no codec makes much smaller."""
    values = np.random.default_rng(1).integers(0, 1 << 62, rows)
    return pa.record_batch([pa.array(values)], schema=SCHEMA)


def part(targets: Longs) -> Part:
    return Part(numbers(len(targets)), targets, tuple(range(0, len(targets), 10_000)))


def check(written: Written, targets: Longs, subpartition: int) -> None:
    """Check the rows of a subpartition and their order."""
    rows = numbers(len(targets))["n"].filter(pa.array(targets == subpartition))
    assert rows.equals(written.read(subpartition, 1)["n"].combine_chunks())


def test_a_map_task_of_any_size_stores_one_object() -> None:
    """The rows of many segments are in one object, each subpartition in one slice. The object is an
    Arrow file in which every message is found."""
    targets = np.arange(MANY) % 70
    with exchange(SCHEMA, [part(targets)], 70, "lz4", LIMITS) as written:
        (summary,) = written.state.produced(0).segments
        assert summary.size_bytes > 7 * LIMITS.segment_bytes
        check(written, targets, 3)
        file = ipc.open_file(written.store.get(LAYOUT.segment(attempt_of(0), 0)))
        order = np.argsort(targets, kind="stable")
        assert (
            file.read_all()["n"].combine_chunks().equals(numbers(MANY)["n"].take(pa.array(order)))
        )


def test_few_segments_wait_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that take less than a segment when they are stored need no file."""
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    rows = pa.record_batch([pa.array(np.arange(MANY) // 1_000)], schema=SCHEMA)
    given = Part(rows, np.arange(MANY) % 70, tuple(range(0, MANY, 10_000)))
    with exchange(SCHEMA, [given], 70, "lz4", LIMITS) as written:
        (segment,) = written.state.produced(0).segments
        assert rows.nbytes > 5 * LIMITS.segment_bytes > 5 * segment.size_bytes
        read = written.read(0, 70)["n"].combine_chunks()
        assert read.equals(rows["n"].take(pa.array(np.argsort(given.targets, kind="stable"))))


def test_without_files_it_stores_a_segment_at_a_time() -> None:
    targets = np.arange(MANY) % 70
    limits = replace(LIMITS, files=False)
    with exchange(SCHEMA, [part(targets)], 70, "lz4", limits) as written:
        assert 7 <= len(written.state.produced(0).segments) <= 9


def test_a_slice_is_not_larger_than_a_segment() -> None:
    """The rows of a hot subpartition go to as many objects as slices of that size need, and all
    other rows are in one object."""
    targets = np.where(np.arange(MANY) % 2 == 0, 3, np.arange(MANY) // 2 % 70)
    with exchange(SCHEMA, [part(targets)], 70, "none", LIMITS) as written:
        sources = written.manifest().sources
        assert 4 <= len(sources) <= 9
        assert [70] + [1] * (len(sources) - 1) == [np.count_nonzero(s.sizes) for s in sources]
        largest = max(int(source.sizes.max()) for source in sources)
        assert LIMITS.segment_bytes // 2 < largest <= LIMITS.segment_bytes
        check(written, targets, 3)
        check(written, targets, 5)


def test_objects_are_merged_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is merged in memory while another one, which is there too, is being put."""
    put, merge, being_put, merges = (
        MemoryBlobStore.put,
        merging.merge,
        list[str](),
        list[list[str]](),
    )

    def slow_put(store: MemoryBlobStore, name: str, *given: Any) -> None:
        being_put.append(name)
        SYSTEM_CLOCK.sleep_s(0.2)
        put(store, name, *given)
        being_put.remove(name)

    def watched(*given: Any) -> SegmentIndex:
        merges.append(list(being_put))
        return merge(*given)

    monkeypatch.setattr(MemoryBlobStore, "put", slow_put)
    monkeypatch.setattr(spill, "merge", watched)
    monkeypatch.setattr(spill, "SLICES_MAX", 3 * 70)
    with exchange(SCHEMA, [part(np.arange(MANY) % 70)], 70, "lz4", LIMITS) as written:
        assert len(written.state.produced(0).segments) == 3
    assert merges == [[], [], []]


def test_further_objects_cost_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot rows are merged from the segments that they are in, after the object before it has left
    the memory: neither time nor memory grows with the number of objects."""
    merge, rooms = merging.merge, list[weakref.ref[Any]]()
    of_each, in_memory = list[int](), list[int]()

    def watched(file: Any, segments: Any, *given: Any) -> SegmentIndex:
        of_each.append(len(segments))
        in_memory.append(sum(room() is not None for room in rooms))
        rooms.append(weakref.ref(file))
        return merge(file, segments, *given)

    monkeypatch.setattr(spill, "merge", watched)
    targets = np.where(np.arange(MANY) % 2 == 0, 3, np.arange(MANY) // 2 % 70)
    with exchange(SCHEMA, [part(targets)], 70, "none", LIMITS) as written:
        objects = len(written.state.produced(0).segments)
    first, *further = of_each
    assert len(of_each) == objects >= 4
    assert sum(further) < first
    assert in_memory == [0] * objects


@pytest.mark.slow
@pytest.mark.parametrize("files", [True, False])
def test_many_columns_do_not_ask_for_more_room(files: bool) -> None:
    """Many columns of many subpartitions are stored without a further copy of the rows, as one
    object, and merged where several segments wait."""
    values = pa.array(np.arange(1_000))
    rows = pa.record_batch([values] * 200, names=[f"c{at}" for at in range(200)])
    targets = np.arange(1_000) * 7 % 500
    given = Part(rows, targets, (250, 500, 750))
    limits = replace(LIMITS, files=files, segment_bytes=rows.nbytes // 2)
    tracemalloc.start()
    with exchange(rows.schema, [given], 500, "none", limits) as written:
        assert tracemalloc.get_traced_memory()[1] <= 3 * rows.nbytes
        tracemalloc.stop()
        summaries = written.state.produced(0).segments
        assert (1 if files else 2) == len(summaries)
        assert {PACKED} == {summary.format for summary in summaries}
        assert sum(summary.size_bytes for summary in summaries) < 1.4 * rows.nbytes
        read = written.read(0, 500)
        order = pa.array(np.argsort(targets, kind="stable"))
        assert read.column(199).combine_chunks().equals(values.take(order))


def test_an_object_has_one_format() -> None:
    """Segments are packed from the first one on that has little in many slices. Those before it
    are an object of their own."""
    targets = np.arange(MANY) % 70
    with packed_from(3), exchange(SCHEMA, [part(targets)], 70, "lz4", LIMITS) as written:
        before, after = written.state.produced(0).segments
        assert (ARROW, PACKED) == (before.format, after.format)
        assert before.size_bytes < after.size_bytes
        check(written, targets, 3)
        assert MANY == written.read_stretches(0, 70, written.manifest()).num_rows


@pytest.mark.parametrize("even", [True, False])
def test_footers_and_indexes_do_not_grow_without_end(
    even: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index in memory has room for the subpartitions that are empty, too."""
    monkeypatch.setattr(spill, "SLICES_MAX", 3 * 70)
    targets = np.arange(MANY) % 70 if even else np.arange(MANY) * 70 // MANY
    with exchange(SCHEMA, [part(targets)], 70, "lz4", LIMITS) as written:
        assert len(written.state.produced(0).segments) == 3
        check(written, targets, 69)


@pytest.mark.parametrize("nth", [1, 2, 20])
def test_a_full_disk_costs_requests_only(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that cannot wait in a file is stored at once, and the rows keep their order."""
    files, opened = tempfile.TemporaryFile, count(1)

    def limited(*given: Any, **named: Any) -> Any:
        if next(opened) >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return files(*given, **named)

    monkeypatch.setattr(tempfile, "TemporaryFile", limited)
    targets = np.arange(MANY) % 70
    with exchange(SCHEMA, [part(targets)], 70, "lz4", LIMITS) as written:
        assert (len(written.state.produced(0).segments) == 1) is (nth == 20)
        for subpartition in (0, 42, 69):
            check(written, targets, subpartition)


@contextmanager
def limit(kind: int, most: int) -> Iterator[None]:
    """Limit what this process may take from the system."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("segments", [0.5, 1, 3.3, 9.9])
def test_a_disk_that_fills_costs_requests_only(segments: float) -> None:
    """A segment that was written in part is not merged."""
    targets = np.arange(MANY) % 70
    parts = [part(targets)]
    limited = limit(resource.RLIMIT_FSIZE, int(segments * LIMITS.segment_bytes))
    with limited, exchange(SCHEMA, parts, 70, "none", LIMITS) as written:
        assert (len(written.state.produced(0).segments) == 1) is (segments > 8)
        for subpartition in (0, 42, 69):
            check(written, targets, subpartition)


@pytest.mark.parametrize("segments", [0.5, 1, 3.3])
def test_segments_go_on_in_another_folder(segments: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that fills while segments wait there costs nothing if there is another one."""
    fill_up(monkeypatch, int(segments * LIMITS.segment_bytes), 1 << 40)
    parts = [part(np.arange(MANY) % 70)]
    with exchange(SCHEMA, parts, 70, "none", LIMITS, folders=2) as written:
        assert 1 == len(written.state.produced(0).segments)
        for subpartition in (0, 42, 69):
            check(written, parts[0].targets, subpartition)


def test_a_disk_that_fills_between_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further objects need no room on the disk: the rows of the first one are stored already."""
    files, opened = tempfile.TemporaryFile, count(1)

    def limited(*given: Any, **named: Any) -> Any:
        if next(opened) > 2:  # the segments that wait, and the first object
            raise OSError(errno.ENOSPC, "No space left on device")
        return files(*given, **named)

    monkeypatch.setattr(tempfile, "TemporaryFile", limited)
    targets = np.full(MANY, 42)
    filling = limit(resource.RLIMIT_FSIZE, int(3.3 * LIMITS.segment_bytes))
    with filling, exchange(SCHEMA, [part(targets)], 70, "none", LIMITS) as written:
        check(written, targets, 42)


def test_files_that_are_open_do_not_grow_with_the_partition() -> None:
    """A worker may open a thousand files, as most systems are set up, and needs some of them for
    its connections."""
    given = part(np.arange(10 * MANY) % 200)
    os.close(lowest := os.dup(0))
    limited = limit(resource.RLIMIT_NOFILE, lowest + 20)
    with limited, exchange(SCHEMA, [given], 200, "none", LIMITS) as written:
        assert len(written.state.produced(0).segments) == 1


def test_an_object_has_no_more_rows_than_an_index_can_state() -> None:
    """Rows that compress well may be more than four billion in a few bytes."""
    index = SegmentIndex(0, np.array([3 << 30]), np.array([100]), np.array([1], np.uint64))
    assert [[0], [1]] == spill.objects_of([index, index], LIMITS.segment_bytes).tolist()


@given(
    st.lists(st.lists(st.integers(0, 70), min_size=6, max_size=6), min_size=2, max_size=9),
    st.integers(70, 200),
)
def test_only_what_is_hot_goes_on_in_other_objects(segments: list[list[int]], most: int) -> None:
    """No object has more of a subpartition than a slice may have, those after the first have no
    more than that in all, and each subpartition keeps the order of its rows."""
    sizes, sums = np.array(segments), np.zeros(6, np.uint64)
    numbers = spill.objects_of([SegmentIndex(0, each, each, sums) for each in sizes], most)
    for number in range(int(numbers.max()) + 1):
        stored = np.where(numbers == number, sizes, 0).sum(axis=0)
        assert stored.any() or not number
        assert stored.max() <= most
        assert not number or stored.sum() <= most
    assert (np.diff(numbers, axis=0) >= 0).all()
    assert not numbers[:, sizes.sum(axis=0) <= most].any()


def test_damage_on_the_disk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that is no longer what was encoded is not merged."""
    merge = merging.merge

    def damaging(file: Any, segments: Any, *given: Any) -> Any:
        body = bytearray(segments[1].body[:])
        body[int(segments[1].index.starts[33]) + 200] ^= 1
        segments[1] = replace(segments[1], body=memoryview(body))
        return merge(file, segments, *given)

    monkeypatch.setattr(spill, "merge", damaging)
    parts = [part(np.arange(MANY) % 70)]
    with pytest.raises(Corrupt, match="local file"), exchange(SCHEMA, parts, 70, "lz4", LIMITS):
        pass


@contextmanager
def watched() -> Iterator[pa.MemoryPool]:
    """Yield a pool that counts the memory which Arrow takes meanwhile."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@pytest.mark.slow
@pytest.mark.parametrize("hot", [False, True])
def test_memory_does_not_grow_with_the_partition(hot: bool) -> None:
    """A partition of a hundred segments takes no more memory than a few of them and some batches,
    also if all of its rows are for one subpartition."""
    targets = np.zeros(13 * MANY, np.int64) if hot else np.arange(13 * MANY) % 200
    given = part(targets)
    with watched() as pool, exchange(SCHEMA, [given], 200, "none", LIMITS) as written:
        assert written.state.produced(0).rows == len(targets)
        bound_bytes = 3 * LIMITS.segment_bytes + 10 * BATCH_BYTES
        assert pool.max_memory() < bound_bytes < given.rows.nbytes / 2


def mapped_bytes() -> int:
    """Return the bytes of files in the memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(1024 * int(row.split()[1]) for row in lines if row.startswith(("RssFile", "RssShm")))


def test_mapped_files_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """YARN ends an executor whose processes have too many pages in memory, those of files too."""
    monkeypatch.setattr(segment, "READ_BYTES", 1 << 20)
    moved, put, seen = merging._moved_blocks, MemoryBlobStore.put, list[int]()

    def watching(*given: Any) -> Any:
        seen.append(mapped_bytes())
        return moved(*given)

    def watching_put(*given: Any) -> None:
        seen.append(mapped_bytes())
        put(*given)

    monkeypatch.setattr(merging, "_moved_blocks", watching)
    monkeypatch.setattr(MemoryBlobStore, "put", watching_put)
    given = part(np.arange(10 * MANY) % 200)
    with exchange(SCHEMA, [given], 200, "none", LIMITS) as written:
        assert len(written.state.produced(0).segments) == 1
        before = mapped_bytes()
    assert len(seen) > 70
    assert max(seen) - before < given.rows.nbytes / 4


def test_parts_that_were_sent_do_not_stay_in_memory() -> None:
    """A mapped file that is sent in parts takes the memory of the parts on their way only."""
    seen: list[int] = []

    class Client:
        def ask(self, request: str, name: str, **options: Any) -> dict[str, Any]:
            segment.checksum(bytes(options.get("Body", b"")))
            seen.append(mapped_bytes())
            return {"UploadId": "u", "ETag": "e"}

    client: Any = Client()
    settings = MultipartSettings(threshold_bytes=1, part_bytes=1 << 20, threads=1)
    retrier = Retrier(RetrySettings(), SYSTEM_CLOCK)
    uploads = MultipartUploads(client, RequestMeter(), retrier, settings)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(64 << 20))
        file.flush()
        assert uploads.create("name", spill._mapped(file), {}) is PutAnswer.CREATED
    assert len(seen) == 66
    assert max(seen) - seen[0] < 16 << 20


def test_a_limited_address_space_is_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `spark.executor.pyspark.memory` a worker may not map files that are larger than it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    with exchange(SCHEMA, [part(np.zeros(MANY, np.int64))], 1, "none", LIMITS) as written:
        assert len(written.state.produced(0).segments) > 1


def test_nothing_is_left_in_the_folder() -> None:
    """Files have no names, so they go with their process, however it ends."""
    with exchange(SCHEMA, [part(np.zeros(MANY, np.int64))], 1, "none", LIMITS) as written:
        assert LAYOUT.segment(attempt_of(0), 0) in written.objects
        (folder,) = written.environment._clients.runtime.folders
        assert list(folder.iterdir()) == []
