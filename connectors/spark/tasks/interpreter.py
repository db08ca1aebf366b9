"""Make a worker cheaper: memory is used again, less is garbage-collected, zips are forgotten."""

from __future__ import annotations

import ctypes
import gc
import sys
from zipimport import zipimporter

import pyarrow as pa

_frozen = 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 512 << 20


def keep_memory() -> None:
    """Let this process use again what it has freed, Arrow too, whose own allocator gives it back:
    pages asked of the system anew took a quarter of a task's Python CPU. Another C library than
    glibc is left as it is."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)  # what one thread freed serves the others too
        pa.set_memory_pool(pa.system_memory_pool())


def freeze_modules() -> None:
    """Take what modules have brought out of the garbage collector's sight: PySpark's worker runs a
    whole collection after every task, and going through loaded libraries took most of it."""
    global _frozen
    if _frozen != len(sys.modules):
        _frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def forget_zips() -> None:
    """Before 4.2 PySpark's worker has all that finds modules look anew before every task, and what
    finds them in a zip, as PySpark is one, goes through all of it: 80 ms. Whoever imports from it
    later makes another."""
    finders = sys.path_importer_cache
    for path in [path for path, finder in finders.items() if isinstance(finder, zipimporter)]:
        finders.pop(path, None)
