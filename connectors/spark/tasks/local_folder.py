"""The local folder of an executor."""

from __future__ import annotations

import os

_FOLDERS = "SPARK_LOCAL_DIRS"


def local_folder() -> str | None:
    """Return a folder of this task's executor, which Spark deletes with the executor; None if no
    such folder can be written."""
    folders = os.environ.get(_FOLDERS, "").split(",")
    return next((path for path in folders if os.access(path, os.W_OK | os.X_OK)), None)
