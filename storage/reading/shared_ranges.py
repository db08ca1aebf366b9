"""Ranges that the processes of one executor share: files in a folder that goes with the executor.

Guarantees: of the processes that want a range at the same time, one requests it. A file is whole or
absent. The lock of a process that dies is free, and nobody waits long for a stopped one.
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

from ...control.clock import SYSTEM_CLOCK, Clock, Deadline
from ..stores.port import BlobStore, ByteRange

_LOCKS = 256
_LOCK_PREFIX = "lock-"
_NEW_SUFFIX = ".new"
_PATIENCE_S = 10.0
_POLL_S = 0.005
_LOOKS = 8  # a process looks how full the folder is when it has written this part of its limit


class SharedRanges:
    def __init__(
        self, store: BlobStore, folder: Path, bytes_max: int, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store = store
        self._folder = folder
        self._bytes_max = bytes_max
        self._clock = clock
        self._new_bytes = bytes_max
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    def get(self, name: str, span: ByteRange) -> tuple[memoryview, bool]:
        """Return a range's bytes, and whether they were requested from the store."""
        path = self._path(name, span)
        if (body := _read(path, span.length)) is not None:
            return body, False
        with self._alone(path):
            if (body := _read(path, span.length)) is not None:
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
    def _alone(self, path: Path) -> Iterator[None]:
        """Hold the lock of a range, which it shares with few others, or wait until the file is
        there. Go on without the lock if its holder has stopped."""
        lock = f"{_LOCK_PREFIX}{int(path.name, 16) % _LOCKS}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._folder / lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield
            return
        try:
            self._wait(file, lock, path)
            yield
        finally:
            with suppress(OSError):  # a child of this process may have the file, too
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _wait(self, file: int, lock: str, path: Path) -> None:
        """Wait for the lock or for the file, and not for a holder for which it has waited before:
        then only look if the lock is free again."""
        deadline = Deadline.after(0.0 if lock in self._stuck else _PATIENCE_S, self._clock)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if path.exists():
                    return
            except OSError:  # a file system without locks
                return
            else:
                self._stuck.discard(lock)
                return
            if deadline.passed:
                self._stuck.add(lock)
                return
            self._clock.sleep_s(_POLL_S)

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
