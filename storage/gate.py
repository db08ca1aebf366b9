"""The consuming side: fetches ahead in parallel, checks every slice, streams batches in order.

Guarantees: every row of every partition once, or an error; bytes on their way and in wait stay
under `Limits.fetch_bytes`, except that one slice is always let through.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
import xxhash

from ..control.clock import Deadline
from ..control.errors import Corrupt, Lost
from ..control.events import Consumed
from .blobs import BlobStore, ByteRange
from .contract import InputGateDeployment, Limits
from .manifest import Manifest, Source
from .segment import decode
from .writer import Announce


class Neighbours:
    """Ranges read once per process: small slices come with those of the subpartitions beside them.

    Two readers that ask for the same range at once share one request.
    """

    def __init__(self, store: BlobStore, bytes_max: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._held: OrderedDict[tuple[str, ByteRange], Future[memoryview]] = OrderedDict()
        self._held_bytes = 0
        self.requests = 0

    def read(self, name: str, span: ByteRange) -> memoryview:
        with self._lock:
            known = self._held.get((name, span))
            if known is None:
                mine: Future[memoryview] = Future()
                self._held[name, span] = mine
                self._held_bytes += span.length
                self._evict()
        if known is not None:
            return known.result()
        return self._fetch(name, span, mine)

    def forget(self, name: str, span: ByteRange) -> None:
        """Read a range anew next time: what came was not what was announced."""
        with self._lock:
            if self._held.pop((name, span), None) is not None:
                self._held_bytes -= span.length

    def _evict(self) -> None:
        while self._held_bytes > self._bytes_max and len(self._held) > 1:
            (_, span), _ = self._held.popitem(last=False)
            self._held_bytes -= span.length

    def _fetch(self, name: str, span: ByteRange, mine: Future[memoryview]) -> memoryview:
        try:
            body = self._store.get(name, span)
        except BaseException as exc:
            self.forget(name, span)
            mine.set_exception(exc)
            raise
        self.requests += 1
        mine.set_result(body)
        return body


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
        fetchers: ThreadPoolExecutor,
        limits: Limits,
        announce: Announce,
        wait_s: float,
    ) -> None:
        self._deployment = deployment
        self._neighbours = neighbours
        self._fetchers = fetchers
        self._limits = limits
        self._announce = announce
        self._wait_s = wait_s

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Stream the batches; `Consumed` is confirmed before the last one is handed out."""
        rows = read_bytes = 0
        before = self._neighbours.requests
        last: list[pa.RecordBatch] = []
        for piece, body in self._bodies():
            yield from last
            last = self._verified(piece, body)
            rows += sum(batch.num_rows for batch in last)
            read_bytes += len(body)
        receipt = self._announce(self._consumed(rows, read_bytes, before))
        yield from last
        receipt.offset(Deadline.after(self._wait_s))

    def _consumed(self, rows: int, read_bytes: int, before: int) -> Consumed:
        it = self._deployment
        requests = self._neighbours.requests - before
        return Consumed(it.manifest.result, it.first, it.count, it.task, rows, read_bytes, requests)

    def _bodies(self) -> Iterator[tuple[Slice, memoryview]]:
        pieces = plan(self._deployment, self._limits.join_bytes)
        ahead: deque[tuple[Slice, Future[memoryview]]] = deque()
        ahead_bytes = 0
        following = next(pieces, None)
        try:
            while following is not None or ahead:
                while following is not None and (
                    not ahead or ahead_bytes + following.span.length <= self._limits.fetch_bytes
                ):
                    ahead.append((following, self._fetchers.submit(self._read, following)))
                    ahead_bytes += following.span.length
                    following = next(pieces, None)
                piece, future = ahead.popleft()
                yield piece, future.result()
                ahead_bytes -= piece.span.length
        finally:
            for _, future in ahead:
                future.cancel()

    def _read(self, piece: Slice) -> memoryview:
        try:
            window = self._neighbours.read(piece.source.name, piece.window)
        except Lost as exc:
            raise Lost(
                f"partition {piece.source.attempt.partition} of job "
                f"{self._deployment.manifest.job} was announced by attempt "
                f"{piece.source.attempt}, but its object {piece.source.name} is gone"
            ) from exc
        at = piece.span.start - piece.window.start
        return window[at : at + piece.span.length]

    def _verified(self, piece: Slice, body: memoryview) -> list[pa.RecordBatch]:
        """The slice's batches; bytes that do not match are read once more before they count."""
        expected = int(piece.source.checksums[piece.at])
        if xxhash.xxh3_64_intdigest(body) != expected:
            self._neighbours.forget(piece.source.name, piece.window)
            body = self._read(piece)
        found = xxhash.xxh3_64_intdigest(body)
        where = f"{piece.source.name} bytes {piece.span.start}-{piece.span.end - 1}"
        if len(body) != piece.span.length or found != expected:
            raise Corrupt(f"{where}: checksum {found:016x}, expected {expected:016x}")
        try:
            batches = decode(body, self._deployment.schema)
        except Corrupt as exc:
            raise Corrupt(f"{where}: {exc}") from exc
        rows = sum(batch.num_rows for batch in batches)
        if rows != int(piece.source.rows[piece.at]):
            raise Corrupt(f"{where}: {rows} rows, expected {piece.source.rows[piece.at]}")
        return batches


def plan(deployment: InputGateDeployment, join_bytes: int) -> Iterator[Slice]:
    """The slices to read, in the order of partitions, each with its window of neighbours."""
    manifest = deployment.manifest
    for at in range(deployment.first - manifest.first, _end(deployment)):
        for source in manifest.sources:
            if source.sizes[at]:
                span = source.range_of(at, 1)
                yield Slice(source, at, span, window(manifest, source, at, join_bytes))


def _end(deployment: InputGateDeployment) -> int:
    return deployment.first - deployment.manifest.first + deployment.count


def window(manifest: Manifest, source: Source, at: int, join_bytes: int) -> ByteRange:
    """The neighbours to read with a slice: aligned groups that fill about `join_bytes`, so that
    every reader of the process cuts the object the same way."""
    mean_bytes = max(1, int(source.sizes.sum()) // manifest.count)
    group = max(1, min(manifest.count, join_bytes // mean_bytes))
    first = at // group * group
    wide = source.range_of(first, min(group, manifest.count - first))
    return wide if wide.length <= 2 * join_bytes else source.range_of(at, 1)
