"""Shuffle services by name, chosen for a cluster, a job or an exchange.

`object-store` keeps bytes in any store and events in any log, so that executors may be anywhere.
`local-files` keeps bytes in a folder and events in this process: for one machine, without Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..control.clock import SYSTEM_CLOCK
from ..control.contract import ShuffleMasterContext
from ..control.errors import Invalid
from ..control.log import EventLog
from ..control.master.driver_master import DriverIdentity, DriverMaster
from ..control.master.group_master import GroupMaster
from ..control.master.group_steps import MasterIdentity
from ..control.memory.log import MemoryEventLog
from ..control.options import nearest
from .contract import ShuffleEnvironmentContext, ShuffleServiceFactory
from .environment import ObjectStoreEnvironment
from .limits import Limits
from .stores.files import FileBlobStore
from .stores.port import BlobStore
from .upkeep.object_deletion import ObjectDeleter

OBJECT_STORE = "object-store"
LOCAL_FILES = "local-files"


@dataclass(frozen=True, slots=True)
class StorageFactory:
    """Implements `ShuffleServiceFactory`. Every master or environment opens a log and a store."""

    open_log: Callable[[], EventLog]
    open_store: Callable[[EventLog], tuple[BlobStore, str]]
    """Opens the store of a log's jobs, and returns it with the beginning of all objects' names."""
    limits: Limits
    address: str = ""
    """The store's address. Jobs register it, so that a process with another store deletes nothing
    for them."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> DriverMaster:
        with ExitStack() as opening:
            log = opening.enter_context(closing(self.open_log()))
            store, root = self.open_store(log)
            opening.callback(store.close)
            return DriverMaster(
                log,
                ObjectDeleter(store, root),
                context.settings,
                DriverIdentity(context.me, context.version, self.address),
                self.limits.task_bytes,
                opening.pop_all().close,
            )

    @contextmanager
    def group_master(self, context: ShuffleMasterContext, slot: str) -> Iterator[GroupMaster]:
        """Open a member of the group of masters that decides for the jobs of many drivers."""
        with closing(self.open_log()) as log:
            store, root = self.open_store(log)
            with closing(store):
                me = MasterIdentity(slot, context.me, SYSTEM_CLOCK, self.address)
                yield GroupMaster(log, ObjectDeleter(store, root), context.settings, me)

    def create_shuffle_environment(
        self, context: ShuffleEnvironmentContext
    ) -> ObjectStoreEnvironment:
        with ExitStack() as opening:
            log = opening.enter_context(closing(self.open_log()))
            store, root = self.open_store(log)
            opening.callback(store.close)
            environment = ObjectStoreEnvironment(
                context.job, log, store, root, self.limits, context.runtime
            )
            opening.pop_all()
            return environment


def local_files(folder: Path, limits: Limits) -> StorageFactory:
    """Return the `local-files` service in a folder. Its log is new, and lives in the factory."""
    log = _SharedLog()
    address = folder.absolute().as_uri()
    return StorageFactory(lambda: log, lambda _: (FileBlobStore(folder), ""), limits, address)


class _SharedLog(MemoryEventLog):
    def close(self) -> None:
        """Do nothing: the master and the environments of a process share the log."""


class ServicesByName:
    """The factories that a process may choose from. Each one is made when it is first chosen."""

    def __init__(
        self, makers: Mapping[str, Callable[[], ShuffleServiceFactory]], cluster: str
    ) -> None:
        self._makers = makers
        self._made: dict[str, ShuffleServiceFactory] = {}
        self._cluster = self._known(cluster)

    def choose(self, job: str = "", exchange: str = "") -> ShuffleServiceFactory:
        """Return the service named for the exchange, else for its job, else for the cluster.

        Raises:
            Invalid: there is no service of that name.
        """
        name = self._known(exchange or job or self._cluster)
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def _known(self, name: str) -> str:
        if name in self._makers:
            return name
        raise Invalid(
            f"there is no shuffle service {name!r}: use one of {', '.join(sorted(self._makers))}; "
            f"did you mean {nearest(name, self._makers)}?"
        )
