"""The memory of a reader: it keeps to a budget, however its slices lie among those of others."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from threading import Barrier, Lock

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.errors import Invalid
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format import segment
from headgate.storage.format.manifest import build
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import ByteRange
from headgate.storage.writing import writer

from ..doubles.damaged import without_indexes
from ..doubles.segments import JOB, LAYOUT, Part, Written, exchange

pytestmark = pytest.mark.usefixtures("no_thread_stays")

SCHEMA = pa.schema([("n", pa.int64())])
MAPS, SUBPARTITIONS, HOT_ROWS = 40, 64, 64 * 1024
LIMITS = Limits(4 << 20, 4 << 20, fetch_parallel=2, join_bytes=1 << 20, cache_bytes=4 << 20)


@dataclass
class Held(MemoryBlobStore):
    """A store that counts the bytes of its answers that are still referenced."""

    given: Objects = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.given)
        self._counting = Lock()
        self.held_bytes = self.peak_bytes = 0

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        body = np.frombuffer(bytes(super().get(name, span)), np.uint8).copy()
        self._count(body.nbytes)
        weakref.finalize(body, self._count, -body.nbytes)
        return memoryview(body)  # type: ignore[arg-type]

    def _count(self, more: int) -> None:
        with self._counting:
            self.held_bytes += more
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)


def test_small_slices_do_not_bring_their_large_neighbours() -> None:
    """A reader of small slices does not fetch the hot subpartition beside them, and a reader of the
    hot subpartition keeps to its budget."""
    where = np.concatenate([np.zeros(HOT_ROWS, np.int64), np.arange(1, SUBPARTITIONS)])
    rows = pa.record_batch([pa.array(np.arange(len(where)))], schema=SCHEMA)
    parts = [Part(rows, where, ()) for _ in range(MAPS)]
    with exchange(SCHEMA, parts, SUBPARTITIONS, "none", LIMITS) as written:
        manifest, objects = written.manifest(), dict(written.objects)
    store = Held(objects)
    environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", LIMITS)
    view = Written(SCHEMA, written.descriptor, written.state, {}, store, environment)
    try:
        assert MAPS == view.read(1, 1, manifest).num_rows
        hot_bytes = HOT_ROWS * 8
        assert store.peak_bytes < hot_bytes
        assert MAPS * HOT_ROWS == view.read(0, 1, manifest).num_rows
        budget = LIMITS.fetch_bytes + LIMITS.cache_bytes + 2 * hot_bytes
        assert hot_bytes < store.peak_bytes < budget < MAPS * hot_bytes
    finally:
        environment.close()


def test_indexes_that_no_event_has_are_fetched_side_by_side() -> None:
    """Indexes that the events do not hold are fetched in parallel."""
    where = np.arange(SUBPARTITIONS)
    rows = pa.record_batch([pa.array(where)], schema=SCHEMA)
    with exchange(SCHEMA, [Part(rows, where, ())] * 4, SUBPARTITIONS, "none", LIMITS) as written:
        together = Barrier(4)

        class Slow(MemoryBlobStore):
            def get(self, name: str, span: ByteRange | None = None) -> memoryview:
                together.wait(5.0)
                return super().get(name, span)

        state = without_indexes(written.state)
        manifest = build(written.descriptor, state, LAYOUT, Slow(written.objects))
        for left, right in zip(manifest.sources, written.manifest().sources, strict=True):
            assert (left.name, left.sizes.tolist()) == (right.name, right.sizes.tolist())


def test_a_segment_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that would make a segment too large begins the next segment."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 100_000)
    rows = pa.record_batch([pa.array(np.arange(20_000))], schema=SCHEMA)
    cuts = tuple(range(8_000, 20_000, 8_000))
    part = Part(rows, np.zeros(20_000, np.int64), cuts)
    with exchange(SCHEMA, [part], 1, "none", LIMITS) as written:
        assert 2 == len(written.state.produced(0).segments)
        assert 20_000 == written.read(0, 1).num_rows


def test_an_index_states_no_size_that_it_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice whose size does not fit the index's 32 bits is an error."""
    index = segment.SegmentIndex(0, *(np.ones(1, np.int64),) * 2, np.ones(1, np.uint64))
    large = replace(index, sizes=np.full(1, 1 << 32, np.int64))
    with pytest.raises(Invalid, match="over 4294967295"):
        large.entries()
