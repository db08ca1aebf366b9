"""The executor's side on an object store: makes writers and gates that share a process's cache,
threads and connections."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..control.events.types import Fact
from ..control.ids import JobId
from ..control.inquiry.job_view import JobView
from ..control.log import EventLog, Receipt
from ..control.master.announcer import Announcer
from .contract import InputGateDeployment, PartitionInfo, ResultPartitionDeployment
from .format.layout import Layout
from .format.manifest import Manifest, locate
from .format.manifest_shards import StoredManifest, load_shard
from .limits import Limits
from .reading.gate import SegmentGate
from .reading.range_cache import RangeCache
from .reading.replacement import Replacement
from .runtime import Runtime
from .stores.port import BlobStore
from .streaming.stream_gate import OpenChannels, StreamGate
from .streaming.stream_writer import StreamWriter
from .writing.writer import SegmentWriter

_RUNTIME = Runtime()


class ObjectStoreEnvironment:
    """Implements `ShuffleEnvironment`. A process has one for each job."""

    def __init__(
        self,
        job: JobId,
        log: EventLog,
        store: BlobStore,
        root: str,
        limits: Limits,
        runtime: Runtime = _RUNTIME,
    ) -> None:
        self._job = job
        self._log = log
        self._store = store
        self._layout = Layout(root, job)
        self._locate = partial(locate, self._layout, store)
        self._limits = limits
        self._runtime = runtime
        self._shard: tuple[str, Manifest] | None = None
        self._range_cache = RangeCache(
            store, limits.cache_bytes, runtime.pool(limits.fetch_parallel, "headgate-get")
        )
        self._view = JobView(log, job)
        self._channels = OpenChannels(job, log, self._locate, runtime)

    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment, host: str = ""
    ) -> SegmentWriter:
        announcer = Announcer(self._job, f"task {deployment.attempt}", self._runtime.clock)
        writer = (StreamWriter if deployment.pipelined else SegmentWriter)(
            deployment,
            self._store,
            self._layout,
            self._limits,
            lambda fact: self._announce(announcer, fact),
            self._runtime,
        )
        writer.start(host)
        return writer

    def create_input_gate(self, deployment: InputGateDeployment) -> SegmentGate:
        result = deployment.manifest.result
        announcer = Announcer(self._job, f"reader {result}/{deployment.task}", self._runtime.clock)
        announce = partial(self._announce, announcer)
        replacement = Replacement(deployment, self._view, self._locate, announce, self._runtime)
        shared = self._range_cache, self._limits, replacement, announce, self._runtime
        if deployment.unknown:
            return StreamGate(self._channels.open(deployment), *shared)
        return SegmentGate(deployment, *shared)

    def update_partition_infos(self, infos: Iterable[PartitionInfo]) -> None:
        self._channels.update(infos)

    def manifest_of(self, manifest: Manifest | StoredManifest, subpartition: int) -> Manifest:
        """Return a manifest that has the subpartition. The last shard is kept for later calls."""
        if isinstance(manifest, Manifest):
            return manifest
        name = manifest.names[subpartition // manifest.width]
        if self._shard is None or self._shard[0] != name:
            self._shard = name, load_shard(self._store, manifest, subpartition)
        return self._shard[1]

    def close(self) -> None:
        self._range_cache.close()
        self._view.close()
        self._log.close()
        self._store.close()

    def _announce(self, announcer: Announcer, fact: Fact) -> Receipt:
        return self._log.append(announcer.fact(fact))
