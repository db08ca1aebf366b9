"""Folders that are full when some bytes have been written into them."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest


def fill_up(monkeypatch: pytest.MonkeyPatch, *room_bytes: int) -> None:
    """Give room for so many bytes to the first folder that a file without a name is in, to the
    second, and so on. A write that does not fit writes what does."""
    left, names = list(room_bytes), list[Path]()

    class File(io.FileIO):
        def __init__(self, folder: Path) -> None:
            if folder not in names:
                names.append(folder)
            self._number = names.index(folder)
            super().__init__(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "r+")

        def write(self, body: Any) -> int:
            fits = memoryview(body)[: left[self._number]]
            if not fits:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[self._number] -= len(fits)
            return super().write(fits)

        def close(self) -> None:
            if not self.closed:
                left[self._number] += os.fstat(self.fileno()).st_size
            super().close()

    def opened(dir: Path) -> io.BufferedRandom:
        return io.BufferedRandom(File(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
