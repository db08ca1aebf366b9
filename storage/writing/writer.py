"""The producing side: makes segments of batches, stores them, and announces the partition when all
of them are stored.

Guarantees: memory is bounded by `Limits.segment_bytes`, whatever the partition's size. Nothing is
put before the log has confirmed the start of the attempt. The partition is announced only after all
puts succeeded.

Where tasks may write files, rows beyond that limit wait there, and the partition ends as one
segment. Elsewhere it has a segment for each `segment_bytes`, and one of them is being put while the
next one fills.
"""

from __future__ import annotations

from concurrent.futures import Future

import pyarrow as pa
import xxhash

from ...control.errors import Closed, Invalid
from ...control.events.types import AttemptFailed, AttemptStarted, Produced, SegmentSummary
from ..contract import SEGMENT_BYTES_MAX, ResultPartitionDeployment
from ..format.batches import BATCH_BYTES
from ..format.segment import ARROW, Longs, checksum, inline_bytes, signed
from ..runtime import JobClients
from .encoding import Run, Segment, check_kinds, encode, form_of, in_order, sort
from .fingerprint import Fingerprint
from .spill import Spill

_RUN_ROWS = 128 * 1024  # sorted at once: small enough for the processor's caches
_LARGE_ROWS = _RUN_ROWS // 8  # so many that come in order are not sorted with others


