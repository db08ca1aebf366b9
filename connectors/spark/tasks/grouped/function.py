"""A user's function for groups, as it travels and as a task has it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType
from pyspark.util import fail_on_stopiteration


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """What a session's settings say of how functions take rows and give them back."""

    zone: str
    by_name: bool
    safely: bool
    decimals_from_ints: bool
    nullable_ints: bool
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Call:
    """What to call: a function as PySpark has pickled it, whether it is for pandas, and whether it
    takes a group batch by batch; which of the columns that are read it is given on each side, how
    many of the first are keys, and under which names and types it takes all of them."""

    function: bytes
    in_pandas: bool
    by_batch: bool
    keys: int
    columns: tuple[tuple[int, ...], ...]
    schemas: tuple[bytes, ...]
    ways: FunctionSettings


@dataclass(frozen=True, slots=True)
class Function:
    """A function as a task has it."""

    call: Callable[..., Any]
    takes_key: bool
    by_batch: bool
    returned: StructType
    ways: FunctionSettings


def load_function(call: Call) -> Function:
    function, returned = pickle.loads(call.function)
    takes_key = len(inspect.getfullargspec(function).args) != len(call.schemas)
    checked = fail_on_stopiteration(function)
    return Function(checked, takes_key, call.by_batch, returned, call.ways)
