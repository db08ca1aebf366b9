"""Manifests too large to travel with a task: they are cut by subpartitions and stored as objects.

A reader fetches only the shard that it needs. The shards' names follow from a few numbers in the
log, so that a release can delete them by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from ...control.errors import Corrupt
from ...control.ids import AttemptId, PartitionId, ResultId
from ..stores.port import BlobStore
from .layout import Layout
from .manifest import Manifest, PlacedResult, Source
from .segment import checksum, read_twice

_ENTRY_BYTES = 32
_INLINE_BYTES_MAX = 512 << 10
_SHARD_BYTES = 1 << 20

_ARRAYS = {"starts": pa.int64(), "rows": pa.int64(), "sizes": pa.int64(), "checksums": pa.uint64()}
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("partition", pa.int32()),
        ("epoch", pa.int64()),
        ("task", pa.int64()),
        *((name, pa.list_(kind)) for name, kind in _ARRAYS.items()),
    ]
)


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A reference to the stored shards of a manifest."""

    head: Manifest
    """The manifest without its sources."""
    width: int
    """The number of subpartitions in each shard; the last shard may have fewer."""
    names: tuple[str, ...]
    checksums: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.head.count

    def reach(self, shard: int) -> range:
        """Return the subpartitions of a shard."""
        first = shard * self.width
        return range(first, min(first + self.width, self.count))


def firsts(segments: int, subpartitions: int) -> range:
    """Return the first subpartition of each shard; none if the manifest is small enough to send."""
    entry_bytes = max(1, segments * _ENTRY_BYTES)
    if entry_bytes * subpartitions <= _INLINE_BYTES_MAX:
        return range(0)
    return range(0, subpartitions, max(1, _SHARD_BYTES // entry_bytes))


def names(
    layout: Layout, result: ResultId, segments: int, subpartitions: int, version: int
) -> list[str]:
    """Return the names of a result's manifest shards. `version` counts the result's completions."""
    count = len(firsts(segments, subpartitions))
    return [layout.manifest(result, version, shard) for shard in range(count)]


def store_manifest(
    store: BlobStore, layout: Layout, result: PlacedResult, version: int
) -> Manifest | StoredManifest:
    """Return the manifest of a result as tasks take it: itself if it is small, else a reference to
    its shards, which are put first."""
    head, objects = result.head, result.objects
    cuts = firsts(objects, head.count)
    if not cuts:
        return result.part(0, head.count)
    placed = names(layout, head.result, objects, head.count, version)
    sums = []
    for name, first in zip(placed, cuts, strict=True):
        body = encode(result.part(first, min(cuts.step, head.count - first)))
        sums.append(checksum(body))
        # The same log gives the same bytes, so the put of a later driver succeeds, too.
        store.put(name, body, f"{head.result}/manifest/{sums[-1]}")
    return StoredManifest(head, cuts.step, tuple(placed), tuple(sums))


def load_shard(store: BlobStore, stored: StoredManifest, subpartition: int) -> Manifest:
    """Return the shard that holds a subpartition.

    Raises:
        Corrupt: the bytes are not those that were stored.
        Lost: the shard's object is gone.
    """
    shard = subpartition // stored.width
    body = _checked(store, stored.names[shard], stored.checksums[shard])
    reach = stored.reach(shard)
    sources = decode(body, stored.head.result)
    return replace(stored.head, first=reach.start, count=len(reach), sources=sources)


@read_twice
def _checked(store: BlobStore, name: str, expected: int) -> memoryview:
    body = store.get(name)
    if checksum(body) != expected:
        raise Corrupt(f"manifest {name}: the stored bytes have changed")
    return body


def compact(manifest: Manifest) -> Manifest:
    """Return a manifest whose arrays are no parts of larger ones, as one that was stored."""
    return replace(manifest, sources=decode(encode(manifest), manifest.result))


def encode(manifest: Manifest) -> bytes:
    rows = [
        {
            "name": source.name,
            "partition": source.attempt.partition.index,
            "epoch": source.attempt.epoch,
            "task": source.attempt.task,
            **{name: getattr(source, name) for name in _ARRAYS},
        }
        for source in manifest.sources
    ]
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode(body: memoryview | bytes, result: ResultId) -> tuple[Source, ...]:
    """Return the sources in a shard's bytes.

    Raises:
        Corrupt: the bytes are no shard.
    """
    try:
        table = ipc.open_stream(pa.py_buffer(body)).read_all()
        table.validate(full=True)
        return _sources(table.cast(_SCHEMA).to_pylist(), result)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as exc:
        raise Corrupt(f"a manifest of result {result} cannot be read: {exc}") from exc


def _sources(rows: list[dict[str, Any]], result: ResultId) -> tuple[Source, ...]:
    return tuple(
        Source(
            AttemptId(PartitionId(result, row["partition"]), row["epoch"], row["task"]),
            row["name"],
            *(np.asarray(row[name], kind.to_pandas_dtype()) for name, kind in _ARRAYS.items()),
        )
        for row in rows
    )
