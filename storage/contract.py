"""The executor's side of the contract, over Arrow batches, after FLIP-31. It knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from ..control.contract import ShuffleMaster, ShuffleMasterContext, UnknownShuffleDescriptor
from ..control.events.types import Produced, SegmentSummary
from ..control.ids import AttemptId, JobId
from .format.manifest import Manifest
from .format.manifest_shards import StoredManifest
from .format.segment import Longs
from .runtime import Runtime

SEGMENT_BYTES_MAX = 1 << 30  # Arrow's text columns count bytes in 31 bits, an index in 32


@dataclass(frozen=True, slots=True)
class ResultPartitionDeployment:
    """The partition that one map task writes."""

    attempt: AttemptId
    subpartitions: int
    schema: pa.Schema
    """No column is, or holds, a dictionary, a view or run-ends."""
    codec: str
    """A codec of Arrow's IPC format, or "none"."""
    pipelined: bool = False
    """Announce each segment as soon as it is stored, so that readers need not wait for the last."""
    ordered: bool = False
    """Another attempt would get the same rows in the same order, so checksums of the bytes compare
    attempts. If not, attempts are compared in any order of rows, which costs a hash of each row."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """News of one attempt at a partition."""

    attempt: AttemptId
    segments: tuple[SegmentSummary, ...] = ()
    """Announced segments. They may come one by one, and more than once."""
    whole: bool = False
    """Readers of the partition read this attempt, and `segments` has all of its segments."""
    failed: str = ""
    """The reason why no reader will read the attempt to its end; '' if there is none."""


@dataclass(frozen=True, slots=True)
class InputGateDeployment:
    """The neighbouring subpartitions that one reader task reads."""

    manifest: Manifest
    schema: pa.Schema
    first: int
    count: int
    task: int
    unknown: tuple[UnknownShuffleDescriptor, ...] = ()
    """The partitions that the manifest does not have yet."""
    told: tuple[PartitionInfo, ...] = ()
    """The news of the unknown partitions so far."""
    position: int | None = None
    """The place in the log where further news begins; None if `update_partition_infos` brings it.
    It is the oldest fact from which a decision may still follow. From an older place, a reader of
    a pipelined result would take the end of a former generation for the end of its own."""
    executors: int = 1
    """The number of executors that read the result side by side, or of tasks if these share
    nothing."""


class ResultPartitionWriter(Protocol):
    def write(self, batch: pa.RecordBatch, subpartitions: Longs) -> None:
        """Take a batch and the subpartition of each of its rows."""

    def finish(self) -> Produced:
        """Write the remaining rows and announce the partition. Return when the log has confirmed
        the announcement."""

    def abort(self, reason: str) -> None:
        """Give the partition up and announce the failure. The master deletes what was written."""


class InputGate(Protocol):
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield every row of the subpartitions once, from one attempt of each partition, or raise.
        Wait for partitions that are not known yet. A gate can be read only once.

        Raises:
            Lost: announced bytes are gone or wrong and were not made again in time, or with their
                rows in another order after some were handed out; or an attempt that was half read
                has failed.
            Corrupt: bytes do not match their checksum and nothing can replace them, or bytes match
                and cannot be decoded, or announcements contradict each other.
            Unavailable: no news came in time of the partitions that the message names.
        """

    def numbered(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the same batches, each with the subpartition of its rows."""

    def take_volume(self) -> tuple[int, int]:
        """Return the rows and stored bytes that were fetched and checked since the last call."""


@dataclass(frozen=True, slots=True)
class ShuffleEnvironmentContext:
    """The job and the process that a factory makes an environment for."""

    job: JobId
    runtime: Runtime = field(default_factory=Runtime)


class ShuffleEnvironment(Protocol):
    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment, host: str = ""
    ) -> ResultPartitionWriter: ...

    def create_input_gate(self, deployment: InputGateDeployment) -> InputGate: ...

    def manifest_of(
        self, manifest: Manifest | StoredManifest, subpartition: int, task: int
    ) -> Manifest:
        """Return the manifest that tells a task where a subpartition is, loaded where it is
        stored.

        Raises:
            Lost, Corrupt: it cannot be loaded, and cannot be made from the log.
        """

    def update_partition_infos(self, infos: Iterable[PartitionInfo]) -> None:
        """Bring news of partitions to every open gate that waits for them."""

    def close(self) -> None: ...


class ShuffleServiceFactory(Protocol):
    """Makes masters and environments that belong together."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster: ...

    def create_shuffle_environment(
        self, context: ShuffleEnvironmentContext
    ) -> ShuffleEnvironment: ...
