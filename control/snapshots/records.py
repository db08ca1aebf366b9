"""A job's state as keyed records: one for each result, and an index that holds them together.

The index names position, epoch and results, each with the checksum of its record, so that records
of different snapshots are never taken for one. A value over the size of a record is cut into parts.
Pure: when a snapshot is written is `keeping.py`'s, where it is kept is the log's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from zlib import crc32

from ..errors import Corrupt
from ..events import codec
from ..ids import JobId, ResultId
from ..log import StateRecord
from ..model.persistent import PersistentMap
from ..model.replay import Snapshot
from ..model.state import JobState, ResultState
from . import container

FORMAT = 1
PART_BYTES = 500 * 1024

_NOTES = MappingProxyType({"headgate.format": str(FORMAT), "headgate.events": str(codec.VERSION)})
_FRAME = struct.Struct(
    ">HI"
)  # in front of every part: how many there are, and the checksum of the whole


@dataclass(frozen=True, slots=True)
class Entry:
    """A result's place in the index."""

    result: ResultId
    parts: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Index:
    """A snapshot whose results stand elsewhere."""

    head: Snapshot
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the log has of a job: which keys, and of which state of each result."""

    keys: frozenset[str] = frozenset()
    results: Mapping[ResultId, tuple[ResultState, Entry]] = field(default_factory=dict)

    def changed(self, state: JobState) -> tuple[ResultId, ...]:
        """The results that are not as they stand."""
        return tuple(name for name, now in state.results.items() if not self._has(name, now))

    def _has(self, name: ResultId, now: ResultState) -> bool:
        found = self.results.get(name)
        return found is not None and found[0] is now


def write(snapshot: Snapshot, before: Standing) -> tuple[tuple[StateRecord, ...], Standing]:
    """The records that turn what stands into this snapshot, and what stands then."""
    job, results = snapshot.state.job, snapshot.state.results
    records: list[StateRecord] = []
    standing = {name: before.results[name] for name in results if name in before.results}
    for name in before.changed(snapshot.state):
        body = container.pack(results[name], _NOTES)
        parts = _cut(_key(job, name), body)
        records += parts
        standing[name] = results[name], Entry(name, len(parts), crc32(body))
    entries = tuple(standing[name][1] for name in results)
    head = replace(snapshot, state=replace(snapshot.state, results=PersistentMap()))
    written = _cut(job, container.pack(Index(head, entries), _NOTES))
    keys = {part.key for part in written}
    keys.update(key for entry in entries for key in _keys(_key(job, entry.result), entry.parts))
    gone = [StateRecord(key, None) for key in sorted(before.keys - keys)]
    return (*records, *gone, *written), Standing(frozenset(keys), standing)


def end(before: Standing) -> tuple[StateRecord, ...]:
    """The records that leave nothing."""
    return tuple(StateRecord(key, None) for key in sorted(before.keys))


def read(job: JobId, stored: Mapping[str, bytes]) -> tuple[Snapshot, Standing]:
    """The snapshot that a job's newest records are.

    Raises:
        Corrupt: they are none, or of a newer format.
    """
    index = container.unpack(_joined(job, stored)[0], Index, _check_notes)
    standing: dict[ResultId, tuple[ResultState, Entry]] = {}
    if len({entry.result for entry in index.entries}) < len(index.entries):
        raise Corrupt(f"the state of job {job} names a result twice")
    for entry in index.entries:
        body, checksum = _joined(_key(job, entry.result), stored)
        if checksum != entry.checksum:
            raise Corrupt(f"the state of result {entry.result} is of another snapshot")
        standing[entry.result] = container.unpack(body, ResultState, _check_notes), entry
    results = PersistentMap({name: result for name, (result, _) in standing.items()})
    state = replace(index.head.state, results=results)
    if state.job != job:
        raise Corrupt(f"the state of job {job} is that of {state.job}")
    if not (0 <= index.head.first <= index.head.position >= index.head.needed >= 0):
        raise Corrupt(f"the state of job {job} is at offsets that none is at")
    return replace(index.head, state=state), Standing(frozenset(stored), standing)


def _key(job: JobId, result: ResultId) -> str:
    return f"{job}/{result}"


def _keys(key: str, parts: int) -> Iterable[str]:
    """The first part's key is the plain one. No result's name has a slash in it, or is empty."""
    return (f"{key}//{part}" if part else key for part in range(parts))


def _cut(key: str, body: bytes) -> list[StateRecord]:
    starts = range(0, len(body), PART_BYTES)
    frame = _FRAME.pack(len(starts), crc32(body))
    named = zip(_keys(key, len(starts)), starts, strict=True)
    return [StateRecord(part, frame + body[at : at + PART_BYTES]) for part, at in named]


def _joined(key: str, stored: Mapping[str, bytes]) -> tuple[bytes, int]:
    try:
        parts, checksum = _FRAME.unpack_from(stored[key])
        body = b"".join(stored[part][_FRAME.size :] for part in _keys(key, parts))
    except (KeyError, struct.error) as exc:
        raise Corrupt(f"the state under {key} is not whole") from exc
    if crc32(body) != checksum:
        raise Corrupt(f"the state under {key} does not match its checksum")
    return body, checksum


def _check_notes(notes: Mapping[str, str]) -> None:
    for name, ours in _NOTES.items():
        found = notes.get(name, "")
        if not found.isdigit() or int(found) > int(ours):
            raise Corrupt(f"{name} is {found or 'missing'}, and {ours} is the newest known here")
