"""The objects that the exchanges of one job share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....control.contract import ShuffleDescriptor, ShuffleMaster
from ....control.ids import ResultId
from ....storage.format.segment import Longs
from ....storage.stores.port import BlobStore
from ..jvm.catalyst import Lineage
from ..settings import ExchangeSettings
from ..tasks.exchange_tasks import ReadTask, WorkerSettings
from .budget import Budget
from .progress import Progress
from .rerun import Reruns


@dataclass(frozen=True, slots=True)
class StoredExchange:
    """The stored rows of an exchange."""

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
    """Bytes of the largest subpartitions by partition."""


@dataclass(slots=True)
class KnownScans:
    """The RDDs of this driver that read results."""

    _scans: dict[int, Sequence[tuple[ResultId, bool]]] = field(default_factory=dict)
    """By the RDD's id: the results that it reads, and whether each is `ordered`."""
    _of: dict[ResultId, list[int]] = field(default_factory=dict)
    """The RDDs that read a result."""

    def add(self, scan: int, written: Iterable[StoredExchange]) -> None:
        reads = [(exchange.descriptor.result, exchange.ordered) for exchange in written]
        self._scans[scan] = reads
        for result, _ in reads:
            self._of.setdefault(result, []).append(scan)

    def forget(self, result: ResultId) -> None:
        """Forget the RDDs that read a result which is released."""
        for scan in self._of.pop(result, ()):
            self._scans.pop(scan, None)

    def inputs(self, lineage: Lineage) -> tuple[tuple[ResultId, ...], bool]:
        """Return the results that a map stage reads, and whether a rerun of the stage would give
        its rows in the same order."""
        scans = sorted(lineage.scans & self._scans.keys())
        reads = [read for scan in scans for read in self._scans[scan]]
        ordered = lineage.ordered and all(ordered for _, ordered in reads)
        return tuple(dict.fromkeys(result for result, _ in reads)), ordered


@dataclass(frozen=True, slots=True)
class JobContext:
    """The objects that all exchanges of a job share."""

    master: ShuffleMaster
    store: BlobStore
    worker: WorkerSettings
    settings: ExchangeSettings
    epoch: int
    reruns: Reruns
    budget: Budget
    progress: Progress
    known: KnownScans = field(default_factory=KnownScans)

    def forget(self, result: ResultId) -> None:
        """Forget what is only needed until a result is released."""
        self.reruns.forget(result)
        self.known.forget(result)
