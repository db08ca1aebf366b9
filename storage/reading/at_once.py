"""Read a small result whole, with one request for each object."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import xxhash

from ...control.errors import Corrupt
from ..format.manifest import FETCHES_AT_ONCE, Manifest
from ..format.segment import decode
from ..stores.port import BlobStore
from .read_plan import alone


def read_at_once(
    manifest: Manifest, schema: pa.Schema, store: BlobStore
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of all partitions in their order, each with its subpartition. The manifest
    has all subpartitions, and their bytes are in memory together.

    Raises:
        Lost: an object is gone.
        Corrupt: bytes do not match their checksum, or are not the rows that were announced.
    """
    for source in manifest.sources:
        if source.rows[source.sizes == 0].any():
            raise Corrupt(f"{source.name}: a subpartition with rows has no bytes")
    sources = [source for source in manifest.sources if source.sizes.any()]
    spans = [source.range_of(0, manifest.count) for source in sources]
    with ThreadPoolExecutor(FETCHES_AT_ONCE, "headgate-read") as pool:
        bodies = list(pool.map(store.get, [source.name for source in sources], spans))
    stated = schema.serialize().to_pybytes()
    for source, span, body in zip(sources, spans, bodies, strict=True):
        for piece in alone(source, 0, manifest.count):
            start = piece.span.start - span.start
            part = body[start : start + piece.span.length]
            if xxhash.xxh3_64_intdigest(part) != piece.checksum:
                raise Corrupt(f"{piece}: the bytes do not match their checksum")
            for batch in decode(part, stated, piece.rows):
                yield piece.subpartition, batch
