"""The consuming side: fetches ahead in parallel, checks every slice, streams batches in order.

Guarantees: every row of every partition once, or an error; bytes on their way and in wait stay
under `Limits.fetch_bytes`, except that one slice is always let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from ..control.clock import Deadline
from ..control.errors import Corrupt, Lost
from ..control.events import Consumed
from .blobs import ByteRange
from .contract import InputGateDeployment, Limits
from .manifest import Manifest, Source
from .neighbours import Neighbours
from .segment import decode
from .writer import Announce


@dataclass(frozen=True, slots=True)
class Slice:
    """One subpartition in one object, and the wider range that it is read with."""

    source: Source
    at: int
    span: ByteRange
    window: ByteRange


class SegmentGate:
    """Implements `InputGate` on an object store."""

    def __init__(
        self,
        deployment: InputGateDeployment,
        neighbours: Neighbours,
        limits: Limits,
        announce: Announce,
        wait_s: float,
    ) -> None:
        self._deployment = deployment
        self._schema = deployment.schema.serialize().to_pybytes()
        self._neighbours = neighbours
        self._limits = limits
        self._announce = announce
        self._wait_s = wait_s

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Stream the batches; `Consumed` is announced before the last one is handed out, and
        confirmed before the stream ends."""
        rows = read_bytes = 0
        before = self._neighbours.requests
        last: pa.RecordBatch | None = None
        for piece, body in self._bodies():
            for batch in self._verified(piece, body):
                if last is not None:
                    yield last
                last = batch
                rows += batch.num_rows
            read_bytes += len(body)
        receipt = self._announce(self._consumed(rows, read_bytes, before))
        if last is not None:
            yield last
        receipt.offset(Deadline.after(self._wait_s))

    def _consumed(self, rows: int, read_bytes: int, before: int) -> Consumed:
        it = self._deployment
        requests = self._neighbours.requests - before
        return Consumed(it.manifest.result, it.first, it.count, it.task, rows, read_bytes, requests)

    def _bodies(self) -> Iterator[tuple[Slice, memoryview]]:
        pieces = plan(self._deployment, self._limits)
        ahead: deque[tuple[Slice, Future[memoryview]]] = deque()
        ahead_bytes = 0
        following = next(pieces, None)
        while following is not None or ahead:
            while following is not None and (
                not ahead or ahead_bytes + following.span.length <= self._limits.fetch_bytes
            ):
                window = self._neighbours.fetch(following.source.name, following.window)
                ahead.append((following, window))
                ahead_bytes += following.span.length
                following = next(pieces, None)
            piece, window = ahead.popleft()
            body = self._cut(piece, window)
            if piece.window == piece.span:  # nobody else's bytes are in it: not worth keeping
                self._neighbours.forget(piece.source.name, piece.window)
            del window
            yield piece, body
            del body
            ahead_bytes -= piece.span.length

    def _cut(self, piece: Slice, window: Future[memoryview]) -> memoryview:
        """The slice's own bytes of its window."""
        try:
            body = window.result()
        except Lost as exc:
            self._neighbours.forget(piece.source.name, piece.window)
            raise Lost(
                f"partition {piece.source.attempt.partition} of job "
                f"{self._deployment.manifest.job} was announced by attempt "
                f"{piece.source.attempt}, but its object {piece.source.name} is gone"
            ) from exc
        except BaseException:
            self._neighbours.forget(piece.source.name, piece.window)
            raise
        at = piece.span.start - piece.window.start
        return body[at : at + piece.span.length]

    def _verified(self, piece: Slice, body: memoryview) -> Iterator[pa.RecordBatch]:
        """The slice's batches; bytes that do not match are read once more before they count."""
        expected, found = int(piece.source.checksums[piece.at]), xxhash.xxh3_64_intdigest(body)
        if found != expected:
            self._neighbours.forget(piece.source.name, piece.window)
            body = self._cut(piece, self._neighbours.fetch(piece.source.name, piece.window))
            found = xxhash.xxh3_64_intdigest(body)
        where = f"{piece.source.name} bytes {piece.span.start}-{piece.span.end - 1}"
        if len(body) != piece.span.length or found != expected:
            raise Corrupt(f"{where}: checksum {found:016x}, expected {expected:016x}")
        rows = 0
        try:
            for batch in decode(body, self._schema):
                rows += batch.num_rows
                yield batch
        except Corrupt as exc:
            raise Corrupt(f"{where}: {exc}") from exc
        if rows != int(piece.source.rows[piece.at]):
            raise Corrupt(f"{where}: {rows} rows, expected {piece.source.rows[piece.at]}")


def plan(deployment: InputGateDeployment, limits: Limits) -> Iterator[Slice]:
    """The slices to read, in the order of partitions, each with its window of neighbours."""
    manifest = deployment.manifest
    group = group_of(manifest, limits)
    first = deployment.first - manifest.first
    for at in range(first, first + deployment.count):
        for source in manifest.sources:
            if source.sizes[at]:
                span = source.range_of(at, 1)
                yield Slice(source, at, span, _window(source, at, group, limits.join_bytes))


def group_of(manifest: Manifest, limits: Limits) -> int:
    """How many neighbours to read with each subpartition: as many as fill about `join_bytes` of an
    object and, in all objects together, no more than half the cache."""
    stored_bytes = sum(int(source.sizes.sum()) for source in manifest.sources)
    row_bytes = max(1, stored_bytes // manifest.count)
    slice_bytes = max(1, row_bytes // max(1, len(manifest.sources)))
    fits = min(limits.join_bytes // slice_bytes, limits.cache_bytes // 2 // row_bytes)
    return max(1, min(manifest.count, fits))


def _window(source: Source, at: int, group: int, join_bytes: int) -> ByteRange:
    """The slice and its group; every reader of the process cuts the object the same way."""
    first = at // group * group
    wide = source.range_of(first, min(group, len(source.sizes) - first))
    return wide if wide.length <= 2 * join_bytes else source.range_of(at, 1)
