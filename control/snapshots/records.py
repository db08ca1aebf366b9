"""A job's state as keyed records: one for each result, and an index that holds them together.

The index has position, epoch and results, each result with the checksum of its record, so that
records of different snapshots are never mixed. A value that is larger than a record is cut into
parts. A large snapshot is written in several steps, the index in the last one: a result that has
changed is written beside the record that the former index names, so that the former snapshot stands
until then. A job that has ended is one small record: a master that takes up a partition of many
such jobs reads only the head of each. Pure: `schedule.py` decides when a snapshot is written, and
the log stores it.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from zlib import crc32

from ..contract import SESSION
from ..errors import Corrupt, Invalid
from ..events import codec
from ..ids import JobId, ResultId
from ..log import Decisions, StateRecord, coverage_of
from ..model.persistent import PersistentMap
from ..model.replay import Snapshot
from ..model.state import ResultState, is_over
from . import container

FORMAT = 1
PART_BYTES = 500 * 1024
KEPT_BYTES_MAX = 1 << 30  # results that outlive their job: later drivers read them all at once

_NOTES = MappingProxyType({"headgate.format": str(FORMAT), "headgate.events": str(codec.VERSION)})
# The head of every part: the number of parts, and the checksum of the value.
_FRAME = struct.Struct(">HI")
_ENTRY_BYTES = 100
# The head of an ended job: mark, format, version of events, position, needed, mode, length of the
# log's identity. The identity follows, then the snapshot, compressed.
_ENDED = struct.Struct(">4sHHQQ?B")
_ENDED_MARK = b"End\x01"
_ENDED_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a result in the index."""

    result: ResultId
    parts: int
    """The number of records that hold the result."""
    checksum: int
    """The CRC-32 of the result's bytes."""
    slot: int = 0
    """The place of the record, one of two."""


@dataclass(frozen=True, slots=True)
class Index:
    """A snapshot whose results are in records of their own."""

    head: Snapshot
    """The snapshot, with no results."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The snapshot of an ended job, as far as a master must know of it until an event of the job
    comes."""

    position: int
    """The snapshot has all events before this offset."""
    needed: int
    """No session job of the partition needs an event before this offset."""
    mode: str
    """The mode of the job's first registration; empty if it is none of a session."""
    log: str
    """The identity of the log that these offsets belong to."""
    stored: Mapping[str, bytes]
    """The records of the job by key."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The snapshot records that the log has of a job."""

    keys: frozenset[str] = frozenset()
    """The keys of all records."""
    results: Mapping[ResultId, tuple[ResultState, Entry]] = field(default_factory=dict)
    """The state that the record of each result holds, and its entry in the index."""
    ended: Ended | None = None
    """The records, if they are those of an ended job."""

    def holds(self, name: ResultId, result: ResultState) -> bool:
        """Return True if the record of a result is there and holds this state."""
        return name in self.results and self.results[name][0] is result


@dataclass(frozen=True, slots=True)
class Coverage:
    """The promise that every event in a partition is of a job that has a snapshot."""

    log: str
    """The identity of the log."""


def write_coverage(partition: int, coverage: Coverage) -> StateRecord:
    return StateRecord(coverage_of(partition), container.pack(coverage, _NOTES))


def read_coverage(partition: int, stored: Mapping[str, bytes]) -> Coverage:
    """Return the coverage of a partition.

    Raises:
        Corrupt: there is none.
        Invalid: it is of a newer format.
    """
    if (body := stored.get(coverage_of(partition))) is None:
        raise Corrupt(f"partition {partition} has no coverage")
    return container.unpack(body, Coverage, _check_notes)


