"""Ranges that the processes of one executor share: files in folders that go with the executor.

Guarantees: of the processes that want a range at the same time, one requests it. A file is whole or
absent. The lock of a process that dies is free, and nobody asks often for the lock of a stopped
process. A folder that cannot be used, or is full, costs requests, and only if there is no other
folder.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from ..local_file import by_room
from ..stores.port import BlobStore, ByteRange

_LOCKS = 256
_LOCK_PREFIX = "lock-"
_NEW_SUFFIX = ".new"
_LOOKS = 8  # a process looks how full the folder is when it has written this part of its limit


class SharedRanges:
    def __init__(self, store: BlobStore, folders: Sequence[Path], bytes_max: int) -> None:
        self._store = store
        self._folders = folders
        self._bytes_max = bytes_max
        self._new_bytes = bytes_max
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    def get(self, name: str, span: ByteRange, is_patient: bool) -> tuple[memoryview | None, bool]:
        """Return a range's bytes, and whether they were requested from the store. The bytes are
        None while another process requests them, unless the caller `is_patient` no longer."""
        key = _key(name, span)
        if (body := self._read(key, span.length)) is not None:
            return body, False
        with self._locking(key, is_patient) as may_request:
            if (body := self._read(key, span.length)) is not None or not may_request:
                return body, False
            body = self._store.get(name, span)
            with suppress(OSError):
                self._keep(key, body)
            return body, True

    def forget(self, name: str, span: ByteRange) -> None:
        """Drop a range whose bytes are wrong."""
        for folder in self._folders:
            with suppress(OSError):
                Path(folder, _key(name, span)).unlink()

    def _read(self, key: str, length: int) -> memoryview | None:
        """Return the bytes of a file; None if no folder has one of that length."""
        for folder in self._folders:
            with suppress(OSError):
                body = Path(folder, key).read_bytes()
                if len(body) == length:
                    return memoryview(body)
        return None

    @contextmanager
    def _locking(self, key: str, is_patient: bool) -> Iterator[bool]:
        """Lock a range together with few others. Yield False if another process has locked them,
        and may still be waited for."""
        lock = f"{_LOCK_PREFIX}{int(key, 16) % _LOCKS}"
        if (file := self._opened(lock)) is None:
            yield True
            return
        try:
            yield self._is_ours(file, lock, is_patient)
        finally:
            with suppress(OSError):  # a child of this process may have the file, too
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _opened(self, lock: str) -> int | None:
        """Open a lock in the first folder that takes it."""
        for folder in self._folders:
            with suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)
                return os.open(folder / lock, os.O_RDWR | os.O_CREAT, 0o600)
        return None

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

    def _keep(self, key: str, body: memoryview) -> None:
        """Write the bytes into the first folder that has room."""
        for folder in by_room(self._folders, len(body)):
            with suppress(OSError):
                _write(folder / key, body)
                break
        else:
            return
        with self._lock:
            self._new_bytes += len(body)
            if crowded := self._new_bytes > self._bytes_max // _LOOKS:
                self._new_bytes = 0
        if crowded:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Delete old files until the others are few enough. Others may do the same."""
        files = []
        for folder in filter(Path.exists, self._folders):
            for entry in os.scandir(folder):
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


def _key(name: str, span: ByteRange) -> str:
    return xxhash.xxh3_128_hexdigest(f"{name} {span.start} {span.length}".encode())


def _write(path: Path, body: memoryview) -> None:
    """Write a file that is whole or absent."""
    new = path.with_name(f"{path.name}-{os.getpid()}-{threading.get_ident()}{_NEW_SUFFIX}")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        new.write_bytes(body)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
