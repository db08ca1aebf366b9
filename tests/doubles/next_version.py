"""The next version of Headgate, side by side with this one in one process.

Within `next_version` events and snapshots are written as the next version would write them, whose
schema has one more kind of event, and those of both versions are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from unittest.mock import patch

from headgate.control.events import avro, codec
from headgate.control.memory import partitions
from headgate.control.snapshots import records

VERSION = codec.VERSION + 1


@dataclass(frozen=True, slots=True)
class Renamed:
    """An event that this version does not know."""

    to: str


@contextmanager
def next_version() -> Iterator[None]:
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
    fingerprint = prefix[2 : codec._HEADER_BYTES]
    partitions._decode.cache_clear()
    with (
        patch.object(codec, "VERSION", VERSION),
        patch.object(codec, "_PREFIX", prefix),
        patch.object(codec, "_write", avro.writer(rest)),
        patch.object(codec, "_READERS", {**codec._READERS, fingerprint: (prefix, read)}),
        patch.object(records, "_NOTES", notes),
    ):
        yield
    partitions._decode.cache_clear()