class SnapshotSteps:
    """A snapshot that is being written, step by step.

    Each step has about `step_bytes` of records, the last one also the index and the deletion of the
    records that no longer count.
    """

    def __init__(
        self, snapshot: Snapshot, before: Standing, step_bytes: int, is_whole: bool = False
    ) -> None:
        """Turn the standing `before` into this snapshot. With `is_whole`, write the results that
        have not changed, too."""
        self.snapshot = snapshot
        self._before = before
        self._step_bytes = step_bytes
        self._has_ended = is_over(snapshot.state) and _is_small(snapshot)
        results = snapshot.state.results.items()
        is_whole |= self._has_ended
        kept = {} if is_whole else {n: r for n, r in results if before.holds(n, r)}
        self._standing = {name: before.results[name] for name in kept}
        self._bodies = iter(()) if self._has_ended else self._changed()
        self._records: list[StateRecord] = []
        self.is_last = False
        """True if the next step is the last one."""
        self.wrote()

    def wrote(self) -> None:
        """Go on to the next step: the former one is committed."""
        self._records, size_bytes = [], 0
        while size_bytes < self._step_bytes:
            if (record := next(self._bodies, None)) is None:
                self.is_last = True
                return
            self._records.append(record)
            size_bytes += len(record.body or b"")

    @property
    def parts(self) -> tuple[StateRecord, ...]:
        """Return the records of results that the next step writes."""
        return tuple(self._records)

    def end(self, needed: int) -> tuple[tuple[StateRecord, ...], Standing]:
        """Return the records of the last step, and the standing after it. `needed` is the offset
        from which the partition must be read, as far as other jobs know."""
        job, results = self.snapshot.state.job, self.snapshot.state.results
        if self._has_ended:
            written = _in_parts(job, _pack_ended(replace(self.snapshot, needed=needed)))
            stored = {part.key: part.body or b"" for part in written}
            gone = [StateRecord(key, None) for key in sorted(self._before.keys - stored.keys())]
            return (*gone, *written), Standing(frozenset(stored), ended=ended(job, stored))
        entries = tuple(self._standing[name][1] for name in results)
        state = replace(self.snapshot.state, results=PersistentMap())
        head = replace(self.snapshot, state=state, needed=needed)
        written = _in_parts(job, container.pack(Index(head, entries), _NOTES))
        keys = {part.key for part in written}
        keys.update(key for entry in entries for key in _keys(_key(job, entry), entry.parts))
        gone = [StateRecord(key, None) for key in sorted(self._before.keys - keys)]
        return (*self._records, *gone, *written), Standing(frozenset(keys), self._standing)

    def _changed(self) -> Iterator[StateRecord]:
        for name, result in self.snapshot.state.results.items():
            if name in self._standing:
                continue
            body, slot = container.pack(result, _NOTES), 0
            checksum = crc32(body)
            if (former := self._before.results.get(name)) is not None:
                # the same bytes stay in their place: both snapshots name them
                is_same = former[0] is result and former[1].checksum == checksum
                slot = former[1].slot if is_same else 1 - former[1].slot
            entry = Entry(name, 0, checksum, slot)
            parts = _in_parts(_key(self.snapshot.state.job, entry), body)
            self._standing[name] = result, replace(entry, parts=len(parts))
            yield from parts


def write(snapshot: Snapshot, before: Standing) -> tuple[tuple[StateRecord, ...], Standing]:
    """Return the records that turn the standing `before` into this snapshot in one step, and the
    standing after them."""
    return SnapshotSteps(snapshot, before, sys.maxsize).end(snapshot.needed)


def size_bytes(result: ResultState) -> int:
    """Return about as many bytes as the record of a result has."""
    attempts = result.production.attempts.values()
    segments = [segment for produced in attempts if produced for segment in produced.segments]
    indexes = sum(len(segment.index) for segment in segments)
    return len(result.registered.schema) + indexes + _ENTRY_BYTES * (len(attempts) + len(segments))


def end(before: Standing) -> tuple[StateRecord, ...]:
    """Return the records that remove everything."""
    return tuple(StateRecord(key, None) for key in sorted(before.keys))


def keep_all(decisions: Decisions, records: Iterable[StateRecord], position: int) -> None:
    """Write records in a step of their own, in which all facts before `position` are decided."""
    decisions.begin()
    for record in records:
        decisions.keep(record)
    decisions.commit(position)


def read(job: JobId, stored: Mapping[str, bytes]) -> tuple[Snapshot, Standing]:
    """Return the snapshot that a job's newest records hold, and the standing.

    Raises:
        Corrupt: the records hold no snapshot.
        Invalid: a newer version has written the snapshot.
    """
    body, _ = _joined(job, stored)
    if (ending := _head_of(body, stored)) is not None:
        return _checked(job, _unpack_ended(body)), Standing(frozenset(stored), ended=ending)
    index = container.unpack(body, Index, _check_notes)
    standing: dict[ResultId, tuple[ResultState, Entry]] = {}
    if len({entry.result for entry in index.entries}) < len(index.entries):
        raise Corrupt(f"the state of job {job} names a result twice")
    for entry in index.entries:
        body, checksum = _joined(_key(job, entry), stored)
        if checksum != entry.checksum:
            raise Corrupt(f"the state of result {entry.result} belongs to another snapshot")
        standing[entry.result] = container.unpack(body, ResultState, _check_notes), entry
    results = PersistentMap({name: result for name, (result, _) in standing.items()})
    state = replace(index.head.state, results=results)
    snapshot = _checked(job, replace(index.head, state=state))
    return snapshot, Standing(frozenset(stored), standing)


