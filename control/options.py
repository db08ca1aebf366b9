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
from .units import bytes_text, ms_text, read_bytes, read_ms, read_s, s_text

_WITH_USER = re.compile(r"[^?#]*@")
_LONG_MAX = (1 << 63) - 1
_ADDRESSES = ("url", "endpoint")
_NO_VALUE = (ValueError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True)
class OptionKind:
    """A kind of values."""

    wanted: str
    """The values that can be used, for errors."""
    parse: Callable[[str], Any]
    """Returns the value of a text, or raises one of `_NO_VALUE`."""
    allows: Callable[[Any], bool] = lambda value: True
    """Returns False if a value is outside the limits."""
    text_of: Callable[[Any], str] = str
    """Returns a value as people write it."""


TEXT = OptionKind("a text", str)
FLAG = OptionKind(
    "one of true, false",
    lambda text: {"true": True, "false": False}[text.strip().lower()],
    text_of=lambda value: str(value).lower(),
)
SECONDS = OptionKind(
    "a time such as 60s or 500ms, above 0", read_s, lambda seconds: 0 < seconds < math.inf, s_text
)
SIZE_SAMPLE, TIME_SAMPLE = "a size such as 64m or 1g", "a time such as 60s or 1d"


def whole(low: int, high: int = _LONG_MAX) -> OptionKind:
    """Return the kind of the whole numbers from `low` to `high`, both included."""
    return _limited("a whole number", low, high, int, str)


def size(low: int, high: int = _LONG_MAX) -> OptionKind:
    """Return the kind of the sizes in bytes from `low` to `high`, both included."""
    return _limited(SIZE_SAMPLE, low, high, read_bytes, bytes_text)


def time_ms(low: int, high: int = _LONG_MAX) -> OptionKind:
    """Return the kind of the times in milliseconds from `low` to `high`, both included."""
    return _limited(TIME_SAMPLE, low, high, read_ms, ms_text)


def _limited(
    wanted: str, low: int, high: int, parse: Callable[[str], int], text_of: Callable[[int], str]
) -> OptionKind:
    limit = f" and at most {text_of(high)}" if high < _LONG_MAX else ""
    at_least = f"{wanted}, at least {text_of(low)}{limit}"
    return OptionKind(at_least, parse, lambda number: low <= number <= high, text_of)


def one_of(*choices: str) -> OptionKind:
    """Return the kind of a few lower-case texts, which users may write in capitals."""
    wanted = f"one of {', '.join(choices)}"
    return OptionKind(wanted, lambda text: text.strip().lower(), lambda text: text in choices)


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
        with suppress(*_NO_VALUE):
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
