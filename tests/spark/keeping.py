"""Functions that keep memory from one call to the next, and return results in it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc as ipc

Memory = dict[str, Any]
Recall = Callable[[], Memory]

_NAME = "_kept_by_a_test"
_MOST_BYTES = 1 << 16


def in_itself() -> Memory:
    return in_itself.__dict__.setdefault(_NAME, {})  # type: ignore[no-any-return]


def in_globals() -> Memory:
    return in_globals.__globals__.setdefault(_NAME, {})  # type: ignore[no-any-return]


def in_numpy() -> Memory:
    return np.lib.__dict__.setdefault(_NAME, {})  # type: ignore[no-any-return]


def in_builtins() -> Memory:
    return builtins.__dict__.setdefault(_NAME, {})  # type: ignore[no-any-return]


def in_a_closure() -> Recall:
    memory: Memory = {}
    return lambda: memory


def in_a_default() -> Recall:
    def recall(memory: Memory = {}) -> Memory:  # noqa: B006
        return memory

    return recall


WAYS: dict[str, Recall] = {
    **{function.__name__: function for function in (in_itself, in_globals, in_numpy, in_builtins)},
    **{"in_a_closure": in_a_closure(), "in_a_default": in_a_default()},
}


def again(memory: Memory, result: pa.Table) -> pa.Table:
    """Write the result to memory that all results share, and return the table in that memory."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, result.schema) as stream:
        stream.write_table(result)
    written = np.frombuffer(sink.getvalue(), np.uint8)
    place = memory.setdefault("place", np.zeros(_MOST_BYTES, np.uint8))[: len(written)]
    place[:] = written
    return ipc.open_stream(pa.py_buffer(place)).read_all()


def spoiling(memory: Memory, result: pd.DataFrame) -> pd.DataFrame:
    """Destroy the values of the former frame, and return the new one."""
    former = memory.get("former", pd.DataFrame())
    for name in former:
        values = former[name].to_numpy()
        if values.dtype == object:
            for value in values:
                _spoil(value)
            values[:] = None
        elif values.flags.writeable:
            values[:] = np.zeros(1, values.dtype)
    memory["former"] = result
    return result


def _spoil(value: Any) -> None:
    if isinstance(value, (list, dict)):
        value.clear()
    elif isinstance(value, bytearray):
        value[:] = b"spoilt"
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[:] = None if value.dtype == object else 0


def filled(memory: Memory, name: str, values: Any, kind: Any = np.int64) -> Any:
    """Return an array that is allocated once and filled anew at each call."""
    array = memory.setdefault(name, np.zeros(len(values), kind))
    for at, value in enumerate(values):
        array[at] = value
    return array


def count(memory: Memory, n: int) -> pa.Table:
    """Return the smallest table that shows reused memory."""
    numbers = memory.setdefault("numbers", np.zeros(1))
    numbers[0] = n
    return pa.table({"n": numbers})


TABLE = {
    **{"of_numpy": "long", "of_no_writer": "long", "of_a_buffer": "long", "with_nulls": "long"},
    **{"a_part": "long", "truth": "boolean", "text": "string", "bytes": "binary"},
    **{"lists": "array<long>", "nested": "struct<a: long>", "day": "date"},
    **{"at": "timestamp_ntz", "whole": "decimal(10, 0)"},
}


def every_type(memory: Memory, n: int) -> pa.Table:
    """Return three rows of every type, without copying any value."""
    numbers = filled(memory, "numbers", [n, n + 1, n + 2])
    seen = numbers.view()
    seen.flags.writeable = False
    bits = pa.py_buffer(filled(memory, "bits", [n % 8], np.uint8))
    ends = filled(memory, "ends", [0, n % 3, 3, 3], np.int32)
    text = memory.setdefault("text", bytearray(3))
    text[:] = f"{n % 1000:03}".encode()
    of = pa.Array.from_buffers
    arrays = [
        pa.array(numbers),
        pa.array(seen),
        of(pa.int64(), 3, [None, pa.py_buffer(numbers)]),
        of(pa.int64(), 3, [bits, pa.py_buffer(numbers)]),
        pa.array(filled(memory, "more", range(n, n + 4)))[1:],
        of(pa.bool_(), 3, [None, bits]),
        of(pa.string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(text)]),
        of(pa.binary(), 3, [None, pa.py_buffer(ends), pa.py_buffer(memoryview(text))]),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers)),
        pa.StructArray.from_arrays([pa.array(numbers)], ["a"]),
        of(pa.date32(), 3, [None, pa.py_buffer(filled(memory, "days", [n] * 3, np.int32))]),
        pa.array(filled(memory, "at", [n] * 3, "datetime64[us]")),
        of(pa.decimal128(10), 3, [None, pa.py_buffer(filled(memory, "six", [n, 0] * 3))]),
    ]
    return pa.table(dict(zip(TABLE, arrays, strict=True)))


def block(memory: Memory, n: int) -> pd.DataFrame:
    return pd.DataFrame(filled(memory, "block", [[n, n + 1]] * 2, (float, 2)), copy=False)


def one_frame(memory: Memory, n: int) -> pd.DataFrame:
    at = pd.Timestamp(n, unit="s")
    made = {"v": [0], "at": [at], "zoned": [at.tz_localize("Asia/Tokyo")], "text": [""]}
    frame: pd.DataFrame = memory.setdefault("frame", pd.DataFrame(made))
    frame.iloc[0, 0], frame.iloc[0, 1] = n, at
    frame["zoned"].array[0], frame["text"].array[0] = at.tz_localize("Asia/Tokyo"), str(n)
    return frame


