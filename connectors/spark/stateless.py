"""Whether a function can keep anything from one call to the next.

One that cannot has no hold on what it gave before, and cannot change it later. It is told from what
the function refers to: modules of a few libraries, values that never change, and functions of which
the same is true. Of anything else nothing is known.
"""

from __future__ import annotations

import datetime as dt
import dis
import re
from collections.abc import Container, Iterator
from decimal import Decimal
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import pyarrow as pa

_LIBRARIES = {"pyarrow", "numpy", "pandas"} | {
    *("math", "cmath", "statistics", "datetime", "decimal", "fractions", "re", "json", "string"),
    *("itertools", "functools", "operator", "collections", "typing", "builtins"),
}
_FIXED = {bool, int, float, complex, str, bytes, Decimal} | {
    *(dt.date, dt.datetime, dt.timedelta, re.Pattern),
}
_FIXED_IN_ARROW = (pa.DataType, pa.Field, pa.Schema, pa.Scalar)
_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"}
_BINDS = {"STORE_DEREF", "DELETE_DEREF"}
_REACHING = {"globals", "vars", "setattr", "delattr", "exec", "eval", "__import__"}


def is_stateless(function: Any) -> bool:
    """Whether it is known that a function keeps nothing."""
    return isinstance(function, FunctionType) and _is_fixed(function, set())


def _is_fixed(value: Any, seen: set[int]) -> bool:
    if value is None or type(value) in _FIXED or isinstance(value, _FIXED_IN_ARROW):
        return True
    if isinstance(value, ModuleType):
        return _is_library(value.__name__)
    if isinstance(value, (tuple, frozenset)):
        return all(_is_fixed(one, seen) for one in value)
    if isinstance(value, (type, BuiltinFunctionType)):
        return _is_library(value.__module__)
    if not isinstance(value, FunctionType):
        return False
    if id(value) in seen or _is_library(value.__module__):
        return True
    seen.add(id(value))
    return _is_stateless(value, seen)


def _is_stateless(function: FunctionType, seen: set[int]) -> bool:
    code = function.__code__
    if function.__dict__ or any(_sets(one, code.co_freevars) for one in _codes(code)):
        return False
    names = {name for one in _codes(code) for name in one.co_names}
    reached = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    reached += [function.__globals__[name] for name in names & function.__globals__.keys()]
    try:
        reached += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # what is not there yet may come to be anything
        return False
    return not names & _REACHING and all(_is_fixed(one, seen) for one in reached)


def _sets(code: CodeType, outer: Container[str]) -> bool:
    """Whether a stretch of code sets what is not its own, or imports what may hold anything."""
    for step in dis.get_instructions(code):
        bound = step.opname in _BINDS and step.argval in outer
        foreign = step.opname == "IMPORT_NAME" and not _is_library(step.argval)
        if bound or foreign or step.opname in _STORES:
            return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of all that is defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _is_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _LIBRARIES
