"""The local folders of an executor."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDERS = "SPARK_LOCAL_DIRS"


def local_folders() -> list[Path]:
    """Return the folders of this task's executor that can be written. Spark deletes them with the
    executor."""
    named = filter(None, os.environ.get(_FOLDERS, "").split(","))
    return [Path(path) for path in named if os.access(path, os.W_OK | os.X_OK)]
