"""Make text from others safe to print: no terminal acts on a control character in it."""

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
    """Return a text with its invisible characters written as escapes. Line ends are invisible too,
    unless `lines` is True."""
    return (_WITH_LINES if lines else _IN_ONE_LINE).sub(lambda odd: repr(odd[0])[1:-1], text)


class Spelling(logging.Formatter):
    """Formats each message as one line, whatever it contains; a traceback keeps its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = spelled(record.message)
        return super().formatMessage(record)
