"""The executor's side on an object store: makes writers and gates that share a process's means."""

from __future__ import annotations

from ..control.events import Fact
from ..control.ids import JobId, ResultId
from ..control.log import EventLog, Receipt
from ..control.loop import Author
from .blobs import BlobStore
from .contract import InputGateDeployment, Limits, ResultPartitionDeployment
from .gate import SegmentGate
from .layout import Layout
from .manifest import Manifest
from .means import Means
from .neighbours import Neighbours
from .shards import StoredManifest, load_shard
from .writer import SegmentWriter

_MEANS = Means()


class ObjectStoreEnvironment:
    """Implements `ShuffleEnvironment`; one for each job in a process."""

    def __init__(
        self,
        job: JobId,
        log: EventLog,
        store: BlobStore,
        root: str,
        limits: Limits,
        means: Means = _MEANS,
    ) -> None:
        self._job = job
        self._log = log
        self._store = store
        self._layout = Layout(root, job)
        self._limits = limits
        self._means = means
        self._shard: tuple[tuple[ResultId, int], Manifest] | None = None
        self._neighbours = Neighbours(
            store, limits.cache_bytes, means.pool(limits.fetch_parallel, "headgate-get")
        )

    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment, host: str = ""
    ) -> SegmentWriter:
        author = Author(self._job, f"task {deployment.attempt}", self._means.clock)
        writer = SegmentWriter(
            deployment,
            self._store,
            self._layout,
            self._limits,
            lambda fact: self._announce(author, fact),
            self._means,
        )
        writer.start(host)
        return writer

    def create_input_gate(self, deployment: InputGateDeployment) -> SegmentGate:
        name = f"reader {deployment.manifest.result}/{deployment.task}"
        author = Author(self._job, name, self._means.clock)
        return SegmentGate(
            deployment,
            self._neighbours,
            self._limits,
            lambda fact: self._announce(author, fact),
            self._means.wait_s,
        )

    def manifest_of(self, manifest: Manifest | StoredManifest, subpartition: int) -> Manifest:
        """The manifest that tells where a subpartition is; the last shard is kept for the next."""
        if isinstance(manifest, Manifest):
            return manifest
        key = (manifest.head.result, subpartition // manifest.width)
        if self._shard is None or self._shard[0] != key:
            self._shard = key, load_shard(self._store, manifest, subpartition)
        return self._shard[1]

    def close(self) -> None:
        self._neighbours.close()
        self._log.close()
        self._store.close()

    def _announce(self, author: Author, fact: Fact) -> Receipt:
        return self._log.append(author.fact(fact))
