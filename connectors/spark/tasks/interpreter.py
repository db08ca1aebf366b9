"""Make a worker process cheaper: reuse memory, collect less garbage, and drop finders of zips."""

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
    """Let this process reuse the memory that it frees, Arrow's memory too. Arrow's own allocator
    returns memory to the system, and new pages took a quarter of a task's Python CPU. A C library
    without `mallopt` is left as it is."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)  # what one thread freed serves the others too
        pa.set_memory_pool(pa.system_memory_pool())


def freeze_modules() -> None:
    """Hide the objects of loaded modules from the garbage collector, again after new modules were
    loaded. PySpark's worker runs a full collection after every task, and walking through loaded
    libraries took most of its time."""
    global _frozen
    if _frozen != len(sys.modules):
        _frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def forget_zips() -> None:
    """Drop the import finders of zips. Before 4.2 the PySpark worker invalidates every finder
    before each task, and the finder of a zip, such as PySpark's own, then reads the whole directory
    of the zip: 80 ms. A later import from the zip makes a new finder."""
    finders = sys.path_importer_cache
    for path in [path for path, finder in finders.items() if isinstance(finder, zipimporter)]:
        finders.pop(path, None)
