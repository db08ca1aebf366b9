"""The contract on the executor's side, over Arrow batches, after FLIP-31. Knows no engine."""

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

SEGMENT_BYTES_MAX = 1 << 30  # Arrow's columns of text and an index have no more than 31 and 32 bits


@dataclass(frozen=True, slots=True)
class ResultPartitionDeployment:
    """What one map task needs to write its partition. A pipelined one announces each segment as
    soon as it is stored, so that readers need not wait for the last one. `ordered`: another attempt
    would be given the same rows in the same order, so that its bytes tell whether they are; else
    they are compared in whatever order they come, which costs a hash of every row."""

    attempt: AttemptId
    subpartitions: int
    schema: pa.Schema
    codec: str
    pipelined: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What has become known of one attempt at a partition. Its segments may be told one by one, and
    again. `whole`: the attempt is the partition, and these are all of its segments. `failed`: it
    never will be, and why."""

    attempt: AttemptId
    segments: tuple[SegmentSummary, ...] = ()
    whole: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True)
class InputGateDeployment:
    """What one reader task needs to read `count` neighbouring subpartitions. `unknown` are the
    partitions that the manifest does not have yet, `told` what is known of them all the same; from
    `position` on the log tells of them, and without one the environment has to be told. There the
    oldest fact stands from which something may still follow: told from further back, a reader of a
    pipelined result takes the end of a former generation for its own."""

    manifest: Manifest
    schema: pa.Schema
    first: int
    count: int
    task: int
    unknown: tuple[UnknownShuffleDescriptor, ...] = ()
    told: tuple[PartitionInfo, ...] = ()
    position: int | None = None


class ResultPartitionWriter(Protocol):
    def write(self, batch: pa.RecordBatch, subpartitions: Longs) -> None:
        """Take a batch and the subpartition of each of its rows."""

    def finish(self) -> Produced:
        """Write what is left and announce the partition; returns when the log has confirmed it."""

    def abort(self, reason: str) -> None:
        """Give the partition up and say so; what was written is deleted by the master."""


class InputGate(Protocol):
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Every row of the subpartitions, once, from one attempt of each partition, or an error.
        Partitions that are not known yet are waited for. A gate is read once.

        Raises:
            Lost: an announced object is gone, or an attempt that was half read has failed.
            Corrupt: bytes are not what was announced.
            Unavailable: nothing was heard in time of the partitions that the message names.
        """


@dataclass(frozen=True, slots=True)
class ShuffleEnvironmentContext:
    """What a factory makes a job's environment in a process from."""

    job: JobId
    runtime: Runtime = field(default_factory=Runtime)


class ShuffleEnvironment(Protocol):
    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment, host: str = ""
    ) -> ResultPartitionWriter: ...

    def create_input_gate(self, deployment: InputGateDeployment) -> InputGate: ...

    def manifest_of(self, manifest: Manifest | StoredManifest, subpartition: int) -> Manifest:
        """Return the manifest that tells where a subpartition is, loaded where it is stored."""

    def update_partition_infos(self, infos: Iterable[PartitionInfo]) -> None:
        """Tell every open gate what has become known of partitions that it waits for."""

    def close(self) -> None: ...


class ShuffleServiceFactory(Protocol):
    """Makes masters and environments that belong together."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster: ...

    def create_shuffle_environment(
        self, context: ShuffleEnvironmentContext
    ) -> ShuffleEnvironment: ...
