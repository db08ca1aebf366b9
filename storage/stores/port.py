"""The object-store port: whole objects, written once, read by range.

Guarantees of every implementation:
- `put` creates an object or fails; it never replaces one. It is repeatable: a put succeeds if the
  object is already there with the same write id and size, so that it can be tried again after a
  lost answer. A write id must therefore stand for one content: it is derived from an attempt and
  the number of a segment, or from a checksum.
- `get` returns exactly the requested bytes, or raises.
- `delete` succeeds for names that have no object.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...control.clock import Deadline
from ...control.errors import Corrupt, Invalid
from .request_meter import RequestCounts

Bytes: TypeAlias = bytes | bytearray | memoryview

NAME_BYTES_MAX = 1024
NAME_SEGMENT = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,199}")
WRITE_ID = re.compile(r"[!-~]{1,180}")


@dataclass(frozen=True, slots=True)
class ByteRange:
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class BlobStat:
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that was neither completed nor aborted."""

    name: str
    upload_id: str


class BlobStore(Protocol):
    @property
    def requests(self) -> RequestCounts:
        """Return the requests sent and bytes moved so far, every retry included."""

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        """Prove that the store can be reached and used, for names with this prefix.

        Raises:
            Invalid: the settings cannot work; the message names what to change.
            Unavailable, Throttled: the store gave no usable answer before the deadline.
        """

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        """Create one object.

        Raises:
            Conflict: another write id holds the name.
            OutcomeUnknown: no answer came, and a look at the object did not settle the put.
            Unavailable, Throttled: nothing was written; the put may be tried again.
        """

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        """Read one object or exactly one range of it; a range of length 0 needs no request.

        Raises:
            Lost: there is no such object.
            Corrupt: the object is shorter than the range.
            Unavailable, Throttled: the get may be tried again.
        """

    def size_bytes(self, name: str) -> int | None:
        """Return the size of one object, or None if there is no such object."""

    def delete(self, names: Collection[str]) -> None:
        """Delete objects by name."""

    def list(self, prefix: str) -> Iterator[BlobStat]:
        """Return every object whose name starts with the prefix, ordered by name."""

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Return every unfinished multipart upload whose name starts with the prefix."""

    def abort(self, upload: PendingUpload) -> None:
        """Drop an unfinished upload. An upload that is already gone is no error."""

    def close(self) -> None:
        """Close the connections. The store cannot be used afterwards."""


def checked_name(name: str) -> str:
    """Return the name if every store can hold it.

    Raises:
        Invalid: the name is too long, or one of its path segments is empty, is too long, starts
            with a dot, or has characters other than `A-Za-z0-9._=-`.
    """
    if is_object_name(name):
        return name
    raise Invalid(
        f"object name {name!r} must be segments of A-Z a-z 0-9 . _ = - joined by '/', "
        f"none empty or starting with a dot, {NAME_BYTES_MAX} characters at most"
    )


def is_object_name(name: str) -> bool:
    return len(name) <= NAME_BYTES_MAX and all(map(NAME_SEGMENT.fullmatch, name.split("/")))


def checked_write_id(write_id: str) -> str:
    """Return the write id if it can travel in an HTTP header.

    Raises:
        Invalid: the write id is empty, longer than 180 characters, or not printable ASCII.
    """
    if WRITE_ID.fullmatch(write_id):
        return write_id
    raise Invalid(f"write id {write_id!r} must be 1 to 180 printable ASCII characters")


def forget_pages(view: memoryview) -> None:
    """Give the pages of a mapped file back; they come again when they are read. A resource manager
    such as YARN counts them as memory of the process."""
    if isinstance(view.obj, mmap.mmap):
        view.obj.madvise(mmap.MADV_DONTNEED)


def byte_view(body: Bytes) -> memoryview:
    """Return a view of the same memory as unsigned bytes."""
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def exact(body: memoryview, name: str, span: ByteRange) -> memoryview:
    """Return the bytes of a range if they are all there.

    Raises:
        Corrupt: the object ends inside or before the range.
    """
    if len(body) == span.length:
        return body
    raise Corrupt(
        f"object {name}, range {span.start}..{span.end}: "
        f"expected {span.length} bytes, found {len(body)}"
    )
