"""Opening a store by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, unquote, urlsplit

from ...control.addresses import urls_of
from ...control.errors import Invalid
from .files import FileBlobStore
from .memory import MemoryBlobStore, Objects
from .port import BlobStore, checked_name
from .spread import SpreadBlobStore

_IN_MEMORY: dict[str, Objects] = {}
_INTEROPERABLE = (
    "Google Cloud Storage speaks S3: write s3://bucket/root, with the s3 option "
    "endpoint=https://storage.googleapis.com and HMAC keys"
)
_AZURE = "Azure's stores do not speak S3"
_FILES = "Use an S3-compatible store, or file:///path for a folder that every machine mounts"
_REFUSED: Mapping[str, str] = MappingProxyType(
    {"gs": _INTEROPERABLE, "gcs": _INTEROPERABLE}
    | dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "az", "azure"), f"{_AZURE}. {_FILES}")
    | dict.fromkeys(("hdfs", "viewfs", "dbfs", "oss", "cos", "obs", "swift", "ftp"), _FILES)
    | {"s3n": "Write s3://bucket/root"}
    | dict.fromkeys(
        ("http", "https"), "Write s3://bucket/root, and the address as s3 option endpoint"
    )
)
"""Stores that others know under these names, with what to write instead."""


def open_store(address: str, options: Mapping[str, str] | None = None) -> tuple[BlobStore, str]:
    """Return the store of an address, and the root that its objects' names begin with ('' for
    none).

    `memory://name` is a store that this process shares under that name, `file:///path` a store in
    a directory, `s3://bucket/root` a store in a bucket. Several such URLs of one kind and one root,
    separated by commas, are a store that is spread over them. Options are those of
    `spark.headgate.s3.*` without that prefix.

    Raises:
        Invalid: a URL or an option cannot be used.
    """
    urls = urls_of(address)
    if len(urls) == 1:
        return _open(urls[0], options)
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise Invalid(f"a store of {len(urls)} URLs has one of them twice")
    if len({url.partition(":")[0] for url in urls}) > 1:
        raise Invalid(f"a store of {len(urls)} URLs has several kinds of them: use one kind")
    with ExitStack() as opening:
        stores, roots = [], set()
        for url in urls:
            store, root = _open(url, options)
            opening.callback(store.close)
            stores.append(store)
            roots.add(root)
        if len(roots) > 1:
            raise Invalid(
                f"a store in several buckets has several roots, {', '.join(sorted(roots))}: "
                "write the same one after each bucket"
            )
        opening.pop_all()
        return SpreadBlobStore(stores), root


def parts_of(url: str) -> SplitResult:
    """Return the parts of a store's URL.

    Raises:
        Invalid: there is no such store.
    """
    shown = url.rpartition("@")[2]  # before it stand a user and a password
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(f"{shown!r} is not a URL") from None
    if parts.scheme in _REFUSED:
        advice = _REFUSED[parts.scheme]
        raise Invalid(f"{shown!r}: Headgate has no store for {parts.scheme}://. {advice}")
    is_s3 = parts.scheme == "s3" and parts.netloc
    if is_s3 and (parts.query or parts.fragment):
        raise Invalid(f"{shown!r} has a '?' or '#': write s3://bucket/root")
    if is_s3 and (root := parts.path.strip("/")):
        checked_name(root)
    is_in_memory = parts.scheme == "memory" and parts.netloc and parts.path in ("", "/")
    is_folder = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
    if is_s3 or is_in_memory or is_folder:
        return parts
    raise Invalid(f"{shown!r} must be s3://bucket/root, file:///path or memory://name")


def _open(url: str, options: Mapping[str, str] | None) -> tuple[BlobStore, str]:
    parts, s3_options = parts_of(url), dict(options or {})
    if parts.scheme == "s3":
        # imported here, so that only a process that uses a bucket loads the client
        from .s3.settings import s3_settings
        from .s3.store import S3BlobStore

        return S3BlobStore(s3_settings(parts.netloc, s3_options)), parts.path.strip("/")
    if s3_options:
        raise Invalid(f"s3 options {sorted(s3_options)} need an s3:// URL")
    if parts.scheme == "memory":
        return MemoryBlobStore(_IN_MEMORY.setdefault(parts.netloc, {})), ""
    return FileBlobStore(Path(unquote(parts.path))), ""
