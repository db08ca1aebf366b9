"""Sizes and times as Spark's users write them: `64m`, `1g`, `500ms`, `60s`, `1d`.

The suffixes are those of Spark's `JavaUtils`, in capitals or not. They follow a whole number, with
no space between, and sizes are multiples of 1024. A number alone has the unit of its option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

_AMOUNT = re.compile(r"([0-9]{1,19})([a-z]+)")
_PREFIXES = {letter: 1 << 10 * power for power, letter in enumerate("kmgtp", 1)}
BYTES: Mapping[str, int] = MappingProxyType(
    {"b": 1}
    | {f"{letter}{rest}": size for letter, size in _PREFIXES.items() for rest in ("", "b", "ib")}
)
MICROSECONDS: Mapping[str, int] = MappingProxyType(
    {
        "us": 1,
        "ms": 1_000,
        "s": 1_000_000,
        "m": 60_000_000,
        "min": 60_000_000,
        "h": 3_600_000_000,
        "d": 86_400_000_000,
    }
)


def read_bytes(text: str) -> int:
    """Return a size in bytes, which is the unit of a number alone.

    Raises:
        ValueError: the text is no size.
    """
    with suppress(ValueError):
        return int(text)
    return _amount(text, BYTES)


def read_ms(text: str) -> int:
    """Return a time in milliseconds, which is the unit of a number alone.

    Raises:
        ValueError: the text is no time, or no whole number of milliseconds.
    """
    with suppress(ValueError):
        return int(text)
    ms, rest = divmod(_amount(text, MICROSECONDS), MICROSECONDS["ms"])
    if rest:
        raise ValueError(f"{text!r} is no whole number of milliseconds")
    return ms


def read_s(text: str) -> float:
    """Return a time in seconds, which is the unit of a number alone; that one may be a fraction.

    Raises:
        ValueError: the text is no time.
    """
    with suppress(ValueError):
        return float(text)
    return _amount(text, MICROSECONDS) / MICROSECONDS["s"]


def bytes_text(size_bytes: int) -> str:
    """Return a size as people write it: `64m` for 67,108,864."""
    return _text(size_bytes, {letter: _PREFIXES[letter] for letter in "tgmk"}, "")


def ms_text(ms: int) -> str:
    """Return a time as people write it: `1d` for 86,400,000."""
    return _text(ms, {unit: MICROSECONDS[unit] // 1000 for unit in ("d", "h", "s")}, "ms")


def s_text(seconds: float) -> str:
    return ms_text(round(seconds * 1000))


def _amount(text: str, units: Mapping[str, int]) -> int:
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is no amount")
    return int(match[1]) * units[match[2]]


def _text(amount: int, units: Mapping[str, int], least: str) -> str:
    """Return an amount in the largest unit of which it is a whole number."""
    if amount <= 0:
        return str(amount)
    unit, size = next(((u, s) for u, s in units.items() if amount % s == 0), (least, 1))
    return f"{amount // size}{unit}"