def ended(job: JobId, stored: Mapping[str, bytes]) -> Ended | None:
    """Return what a job's records say if they are those of an ended job, in a known format.

    Raises:
        Corrupt: the records are incomplete.
    """
    if not stored.get(job, b"").startswith(_ENDED_MARK, _FRAME.size):
        return None
    return _head_of(_joined(job, stored)[0], stored)


def _head_of(body: bytes, stored: Mapping[str, bytes]) -> Ended | None:
    if not body.startswith(_ENDED_MARK):
        return None
    try:
        _, form, events, position, needed, is_session, chars = _ENDED.unpack_from(body)
        log = body[_ENDED.size : _ENDED.size + chars].decode()
    except (struct.error, UnicodeDecodeError) as exc:
        raise Corrupt("the head of an ended job cannot be read") from exc
    _check_notes({"headgate.format": str(form), "headgate.events": str(events)})
    return Ended(position, needed, SESSION if is_session else "", log, stored)


def _pack_ended(snapshot: Snapshot) -> bytes:
    log, is_session = snapshot.log.encode(), snapshot.mode == SESSION
    versions, places = map(int, _NOTES.values()), (snapshot.position, snapshot.needed)
    head = _ENDED.pack(_ENDED_MARK, *versions, *places, is_session, len(log))
    return head + log + zlib.compress(container.pack(Index(snapshot, ()), _NOTES))


def _is_small(snapshot: Snapshot) -> bool:
    """Return True if a reader takes the snapshot in one record, whatever its last offsets."""
    return len(container.pack(Index(snapshot, ()), _NOTES)) + _ENDED.size <= _ENDED_BYTES_MAX


def _unpack_ended(body: bytes) -> Snapshot:
    start = _ENDED.size + body[_ENDED.size - 1]
    packing = zlib.decompressobj()
    try:
        unpacked = packing.decompress(body[start:], _ENDED_BYTES_MAX)
    except zlib.error as exc:
        raise Corrupt(f"the state of an ended job cannot be read: {exc}") from exc
    if not packing.eof:
        raise Corrupt("the state of an ended job is incomplete, or too large")
    return container.unpack(unpacked, Index, _check_notes).head


def _checked(job: JobId, snapshot: Snapshot) -> Snapshot:
    if snapshot.state.job != job:
        raise Corrupt(f"the state under job {job} belongs to job {snapshot.state.job}")
    if not (0 <= snapshot.first <= snapshot.position >= snapshot.needed >= 0):
        raise Corrupt(f"the state of job {job} has impossible offsets")
    return snapshot


def _key(job: JobId, entry: Entry) -> str:
    return f"{job}/{entry.result}/{entry.slot}" if entry.slot else f"{job}/{entry.result}"


def _keys(key: str, parts: int) -> Iterable[str]:
    """Return the keys of the parts of a value; the first part has the plain key. The keys are
    unique, because the names of results and slots are never empty and have no slash."""
    return (f"{key}//{part}" if part else key for part in range(parts))


def _in_parts(key: str, body: bytes) -> list[StateRecord]:
    starts = range(0, len(body), PART_BYTES)
    frame = _FRAME.pack(len(starts), crc32(body))
    named = zip(_keys(key, len(starts)), starts, strict=True)
    return [StateRecord(part, frame + body[at : at + PART_BYTES]) for part, at in named]


def _joined(key: str, stored: Mapping[str, bytes]) -> tuple[bytes, int]:
    try:
        parts, checksum = _FRAME.unpack_from(stored[key])
        body = b"".join(stored[part][_FRAME.size :] for part in _keys(key, parts))
    except (KeyError, struct.error) as exc:
        raise Corrupt(f"the state under {key} is incomplete") from exc
    if crc32(body) != checksum:
        raise Corrupt(f"the state under {key} does not match its checksum")
    return body, checksum


def _check_notes(notes: Mapping[str, str]) -> None:
    for name, ours in _NOTES.items():
        version = notes.get(name, "")
        if not version.isdigit():
            raise Corrupt(f"{name} is {version or 'missing'}")
        if int(version) > int(ours):
            raise Invalid(
                f"the snapshot was written by a newer Headgate: its {name} is {version}, and this "
                f"one knows {ours}: upgrade this one"
            )
