"""The names of all objects.

`<root>/<job>/<shard>/<result>/<partition>/<attempt>/<n>`: the shard spreads the request rate, all
objects of a job have one prefix, and no two attempts ever write the same name. The markers of a
job's drivers are `<root>/<job>/_driver/<epoch>-<n>`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ...control.ids import AttemptId, JobId, ResultId

_SHARDS = 64
_MANIFEST = "manifest"
_DRIVER = "_driver"


@dataclass(frozen=True, slots=True)
class Layout:
    root: str
    job: JobId

    @property
    def prefix(self) -> str:
        """Return the prefix of the job's objects."""
        return f"{self.root}/{self.job}/" if self.root else f"{self.job}/"

    def attempt(self, attempt: AttemptId) -> str:
        """Return the prefix of an attempt's objects."""
        partition = attempt.partition
        folder = self._folder(partition.result, str(partition.index))
        return f"{folder}{attempt.epoch}-{attempt.task}/"

    def segment(self, attempt: AttemptId, number: int) -> str:
        return f"{self.attempt(attempt)}{number}"

    def manifests(self, result: ResultId) -> str:
        """Return the prefix of a result's manifest shards."""
        return self._folder(result, _MANIFEST)

    def manifest(self, result: ResultId, version: int, shard: int) -> str:
        return f"{self.manifests(result)}{version}-{shard}"

    @property
    def drivers(self) -> str:
        """Return the prefix of the markers of all drivers."""
        return f"{self.prefix}{_DRIVER}/"

    def markers(self, epoch: int) -> str:
        """Return the prefix of the markers of a driver."""
        return f"{self.drivers}{epoch}-"

    def driver_of(self, name: str) -> int | None:
        """Return the epoch of the driver that an object is a marker of; None for any other."""
        parts = name.removeprefix(self.prefix).split("/")
        epoch, _, number = parts[-1].partition("-")
        ours = len(parts) == 2 and parts[0] == _DRIVER and number.isdecimal()
        return int(epoch) if ours and epoch.isdecimal() else None

    def result_of(self, name: str) -> ResultId | None:
        """Return the result that an object of the job belongs to; None for any other name."""
        parts = name.removeprefix(self.prefix).split("/")
        ours = name.startswith(self.prefix) and len(parts) > 2
        return ResultId(parts[1]) if ours else None

    def owner(self, name: str) -> tuple[ResultId, int | None] | None:
        """Return the result that an object of the job belongs to, and the epoch that wrote it. The
        epoch of a manifest is None. Return None if the name has neither form."""
        parts = name.removeprefix(self.prefix).split("/")
        if len(parts) == 4 and parts[2] == _MANIFEST and parts[3]:
            return ResultId(parts[1]), None
        epoch = parts[3].partition("-")[0] if len(parts) == 5 and parts[4].isdecimal() else ""
        return (ResultId(parts[1]), int(epoch)) if epoch.isdecimal() else None

    def _folder(self, result: ResultId, part: str) -> str:
        shard = zlib.crc32(f"{result}/{part}".encode()) % _SHARDS
        return f"{self.prefix}{shard:02x}/{result}/{part}/"


def segment_number(name: str) -> int:
    """Return the number of the segment that an object is, counted in its attempt."""
    return int(name.rpartition("/")[2])
