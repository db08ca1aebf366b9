"""An object store on the local disk: the bytes of the `local-files` service.

An object is a symbolic link at `<root>/<name>` to a body file at `<root>/.data/<name>/<id>~<x>`,
whose own name holds the write id. Making the link is one atomic step: it publishes the bytes and
the write id together, and fails if the name is taken. A hard link would publish the bytes alone, a
header or trailer would stop other tools from opening the file, and not every file system has
extended attributes. A body file without a link is an unfinished upload. Linking to a body file and
aborting its upload both lock the file, so that no link is made to bytes that are being deleted.

Objects survive the death of every process, but not a loss of power: nothing is flushed to the
device.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from ...control.clock import Deadline
from ...control.errors import Closed, HeadgateError, Invalid, Lost, Unavailable
from .conditional_put import PutAnswer, Stored, put
from .port import BlobStat, ByteRange, Bytes, PendingUpload, checked_name, exact
from .request_meter import RequestCounts, RequestMeter
from .retries import Retrier, RetrySettings

T = TypeVar("T")

BODIES = ".data"
MARK_CHARACTERS_MAX = 240
_NO_LINK = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)  # nothing is there, or a folder
MAKE_TRIES_MAX = 100  # a delete that tidies up may remove a directory under a create


class FileBlobStore:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._meter = RequestMeter()
        self._retrier = Retrier(RetrySettings())
        self._closed = False

    @property
    def requests(self) -> RequestCounts:
        return self._meter.read()

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._open()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            os.unlink(self._write_body("check", memoryview(b""), "check"))
            self._tidy(self._root / BODIES / "check")
        except OSError as error:
            raise Invalid(f"{self._root} cannot be written: {error.strerror}") from error

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        put(self, self._retrier, name, body, write_id)

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        self._open()
        self._meter.add(puts=1, bytes_written=len(body))
        try:
            file = self._write_body(name, body, write_id)
        except OSError as error:
            raise _translated(error, name) from error
        link = self._root / name
        try:
            self._publish(link, file)
        except OSError as error:
            with suppress(OSError):  # else a sweep deletes the body, if it is nobody's
                if self._links_to(name, file):  # a network file system repeats what it has done
                    return PutAnswer.CREATED
                file.unlink(missing_ok=True)
                self._tidy(file.parent)
            if not isinstance(error, FileExistsError):
                raise _translated(error, name) from error
            if link.is_dir():
                raise Invalid(
                    f"object name {name} is a folder of other objects: use another name"
                ) from error
            return PutAnswer.EXISTS
        return PutAnswer.CREATED

    def look(self, name: str) -> Stored | None:
        self._open()
        self._meter.add(heads=1)
        try:
            file = _body_file(self._root / name)
            return Stored(_write_id(file.name), file.stat().st_size)
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise _translated(error, name) from error

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        self._open()
        if span is not None and span.length == 0:
            return memoryview(b"")
        try:
            with open(self._root / checked_name(name), "rb", buffering=0) as file:
                wanted = span or ByteRange(0, os.fstat(file.fileno()).st_size)
                content = _read(file.fileno(), wanted)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self._meter.add(gets=1)
            raise Lost(f"there is no object {name} under {self._root}") from error
        except OSError as error:
            raise _translated(error, name) from error
        self._meter.add(gets=1, bytes_read=len(content))
        return exact(content, name, wanted)

    def size_bytes(self, name: str) -> int | None:
        stored = self.look(checked_name(name))
        return None if stored is None else stored.size_bytes

    def delete(self, names: Collection[str]) -> None:
        self._open()
        for name in names:
            self._meter.add(deletes=1)
            link = self._root / checked_name(name)
            try:
                file = _body_file(link)
                link.unlink(missing_ok=True)
                file.unlink(missing_ok=True)
            except OSError as error:
                if error.errno in _NO_LINK:
                    continue
                raise _translated(error, name) from error
            self._tidy(link.parent)
            self._tidy(file.parent)

    def list(self, prefix: str) -> Iterator[BlobStat]:
        self._open()
        self._meter.add(lists=1)
        with _translating(prefix):
            for path in _walk(self._root, prefix):
                try:
                    stat = BlobStat(path.relative_to(self._root).as_posix(), path.stat().st_size)
                except FileNotFoundError:
                    continue
                yield stat

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        self._open()
        self._meter.add(lists=1)
        with _translating(prefix):
            for path in _walk(self._root / BODIES, prefix):
                name = path.parent.relative_to(self._root / BODIES).as_posix()
                if name.startswith(prefix) and not self._links_to(name, path):
                    yield PendingUpload(name, path.name)

    def abort(self, upload: PendingUpload) -> None:
        self._open()
        path = self._root / BODIES / checked_name(upload.name) / Path(upload.upload_id).name
        with _translating(upload.name), suppress(FileNotFoundError), _locked(path):
            if self._links_to(upload.name, path):
                return
            path.unlink(missing_ok=True)
        self._tidy(path.parent)

    def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise Closed(f"the object store under {self._root} was closed")

    def _write_body(self, name: str, body: memoryview, write_id: str) -> Path:
        directory = self._root / BODIES / name
        mark = _mark(write_id) + "~"
        file, path = _in_directory(directory / "-", lambda: tempfile.mkstemp("", mark, directory))
        try:
            with open(file, "wb", buffering=0) as out:
                written = 0
                while written < len(body):
                    written += out.write(body[written:])
        except BaseException:
            os.unlink(path)  # a full disk gets its room back
            self._tidy(directory)
            raise
        return Path(path)

    def _publish(self, link: Path, file: Path) -> None:
        target = os.path.relpath(file, link.parent)  # relative: the root may be moved
        with _locked(file):
            _in_directory(link, lambda: os.symlink(target, link))

    def _links_to(self, name: str, file: Path) -> bool:
        """Return True if a body file is that of an object.

        Raises:
            OSError: this is not known, so the file must not be deleted.
        """
        try:
            return _body_file(self._root / name) == file
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise

    def _tidy(self, directory: Path) -> None:
        while directory != self._root and directory.is_relative_to(self._root):
            try:
                directory.rmdir()
            except OSError:
                return
            directory = directory.parent


def _in_directory(path: Path, act: Callable[[], T]) -> T:
    for _ in range(MAKE_TRIES_MAX):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(
                error.errno, "another object has the name of a folder"
            ) from error
        try:
            return act()
        except FileNotFoundError:
            continue
    raise Unavailable(f"the directory of {path} vanished {MAKE_TRIES_MAX} times")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock on a body file.

    Raises:
        FileNotFoundError: its upload was aborted.
    """
    with open(file, "r+b", buffering=0) as body:
        fcntl.flock(body, fcntl.LOCK_EX)
        if not os.fstat(body.fileno()).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "its upload was aborted")
        yield


