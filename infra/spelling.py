"""Text of others as it is, doing nothing that it asks a terminal for."""

from __future__ import annotations

import logging
import re

_ODD = (
    r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    r"\U000e0000-\U000e007f"
)
_WITH_LINES = re.compile(f"[{_ODD}]")
_IN_ONE_LINE = re.compile(f"[{_ODD}\n]")


def spelled(text: str, lines: bool = False) -> str:
    """With what cannot be seen spelled out, and ends of lines too unless they are to stay."""
    return (_WITH_LINES if lines else _IN_ONE_LINE).sub(lambda odd: repr(odd[0])[1:-1], text)


class Spelling(logging.Formatter):
    """A line for each message, whatever is in it; the trace of an error has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = spelled(record.message)
        return super().formatMessage(record)
