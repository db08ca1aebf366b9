"""The executor's side on an object store: makes writers and gates that share a process's cache,
threads and connections."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..control.ids import JobId
from ..control.inquiry.job_view import JobView
from ..control.log import EventLog
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
from .writing.writer import Announce, SegmentWriter

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
        announce = self._announce_as(f"task {deployment.attempt}")
        writer = (StreamWriter if deployment.pipelined else SegmentWriter)(
            deployment, self._store, self._layout, self._limits, announce, self._runtime
        )
        writer.start(host)
        return writer

    def create_input_gate(self, deployment: InputGateDeployment) -> SegmentGate:
        announce = self._announce_as(f"reader {deployment.manifest.result}/{deployment.task}")
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

    def _announce_as(self, name: str) -> Announce:
        announcer = Announcer(self._job, name, self._runtime.clock)
        return lambda fact: self._log.append(announcer.fact(fact))
