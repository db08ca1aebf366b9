"""A driver that reads: the rows of each task as one message, or nothing, so that tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.spark.exchanges import rows as rows_module
from headgate.connectors.spark.exchanges.rows import read_by_driver
from headgate.connectors.spark.tasks.exchange_tasks import Part, ReadTask
from headgate.connectors.spark.tasks.frames import VOLUME
from headgate.control.errors import Unavailable
from headgate.control.events.types import BY_DRIVER, Consumed
from headgate.storage.format.manifest_shards import StoredManifest
from headgate.storage.limits import Limits
from headgate.storage.reading.at_once import read_at_once

from ..doubles.damaged import LIMITS, PARTS, SCHEMA, SUBPARTITIONS
from ..doubles.segments import RESULT, Written, exchange
from ..doubles.segments import Part as Rows

LIMIT = 1 << 17  # bytes in the store that a driver reads


@pytest.fixture
def written() -> Iterator[Written]:
    with exchange(SCHEMA, PARTS, SUBPARTITIONS, "lz4", LIMITS) as made:
        yield made


def task_of(written: Written, *parts: Part) -> ReadTask:
    worker: Any = None
    return ReadTask(worker, written.manifest(), SCHEMA, parts)


def rows_of(message: bytes) -> tuple[pa.Table, tuple[int, int]]:
    """Return the rows of a message, and the volume behind it."""
    body, volume = message[: -VOLUME.size], VOLUME.unpack(message[-VOLUME.size :])
    batches = [pa.ipc.read_record_batch(body, SCHEMA)] if body else []
    return pa.Table.from_batches(batches, SCHEMA), volume


@pytest.mark.parametrize(
    "spans",
    [
        [range(at, at + 1) for at in range(SUBPARTITIONS)],
        [range(0, 2), range(2, SUBPARTITIONS)],
        [range(SUBPARTITIONS)],
    ],
)
def test_each_task_gets_the_rows_of_its_part(written: Written, spans: list[range]) -> None:
    """A task gets the rows that a gate would give it, in the same order, and their volume; of no
    rows it gets no message. One fact says that all was read."""
    parts = [Part(span) for span in spans] if len(spans) < SUBPARTITIONS else []
    read = read_by_driver(task_of(written, *parts), written.store, LIMIT)
    assert read is not None
    messages, fact = read
    sizes = written.manifest().sizes
    for span, message in zip(spans, messages, strict=True):
        rows, volume = rows_of(message)
        assert written.read(span.start, len(span)).equals(rows)
        assert volume == (rows.num_rows, sizes[span.start : span.stop].sum())
        assert (len(message) == VOLUME.size) == (rows.num_rows == 0)
    total, gets = written.manifest().rows.sum(), len(written.objects)
    assert fact == Consumed(RESULT, 0, SUBPARTITIONS, BY_DRIVER, total, sizes.sum(), gets)


def test_what_tasks_read(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read pieces of a subpartition, what is not small, and manifests that are stored. The
    driver then asks the store for nothing."""
    whole, before = task_of(written), written.store.requests.gets
    stored = StoredManifest(written.manifest(), 1, (), ())
    stored_bytes = int(written.manifest().sizes.sum())
    for task, limit in [
        (replace(whole, parts=(Part(range(SUBPARTITIONS), range(1)),)), LIMIT),
        (replace(whole, manifest=stored), LIMIT),
        (whole, 0),
        (whole, stored_bytes - 1),
    ]:
        assert read_by_driver(task, written.store, limit) is None
    monkeypatch.setattr(rows_module, "_OBJECTS_MAX", len(written.objects) - 1)
    assert read_by_driver(whole, written.store, LIMIT) is None
    assert written.store.requests.gets == before


def test_rows_that_were_far_smaller_in_the_store() -> None:
    """Tasks read rows of which only the store has few bytes. Nothing is published."""
    text = pa.array(["x" * 5_000] * len(PARTS[0].rows))
    parts = [replace(part, rows=part.rows.set_column(1, "text", text)) for part in PARTS]
    with exchange(SCHEMA, parts, SUBPARTITIONS, "lz4", LIMITS) as written:
        assert int(written.manifest().sizes.sum()) < LIMIT
        assert read_by_driver(task_of(written), written.store, LIMIT) is None


def test_rows_that_are_too_many() -> None:
    """Tasks read rows that must take far more than in the store. The driver asks for nothing."""
    schema, count = pa.schema([("n", pa.int64())]), 100_000
    rows = pa.record_batch([pa.array(np.zeros(count, np.int64))], schema=schema)
    parts = [Rows(rows, np.zeros(count, np.int64), ())]
    with exchange(schema, parts, 1, "lz4", Limits()) as written:
        assert int(written.manifest().sizes.sum()) < LIMIT
        worker: Any = None
        task = ReadTask(worker, written.manifest(), schema)
        assert read_by_driver(task, written.store, LIMIT) is None
        assert written.store.requests.gets == 0


@pytest.mark.parametrize("error", [Unavailable("gone"), RuntimeError("can't start new thread")])
def test_a_driver_that_cannot_read(written: Written, error: Exception) -> None:
    """Tasks read what the driver cannot, and nothing is published."""

    def failing(*given: Any) -> memoryview:
        raise error

    store: Any = SimpleNamespace(get=failing)
    assert read_by_driver(task_of(written), store, LIMIT) is None


def test_a_store_that_does_not_answer(written: Written) -> None:
    """The driver waits a limited time for the store, and for no request after that."""
    answered = Event()

    def late(*given: Any) -> memoryview:
        answered.wait(60)
        return written.store.get(*given)

    store: Any = SimpleNamespace(get=late)
    try:
        with pytest.raises(Unavailable, match=f"{len(written.objects)} of .* did not come in 0.05"):
            list(read_at_once(written.manifest(), SCHEMA, store, 0.05))
    finally:
        answered.set()
