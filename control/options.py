"""Options that a user gives as texts: their tables, their values, and the errors about them.

Guarantees that an error names the option and says what is wrong with it, or names the nearest
option if there is none of that name. An error shows the text of an option in a table only, and no
table has a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .errors import Invalid

_WITH_USER = re.compile(r"[^?#]*@")
_LONG_MAX = (1 << 63) - 1
_ADDRESSES = ("url", "endpoint")


@dataclass(frozen=True, slots=True)
class OptionKind:
    """A kind of values."""

    wanted: str
    """The values that can be used, for errors."""
    parse: Callable[[str], Any]
    """Returns the value of a text, or raises `ValueError` or `KeyError`."""
    allows: Callable[[Any], bool] = lambda value: True
    """Returns False if a value is outside the limits."""


TEXT = OptionKind("a text", str)
FLAG = OptionKind(
    "one of true, false", lambda text: {"true": True, "false": False}[text.strip().lower()]
)
ABOVE_0 = OptionKind("a number above 0", float, lambda number: 0 < number < math.inf)


def whole(low: int, high: int = _LONG_MAX) -> OptionKind:
    """Return the kind of the whole numbers from `low` to `high`, both included."""
    limit = f" and at most {high}" if high < _LONG_MAX else ""
    wanted = f"a whole number, at least {low}{limit}"
    return OptionKind(wanted, int, lambda number: low <= number <= high)


def one_of(*choices: str) -> OptionKind:
    """Return the kind of a few texts."""
    return OptionKind(f"one of {', '.join(choices)}", str, lambda text: text in choices)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a table."""

    name: str
    default: Any
    kind: OptionKind
    meaning: str
    """The explanation for users."""

    def value(self, prefix: str, text: str) -> Any:
        """Return the value of a text.

        Raises:
            Invalid: the text cannot be used.
        """
        with suppress(ValueError, KeyError):
            value = self.kind.parse(text)
            if self.kind.allows(value):
                return value
        wanted = f"it must be {self.kind.wanted}"
        raise Invalid(f"{prefix}{self.name} = {text!r} cannot be used: {wanted}")


def read_options(prefix: str, table: Iterable[Option], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of every option of a table, its default if there is no text.

    Raises:
        Invalid: an option is unknown, or its text cannot be used.
    """
    options = {option.name: option for option in table}
    for name in sorted(texts.keys() - options.keys()):
        near = nearest(name, options)
        raise Invalid(f"there is no {prefix}{name}; the nearest key is {prefix}{near}")
    values = {name: option.default for name, option in options.items()}
    return values | {name: options[name].value(prefix, text) for name, text in texts.items()}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that is most like a misspelt one."""
    return get_close_matches(name, list(names), 1, cutoff=0.0)[0]


def refuse_unsafe(owner: str, texts: Mapping[str, str], refused: Mapping[str, str]) -> None:
    """Refuse the options of a client that no user may set, and passwords in its addresses.

    Raises:
        Invalid: an option is in `refused`, which has names by the reason, or an address has a
            password, which Spark would show.
    """
    for why, names in refused.items():
        for name in names.split():
            if name in texts:
                raise Invalid(f"{owner} option {name} cannot be set: {why}")
    for name, text in texts.items():
        if any(part in name for part in _ADDRESSES) and has_password(text):
            raise Invalid(f"{owner} option {name} has a password in its address: leave it out")


def has_password(address: str) -> bool:
    """Return True if the address names a user or a password, as in `http://user:word@host`."""
    return _WITH_USER.match(address) is not None
