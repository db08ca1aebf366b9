"""A user's function for groups, as it is sent to a task and as the task calls it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType
from pyspark.util import fail_on_stopiteration


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """A session's settings for the rows that functions take and return."""

    zone: str
    """The session's time zone."""
    by_name: bool
    """Match result columns by name, not by place."""
    safely: bool
    """Raise an error where a conversion to Arrow would lose something."""
    decimals_from_ints: bool
    """Accept integers where the result is a decimal."""
    nullable_ints: bool
    """Give pandas its nullable integers."""
    batch_rows: int
    """The rows of a batch at most, if it is positive."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call for each group, as it is sent to a task."""

    function: bytes
    """The function as PySpark has pickled it."""
    in_pandas: bool
    """True when it takes pandas frames, False when it takes Arrow tables."""
    by_batch: bool
    """True when it takes a group as an iterator of batches."""
    keys: int
    """The number of key columns; they come first."""
    columns: tuple[tuple[int, ...], ...]
    """For each side the stored columns that it takes."""
    schemas: tuple[pa.Schema, ...]
    """For each side the names and types of these columns."""
    settings: FunctionSettings


@dataclass(frozen=True, slots=True)
class Function:
    """A function as a task calls it."""

    call: Callable[..., Any]
    takes_key: bool
    """True when its first argument is the key."""
    by_batch: bool
    """True when it takes a group as an iterator of batches."""
    returned: StructType
    """The declared schema of its results."""
    settings: FunctionSettings


def load_function(call: Call) -> Function:
    function, returned = pickle.loads(call.function)
    takes_key = len(inspect.getfullargspec(function).args) != len(call.schemas)
    checked = fail_on_stopiteration(function)
    return Function(checked, takes_key, call.by_batch, returned, call.settings)
