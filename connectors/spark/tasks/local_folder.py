"""The local folder of an executor."""

from __future__ import annotations

import os
import shutil

_FOLDERS = "SPARK_LOCAL_DIRS"
_ROOM_BYTES = 1 << 30


def local_folder(size_bytes: int = 0) -> str | None:
    """Return a folder of this task's executor, which Spark deletes with the executor: the first one
    with room for so many bytes and more, so that the executor's processes share it, else the one
    with the most. Return None if no such folder can be written."""
    named = os.environ.get(_FOLDERS, "").split(",")
    free = {path: _free_bytes(path) for path in named if os.access(path, os.W_OK | os.X_OK)}
    roomy = (path for path, free_bytes in free.items() if free_bytes >= _ROOM_BYTES + size_bytes)
    return next(roomy, max(free, key=free.__getitem__, default=None))


def _free_bytes(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
