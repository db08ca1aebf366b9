"""Remember the stored results of a job: which there are, who reads them, how they are made again,
and when they are released.

Nothing else in the driver remembers a result. Only the user releases those of `hg.repartition`.
Others are released with the user's DataFrame, or when nothing is left in Spark that could read
them, as Spark deletes the files of its own shuffles; if that fails, a later query releases them.
What failed is released at once. The end of the job releases what is left.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from ....control.contract import ShuffleDescriptor, ShuffleMaster
from ....control.errors import HeadgateError, Invalid
from ....control.ids import ResultId, combined_name
from ....control.model.state import JobState, ResultState
from ....storage.format.layout import Layout
from ....storage.format.manifest_shards import StoredManifest, store_manifest
from ....storage.format.segment import Longs
from ....storage.stores.port import BlobStore
from ..jvm.caches import Reader
from ..jvm.catalyst import Lineage
from ..tasks.exchange_tasks import ReadTask, WorkerSettings
from .placing import placed_now
from .rerun import Reruns, Writing

_LOG = logging.getLogger("headgate")
_NAMED_MAX = 20
Results = tuple[ShuffleDescriptor, ...]
Pending = list[ShuffleDescriptor]
"""Results that nobody can read yet."""


class StoredRows(Protocol):
    """The stored rows of a DataFrame."""

    @property
    def results(self) -> Results: ...


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A complete result, and where its rows are."""

    descriptor: ShuffleDescriptor
    read: ReadTask
    """The task that reads the rows."""
    ordered: bool
    """True if a rerun of the map stage would give the rows in the same order."""
    rows: Longs
    """Rows of each subpartition."""
    sizes: Longs
    """Bytes of each subpartition."""
    largest: Mapping[int, Longs]
    """Bytes of the largest subpartitions by partition. Only plans need them."""
    plain_bytes: int
    """The size of the rows without compression. A task of an older version does not publish it: its
    stored bytes count."""

    @property
    def results(self) -> Results:
        return (self.descriptor,)


@dataclass(slots=True)
class _Memory:
    """The memory of one result, until it is released."""

    writing: Writing | None = None
    """The map stage that makes it again."""
    scans: list[int] = field(default_factory=list)
    """The ids of the RDDs that read it."""
    placed: tuple[int, StoredResult] | None = None
    """Its places, if its manifest is stored, and how often it was complete by then."""


