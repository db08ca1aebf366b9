"""The binary form of events: Avro single-object encoding, one schema file per published version.

A record consists of a two-byte marker, the schema's 64-bit fingerprint, and the body. Every version
in `schemas/` stays readable: the reader finds the writer's schema by its fingerprint. The body
begins with the version as text, so that the record of a newer version is not taken for somebody
else's.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from types import MappingProxyType
from typing import Any, cast, get_args

from fastavro.schema import fingerprint, to_parsing_canonical_form

from ..errors import Corrupt, Invalid
from ..ids import NAME_CHARS_MAX, AttemptId, JobId, PartitionId
from . import avro
from . import types as ev
from .traits import attempt_of, is_short_name, result_of, traits_of

RECORD_BYTES_MAX = 512 * 1024
VERSION = 1
KIND_HEADER = "headgate-type"

TEXT_CHARS_MAX = 2_000  # of a text that an exception, an operator or a stranger gives

_ID_CHARS_MAX = 1_000
_TIME_MS_MAX = 1 << 47
_MARKER = b"\xc3\x01"
_HEADER_BYTES = 10
_TEXT_FIELDS = frozenset(["reason", "evidence", "object", "label"])
_NEWER = re.compile(rb"[\x14-\x1a]headgate\.([0-9]{1,4})")
_PARTS = (ev.SegmentSummary, AttemptId, PartitionId)


def _schema(version: int) -> dict[str, Any]:
    text = (files(__package__) / "schemas" / f"event.{version}.avsc").read_text()
    return json.loads(text)  # type: ignore[no-any-return]


def _fingerprint(schema: dict[str, Any]) -> bytes:
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int(digest, 16).to_bytes(8, "big")


def _prefix(version: int, schema: dict[str, Any]) -> bytes:
    """Return the bytes with which every record of a version begins."""
    out = bytearray(_MARKER + _fingerprint(schema))
    avro.write_string(out, f"headgate.{version}")
    return bytes(out)


def _after_prefix(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what follows the prefix."""
    written_as, *fields = schema["fields"]
    assert written_as["name"] == "written_as", "every version says first which it is"
    return {**schema, "fields": fields}


_RAW = {version: _schema(version) for version in range(1, VERSION + 1)}
_CLASSES = {kind.__name__: kind for kind in (*get_args(ev.Body), ev.Event, *_PARTS)}
_READERS = MappingProxyType(
    {
        _fingerprint(raw): (_prefix(version, raw), avro.reader(_after_prefix(raw), _CLASSES))
        for version, raw in _RAW.items()
    }
)
_write = avro.writer(_after_prefix(_RAW[VERSION]))
_PREFIX = _prefix(VERSION, _RAW[VERSION])


def encode(event: ev.Event) -> bytes:
    """Encode an event as a record. Texts that are too long are cut.

    Raises:
        Invalid: the record is too large for the log, or a value is out of bounds for readers.
    """
    if wrong := _beyond(event):
        raise Invalid(f"{event.kind} {event.id[:NAME_CHARS_MAX]}: {wrong}")
    out = bytearray(_PREFIX)
    _write(out, _brief(event))
    if len(out) > RECORD_BYTES_MAX:
        raise Invalid(f"{event.kind} {event.id} has {len(out)} bytes, over {RECORD_BYTES_MAX}")
    return bytes(out)


def decode(record: bytes, job: str | None = None) -> ev.Event:
    """Decode the event of a record whose key names `job`; None does not compare. Texts that are too
    long are cut, because decisions repeat them. Only job and version are known of an event of a
    newer version.

    Raises:
        Corrupt: the bytes are not a valid event, or its event is of another job than the key says.
    """
    prefix, read = _READERS.get(record[2:_HEADER_BYTES], (b"", None))
    if read is None and (version := _newer(record)) is not None and is_short_name(job or ""):
        return ev.Event("", JobId(job or ""), "", 0, "", None, ev.Newer(version))
    if read is None or not record.startswith(prefix):
        raise Corrupt("the record is not an event of a known version")
    try:
        event, end = read(record, len(prefix))
    except (IndexError, UnicodeDecodeError) as exc:
        raise Corrupt(f"the event cannot be decoded: {type(exc).__name__}") from exc
    if end != len(record):
        raise Corrupt(f"the record has {len(record) - end} bytes after its event")
    decoded = cast(ev.Event, event)
    if wrong := _beyond(decoded):
        raise Corrupt(f"the event is out of bounds: {wrong}")
    if job not in (None, decoded.job):
        raise Corrupt(f"the record of {decoded.job} has the key of another job")
    return _brief(decoded)


def check_known(recorded: ev.Recorded) -> None:
    """Refuse to go on behind an event that this version does not know.

    Raises:
        Invalid: a newer version has written the event.
    """
    event = recorded.event
    if isinstance(event.body, ev.Newer):
        raise Invalid(
            f"offset {recorded.offset} of job {event.job} was written by a newer Headgate, in "
            f"version {event.body.version}, and this one knows {VERSION}: upgrade this one"
        )


def _newer(record: bytes) -> int | None:
    """Return the version of a record if a newer version has written it."""
    says = _NEWER.match(record, _HEADER_BYTES) if record.startswith(_MARKER) else None
    return int(says[1]) if says is not None and int(says[1]) > VERSION else None


def _brief(event: ev.Event) -> ev.Event:
    """Return the event with its texts cut to the limit, and in characters that can be written."""
    body: Any = event.body
    texts = ((name, getattr(body, name)) for name in _TEXTS.get(type(body), ()))
    brief = {name: short for name, text in texts if (short := _brief_text(text)) is not text}
    return replace(event, body=replace(body, **brief)) if brief else event


def _brief_text(text: str) -> str:
    """Return a text that fits, the same object if it does already. The name of a file may have
    characters that UTF-8 cannot write."""
    if not text.isascii() and (plain := text.encode(errors="backslashreplace").decode()) != text:
        text = plain
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"


def _beyond(event: ev.Event) -> str:
    """Return why a value of an event is out of bounds, or an empty text.

    The id of a fact goes into every decision on it.
    """
    if not is_short_name(event.job):
        return f"{event.job[:NAME_CHARS_MAX]!r} cannot name a job"
    if max(len(event.id), len(event.cause), len(event.by)) > _ID_CHARS_MAX:
        return f"its id, its cause or its author has more than {_ID_CHARS_MAX} characters"
    if not 0 <= event.time_ms < _TIME_MS_MAX:
        return f"{event.time_ms} ms is not a time"
    return traits_of(event.body).beyond(event.body)


_TEXTS = MappingProxyType(
    {
        kind: tuple(field.name for field in fields(kind) if field.name in _TEXT_FIELDS)
        for kind in get_args(ev.Body)
    }
)


def trace_id(event: ev.Event) -> str:
    """Return the trace id that all events of one result share: 32 hex digits."""
    return _digest(f"{event.job}/{result_of(event.body) or ''}")


@lru_cache(4096)
def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def headers(event: ev.Event) -> dict[str, bytes]:
    """Return headers from which other tools recognise a record without decoding it."""
    attempt = attempt_of(event.body)
    epoch = attempt.epoch if attempt else getattr(event.body, "epoch", "")
    named = {
        KIND_HEADER: event.kind,
        "headgate-job": event.job,
        "headgate-epoch": str(epoch),
        "headgate-attempt": str(attempt or ""),
        "headgate-trace": trace_id(event),
    }
    return {name: text.encode() for name, text in named.items()}
