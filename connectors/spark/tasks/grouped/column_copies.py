"""Copy columns that a user's function has returned. The function may keep the columns, and change
them when it is called again.

A copy shares no memory with its column that may change. Where that is not certain, no copy is made:
the column must then be converted before the function is called again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

_FIXED = frozenset(  # exact types: a subclass may hold anything, and so may a time's zone
    {type(None), type(pd.NaT), type(pd.NA), bool, int, float, complex, str, bytes}
    | {Decimal, dt.date, dt.timedelta, pd.Timedelta, np.bool_, np.str_, np.bytes_}
    | {np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
    | {np.datetime64, np.timedelta64}
)
_COPIED = {  # the `copy` of these copies all values
    *(pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray),
    *(pd.arrays.DatetimeArray, pd.arrays.TimedeltaArray, pd.arrays.StringArray),
}
_OF_ARROW = {pd.arrays.ArrowExtensionArray, pd.arrays.ArrowStringArray}


def copied(column: pd.Series) -> Any:
    """Return a copy of a column's array, or None where only a conversion surely copies."""
    if isinstance(column.dtype, np.dtype):
        values = column.to_numpy()
        return values.copy() if values.dtype != object else _objects(values)
    array: Any = column.array
    if type(array) in _COPIED:
        return array.copy()
    if type(array) in _OF_ARROW:
        kind = array.__arrow_array__().type
        if kind in (pa.string(), pa.large_string()) or pa.types.is_primitive(kind):
            # its own `copy` shares the memory, and so does `take` of a dictionary, for example
            return array.take(np.arange(len(array)))
    return None


def _objects(values: np.ndarray) -> np.ndarray | None:
    if _FIXED.issuperset(map(type, values)):
        return values.copy()
    try:
        return _array(values)
    except (TypeError, RecursionError):
        return None


def _array(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind == "V":
        raise TypeError(values.dtype)
    if values.dtype != object:
        return values.copy()
    copies = np.empty(len(values), object)
    for at, value in enumerate(values):
        copies[at] = _value(value)
    return copies


def _sequence(values: Any) -> Any:
    return type(values)(values if _FIXED.issuperset(map(type, values)) else map(_value, values))


_HOLDING: dict[type, Callable[[Any], Any]] = {
    **{list: _sequence, tuple: _sequence, bytearray: bytearray, np.ndarray: _array},
    dict: lambda values: {_value(key): _value(value) for key, value in values.items()},
}


def _value(value: Any) -> Any:
    kind = type(value)
    if kind in _FIXED:
        return value
    if (copy := _HOLDING.get(kind)) is None:
        raise TypeError(kind)
    return copy(value)