class StoredResults:
    """The stored results of one job. All sessions of the job share them."""

    def __init__(
        self,
        master: ShuffleMaster,
        store: BlobStore,
        worker: WorkerSettings,
        epoch: int,
        reruns: Reruns,
    ) -> None:
        self.master, self.store, self.worker = master, store, worker
        self.epoch, self.reruns = epoch, reruns
        self.closed = threading.Event()
        self._last = 0
        """The number of the result that was named last."""
        self._queries: list[tuple[int, Collection[ResultId]]] = []
        """The last number when a running query began, and what the query reads."""
        self._memories: dict[ResultId, _Memory] = {}
        self._scans: dict[int, Sequence[tuple[ResultId, bool]]] = {}
        """The results that each RDD of this driver reads, and whether they are `ordered`."""
        self._frames = weakref.WeakKeyDictionary[DataFrame, StoredRows]()
        self._held: list[tuple[Reader | None, Results]] = []
        """Results with their reader in Spark; None for a reader that is gone before its results."""
        self._answers = weakref.WeakKeyDictionary[
            DataFrame, dict[bool, tuple[DataFrame, Results]]
        ]()
        """By the user's DataFrame: its rows, by whether the driver collects them."""
        self._gone: SimpleQueue[Results | None] = SimpleQueue()
        """The results of answers whose user's DataFrame is gone."""
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        reruns.writing_of = self._writing_of

    @property
    def state(self) -> JobState:
        return self.master.state()

    def state_of(self, result: ResultId) -> ResultState | None:
        return self.state.results.get(result)

    def descriptor(
        self, result: ResultId, partitions: int, subpartitions: int
    ) -> ShuffleDescriptor:
        return ShuffleDescriptor(self.worker.job, result, partitions, subpartitions, self.epoch)

    def name(self) -> ResultId:
        """Return a name for the next result. While a query runs that began before, it is in use."""
        with self._lock:
            self._last += 1
            return self._named(self._last)

    @contextmanager
    def query(self, read: Collection[ResultId] = ()) -> Iterator[None]:
        """Run a query inside, which reads the results `read` and may name others."""
        with self._lock:
            begun = self._last, read
            self._queries.append(begun)
        try:
            yield
        finally:
            with self._lock:
                self._queries.remove(begun)

    @property
    def in_use(self) -> frozenset[ResultId]:
        """The results of running queries, and those that Spark may still read."""
        with self._lock:
            first = min((last for last, _ in self._queries), default=self._last)
            named = {self._named(number) for number in range(first + 1, self._last + 1)}
            named |= set(map(combined_name, named))
            kept = {each.result for _, results in self._held for each in results}
            return frozenset(named.union(kept, *(read for _, read in self._queries)))

    def _named(self, number: int) -> ResultId:
        return ResultId(f"{self.epoch}-{number:04d}")

    @contextmanager
    def pending(self) -> Iterator[Pending]:
        """Yield a list for what is written inside. Drop what is on it in the end, the last first:
        its tasks may still read the others."""
        pending: Pending = []
        try:
            yield pending
        finally:
            self.drop(reversed(pending))

    def made_by(self, result: ResultId, writing: Writing) -> None:
        """Remember the map stage that makes a result again."""
        self._memory(result).writing = writing

    def _writing_of(self, result: ResultId) -> Writing | None:
        memory = self._memories.get(result)
        return memory.writing if memory else None

    def _memory(self, result: ResultId) -> _Memory:
        with self._lock:
            return self._memories.setdefault(result, _Memory())

    def read_by(self, scan: int, stored: Iterable[StoredResult]) -> None:
        """Remember which results an RDD reads."""
        reads = [(each.descriptor.result, each.ordered) for each in stored]
        with self._lock:
            self._scans[scan] = reads
            for result, _ in reads:
                self._memory(result).scans.append(scan)

    def inputs(self, lineage: Lineage) -> tuple[tuple[ResultId, ...], bool]:
        """Return the results that a map stage reads, and whether a rerun of the stage would give
        its rows in the same order."""
        reads = [read for scan in sorted(lineage.scans) for read in self._scans.get(scan, ())]
        ordered = lineage.ordered and all(ordered for _, ordered in reads)
        return tuple(dict.fromkeys(result for result, _ in reads)), ordered

    def place(
        self, descriptor: ShuffleDescriptor, schema: pa.Schema, ordered: bool, readers: int
    ) -> StoredResult:
        """Return a complete result with the task that reads it in so many executors. A wide result
        that was placed before is not placed again, unless it became complete again since.

        Raises:
            Lost, Corrupt: as for `placed_now`.
        """
        memory = self._memory(descriptor.result)
        state = self.master.await_complete(descriptor)
        completions = state.totals.completions
        if memory.placed is not None and memory.placed[0] == completions:
            known = memory.placed[1]
            read = replace(known.read, schema=schema, executors=readers)
            return replace(known, descriptor=descriptor, read=read, ordered=ordered)
        layout = Layout(self.worker.root, descriptor.job)
        placed, completions = placed_now(self.master, self.store, layout, self.reruns, descriptor)
        shipped = store_manifest(self.store, layout, placed, completions)
        read = ReadTask(self.worker, shipped, schema, executors=readers)
        produced = map(state.produced, range(descriptor.partitions))
        plain_bytes = sum(each.plain_bytes or each.size_bytes for each in produced)
        stored = StoredResult(descriptor, read, ordered, *placed.totals(), {}, plain_bytes)
        if isinstance(shipped, StoredManifest):
            memory.placed = completions, stored
        return replace(stored, largest=placed.largest(descriptor.partitions))

    def add(self, frame: DataFrame, rows: StoredRows) -> None:
        """Remember the stored rows of a DataFrame."""
        self._frames[frame] = rows

    def rows_of(self, frame: DataFrame) -> StoredRows | None:
        return self._frames.get(frame)

    def hold(self, results: Results, reader: Callable[[], Reader]) -> None:
        """Keep results as long as a reader in Spark may read them. Drop them if there is none."""
        with self.pending() as pending:
            pending += results
            kept = reader(), results
            with self._lock:
                self._held.append(kept)
            pending.clear()

    def sweep(self) -> None:
        """Release the results that nothing can read any more. After a failure the next sweep goes
        on."""
        with self._lock:
            gone = [each for each in self._held if each[0] is None or each[0].is_gone()]
        for each in gone:
            try:
                self.release(each[1])
            except HeadgateError as exc:
                _LOG.warning(
                    "results that are no longer needed stay stored until a later query: %s", exc
                )
                return

    def keep_answer(
        self, asked: DataFrame, served: Iterable[bool], rows: DataFrame, results: Results
    ) -> None:
        """Keep the rows of a user's DataFrame for later actions: those that collect rows (`served`
        has True) or do not (False).

        Spark plans a DataFrame once: a second action on it has the same `current_timestamp()` and
        skips the map stages that have run. So an answer lives as long as the user's DataFrame.
        """
        with self._lock:
            if self._thread is None:  # Python may collect a DataFrame at any point of the program
                self._thread = threading.Thread(
                    target=self._end_gone, name="headgate-answers", daemon=True
                )
                self._thread.start()
            self._answers.setdefault(asked, {}).update(dict.fromkeys(served, (rows, results)))
        weakref.finalize(asked, self._gone.put, results).atexit = False

    @contextmanager
    def reading(self, asked: DataFrame, collected: bool) -> Iterator[DataFrame | None]:
        """Yield the rows of a DataFrame that an earlier action has run, None if they are not there
        any more. They are in use inside."""
        rows, results = self._answers.get(asked, {}).get(collected, (None, ()))
        read = [descriptor.result for descriptor in results]
        with self.query(read):
            states = [self.state_of(result) for result in read]
            is_there = all(state is not None and state.fate.released is None for state in states)
            yield rows if is_there else None

    def _end_gone(self) -> None:
        while (results := self._gone.get()) is not None:
            self.end(results)

    def release(self, results: Results) -> None:
        """Release results, and forget them."""
        for descriptor in results:
            self.master.release_partition_externally(descriptor)
            self._forget(descriptor.result)
        with self._lock:
            self._held = [each for each in self._held if each[1] != results]

    def release_frame(self, frame: DataFrame) -> bool:
        """Release the stored rows of a DataFrame, and return False if it has none."""
        if (rows := self._frames.get(frame)) is None:
            return False
        self.release(rows.results)
        self._frames.pop(frame, None)
        return True

    def end(self, results: Results) -> None:
        """Release the stored rows of a query that nobody can ask for again. If that fails, a later
        query releases them."""
        try:
            if not self.closed.is_set():
                self.release(results)
        except HeadgateError as exc:
            _LOG.warning("results of a query stay stored until a later query: %s", exc)
            with self._lock:
                self._held.append((None, results))

    def drop(self, results: Iterable[ShuffleDescriptor]) -> None:
        """Release results that nobody will read. Errors are suppressed: the caller raises the error
        that came before."""
        for descriptor in results:
            self._forget(descriptor.result)
            with suppress(HeadgateError):
                self.master.release_partition_externally(descriptor)

    def _forget(self, result: ResultId) -> None:
        with self._lock:
            for scan in self._memories.pop(result, _Memory()).scans:
                self._scans.pop(scan, None)

    def remove_unused(self, needed: Collection[ResultId]) -> tuple[ResultId, ...]:
        """Release the complete results that nothing needs, and return their names."""
        unused = self.master.remove_unused(self.in_use.union(needed))
        for result in unused:
            self._forget(result)
        return unused

    def close(self) -> None:
        """Let nothing in Spark read a result any more, and release none: all of the job is about to
        be released."""
        self.closed.set()
        self.reruns.close()
        self._gone.put(None)
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for reader, _ in self._held:
                if reader is not None:
                    reader.close()
            self._held.clear()
            self._memories.clear()


def readable(state: JobState, name: ResultId) -> ResultState:
    """Return a result that is complete, not released, and whose schema the log has.

    Raises:
        Invalid: the result does not exist, is released or incomplete, or has no schema in the log.
    """
    result = state.results.get(name)
    if result is None:
        complete = [
            other
            for other, candidate in state.results.items()
            if candidate.complete and candidate.fate.released is None
        ]
        there = ", ".join(complete[-_NAMED_MAX:]) or "none"
        raise Invalid(f"job {state.job} has no result {name!r}; its complete results are: {there}")
    if result.fate.released is not None:
        raise Invalid(f"result {name} was released: {result.fate.released}")
    if not result.complete:
        whole, wanted = len(result.production.winners), result.registered.partitions
        progress = f"{whole} of {wanted} partitions are there"
        raise Invalid(f"result {name} is not complete: {progress}")
    if not result.registered.schema:
        raise Invalid(f"the schema of result {name} was too large for the log")
    return result
