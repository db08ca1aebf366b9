"""Opening a store by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...control.errors import Invalid
from .files import FileBlobStore
from .memory import MemoryBlobStore, Objects
from .port import BlobStore, checked_name

_IN_MEMORY: dict[str, Objects] = {}


def open_store(url: str, options: Mapping[str, str] | None = None) -> tuple[BlobStore, str]:
    """Return the store of a URL, and the root that its objects' names begin with ('' for none).

    `memory://name` is a store that this process shares under that name, `file:///path` a store in
    a directory, `s3://bucket/root` a store in a bucket. Options are those of `spark.headgate.s3.*`
    without that prefix.

    Raises:
        Invalid: the URL or an option cannot be used.
    """
    shown = url.rpartition("@")[2]  # before it stand a user and a password
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(f"{shown!r} is not a URL") from None
    s3_options = dict(options or {})
    if parts.scheme == "s3" and parts.netloc:
        if parts.query or parts.fragment:
            raise Invalid(f"{shown!r} has a '?' or '#': write s3://bucket/root")
        root = parts.path.strip("/")
        root = root and checked_name(root)
        return _open_s3(parts.netloc, s3_options), root
    if s3_options:
        raise Invalid(f"s3 options {sorted(s3_options)} need an s3:// URL, not {shown!r}")
    if parts.scheme == "memory" and parts.netloc and parts.path in ("", "/"):
        return MemoryBlobStore(_IN_MEMORY.setdefault(parts.netloc, {})), ""
    if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
        return FileBlobStore(Path(unquote(parts.path))), ""
    raise Invalid(f"{shown!r} must be s3://bucket/root, file:///path or memory://name")


def _open_s3(bucket: str, options: Mapping[str, str]) -> BlobStore:
    # imported here, so that only a process that uses a bucket loads the client
    from .s3.settings import s3_settings
    from .s3.store import S3BlobStore

    return S3BlobStore(s3_settings(bucket, options))
