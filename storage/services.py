"""Shuffle services by name: which factory serves a cluster, a job or an exchange.

`object-store` keeps bytes in any store and events in any log, so that executors may be anywhere.
`local-files` keeps bytes in a folder and events in this process: for one machine, without Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ..control.contract import ShuffleMasterContext
from ..control.errors import Invalid
from ..control.log import EventLog
from ..control.master.driver_master import DriverIdentity
from ..control.memory.log import MemoryEventLog
from .contract import ShuffleEnvironmentContext, ShuffleServiceFactory
from .environment import ObjectStoreEnvironment
from .limits import Limits
from .master import StorageMaster
from .stores.files import FileBlobStore
from .stores.port import BlobStore
from .upkeep.object_deletion import ObjectDeleter

OBJECT_STORE = "object-store"
LOCAL_FILES = "local-files"


@dataclass(frozen=True, slots=True)
class StorageFactory:
    """Implements `ShuffleServiceFactory`; each master and environment opens its own log and store.
    `root` is what the names of all objects begin with, `address` what jobs register as their store,
    so that nobody deletes in another one for them."""

    open_log: Callable[[], EventLog]
    open_store: Callable[[], BlobStore]
    root: str
    limits: Limits
    address: str = ""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> StorageMaster:
        storage = ObjectDeleter(self.open_store(), self.root)
        me = DriverIdentity(context.me, context.version, self.address)
        return StorageMaster(context.settings, self.open_log(), storage, me, self.limits)

    def create_shuffle_environment(
        self, context: ShuffleEnvironmentContext
    ) -> ObjectStoreEnvironment:
        return ObjectStoreEnvironment(
            context.job,
            self.open_log(),
            self.open_store(),
            self.root,
            self.limits,
            context.runtime,
        )


def local_files(folder: Path, limits: Limits) -> StorageFactory:
    """The `local-files` service in a folder; its log is as old as what is returned."""
    log = _SharedLog()
    address = folder.absolute().as_uri()
    return StorageFactory(lambda: log, lambda: FileBlobStore(folder), "", limits, address)


class _SharedLog(MemoryEventLog):
    def close(self) -> None:
        """The master and the environments of a process use one: it goes with the last of them."""


class ServicesByName:
    """The factories that a process may choose from, each made when it is first chosen."""

    def __init__(
        self, makers: Mapping[str, Callable[[], ShuffleServiceFactory]], cluster: str
    ) -> None:
        self._makers = makers
        self._made: dict[str, ShuffleServiceFactory] = {}
        self._cluster = self._known(cluster)

    def choose(self, job: str = "", exchange: str = "") -> ShuffleServiceFactory:
        """The service that is named for the exchange, else for its job, else for the cluster.

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
        near = get_close_matches(name, self._makers, 1, 0.0)
        raise Invalid(
            f"there is no shuffle service {name!r}: use one of {', '.join(sorted(self._makers))}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
