"""The environments of a Python worker process, one for each job.

A process makes clients, connections and pools at a job's first task and keeps them for the next
tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from ....control.kafka.log import KafkaEventLog
from ....storage.contract import ShuffleEnvironmentContext
from ....storage.environment import ObjectStoreEnvironment
from ....storage.runtime import Runtime
from ....storage.services import StorageFactory
from ....storage.stores.open_store import open_store
from .exchange_tasks import WorkerSettings
from .interpreter import forget_zips, freeze_modules, keep_memory

_ENVIRONMENTS: OrderedDict[str, ObjectStoreEnvironment] = OrderedDict()
_ENVIRONMENTS_MAX = 4


def environment(settings: WorkerSettings) -> ObjectStoreEnvironment:
    """Return this process's environment for a job, made at the job's first task. The environment
    that was used longest ago is closed when there are too many."""
    if (shuffle := _ENVIRONMENTS.get(settings.key)) is None:
        keep_memory()
        factory = StorageFactory(
            partial(KafkaEventLog, settings.kafka),
            partial(open_store, settings.store, dict(settings.s3)),
            settings.limits,
            settings.store,
        )
        context = ShuffleEnvironmentContext(settings.job, Runtime(settings.wait_s))
        shuffle = _ENVIRONMENTS[settings.key] = factory.create_shuffle_environment(context)
        if len(_ENVIRONMENTS) > _ENVIRONMENTS_MAX:
            _ENVIRONMENTS.popitem(last=False)[1].close()
    _ENVIRONMENTS.move_to_end(settings.key)
    freeze_modules()
    forget_zips()
    return shuffle
