"""The objects that the exchanges of one job share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from pyspark.sql import SparkSession

from ....control.contract import ShuffleDescriptor, ShuffleMaster
from ....control.ids import ResultId
from ....storage.format.segment import Longs
from ....storage.stores.costs import COSTS
from ....storage.stores.port import BlobStore
from ..jvm.catalyst import Lineage
from ..jvm.task_settings import SessionSettings
from ..settings import (
    FOR_THE_NEXT_ACTION,
    PREFIX,
    ExchangeSettings,
    read_exchange_settings,
    texts_of,
)
from ..tasks.exchange_tasks import ReadTask, WorkerSettings
from .budget import Budget
from .progress import Progress
from .rerun import Reruns

_LOG = logging.getLogger("headgate")


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


class CurrentSettings:
    """The settings of a session that hold for its next action.

    An action sees its session's configuration as it was when the action began, for one call of the
    JVM while no key has changed. A key that holds from attach on and is changed later is not
    obeyed: a line of the log says so, once for each new value.
    """

    def __init__(self, spark: SparkSession, store_kind: str) -> None:
        """Look the settings up, as those with which the session was attached. `store_kind` is the
        kind of store whose prices hold if no key names one."""
        self._session = SessionSettings(spark)
        self._store_kind = store_kind
        self._ignored: dict[str, str | None] = {}
        self._lock = Lock()
        self._attached: Mapping[str, str] | None = None
        self.look_up()

    def of(self, spark: SparkSession) -> CurrentSettings:
        """Return the settings of another session, which has the same job."""
        return CurrentSettings(spark, self._store_kind)

    def is_like(self, other: CurrentSettings) -> bool:
        """Return True if two sessions were attached with the same settings that hold from attach
        on. Names of jobs do not count."""

        def kept(settings: CurrentSettings) -> dict[str, str]:
            texts, others = settings._attached or {}, (*FOR_THE_NEXT_ACTION, "job.id")
            return {key: text for key, text in texts.items() if key not in others}

        return kept(self) == kept(other)

    def look_up(self) -> ExchangeSettings:
        """Return the settings for an action that begins now.

        Raises:
            Invalid: a key has been set since that is unknown, or whose value cannot be used.
        """
        with self._lock:
            if (changed := self._session.changed(PREFIX)) is not None:
                texts = texts_of(changed)
                self.exchanges = read_exchange_settings(texts)
                self._warn(texts)
                self._session.note()
            return self.exchanges

    @property
    def budget(self) -> Budget:
        now = self.exchanges
        prices = self._store_kind if now.prices == "auto" else now.prices
        return Budget(now.budget, now.budget_job, now.budget_warn, COSTS[prices])

    def _warn(self, texts: Mapping[str, str]) -> None:
        """Log which keys have changed that hold from attach on."""
        if self._attached is None:
            self._attached = texts
        keys = (self._attached.keys() | texts.keys()) - FOR_THE_NEXT_ACTION
        changed = {key: texts.get(key) for key in keys if texts.get(key) != self._attached.get(key)}
        if new := sorted(PREFIX + key for key, _ in changed.items() - self._ignored.items()):
            _LOG.warning(
                "ignored, because it was changed after the session was attached: %s; attach again, "
                "or set it back",
                ", ".join(new),
            )
        self._ignored = changed


@dataclass(frozen=True, slots=True)
class JobContext:
    """The objects that all exchanges of a job share."""

    master: ShuffleMaster
    store: BlobStore
    worker: WorkerSettings
    current: CurrentSettings
    epoch: int
    reruns: Reruns
    progress: Progress
    known: KnownScans = field(default_factory=KnownScans)
    wide: dict[ResultId, tuple[int, StoredExchange]] = field(default_factory=dict)
    """The results with stored manifests that this driver has placed, each with its completions by
    then. They are without `largest`, which only plans need."""

    @property
    def settings(self) -> ExchangeSettings:
        """Return the settings of the action that began last."""
        return self.current.exchanges

    @property
    def budget(self) -> Budget:
        return self.current.budget

    def forget(self, result: ResultId) -> None:
        """Forget what is only needed until a result is released."""
        self.reruns.forget(result)
        self.known.forget(result)
        self.wide.pop(result, None)