class SegmentWriter:
    """Implements `ResultPartitionWriter` on an object store. Announces the start of the attempt
    when it is made; the first put waits until the log has confirmed that."""

    def __init__(
        self, deployment: ResultPartitionDeployment, clients: JobClients, host: str
    ) -> None:
        check_kinds(deployment.schema)
        self._deployment = deployment
        self._clients = clients
        self._announcer = clients.announcer(f"task {deployment.attempt}")
        self._batches: list[pa.RecordBatch] = []
        self._targets: list[Longs] = []
        self._runs: list[Run] = []
        self._spill = None if deployment.pipelined else Spill.of(clients)
        self._unsorted_rows = 0
        self._held_bytes = 0
        self._plain_bytes = 0
        self._form = ARROW
        self._summaries: list[SegmentSummary] = []
        self._content = xxhash.xxh3_64()  # of rows and checksums, without the attempt's name
        self._rows = None if deployment.ordered else Fingerprint(deployment.subpartitions)
        self._inline_bytes = inline_bytes(deployment.attempt.partition.index)
        self._uploader = clients.runtime.pool(1, "headgate-put")
        self._upload: Future[None] | None = None
        self._closed = False
        started = AttemptStarted(deployment.attempt, host)
        self._started = clients.log.append(self._announcer.fact(started))

    @property
    def merges(self) -> bool:
        """Return True if the partition becomes one segment, whatever the order of its rows."""
        return self._spill is not None

    def write(self, batch: pa.RecordBatch, subpartitions: Longs) -> None:
        if self._closed:
            raise Closed(f"attempt {self._deployment.attempt} is closed")
        assert batch.num_rows == len(subpartitions), "every row has a subpartition"
        if batch.schema != self._deployment.schema:
            raise Invalid(f"batch of schema {batch.schema}, expected {self._deployment.schema}")
        if not batch.num_rows:
            return
        plain_bytes = batch.nbytes
        self._plain_bytes += plain_bytes
        size_bytes = max(plain_bytes, batch.num_rows)  # rows without columns count, too
        if self._held_bytes and self._held_bytes + size_bytes > SEGMENT_BYTES_MAX:
            self._flush()
        is_large = batch.num_rows >= _LARGE_ROWS or size_bytes >= BATCH_BYTES
        is_run = is_large and in_order(subpartitions)
        if is_run:
            self._sort()
            size_bytes += subpartitions.nbytes  # in one piece of memory with the run, which stays
        self._batches.append(batch)
        self._targets.append(subpartitions)
        self._held_bytes += size_bytes
        self._unsorted_rows += batch.num_rows
        if is_run or self._unsorted_rows >= _RUN_ROWS:
            self._sort()
        if self._held_bytes >= self._clients.limits.segment_bytes:
            self._flush()

    def end_segment(self) -> None:
        """End the segment that fills, if the partition is to have several, so that the next row
        begins another one."""
        if not self.merges:
            self._flush()

    def finish(self) -> Produced:
        if self._closed:
            raise Closed(f"attempt {self._deployment.attempt} is closed")
        self._flush(is_last=True)
        self._store_held(rows_wait=False)
        self._settle()
        self._close()
        content = self._rows.digest() if self._rows else signed(self._content.intdigest())
        throttled = self._clients.throttled.take("puts", "heads")
        produced = Produced(
            self._deployment.attempt,
            tuple(self._summaries),
            content,
            throttled,
            self._plain_bytes,
        )
        receipt = self._clients.log.append(self._announcer.fact(produced))
        receipt.offset(self._clients.runtime.deadline())
        return produced

    def abort(self, reason: str) -> None:
        if self._closed:
            return
        self._close()
        failed = AttemptFailed(self._deployment.attempt, reason)
        receipt = self._clients.log.append(self._announcer.fact(failed))
        receipt.offset(self._clients.runtime.deadline())

    def _close(self) -> None:
        self._closed = True
        self._batches.clear()
        self._targets.clear()
        self._runs.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._uploader.shutdown(wait=True, cancel_futures=True)

    def _sort(self) -> None:
        if self._batches:
            run = sort(self._batches, self._targets, self._deployment.subpartitions)
            if self._rows:
                self._rows.add(run)
            self._runs.append(run)
            self._batches.clear()
            self._targets.clear()
            self._unsorted_rows = 0

    def _flush(self, is_last: bool = False) -> None:
        """End a segment. Where files are written, it waits in one, if it is not the only one."""
        it = self._deployment
        self._sort()
        if not self._runs:
            return
        runs, self._runs = self._runs, []
        self._held_bytes = 0
        if is_last and self._spill is not None and self._spill.is_empty:
            self._spill = None  # a partition of one segment needs no file
        if self._form == ARROW:  # once packed, always packed: few objects have another format
            self._form = form_of(runs)
        self._end(encode(runs, it.codec, it.attempt, self._form), is_last)

    def _end(self, segment: Segment, is_last: bool = False) -> None:
        """Let a segment wait, or store it."""
        self._content.update(segment.index.rows.tobytes())
        self._content.update(segment.index.checksums.tobytes())
        if self._spill is not None and not self._spill.fits(segment):
            self._store_held(rows_wait=True)
            self._spill = Spill.of(self._clients)
        if self._spill is None or not self._spill.hold(segment):
            self._store_held(rows_wait=True)
            self._store(segment, is_last)

    def _store_held(self, rows_wait: bool) -> None:
        """Store the segments that wait in a file, and let no other one wait."""
        if self._spill is not None:
            self._settle()  # the segment that is being put takes memory, too
            it = self._deployment
            for segment in self._spill.take(it.schema, it.attempt, rows_wait):
                self._store(segment)
                self._settle()
                del segment  # before the next one is merged
            self._spill = None

    def _store(self, segment: Segment, is_last: bool = False) -> None:
        """Put a segment, in a thread of its own if another one may fill meanwhile."""
        self._settle()
        packed = segment.index.packed()
        # readers find an index that would crowd the event in the segment's footer
        inline = packed if len(packed) <= self._inline_bytes else b""
        self._inline_bytes -= len(inline)
        number, rows = len(self._summaries), int(segment.index.rows.sum())
        self._summaries.append(
            SegmentSummary(
                number, len(segment.body), rows, checksum(segment.body), inline, segment.form
            )
        )
        if is_last:
            self._put(number, segment)
        else:
            self._upload = self._uploader.submit(self._put, number, segment)

    def _settle(self) -> None:
        """Wait for the segment that is being put, so that at most one exists beside the one that
        fills."""
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.result()

    def _put(self, number: int, segment: Segment) -> None:
        self._started.offset(self._clients.runtime.deadline())
        attempt = self._deployment.attempt
        name = self._clients.layout.segment(attempt, number)
        self._clients.store.put(name, segment.body, f"{attempt}/{number}")
