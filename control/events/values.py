"""Fast construction of frozen dataclasses.

A frozen dataclass sets each field through `object.__setattr__`, which would be most of the cost of
an event. The functions here fill an unfrozen object of the same slots, then change its class.

Guarantees the same values as the class itself and as `dataclasses.replace`. Assumes that the class
has slots and no `__post_init__`, and that a class whose values are changed has at least two fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["changed", "maker"]


@cache
def maker(kind: Any) -> Callable[..., Any]:
    """Return a function that makes a value of a class from all of its fields, in their order."""
    unfrozen = _unfrozen(kind)

    def make(*parts: Any) -> Any:
        value = unfrozen(*parts)
        value.__class__ = kind
        return value

    return make


if TYPE_CHECKING:  # so that mypy checks the names and types of the parts
    from dataclasses import replace as changed
else:

    def changed(value: Any, **parts: Any) -> Any:
        """Return a copy of the value with other values in some fields."""
        copy = _copier(value.__class__)(value)
        for name, part in parts.items():
            setattr(copy, name, part)
        copy.__class__ = value.__class__
        return copy


@cache
def _copier(kind: Any) -> Callable[[Any], Any]:
    unfrozen, parts = _unfrozen(kind), attrgetter(*(field.name for field in fields(kind)))
    return lambda value: unfrozen(*parts(value))


@cache
def _unfrozen(kind: Any) -> Any:
    """Return an unfrozen class with the same slots, whose objects can change to class `kind`."""
    assert not hasattr(kind, "__post_init__"), f"{kind.__name__} checks its fields"
    return make_dataclass(kind.__name__, [field.name for field in fields(kind)], slots=True)
