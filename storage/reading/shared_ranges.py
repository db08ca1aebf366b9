"""Ranges that the processes of one executor share: files in a folder that goes with the executor.

Guarantees: of the processes that want a range at the same time, one requests it. A file is whole or
absent. The lock of a process that dies is free, and nobody asks often for that of a stopped one.
A folder that cannot be used costs requests only.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from ..stores.port import BlobStore, ByteRange

_LOCKS = 256
_LOCK_PREFIX = "lock-"
_NEW_SUFFIX = ".new"
_LOOKS = 8  # a process looks how full the folder is when it has written this part of its limit


class SharedRanges:
    def __init__(self, store: BlobStore, folder: Path, bytes_max: int) -> None:
        self._store = store
        self._folder = folder
        self._bytes_max = bytes_max
        self._new_bytes = bytes_max
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    def get(self, name: str, span: ByteRange, is_patient: bool) -> tuple[memoryview | None, bool]:
        """Return a range's bytes, and whether they were requested from the store. The bytes are
        None while another process requests them, unless the caller `is_patient` no longer."""
        path = self._path(name, span)
        if (body := _read(path, span.length)) is not None:
            return body, False
        with self._locking(path, is_patient) as may_request:
            if (body := _read(path, span.length)) is not None or not may_request:
                return body, False
            body = self._store.get(name, span)
            with suppress(OSError):
                self._keep(path, body)
            return body, True

    def forget(self, name: str, span: ByteRange) -> None:
        """Drop a range whose bytes are wrong."""
        with suppress(OSError):
            self._path(name, span).unlink()

    def _path(self, name: str, span: ByteRange) -> Path:
        key = f"{name} {span.start} {span.length}"
        return self._folder / xxhash.xxh3_128_hexdigest(key.encode())

    @contextmanager
    def _locking(self, path: Path, is_patient: bool) -> Iterator[bool]:
        """Lock a range together with few others. Yield False if another process has locked them,
        and may still be waited for."""
        lock = f"{_LOCK_PREFIX}{int(path.name, 16) % _LOCKS}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._folder / lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield True
            return
        try:
            yield self._is_ours(file, lock, is_patient)
        finally:
            with suppress(OSError):  # a child of this process may have the file, too
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _is_ours(self, file: int, lock: str, is_patient: bool) -> bool:
        """Return True if the lock is free, or if there is nothing to wait for: its holder has
        stopped, or was waited for before and has not gone on since."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_patient:
                self._stuck.add(lock)
            return lock in self._stuck
        except OSError:  # a file system without locks
            return True
        self._stuck.discard(lock)
        return True

    def _keep(self, path: Path, body: memoryview) -> None:
        new = path.with_name(f"{path.name}-{os.getpid()}-{threading.get_ident()}{_NEW_SUFFIX}")
        try:
            new.write_bytes(body)
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        with self._lock:
            self._new_bytes += len(body)
            if crowded := self._new_bytes > self._bytes_max // _LOOKS:
                self._new_bytes = 0
        if crowded:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Delete old files until the others are few enough. Others may do the same."""
        files = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):
                if not entry.name.startswith(_LOCK_PREFIX):
                    files.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        files.sort()
        left_bytes = sum(size_bytes for _, size_bytes, _ in files)
        for _, size_bytes, path in files[:-1]:
            if left_bytes <= self._bytes_max:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            left_bytes -= size_bytes


def _read(path: Path, length: int) -> memoryview | None:
    """Return the bytes of a file; None if there is no such file of that length."""
    try:
        body = path.read_bytes()
    except OSError:
        return None
    return memoryview(body) if len(body) == length else None
