"""The environments of a Python worker process, one for each job, and what makes its tasks cheaper.

A process makes clients, connections and pools at a job's first task and keeps them for the next
tasks. It also reuses memory, collects less garbage, and drops finders of zips.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import OrderedDict
from functools import partial
from zipimport import zipimporter

import pyarrow as pa
import xxhash

from ....control.kafka.log import KafkaEventLog
from ....storage.contract import ShuffleEnvironmentContext
from ....storage.environment import ObjectStoreEnvironment
from ....storage.format.layout import Layout
from ....storage.runtime import Runtime
from ....storage.services import StorageFactory
from ....storage.stores.open_store import open_store
from ....storage.stores.port import BlobStore
from ....storage.stores.rooted import Root, RootedStore
from .exchange_tasks import WorkerSettings
from .local_folders import local_folders

_ENVIRONMENTS: OrderedDict[str, ObjectStoreEnvironment] = OrderedDict()
_ENVIRONMENTS_MAX = 4
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 512 << 20
_frozen = 0


def environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """Return this process's environment for a job, made at the job's first task. The environment
    that was used longest ago is closed when there are too many."""
    if (shuffle := _ENVIRONMENTS.get(settings.key)) is None:
        keep_memory()
        factory = StorageFactory(
            partial(KafkaEventLog, settings.kafka),
            lambda _: open_rooted(settings),
            settings.limits,
            settings.store,
        )
        shared = f"headgate-{xxhash.xxh3_64_hexdigest(settings.store.encode())}"
        folders = tuple(folder / shared for folder in local_folders())  # of one store
        runtime = Runtime(settings.wait_s, folders=folders)
        context = ShuffleEnvironmentContext(settings.job, runtime)
        shuffle = _ENVIRONMENTS[settings.key] = factory.create_shuffle_environment(context)
        if len(_ENVIRONMENTS) > _ENVIRONMENTS_MAX:
            _ENVIRONMENTS.popitem(last=False)[1].close()
    _ENVIRONMENTS.move_to_end(settings.key)
    freeze_modules()
    forget_zips()
    return shuffle


def open_rooted(settings: WorkerSettings) -> tuple[BlobStore, str]:
    store, root = open_store(settings.store, dict(settings.s3))
    prefix = Layout(root, settings.job).prefix
    return RootedStore(store, Root(settings.store, prefix, settings.markers, settings.key)), root


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
