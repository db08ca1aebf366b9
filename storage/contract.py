"""The contract on the executor's side, over Arrow batches, after FLIP-31. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ..control.events import Produced
from ..control.ids import AttemptId
from .manifest import Manifest
from .segment import Longs


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets in bytes. A writer holds about three times `segment_bytes` at its peak. A gate holds
    `fetch_bytes` on their way, in wait and being decoded (but one slice is always let through, and
    one is never larger than a segment), and `cache_bytes` of neighbours that it read along.
    `readers` is how many processes read side by side."""

    segment_bytes: int = 64 << 20
    fetch_bytes: int = 64 << 20
    fetch_parallel: int = 8
    join_bytes: int = 2 << 20
    cache_bytes: int = 64 << 20
    readers: int = 1


@dataclass(frozen=True, slots=True)
class ResultPartitionDeployment:
    """What one map task needs to write its partition."""

    attempt: AttemptId
    subpartitions: int
    schema: pa.Schema
    codec: str


@dataclass(frozen=True, slots=True)
class InputGateDeployment:
    """What one reader task needs to read `count` neighbouring subpartitions."""

    manifest: Manifest
    schema: pa.Schema
    first: int
    count: int
    task: int


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

        Raises:
            Lost: an announced object is gone.
            Corrupt: bytes are not what was announced.
        """


class ShuffleEnvironment(Protocol):
    def create_result_partition_writer(
        self, deployment: ResultPartitionDeployment
    ) -> ResultPartitionWriter: ...

    def create_input_gate(self, deployment: InputGateDeployment) -> InputGate: ...

    def close(self) -> None: ...
