"""Read a small result whole, with one request for each object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa
import xxhash

from ...control.errors import Corrupt, Unavailable
from ..format.manifest import FETCHES_AT_ONCE, Manifest, Source
from ..format.messages import decode
from ..stores.port import BlobStore, ByteRange
from .read_plan import alone


def read_at_once(
    manifest: Manifest, schema: pa.Schema, store: BlobStore, wait_s: float
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of all partitions in their order, each with its subpartition. The manifest
    has all subpartitions, and their bytes are in memory together.

    Raises:
        Lost: an object is gone.
        Corrupt: bytes do not match their checksum, or are not the rows that were announced.
        Unavailable: the store has not given all bytes within `wait_s`.
    """
    for source in manifest.sources:
        if source.rows[source.sizes == 0].any():
            raise Corrupt(f"{source.name}: a subpartition with rows has no bytes")
    sources = filled(manifest)
    spans = [source.range_of(0, manifest.count) for source in sources]
    bodies = _fetched(store, sources, spans, wait_s)
    stated = schema.serialize().to_pybytes()
    for source, span, body in zip(sources, spans, bodies, strict=True):
        for piece in alone(source, 0, manifest.count):
            start = piece.span.start - span.start
            part = body[start : start + piece.span.length]
            if xxhash.xxh3_64_intdigest(part) != piece.checksum:
                raise Corrupt(f"{piece}: the bytes do not match their checksum")
            for batch in decode(part, stated, piece.rows):
                yield piece.subpartition, batch


def filled(manifest: Manifest) -> list[Source]:
    """Return the objects that have bytes of a subpartition."""
    return [source for source in manifest.sources if source.sizes.any()]


def _fetched(
    store: BlobStore, sources: Sequence[Source], spans: Sequence[ByteRange], wait_s: float
) -> list[memoryview]:
    """Return the bytes of all objects. Wait for no request that is still under way at the end."""
    pool = ThreadPoolExecutor(FETCHES_AT_ONCE, "headgate-read")
    try:
        asked = [
            pool.submit(store.get, source.name, span)
            for source, span in zip(sources, spans, strict=True)
        ]
        if late := wait(asked, wait_s).not_done:
            raise Unavailable(f"{len(late)} of {len(asked)} objects did not come in {wait_s:g} s")
        return [each.result() for each in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
