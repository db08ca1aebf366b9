"""Every error that Headgate raises.

HeadgateError
├── Retryable            may succeed if tried again with the same input
│   ├── Unavailable      broker, master or store cannot be reached
│   └── Throttled        the store asks for less; carries retry_after_s
├── OutcomeUnknown       the request may or may not have taken effect: look before repeating
├── Conflict             another process did it first
├── Fenced               a newer epoch or generation exists; stop
├── Corrupt              bytes do not match their checksum, length or schema
├── Lost                 data or events that were there are gone
├── Invalid              the caller's input, configuration or schema; says what to change
└── Closed               used after close

Errors cross process borders, so they pickle with everything they carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class HeadgateError(Exception):
    """Base of the tree; `offsets` are those of the log's records that explain the error."""

    def __init__(self, message: str, offsets: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.offsets = offsets

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...]]:
        return type(self), (self.args[0], self.offsets)


class Retryable(HeadgateError):
    """The request may succeed if it is tried again with the same input."""


class Unavailable(Retryable):
    """The broker, the master or the store cannot be reached."""


class Throttled(Retryable):
    """The store asks for fewer requests; wait at least `retry_after_s`."""

    def __init__(
        self, message: str, offsets: tuple[int, ...] = (), retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, offsets)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...]]:
        return type(self), (self.args[0], self.offsets, self.retry_after_s)


class OutcomeUnknown(HeadgateError):
    """The request may or may not have taken effect: look before repeating."""


class Conflict(HeadgateError):
    """Another process did it first."""


class Fenced(HeadgateError):
    """A newer epoch or generation exists; the caller must stop."""


class Corrupt(HeadgateError):
    """Bytes do not match their checksum, length or schema."""


class Lost(HeadgateError):
    """Data or events that were there are gone."""


class Invalid(HeadgateError):
    """The caller's input, configuration or schema is wrong; the message says what to change."""


class Closed(HeadgateError):
    """The object was used after it was closed."""