def fixed_objects(memory: Memory, n: int) -> pd.DataFrame:
    text = filled(memory, "text", [str(n), None], object)
    whole = filled(memory, "whole", [Decimal(n), Decimal(1)], object)
    day = filled(memory, "day", [date.fromordinal(n + 1), None], object)
    return pd.DataFrame({"text": text, "whole": whole, "day": day}, copy=False)


def holding(memory: Memory, n: int) -> pd.DataFrame:
    """Return objects whose values change with the next call, also inside other objects."""
    own: list[int] = memory.setdefault("list", [])
    own[:] = range(n % 3, n % 5)
    mapped: dict[str, int] = memory.setdefault("map", {})
    mapped["n"] = n
    raw = memory.setdefault("raw", bytearray(3))
    raw[:] = f"{n % 1000:03}".encode()
    array = filled(memory, "array", [n, n + 1])
    inner = memory.setdefault("inner", np.empty(1, object))
    inner[0] = own
    kept: list[dict[str, Any]] = memory.setdefault("outer", [{}])
    kept[0].update(a=n, b=own)
    rows = [[own, mapped, raw, array, inner, (n, own), kept]]
    return pd.DataFrame(rows, columns=["l", "m", "r", "a", "i", "s", "o"])


HOLDING = """l array<int>, m map<string, long>, r binary, a array<long>, i array<array<int>>,
    s struct<a: long, b: array<int>>, o array<struct<a: long, b: array<int>>>"""


def raw_text(memory: Memory, n: int) -> pd.DataFrame:
    raw = memory.setdefault("raw", bytearray(3))
    raw[:] = f"{n % 1000:03}".encode()
    return pd.DataFrame({"text": [raw]})


class Number:
    """An integer whose value changes."""

    def __init__(self) -> None:
        self.n = 0

    def __index__(self) -> int:
        return self.n


def numbers(memory: Memory, n: int) -> pd.DataFrame:
    number: Number = memory.setdefault("number", Number())
    number.n = n
    return pd.DataFrame({"v": pd.Series([number], dtype=object)})


class Listed(list[int]):
    pass


def lists_of_its_own(memory: Memory, n: int) -> pd.DataFrame:
    own: Listed = memory.setdefault("listed", Listed())
    own[:] = [n]
    return pd.DataFrame({"l": [own]})


def masked(memory: Memory, n: int) -> pd.DataFrame:
    data, mask = filled(memory, "data", [n, 1]), filled(memory, "mask", [False, n % 2], bool)
    truth = filled(memory, "truth", [n % 3 == 0] * 2, bool)
    arrays = {
        "v": pd.arrays.IntegerArray(data, mask),
        "t": pd.arrays.BooleanArray(truth, mask),
    }
    return pd.DataFrame(arrays, copy=False)


class Shared(pd.arrays.IntegerArray):  # type: ignore[misc]
    """An array whose `copy` returns the array itself."""

    def copy(self) -> Shared:
        return self


def not_copied(memory: Memory, n: int) -> pd.DataFrame:
    data = Shared(filled(memory, "data", [n]), np.zeros(1, bool))
    return pd.DataFrame({"v": data}, copy=False)


def strings(memory: Memory, n: int) -> pd.DataFrame:
    text = filled(memory, "text", [str(n), pd.NA], object)
    raw = pa.py_buffer(filled(memory, "raw", f"{n % 1000:03}".encode(), np.uint8))
    ends = pa.py_buffer(filled(memory, "ends", [0, n % 3, 3]))
    arrow = pa.Array.from_buffers(pa.large_string(), 2, [None, ends, raw])
    arrays = {"p": pd.arrays.StringArray(text), "a": pd.arrays.ArrowStringArray(arrow)}
    return pd.DataFrame(arrays, copy=False)


def of_arrow(memory: Memory, n: int) -> pd.DataFrame:
    numbers = pa.array(filled(memory, "numbers", [n, n + 1]))
    return pd.DataFrame({"v": pd.arrays.ArrowExtensionArray(numbers)}, copy=False)


def of_a_dictionary(memory: Memory, n: int) -> pd.DataFrame:
    words = pa.array(filled(memory, "words", [n, n + 1]))
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1]), words)
    return pd.DataFrame({"v": pd.arrays.ArrowExtensionArray(coded)}, copy=False)


def categories(memory: Memory, n: int) -> pd.DataFrame:
    coded = memory.setdefault("coded", pd.Categorical(["a", "b", "c"]))
    coded[0] = "abc"[n % 3]
    return pd.DataFrame({"c": coded}, copy=False)


FRAMES: dict[str, tuple[Callable[[Memory, int], pd.DataFrame], str]] = {
    "block": (block, "a double, b double"),
    "one frame": (one_frame, "v long, at timestamp_ntz, zoned timestamp, text string"),
    "objects": (fixed_objects, "text string, whole decimal(10, 0), day date"),
    "holding": (holding, HOLDING),
    "raw text": (raw_text, "text string"),
    "numbers": (numbers, "v long"),
    "lists of its own": (lists_of_its_own, "l array<long>"),
    "masked": (masked, "v long, t boolean"),
    "not copied": (not_copied, "v long"),
    "strings": (strings, "p string, a string"),
    "of Arrow": (of_arrow, "v long"),
    "of a dictionary": (of_a_dictionary, "v long"),
    "categories": (categories, "c string"),
}
