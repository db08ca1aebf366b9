"""Frozen dataclasses made quickly: the way of `dataclasses` to fill a frozen value, field by field
past its own guard, is most of what an event would cost.

Guarantees the same values as the class itself and as `dataclasses.replace`. Assumes slots, two
fields or more to change one of, and nothing to do in `__post_init__`.
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
    """What takes all fields of a class in their order, and gives a value of it."""
    unfrozen = _unfrozen(kind)

    def make(*parts: Any) -> Any:
        made = unfrozen(*parts)
        made.__class__ = kind
        return made

    return make


if TYPE_CHECKING:  # so that names and types of the parts are checked
    from dataclasses import replace as changed
else:

    def changed(value: Any, **parts: Any) -> Any:
        """The value with other parts."""
        made = _copier(value.__class__)(value)
        for name, part in parts.items():
            setattr(made, name, part)
        made.__class__ = value.__class__
        return made


@cache
def _copier(kind: Any) -> Callable[[Any], Any]:
    unfrozen, parts = _unfrozen(kind), attrgetter(*(field.name for field in fields(kind)))
    return lambda value: unfrozen(*parts(value))


@cache
def _unfrozen(kind: Any) -> Any:
    """A class of the same slots whose objects may become those of the other."""
    assert not hasattr(kind, "__post_init__"), f"{kind.__name__} checks its fields"
    return make_dataclass(kind.__name__, [field.name for field in fields(kind)], slots=True)
