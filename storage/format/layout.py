"""Every object name, in one place.

`<root>/<job>/<shard>/<result>/<partition>/<attempt>/<n>`: the shard spreads the request rate, one
prefix holds all of a job, and no two attempts ever write the same name.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ...control.ids import AttemptId, JobId, ResultId

_SHARDS = 64
_MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class Layout:
    root: str
    job: JobId

    @property
    def prefix(self) -> str:
        """Where all of the job's objects are."""
        return f"{self.root}/{self.job}/" if self.root else f"{self.job}/"

    def attempt(self, attempt: AttemptId) -> str:
        """Where an attempt's objects are."""
        partition = attempt.partition
        folder = self._folder(partition.result, str(partition.index))
        return f"{folder}{attempt.epoch}-{attempt.task}/"

    def segment(self, attempt: AttemptId, number: int) -> str:
        return f"{self.attempt(attempt)}{number}"

    def manifests(self, result: ResultId) -> str:
        """Where a result's manifest shards are."""
        return self._folder(result, _MANIFEST)

    def manifest(self, result: ResultId, version: int, shard: int) -> str:
        return f"{self.manifests(result)}{version}-{shard}"

    def result_of(self, name: str) -> ResultId | None:
        """The result that one of the job's objects belongs to; None when it is no name of ours."""
        parts = name.removeprefix(self.prefix).split("/")
        ours = name.startswith(self.prefix) and len(parts) > 2
        return ResultId(parts[1]) if ours else None

    def owner(self, name: str) -> tuple[ResultId, int | None] | None:
        """The result that an object of the job is of, and the epoch that wrote it, None for a
        manifest; nothing when the name is none of these."""
        parts = name.removeprefix(self.prefix).split("/")
        if len(parts) == 4 and parts[2] == _MANIFEST:
            return ResultId(parts[1]), None
        epoch = parts[3].partition("-")[0] if len(parts) == 5 else ""
        return (ResultId(parts[1]), int(epoch)) if epoch.isdecimal() else None

    def _folder(self, result: ResultId, part: str) -> str:
        shard = zlib.crc32(f"{result}/{part}".encode()) % _SHARDS
        return f"{self.prefix}{shard:02x}/{result}/{part}/"


def segment_number(name: str) -> int:
    """Which of its attempt's segments an object is."""
    return int(name.rpartition("/")[2])
