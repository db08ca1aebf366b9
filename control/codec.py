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
from typing import Any, TypeAlias, get_args, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from .errors import Corrupt, Invalid
from .events import Body, Event
from .ids import JobId

RECORD_BYTES_MAX = 512 * 1024
VERSION = 2

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
        newest = None if schema is _NEWEST else _NEWEST  # fastavro would compare them each time
        found: Any = fastavro.schemaless_reader(stream, schema, newest, return_record_name=True)
        if stream.tell() != len(record):
            raise Corrupt(f"{len(record) - stream.tell()} bytes after the event")
        return _event(found)
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
    kind: Any = type(value)
    return _apply(_plainer(kind), value)


def _plain_event(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "job": event.job,
        "cause": event.cause,
        "time_ms": event.time_ms,
        "by": event.by,
        "basis": event.basis,
        "body": (f"headgate.{event.kind}", plain(event.body)),
    }


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
        _apply(_builder(kind), body),
    )


_Maker: TypeAlias = Callable[[Any], Any] | None  # None leaves a scalar as it is


def _apply(make: _Maker, value: Any) -> Any:
    return value if make is None else make(value)


@cache
def _plainer(kind: Any) -> _Maker:
    """How the plain form of a type's value is made."""
    if hasattr(kind, "__dataclass_fields__"):
        parts = _parts(kind, _plainer)
        return lambda value: {
            name: getattr(value, name) if make is None else make(getattr(value, name))
            for name, make in parts
        }
    if (item := _item(kind)) is not None:
        each = _plainer(item)
        return list if each is None else lambda values: [each(value) for value in values]
    return None


@cache
def _builder(kind: Any) -> _Maker:
    """How a value of a type is made from its plain form."""
    if hasattr(kind, "__dataclass_fields__"):
        parts = _parts(kind, _builder)
        return lambda raw: kind(
            *[raw[name] if make is None else make(raw[name]) for name, make in parts]
        )
    if (item := _item(kind)) is not None:
        each = _builder(item)
        return tuple if each is None else lambda raw: tuple([each(one) for one in raw])
    return None


def _parts(kind: Any, maker: Callable[[Any], _Maker]) -> list[tuple[str, _Maker]]:
    hints = get_type_hints(kind)
    return [(f.name, maker(hints[f.name])) for f in fields(kind)]


def _item(kind: Any) -> Any:
    """What a tuple of any length holds, None for other types."""
    return get_args(kind)[0] if getattr(kind, "__origin__", None) is tuple else None
