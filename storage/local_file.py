"""Files in the local folders of an executor. When a folder is full, the next one is used.

Files have no names, so they go with their process, however it ends.
"""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

_LOG = logging.getLogger(__name__)
_ROOM_BYTES = 1 << 30
_WARNED = set[Path]()

T = TypeVar("T")


class LocalFile:
    """A file without a name, which goes on as another one in the next folder when one is full."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._passed_over: list[str] = []
        self._opened = ExitStack()
        self._file: BinaryIO | None = None

    def write(self, size_bytes: int, fill: Callable[[BinaryIO], T]) -> tuple[BinaryIO, T]:
        """Let `fill` write about so many bytes, behind those of earlier calls while there is room.
        Return the file that has them, and what `fill` returned. It is called again for a file in
        the next folder if one has no room for all it writes.

        Raises:
            OSError: no folder has room. The error names each, with its room.
        """
        while self._folders:
            try:
                if self._file is not None:
                    return self._file, _filled(self._file, fill)
                self._folders = by_room(self._folders, size_bytes)
                self._folders[0].mkdir(mode=0o700, exist_ok=True)
                with ExitStack() as opened:
                    file = opened.enter_context(tempfile.TemporaryFile(dir=self._folders[0]))
                    returned = _filled(file, fill)
                    self._opened.push(opened.pop_all())
                self._file = file
                return file, returned
            except OSError as exc:
                self._pass_over(exc)
        tried = ", ".join(self._passed_over) or "there is none"
        raise OSError(errno.ENOSPC, f"no local folder has room for {size_bytes:,} bytes: {tried}")

    def _pass_over(self, failure: OSError) -> None:
        folder, self._file = self._folders.pop(0), None
        room = f"{folder} has {_free_bytes(folder):,} ({failure.strerror or failure})"
        self._passed_over.append(room)
        if folder not in _WARNED:  # a task may make thousands of files
            _WARNED.add(folder)
            _LOG.warning("local files begin in another folder, if there is one: %s bytes", room)

    def close(self) -> None:
        """Drop all files."""
        with suppress(OSError):  # they may have bytes for which there was no room
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def by_room(folders: Iterable[Path], size_bytes: int) -> list[Path]:
    """Return folders in the order in which to try them. Folders with room for so many bytes and
    more keep their order, so that processes share the first one. The others follow, the roomiest
    first."""
    free_bytes = {folder: _free_bytes(folder) for folder in folders}
    return sorted(free_bytes, key=lambda it: -min(free_bytes[it], size_bytes + _ROOM_BYTES))


def _filled(file: BinaryIO, fill: Callable[[BinaryIO], T]) -> T:
    returned = fill(file)
    file.flush()
    return returned


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder if folder.exists() else folder.parent).free
    except OSError:
        return 0
