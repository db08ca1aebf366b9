"""The executor's side on an object store: makes writers and gates that share a process's cache,
threads and connections."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from weakref import WeakSet

from ..control.contract import ShuffleDescriptor
from ..control.errors import Corrupt, Lost
from ..control.ids import JobId, ResultId
from ..control.inquiry.job_view import JobView
from ..control.log import EventLog
from .contract import InputGateDeployment, PartitionInfo, ResultPartitionDeployment
from .format.layout import Layout
from .format.manifest import AnnouncedSegment, Manifest
from .format.manifest_shards import StoredManifest, load_shard
from .limits import Limits
from .reading.gate import SegmentGate
from .reading.lost_objects import LostObjects, ViewNews, part_from_log, place_sound
from .reading.range_cache import RangeCache
from .reading.shared_ranges import SharedRanges
from .reading.stretches import StretchReader
from .runtime import JobClients, Runtime
from .stores.port import BlobStore
from .stores.request_meter import ThrottledMeter
from .streaming.channels import Channels
from .streaming.partition_updates import LogUpdates
from .streaming.stream_gate import StreamGate
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
        self._clients = JobClients(
            log,
            store,
            Layout(root, job),
            limits,
            runtime,
            ThrottledMeter(lambda: store.requests),
        )
        self._shard: tuple[str, Manifest] | None = None
        fetchers = runtime.pool(limits.fetch_parallel, "headgate-get")
        shared = None
        if runtime.folders and limits.shared_bytes:
            shared = SharedRanges(store, runtime.folders, limits.shared_bytes)
        self._range_cache = RangeCache(store, limits.cache_bytes, fetchers, shared, runtime)
        self._view = JobView(log, job)
        self._channels: WeakSet[Channels] = WeakSet()
        self._lock = Lock()

    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment, host: str = ""
    ) -> SegmentWriter:
        writer = StreamWriter if deployment.pipelined else SegmentWriter
        return writer(deployment, self._clients, host)

    def create_input_gate(self, deployment: InputGateDeployment) -> SegmentGate:
        if not deployment.unknown:
            return SegmentGate(deployment, self._clients, self._range_cache, self._view)
        updates = None if deployment.position is None else LogUpdates(deployment, self._clients)
        channels = Channels(deployment, self._clients, updates)
        with self._lock:
            self._channels.add(channels)
        return StreamGate(channels, self._clients, self._range_cache, self._view)

    def create_stretch_reader(self, deployments: Iterable[InputGateDeployment]) -> StretchReader:
        return StretchReader(deployments, self._clients, self._range_cache, self.create_input_gate)

    def manifest_of_segments(
        self, descriptor: ShuffleDescriptor, segments: tuple[AnnouncedSegment, ...], task: int
    ) -> Manifest:
        """Return a manifest of these segments of a result, for a task. If an index is in no event
        and its object is lost, wait until the partition is made again."""
        self._range_cache.add_requests(sum(not segment.index for _, segment in segments))
        layout, store = self._clients.layout, self._clients.store
        lost = self._lost(descriptor.result, 0, task)
        placed = place_sound(descriptor, segments, layout, store, lost)
        return placed.part(0, descriptor.subpartitions)

    def update_partition_infos(self, infos: Iterable[PartitionInfo]) -> None:
        news = tuple(infos)
        with self._lock:
            waiting = tuple(self._channels)
        for channels in waiting:
            channels.update(news)

    def manifest_of(
        self, manifest: Manifest | StoredManifest, subpartition: int, task: int
    ) -> Manifest:
        """Return a manifest that has the subpartition. The last shard is kept for later calls. A
        shard that cannot be read is made from the log."""
        if isinstance(manifest, Manifest):
            return manifest
        shard = subpartition // manifest.width
        name, store = manifest.names[shard], self._clients.store
        if self._shard is None or self._shard[0] != name:
            try:
                self._shard = name, load_shard(store, manifest, subpartition)
            except (Lost, Corrupt) as failure:
                head, reach = manifest.head, manifest.reach(shard)
                lost = self._lost(head.result, reach.start, task)
                made = part_from_log(head, reach, self._clients.layout, store, lost, failure)
                self._shard = name, made
        return self._shard[1]

    def _lost(self, result: ResultId, first: int, task: int) -> LostObjects:
        announcer = self._clients.announcer(f"finder {result}/{first}/{task}")
        return LostObjects(result, ViewNews(self._clients, self._view, announcer), task)

    def close(self) -> None:
        self._range_cache.close()
        self._view.close()
        self._clients.log.close()
        self._clients.store.close()
