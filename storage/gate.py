"""The consuming side: fetches ahead in parallel, checks every slice, streams batches in order.

Guarantees: every row of every partition once, or an error; bytes on their way and in wait stay
under `Limits.fetch_bytes`, except that one slice is always let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

import pyarrow as pa
import xxhash

from ..control.clock import Deadline
from ..control.errors import Corrupt, Lost
from ..control.events import Consumed
from ..control.log import Receipt
from .contract import InputGateDeployment, Limits
from .neighbours import Neighbours
from .plan import Slice, plan, read_on
from .segment import decode
from .writer import Announce


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
        """Stream the batches. `Consumed` is announced when the last byte is here and checked, so
        that the log confirms it while the rows are decoded."""
        before = self._neighbours.requests
        pieces = plan(self._deployment, self._limits)
        ahead: deque[tuple[Slice, Future[memoryview]]] = deque()
        ready: deque[tuple[Slice, memoryview]] = deque()
        held_bytes = 0
        receipt: Receipt | None = None
        following = next(pieces, None)
        while following is not None or ahead or ready:
            while following is not None and (
                not held_bytes or held_bytes + following.span.length <= self._limits.fetch_bytes
            ):
                ahead.append((following, self._fetch(following)))
                held_bytes += following.span.length
                following = next(pieces, None)
                if following is None:
                    self._read_on()
            while ahead and (not ready or ahead[0][1].done()):
                ready.append(self._checked(*ahead.popleft()))
            if following is None and not ahead and receipt is None:
                receipt = self._announce_consumed(self._neighbours.requests - before)
            length = ready[0][0].span.length
            yield from _decoded(*ready.popleft(), self._schema)
            held_bytes -= length
        receipt = receipt or self._announce_consumed(0)
        receipt.offset(Deadline.after(self._wait_s))

    def _announce_consumed(self, requests: int) -> Receipt:
        it = self._deployment
        part = it.manifest.part(it.first, it.count)
        rows, read_bytes = int(part.rows.sum()), int(part.sizes.sum())
        return self._announce(
            Consumed(part.result, it.first, it.count, it.task, rows, read_bytes, requests)
        )

    def _fetch(self, piece: Slice) -> Future[memoryview]:
        return self._neighbours.fetch(piece.source.name, piece.window)

    def _read_on(self) -> None:
        """Have on its way what this process's next reader will want."""
        for piece in read_on(self._deployment, self._limits):
            self._fetch(piece)

    def _checked(self, piece: Slice, window: Future[memoryview]) -> tuple[Slice, memoryview]:
        """The slice's bytes; those that do not match are read once more before they count."""
        body = self._cut(piece, window)
        if piece.window == piece.span:  # nobody else's bytes are in it: not worth keeping
            self._neighbours.forget(piece.source.name, piece.window)
        expected, found = int(piece.source.checksums[piece.at]), xxhash.xxh3_64_intdigest(body)
        if found != expected:
            self._neighbours.forget(piece.source.name, piece.window)
            body = self._cut(piece, self._fetch(piece))
            found = xxhash.xxh3_64_intdigest(body)
        if len(body) != piece.span.length or found != expected:
            raise Corrupt(f"{piece}: checksum {found:016x}, expected {expected:016x}")
        return piece, body

    def _cut(self, piece: Slice, window: Future[memoryview]) -> memoryview:
        """The slice's own bytes of its window."""
        try:
            body = window.result()
        except Lost as exc:
            raise Lost(
                f"partition {piece.source.attempt.partition} of job "
                f"{self._deployment.manifest.job} was announced by attempt "
                f"{piece.source.attempt}, but its object {piece.source.name} is gone"
            ) from exc
        at = piece.span.start - piece.window.start
        return body[at : at + piece.span.length]


def _decoded(piece: Slice, body: memoryview, schema: bytes) -> Iterator[pa.RecordBatch]:
    rows, stated = 0, int(piece.source.rows[piece.at])
    try:
        for batch in decode(body, schema):
            rows += batch.num_rows
            if rows > stated:
                break
            yield batch
    except Corrupt as exc:
        raise Corrupt(f"{piece}: {exc}") from exc
    if rows != stated:
        raise Corrupt(f"{piece}: {rows} rows, expected {stated}")