def _read(file: int, span: ByteRange) -> memoryview:
    content = os.pread(file, span.length, span.start)
    while len(content) < span.length:  # one call reads 2 GiB at most
        more = os.pread(file, span.length - len(content), span.start + len(content))
        if not more:
            break
        content += more
    return memoryview(content)


def _walk(root: Path, prefix: str) -> Iterator[Path]:
    """Yield the links and files whose path below the root starts with the prefix, by name."""
    try:
        entries = [entry for entry in os.scandir(root) if entry.name != BODIES]
    except (FileNotFoundError, NotADirectoryError):
        return
    # '/' counts in the order of names, as in a store without directories
    folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    head, slash, rest = prefix.partition("/")
    for name in sorted(entry.name + "/" * (entry.name in folders) for entry in entries):
        bare = name.rstrip("/")
        if not (bare == head if slash else bare.startswith(head)):
            continue
        if bare != name:
            yield from _walk(root / bare, rest)
        elif not slash:
            yield root / bare


def _mark(write_id: str) -> str:
    """Return the write id as part of a file's name. '/' is frequent, so it becomes one ','."""
    mark = quote(write_id, safe=":+@").replace("%2F", ",")
    if len(mark) <= MARK_CHARACTERS_MAX:
        return mark
    raise Invalid(f"write id {write_id!r} is too long for the name of a file")


def _write_id(mark: str) -> str:
    return unquote(mark.rpartition("~")[0].replace(",", "%2F"))


def _body_file(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / os.readlink(link)))


@contextmanager
def _translating(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translated(error, name) from error


def _translated(error: OSError, name: str) -> HeadgateError:
    if isinstance(error, (NotADirectoryError, IsADirectoryError)):
        return Invalid(f"object name {name} has another object as a folder: use another name")
    if isinstance(error, PermissionError):
        return Invalid(f"object {name}: {error.strerror}; the root must belong to this user")
    return Unavailable(f"object {name}: {error.strerror}")
