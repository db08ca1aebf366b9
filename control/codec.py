"""Events as bytes: Avro single-object encoding, one schema file per published version.

A record is the two-byte marker, the schema's 64-bit fingerprint, and the body. Every version in
`schemas/` stays readable: the writer's schema is found by its fingerprint, and read as the newest.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from .errors import Corrupt, Invalid
from .events import Body, Event
from .ids import JobId

RECORD_BYTES_MAX = 512 * 1024
VERSION = 1

_MARKER = b"\xc3\x01"
_HEADER_BYTES = 10
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Body)}


def _schema(version: int) -> dict[str, Any]:
    text = (files(__package__) / "schemas" / f"event.{version}.avsc").read_text()
    return json.loads(text)  # type: ignore[no-any-return]


def _fingerprint(schema: dict[str, Any]) -> bytes:
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int(digest, 16).to_bytes(8, "big")


_RAW = {version: _schema(version) for version in range(1, VERSION + 1)}
_PARSED = {version: fastavro.parse_schema(raw) for version, raw in _RAW.items()}
_BY_FINGERPRINT = MappingProxyType({_fingerprint(raw): _PARSED[v] for v, raw in _RAW.items()})
_NEWEST = _PARSED[VERSION]
_PREFIX = _MARKER + _fingerprint(_RAW[VERSION])


def encode(event: Event) -> bytes:
    """The event's record.

    Raises:
        Invalid: the record would be larger than the log takes.
    """
    out = io.BytesIO()
    out.write(_PREFIX)
    fastavro.schemaless_writer(out, _NEWEST, _plain_event(event))
    if out.tell() > RECORD_BYTES_MAX:
        raise Invalid(f"{event.kind} {event.id} has {out.tell()} bytes, over {RECORD_BYTES_MAX}")
    return out.getvalue()


def decode(record: bytes) -> Event:
    """The event of a record.

    Raises:
        Corrupt: the bytes are no event of a known version.
    """
    schema = _BY_FINGERPRINT.get(record[2:_HEADER_BYTES])
    if record[:2] != _MARKER or schema is None:
        raise Corrupt("record is no event of a known version")
    try:
        stream = io.BytesIO(record)
        stream.seek(_HEADER_BYTES)
        plain = fastavro.schemaless_reader(stream, schema, _NEWEST, return_record_name=True)
        if stream.tell() != len(record):
            raise Corrupt(f"{len(record) - stream.tell()} bytes after the event")
        return _event(plain)
    except Corrupt:
        raise
    except Exception as exc:  # fastavro raises whatever its parser stumbles over
        raise Corrupt(f"event cannot be decoded: {type(exc).__name__}") from exc


def trace_id(event: Event) -> str:
    """The id that all events of one exchange share, 32 hex digits."""
    body = event.body
    attempt = getattr(body, "attempt", None)
    result = attempt.partition.result if attempt else getattr(body, "result", "")
    return blake2b(f"{event.job}/{result}".encode(), digest_size=16).hexdigest()


def headers(event: Event) -> list[tuple[str, bytes]]:
    """What lets a reader skip a record undecoded."""
    attempt = getattr(event.body, "attempt", None)
    epoch = attempt.epoch if attempt else getattr(event.body, "epoch", "")
    named = {
        "headgate-type": event.kind,
        "headgate-job": event.job,
        "headgate-epoch": str(epoch),
        "headgate-attempt": str(attempt or ""),
        "headgate-trace": trace_id(event),
    }
    return [(name, text.encode()) for name, text in named.items()]


def plain(value: Any) -> Any:
    """A value of the vocabulary as dicts, lists and scalars, for Avro and JSON alike."""
    names = _field_names(type(value))
    if names is None:
        return [plain(item) for item in value] if isinstance(value, tuple) else value
    return {name: plain(getattr(value, name)) for name in names}


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in fields(kind)) if hasattr(kind, "__dataclass_fields__") else None


def _plain_event(event: Event) -> dict[str, Any]:
    record: dict[str, Any] = {n: getattr(event, n) for n in Event.__slots__ if n != "body"}
    record["body"] = (f"headgate.{event.kind}", plain(event.body))
    return record


def _event(record: dict[str, Any]) -> Event:
    name, body = record["body"]
    kind = _KINDS[name.removeprefix("headgate.")]
    return Event(
        record["id"],
        JobId(record["job"]),
        record["cause"],
        record["time_ms"],
        record["by"],
        record["basis"],
        _builder(kind)(body),
    )


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """How a value of a type is made from its plain form."""
    if hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind)
        makers = [(f.name, _builder(hints[f.name])) for f in fields(kind)]
        return lambda raw: kind(*(make(raw[name]) for name, make in makers))
    if getattr(kind, "__origin__", None) is tuple:
        item = _builder(get_args(kind)[0])
        return lambda raw: tuple(item(one) for one in raw)
    return lambda raw: raw
