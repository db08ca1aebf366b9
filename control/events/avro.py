"""Frozen dataclasses in Avro's binary form, by a schema that is walked once.

Knows what the schemas of events use: records, which are dataclasses of the same name, arrays,
unions of records and with null, and scalars. A field that a schema has not takes its default.
Guarantees that a reader gives a value or raises: nothing it reads makes it take more memory than
a few times the record.
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

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]  # a value, and the place behind it
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
        raise Corrupt(f"{size} bytes at {at} are not there")
    return record[at:end], end


def _read_string(record: bytes, at: int) -> tuple[str, int]:
    size = record[at]
    if size >= 0x80 or size & 1:
        text, end = _read_bytes(record, at)
        return text.decode(), end
    at += 1
    end = at + (size >> 1)
    if end > len(record):
        raise Corrupt(f"{size >> 1} bytes at {at} are not there")
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
    """Of values that were written by a schema; its records are made as these classes."""
    return _reader(schema, kinds, dict(_READERS))


def writer(schema: Any) -> Writer:
    """Of values whose records have all the fields of the schema."""
    return _writer(schema, dict(SCALAR_WRITERS))


def _reader(schema: Any, kinds: Mapping[str, type], known: dict[str, Reader]) -> Reader:
    if isinstance(schema, str):
        return known[schema]
    if isinstance(schema, list):
        return _union_reader([_reader(branch, kinds, known) for branch in schema])
    if schema["type"] == "array":
        return _array_reader(_reader(schema["items"], kinds, known))
    parts = {part["name"]: _reader(part["type"], kinds, known) for part in schema["fields"]}
    return known.setdefault(schema["name"], _record_reader(kinds[schema["name"]], parts))


def _record_reader(kind: Any, parts: Mapping[str, Reader]) -> Reader:
    make, readers = maker(kind), tuple(parts.values())
    known = [field.name for field in fields(kind)]
    assert list(parts) == known[: len(parts)], f"{kind.__name__} has other fields in front"
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
            raise Corrupt(f"there is no branch {which}")
        return branches[which](record, at)

    return read


def _array_reader(item: Reader) -> Reader:
    def read(record: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        count, at = read_long(record, at)
        while count:
            if count < 0:  # then the block's size follows
                _, at = read_long(record, at)
            for _ in range(abs(count)):
                value, at = item(record, at)
                values.append(value)
            count, at = read_long(record, at)
        return tuple(values), at

    return read


def _writer(schema: Any, known: dict[str, Writer]) -> Writer:
    if isinstance(schema, str):
        return known[schema]
    if isinstance(schema, list):
        return union_writer({_name(branch): _writer(branch, known) for branch in schema})
    if schema["type"] == "array":
        return array_writer(_writer(schema["items"], known))
    parts = {part["name"]: _writer(part["type"], known) for part in schema["fields"]}
    return known.setdefault(schema["name"], record_writer(parts))


def record_writer(parts: Mapping[str, Writer]) -> Writer:
    writers = [(attrgetter(name), write) for name, write in parts.items()]

    def write_record(out: bytearray, value: Any) -> None:
        for part, write in writers:
            write(out, part(value))

    return write_record


def _name(branch: Any) -> str:
    """The class that a branch is for."""
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
