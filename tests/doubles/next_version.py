"""The next version of Headgate, side by side with this one in one process.

Within `next_version` events and snapshots are written as the next version would write them, whose
schema has one more kind of event, and those of both versions are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType, ModuleType
from typing import Any

from headgate.control.events import avro, codec
from headgate.control.memory import partitions
from headgate.control.snapshots import records

VERSION = codec.VERSION + 1
_PLACES: tuple[tuple[ModuleType, str], ...] = (
    (codec, "VERSION"),
    (codec, "_PREFIX"),
    (codec, "_write"),
    (codec, "_READERS"),
    (records, "_NOTES"),
    (records, "_check_notes"),  # another object, so that what one has checked is no other's
    (partitions, "_decode"),
)


@dataclass(frozen=True, slots=True)
class Renamed:
    """An event that this version does not know."""

    to: str


def next_version() -> AbstractContextManager[None]:
    return spoken(is_next=True)


@contextmanager
def spoken(is_next: bool) -> Iterator[None]:
    """Let what runs within be of the next version, or of this one."""
    spoken_parts = parts()[is_next]
    if codec.VERSION == spoken_parts[0]:  # as nearly always in a simulation
        yield
        return
    before = [getattr(module, name) for module, name in _PLACES]
    try:
        for (module, name), part in zip(_PLACES, spoken_parts, strict=True):
            setattr(module, name, part)
        yield
    finally:
        for (module, name), part in zip(_PLACES, before, strict=True):
            setattr(module, name, part)


@cache
def parts() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the parts of this version, and of the next one."""
    this = codec._RAW[codec.VERSION]
    kinds = [dict(field) for field in this["fields"]]
    kinds[-1]["type"] = [
        *kinds[-1]["type"],
        {"type": "record", "name": "Renamed", "fields": [{"name": "to", "type": "string"}]},
    ]
    schema = {**this, "fields": kinds}
    prefix, rest = codec._prefix(VERSION, schema), codec._after_prefix(schema)
    read = avro.reader(rest, {**codec._CLASSES, "Renamed": Renamed})
    notes = MappingProxyType({**records._NOTES, "headgate.events": str(VERSION)})
    fingerprint, check = prefix[2 : codec._HEADER_BYTES], records._check_notes

    def check_next(written: Mapping[str, str]) -> None:
        check(written)

    readers = {**codec._READERS, fingerprint: (prefix, read)}
    decode = lru_cache(4096)(codec.decode)
    following = (VERSION, prefix, avro.writer(rest), readers, notes, check_next, decode)
    return tuple(getattr(module, name) for module, name in _PLACES), following
