"""The consuming side: fetches ahead in parallel, checks every slice, streams batches in order.

Guarantees: a reader gets every row of every partition once, or an error. The bytes that are
requested, with the neighbours read along, and those that wait stay under `Limits.fetch_bytes`,
except that one slice is always let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain

import pyarrow as pa
import xxhash

from ...control.contract import ShuffleDescriptor
from ...control.errors import Closed, Corrupt, Lost
from ...control.events.types import Consumed
from ...control.ids import AttemptId, PartitionId
from ...control.inquiry.job_view import JobView
from ...control.log import Receipt
from ..contract import InputGateDeployment
from ..format.layout import segment_number
from ..format.messages import decode
from ..runtime import JobClients
from .lost_objects import LostObjects, ViewNews, place_sound
from .range_cache import RangeCache
from .read_plan import Slice, alone, plan, read_on


class SegmentGate:
    """Implements `InputGate` on an object store, for partitions that are all whole."""

    def __init__(
        self,
        deployment: InputGateDeployment,
        clients: JobClients,
        range_cache: RangeCache,
        view: JobView,
    ) -> None:
        manifest = deployment.manifest
        self._deployment = deployment
        self._clients = clients
        self._schema = deployment.schema.serialize().to_pybytes()
        self._range_cache = range_cache
        self._announcer = clients.announcer(f"reader {manifest.result}/{deployment.task}")
        news = ViewNews(clients, view, self._announcer)
        self._lost = LostObjects(manifest.result, news, deployment.task)
        self._known = plan(deployment, clients.limits)
        self._following = read_on(deployment, clients.limits)
        self._ready: deque[tuple[Slice, memoryview]] = deque()
        self._handed_out: set[tuple[PartitionId, int]] = set()
        self._instead: dict[tuple[PartitionId, int], AttemptId] = {}
        self._held_bytes = 0
        at = deployment.first - manifest.first
        span = slice(at, at + deployment.count)
        self._stated_rows = sum(int(source.rows[span].sum()) for source in manifest.sources)
        self._rows = 0
        self._read_bytes = 0
        self._told_volume = 0, 0
        self._begun = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for _, batch in self.numbered():
            yield batch

    def numbered(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self._begun:
            raise Closed("a gate can be read only once: make another one")
        self._begun = True
        yield from self._read()

    def take_volume(self) -> tuple[int, int]:
        before, now = self._told_volume, (self._rows, self._read_bytes)
        self._told_volume = now
        return now[0] - before[0], now[1] - before[1]

    def _read(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Stream the batches. Announce `Consumed` when the last byte is here and checked, so that
        the log confirms the event while the rows are decoded."""
        ahead: deque[tuple[Slice, Future[memoryview]]] = deque()
        receipt: Receipt | None = None
        following = self._next()
        while receipt is None or self._ready:
            while following is not None and (
                not self._held_bytes  # one slice is always let through
                or self._held_bytes + following.window.length <= self._clients.limits.fetch_bytes
            ):
                ahead.append((following, self._fetch(following)))
                self._held_bytes += following.window.length
                following = self._next()
            while ahead and (self._is_partial(ahead[0][0]) or ahead[0][1].done()):
                self._take(*ahead.popleft())
            following = following or self._next()
            if following is None and not ahead and receipt is None:
                receipt = self._end(self._range_cache.take_requests())
            if self._ready:
                piece, body = self._ready.popleft()
                self._handed_out.add(piece.part)
                try:
                    for batch in decode(body, self._schema, piece.rows):
                        yield piece.subpartition, batch
                except Corrupt as exc:
                    raise Corrupt(f"{piece}: {exc}") from exc
                self._held_bytes -= piece.span.length
        assert receipt is not None, "the loop ends with it"
        receipt.offset(self._clients.runtime.deadline())

    def _next(self) -> Slice | None:
        """Return the next slice to fetch; None if there is none. Request then, once, the slices
        that this process's next reader will want."""
        piece = next(self._known, None)
        if piece is None:
            for other in self._following:
                self._fetch(other)
        return piece

    def _is_partial(self, piece: Slice) -> bool:
        """Return True if no other slice should be handed out before this one is here: none is
        ready, or the next one is of the same part. While no row of a part was handed out, the
        whole part can still be read from another attempt."""
        return not self._ready or self._ready[0][0].part == piece.part

    def _take(self, piece: Slice, window: Future[memoryview]) -> None:
        """Wait for a slice, or for one that replaced it, and make it ready. Do nothing if its part
        is read from another attempt. Copy the slice if neighbours are most of its window."""
        self._held_bytes -= piece.window.length
        attempt = piece.source.attempt
        if self._instead.get(piece.part, attempt) != attempt:
            return
        while True:
            try:
                body = self._sound(piece, window)
                break
            except (Lost, Corrupt) as failure:
                came = self._replaced(piece, failure)
                same = next((other for other in came if _stands_for(other, piece)), None)
                if same is None:
                    return self._begin_again(piece, came, failure)
                piece, window = same, self._fetch(same)
        if 2 * piece.span.length < piece.window.length:
            body = memoryview(bytes(body))
        self._ready.append((piece, body))
        self._held_bytes += piece.span.length
        self._rows += piece.rows
        self._read_bytes += piece.span.length

    def _replaced(self, piece: Slice, failure: Lost | Corrupt) -> list[Slice]:
        """Report the loss of a slice, wait, and return all slices of its subpartition from the
        attempt that replaces the lost one. They hold the same rows, but perhaps in another order
        and with other cuts. A gate that has handed out some of these may go on only if the bytes
        are the same, too.

        Raises:
            Lost, Corrupt: the failure, if no attempt can replace the lost one or none did in time.
        """
        lost, layout, attempt = self._lost, self._clients.layout, piece.source.attempt
        it = lost.report(attempt, piece.source.name, failure).registered
        came = lost.made_again(attempt, failure)
        segments = tuple((came.attempt, segment) for segment in came.segments)
        descriptor = ShuffleDescriptor(
            layout.job, it.result, it.partitions, it.subpartitions, came.attempt.epoch
        )
        placed = place_sound(descriptor, segments, layout, self._clients.store, lost)
        sources = placed.part(0, it.subpartitions).sources
        return [each for source in sources for each in alone(source, piece.subpartition, 1)]

    def _end(self, requests: int) -> Receipt | None:
        """Announce `Consumed`, since no slice is left to take.

        Raises:
            Corrupt: fewer or more rows were taken than the manifest has.
        """
        it = self._deployment
        result = it.manifest.result
        if self._rows != self._stated_rows:
            raise Corrupt(
                f"subpartitions {it.first} to {it.first + it.count - 1} of result {result}: "
                f"{self._rows} rows were read, {self._stated_rows} were announced"
            )
        throttled = self._clients.throttled.take("gets")
        consumed = Consumed(
            result, it.first, it.count, it.task, self._rows, self._read_bytes, requests, throttled
        )
        return self._clients.log.append(self._announcer.fact(consumed))

    def _fetch(self, piece: Slice) -> Future[memoryview]:
        return self._range_cache.fetch(piece.source.name, piece.window, piece.shared)

    def _begin_again(self, piece: Slice, came: list[Slice], failure: Lost | Corrupt) -> None:
        """Read a part from another attempt, as if nothing of the part had been fetched.

        Raises:
            Lost: rows of the part were handed out and cannot be found among the other attempt's, or
                the other attempt has no slice of the part.
        """
        if piece.part in self._handed_out or not came:
            raise Lost(
                f"{failure}; it was made again with its rows in another order, after this reader "
                "had returned some of them: start the reader again"
            ) from failure
        for ready, _ in self._ready:
            if ready.part == piece.part:
                self._held_bytes -= ready.span.length
                self._rows -= ready.rows
                self._read_bytes -= ready.span.length
        self._ready = deque(entry for entry in self._ready if entry[0].part != piece.part)
        self._instead[piece.part] = came[0].source.attempt
        self._known = chain(came, self._known)

    def _sound(self, piece: Slice, window: Future[memoryview]) -> memoryview:
        """Return the slice's bytes. Read them once more if they do not match, if the answer ended
        too early, or if there seems to be no object: an object that is reported as lost is
        deleted."""
        try:
            body = self._own_bytes(piece, window)
        except (Corrupt, Lost):
            self._range_cache.forget(piece.source.name, piece.window, piece.shared)
            return self._own_bytes(piece, self._fetch(piece))
        if piece.window == piece.span:  # no other reader wants this window
            self._range_cache.forget(piece.source.name, piece.window)
        return body

    def _own_bytes(self, piece: Slice, window: Future[memoryview]) -> memoryview:
        """Return the slice's own bytes, cut out of its window and checked."""
        try:
            body = window.result()
        except Lost as exc:
            raise Lost(
                f"partition {piece.source.attempt.partition} of job "
                f"{self._deployment.manifest.job} was announced by attempt "
                f"{piece.source.attempt}, but its object {piece.source.name} is gone"
            ) from exc
        at = piece.span.start - piece.window.start
        body = body[at : at + piece.span.length]
        expected, actual = piece.checksum, xxhash.xxh3_64_intdigest(body)
        if len(body) != piece.span.length or actual != expected:
            raise Corrupt(f"{piece}: checksum {actual:016x}, expected {expected:016x}, read twice")
        return body


def _stands_for(other: Slice, piece: Slice) -> bool:
    """Return True if both slices are the same bytes of the same segment."""
    same = segment_number(other.source.name) == segment_number(piece.source.name)
    return same and other.checksum == piece.checksum
