"""Avro's binary encoding of frozen dataclasses: the schema is walked once, not for each value.

Supports what the schemas of events use: records, which become dataclasses of the same name, arrays,
unions of records or with null, and scalars. A field that the schema lacks takes its default.
Guarantees that a reader returns a value or raises, and that no input makes the reader use more
memory than a few times the size of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from ..errors import Corrupt
from .values import maker

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]  # the value, and the offset after it
Writer: TypeAlias = Callable[[bytearray, Any], None]

_LONG_BYTES_MAX = 10
_DOUBLE = struct.Struct("<d")


def read_long(record: bytes, at: int) -> tuple[int, int]:
    byte = record[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift, first = byte & 0x7F, 7, at
    while byte >= 0x80:
        at += 1
        byte = record[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    if at - first >= _LONG_BYTES_MAX or number >> 64:
        raise Corrupt("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def _read_bytes(record: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(record, at)
    end = at + size
    if not at <= end <= len(record):
        raise Corrupt(f"the record ends before the {size} bytes at {at}")
    return record[at:end], end


def _read_string(record: bytes, at: int) -> tuple[str, int]:
    size = record[at]
    if size >= 0x80 or size & 1:
        text, end = _read_bytes(record, at)
        return text.decode(), end
    at += 1
    end = at + (size >> 1)
    if end > len(record):
        raise Corrupt(f"the record ends before the {size >> 1} bytes at {at}")
    return record[at:end].decode(), end


def _read_boolean(record: bytes, at: int) -> tuple[bool, int]:
    return record[at] != 0, at + 1


def _read_null(record: bytes, at: int) -> tuple[None, int]:
    return None, at


def write_long(out: bytearray, value: int) -> None:
    number = (value << 1) ^ (value >> 63)
    assert number >> 64 == 0, f"{value} has more than 64 bits"
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def write_bytes(out: bytearray, value: bytes | bytearray) -> None:
    size = len(value)
    if size < 0x40:
        out.append(size << 1)
    else:
        write_long(out, size)
    out += value


def write_string(out: bytearray, value: str) -> None:
    write_bytes(out, value.encode())


def _write_boolean(out: bytearray, value: bool) -> None:
    out.append(value)


def _write_double(out: bytearray, value: float) -> None:
    out += _DOUBLE.pack(value)


def _write_null(out: bytearray, value: None) -> None:
    pass


_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "null": _read_null,
        "boolean": _read_boolean,
        "int": read_long,
        "long": read_long,
        "bytes": _read_bytes,
        "string": _read_string,
    }
)
SCALAR_WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        "null": _write_null,
        "boolean": _write_boolean,
        "int": write_long,
        "long": write_long,
        "double": _write_double,
        "bytes": write_bytes,
        "string": write_string,
    }
)


def reader(schema: Any, kinds: Mapping[str, type]) -> Reader:
    """Build a reader for one writer schema. Each record becomes an object of the class so named."""
    return _reader(schema, kinds, dict(_READERS))


def writer(schema: Any) -> Writer:
    """Build a writer for one schema. The values must have all fields that the schema names."""
    return _writer(schema, dict(SCALAR_WRITERS))


def _reader(schema: Any, kinds: Mapping[str, type], readers: dict[str, Reader]) -> Reader:
    if isinstance(schema, str):
        return readers[schema]
    if isinstance(schema, list):
        return _union_reader([_reader(branch, kinds, readers) for branch in schema])
    if schema["type"] == "array":
        return _array_reader(_reader(schema["items"], kinds, readers))
    parts = {part["name"]: _reader(part["type"], kinds, readers) for part in schema["fields"]}
    return readers.setdefault(schema["name"], _record_reader(kinds[schema["name"]], parts))


def _record_reader(kind: Any, parts: Mapping[str, Reader]) -> Reader:
    make, readers = maker(kind), tuple(parts.values())
    names = [field.name for field in fields(kind)]
    assert list(parts) == names[: len(parts)], f"{kind.__name__} has other fields in front"
    rest = [field.default for field in fields(kind)[len(parts) :]]
    assert MISSING not in rest, f"a field of {kind.__name__} has no default"

    def read(record: bytes, at: int) -> tuple[Any, int]:
        values = []
        for part in readers:
            value, at = part(record, at)
            values.append(value)
        return make(*values, *rest), at

    return read


def _union_reader(branches: list[Reader]) -> Reader:
    def read(record: bytes, at: int) -> tuple[Any, int]:
        which, at = read_long(record, at)
        if not 0 <= which < len(branches):
            raise Corrupt(f"the union has no branch {which}")
        return branches[which](record, at)

    return read


def _array_reader(item: Reader) -> Reader:
    def read(record: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        count, at = read_long(record, at)
        while count:
            if count < 0:  # the block's size in bytes follows
                _, at = read_long(record, at)
            for _ in range(abs(count)):
                value, at = item(record, at)
                values.append(value)
            count, at = read_long(record, at)
        return tuple(values), at

    return read


def _writer(schema: Any, writers: dict[str, Writer]) -> Writer:
    if isinstance(schema, str):
        return writers[schema]
    if isinstance(schema, list):
        return union_writer({_name(branch): _writer(branch, writers) for branch in schema})
    if schema["type"] == "array":
        return array_writer(_writer(schema["items"], writers))
    parts = {part["name"]: _writer(part["type"], writers) for part in schema["fields"]}
    return writers.setdefault(schema["name"], record_writer(parts))


def record_writer(parts: Mapping[str, Writer]) -> Writer:
    writers = [(attrgetter(name), write) for name, write in parts.items()]

    def write_record(out: bytearray, value: Any) -> None:
        for part, write in writers:
            write(out, part(value))

    return write_record


def _name(branch: Any) -> str:
    """Return the name of the class whose values a branch of a union encodes."""
    scalars = {"null": "NoneType", "long": "int"}
    return scalars[branch] if isinstance(branch, str) else branch["name"]


def union_writer(branches: Mapping[str, Writer]) -> Writer:
    numbered = {name: (which, write) for which, (name, write) in enumerate(branches.items())}

    def write_branch(out: bytearray, value: Any) -> None:
        which, write = numbered[type(value).__name__]
        write_long(out, which)
        write(out, value)

    return write_branch


def array_writer(item: Writer) -> Writer:
    def write_array(out: bytearray, values: Any) -> None:
        if values:
            write_long(out, len(values))
            for value in values:
                item(out, value)
        out.append(0)

    return write_array
