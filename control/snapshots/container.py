"""Store frozen dataclasses as self-describing Avro, by their type hints alone.

A file that was written with other fields stays readable: a missing field takes its default, and an
unknown field is left out. Supports scalars, dataclasses, tuples, persistent sets and mappings, and
unions of dataclasses, scalars and None. A field that is marked as a group has no place of its own:
the fields of its dataclass stand there. Assumes that the members of a set have an order: the same
value always gives the same bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import fastavro

from ..errors import Corrupt, Invalid
from ..events import avro
from ..model.persistent import PersistentMap, PersistentSet
from ..model.state import GROUP

_SCALARS: Mapping[type, str] = MappingProxyType(
    {bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes", NoneType: "null"}
)
_DEPTH_MAX = 50
_MAGIC, _SYNC = b"Obj\x01", b"headgate state.."  # marks of an Avro container file

T = TypeVar("T")
_Maker: TypeAlias = Callable[[Any], Any] | None  # None leaves a value as it is


def pack(value: object, notes: Mapping[str, str]) -> bytes:
    """Return an Avro container file that holds one value, with notes in its metadata. It is not
    compressed: most of a state are segment indexes, which are compressed already."""
    kind: Any = type(value)
    body = bytearray()
    _writer(kind)(body, value)
    metadata = {"avro.codec": "null", "avro.schema": _schema_of(kind), **notes}
    out = bytearray(_MAGIC)
    _write_notes(out, metadata)
    out += _SYNC
    avro.write_long(out, 1)
    avro.write_bytes(out, body)
    return bytes(out + _SYNC)


def unpack(body: bytes, kind: type[T], check: Callable[[Mapping[str, str]], None]) -> T:
    """Return the value in a container file. `check` sees the notes first and may refuse the file.

    Raises:
        Corrupt: the bytes hold no such value.
    """
    try:
        reader = fastavro.reader(io.BytesIO(body), return_record_name=True)
        check(reader.metadata)
        if reader.metadata.get("avro.codec", "null") != "null":
            raise Corrupt("the file is compressed, which no snapshot of Headgate is")
        if reader.metadata.get("avro.schema") != _schema_of(cast(Any, kind)):
            named: dict[str, tuple[int, Any]] = {}
            _check_size(reader.writer_schema, named, 0)
            if not _holds(kind, reader.writer_schema, named):
                raise Corrupt(f"a field does not fit {kind.__name__}")
        (raw,) = reader
        return cast(T, _apply(_builder(cast(Any, kind)), raw))
    except (Corrupt, Invalid):
        raise
    except Exception as exc:  # fastavro raises errors of any class
        raise Corrupt(f"{kind.__name__} cannot be read: {type(exc).__name__}: {exc}") from exc


def _check_size(node: Any, named: dict[str, tuple[int, Any]], depth: int) -> int:
    """Return the depth that values of a foreign schema reach, if they start at `depth`.

    A few bytes must not stand for a large value. So every value must take at least one byte: null
    is only allowed in a union, a record must have a field, and nothing may contain itself. `named`
    collects the records that are complete, with their depth.

    Raises:
        Corrupt: the schema breaks these rules, or is nested too deeply.
    """
    deep = depth
    match node:
        case list():
            several = [variant for variant in node if variant != "null"]
            deep = max(
                [_check_size(variant, named, depth + 1) for variant in several], default=depth
            )
        case str() if node in named:
            deep = depth + named[node][0]
        case str() if node in _SCALARS.values() and node != "null":
            pass
        case {"type": "record", "name": name, "fields": [_, *_] as fields}:
            deep = max([_check_size(field["type"], named, depth + 1) for field in fields])
            named[name] = deep - depth, node
        case {"type": "array", "items": items}:
            deep = _check_size(items, named, depth + 1)
        case _:
            raise Corrupt(f"the schema is not one of Headgate, at {str(node)[:100]}")
    if deep > _DEPTH_MAX:
        raise Corrupt(f"the schema nests values more than {_DEPTH_MAX} deep")
    return deep


def _holds(kind: Any, node: Any, named: Mapping[str, tuple[int, Any]]) -> bool:
    """Return True if every value of a foreign schema fits the type, in the fields that both have.
    `named` are the records of the schema."""
    kind = _plain_type(kind)
    if (branches := _branches(kind)) is not None:
        ours = {_SCALARS.get(branch) or branch.__name__: branch for branch in branches}
        if not isinstance(node, list):  # fastavro names a record only in a union
            return node in _SCALARS.values() and node in ours
        names = [variant.get("name") if isinstance(variant, dict) else variant for variant in node]
        return all(
            name in ours and _holds(ours[name], variant, named)
            for name, variant in zip(names, node, strict=True)
        )
    match _spelled(node, named):
        case {"type": "record", "fields": parts} if _is_record(kind):
            return _holds_parts(_hints(kind), parts, named)
        case {"type": "array", "items": items} if (item := _item(kind)) is not None:
            return _holds(item, items, named)
        case {"type": "array", "items": items} if (pair := _pair(kind)) is not None:
            entry = _spelled(items, named)
            hints = {"key": pair[0], "value": pair[1]}
            return isinstance(entry, dict) and _holds_parts(hints, entry["fields"], named)
        case other:
            return bool(other == _SCALARS.get(kind))


def _spelled(node: Any, named: Mapping[str, tuple[int, Any]]) -> Any:
    return named[node][1] if isinstance(node, str) and node in named else node


def _holds_parts(
    hints: Mapping[str, Any], parts: list[Any], named: Mapping[str, tuple[int, Any]]
) -> bool:
    """Return True if the fields that both have fit. A field that only the schema has does not
    matter."""
    return all(
        _holds(hints[part["name"]], part["type"], named) for part in parts if part["name"] in hints
    )


@cache
def _schema_of(kind: Any) -> str:
    return json.dumps(_schema(kind, set()), separators=(",", ":"))


def _schema(kind: Any, named: set[str]) -> Any:
    """Return the Avro schema of a type. `named` are the records that are already spelled out."""
    kind = _plain_type(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if (branches := _branches(kind)) is not None:
        return [_schema(branch, named) for branch in branches]
    if (item := _item(kind)) is not None:
        return {"type": "array", "items": _schema(item, named)}
    if (pair := _pair(kind)) is not None:
        entry = {"key": pair[0], "value": pair[1]}
        return {"type": "array", "items": _record(_name(kind), entry, named)}
    assert _is_record(kind), f"{kind} has no shape"
    return _record(_name(kind), _hints(kind), named)


def _record(name: str, hints: Mapping[str, Any], named: set[str]) -> Any:
    if name in named:
        return name
    named.add(name)
    parts = [{"name": field, "type": _schema(hint, named)} for field, hint in hints.items()]
    return {"type": "record", "name": name, "fields": parts}


def _write_notes(out: bytearray, notes: Mapping[str, str]) -> None:
    avro.write_long(out, len(notes))
    for name, text in notes.items():
        avro.write_string(out, name)
        avro.write_string(out, text)
    avro.write_long(out, 0)


def _name(kind: Any) -> str:
    kind = _plain_type(kind)
    if parts := _branches(kind) or _pair(kind) or ():
        return "_".join(_name(part) for part in parts)
    item = _item(kind)
    return str(kind.__name__) if item is None else f"{_name(item)}s"


def _apply(make: _Maker, value: Any) -> Any:
    return value if make is None else make(value)


@cache
def _writer(kind: Any) -> avro.Writer:
    kind = _plain_type(kind)
    if kind in _SCALARS:
        return avro.SCALAR_WRITERS[_SCALARS[kind]]
    if (branches := _branches(kind)) is not None:
        return avro.union_writer({branch.__name__: _writer(branch) for branch in branches})
    if (item := _item(kind)) is not None:
        write = avro.array_writer(_writer(item))
        return write if get_origin(kind) is tuple else lambda out, value: write(out, sorted(value))
    if (pair := _pair(kind)) is not None:
        return _mapping_writer(*map(_writer, pair))
    return avro.record_writer({path: _writer(hint) for path, hint in _paths(kind).items()})


def _mapping_writer(write_key: avro.Writer, write_value: avro.Writer) -> avro.Writer:
    def write_entry(out: bytearray, entry: tuple[Any, Any]) -> None:
        write_key(out, entry[0])
        write_value(out, entry[1])

    write = avro.array_writer(write_entry)
    return lambda out, value: write(out, value.items())


@cache
def _builder(kind: Any) -> _Maker:
    """Return a function that makes a value of the type from what fastavro reads, or None if no
    change is needed."""
    kind = _plain_type(kind)
    if (branches := _branches(kind)) is not None:
        makers = {branch.__name__: _builder(branch) for branch in branches if _is_record(branch)}
        return lambda raw: _apply(makers[raw[0]], raw[1]) if type(raw) is tuple else raw
    if (item := _item(kind)) is not None:
        each, collect = _builder(item), tuple if get_origin(kind) is tuple else PersistentSet
        return collect if each is None else lambda raw: collect([each(entry) for entry in raw])
    if (pair := _pair(kind)) is not None:
        key, value = _builder(pair[0]), _builder(pair[1])
        return lambda raw: PersistentMap(
            (_apply(key, e["key"]), _apply(value, e["value"])) for e in raw
        )
    if not _is_record(kind):
        return None
    hints = get_type_hints(kind)
    parts = [(f.name, _builder(hints[f.name]), f.metadata == GROUP) for f in fields(kind)]
    return lambda raw: kind(
        **{
            name: _apply(make, raw if is_group else raw[name])
            for name, make, is_group in parts
            if is_group or name in raw
        }
    )


def _plain_type(kind: Any) -> Any:
    """Return the type under a `NewType`."""
    return getattr(kind, "__supertype__", kind)


def _branches(kind: Any) -> tuple[Any, ...] | None:
    """Return the branches of a union, None first; return None for other types."""
    if get_origin(kind) not in (Union, UnionType):
        return None
    return tuple(sorted(get_args(kind), key=lambda branch: branch is not NoneType))


def _item(kind: Any) -> Any:
    """Return the type of the items of a tuple or set; return None for other types."""
    return get_args(kind)[0] if get_origin(kind) in (tuple, PersistentSet) else None


def _pair(kind: Any) -> tuple[Any, ...] | None:
    """Return the types of a mapping's keys and values; return None for other types."""
    return get_args(kind) if get_origin(kind) is PersistentMap else None


def _is_record(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _hints(kind: Any) -> dict[str, Any]:
    return {path.rpartition(".")[2]: hint for path, hint in _paths(kind).items()}


def _paths(kind: Any) -> dict[str, Any]:
    """Return the types of the fields that a record has, by the path from the value to each."""
    hints, paths = get_type_hints(kind), dict[str, Any]()
    for field in fields(kind):
        hint = hints[field.name]
        if field.metadata == GROUP:
            paths |= {f"{field.name}.{path}": part for path, part in _paths(hint).items()}
        else:
            paths[field.name] = hint
    return paths
