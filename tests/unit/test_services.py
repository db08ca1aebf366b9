"""The choice of a shuffle service; each service is made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.control.contract import MasterSettings, ShuffleMasterContext
from headgate.control.errors import Closed, Invalid
from headgate.control.ids import JobId
from headgate.control.log import EventLog
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.contract import ShuffleEnvironmentContext, ShuffleServiceFactory
from headgate.storage.limits import Limits
from headgate.storage.services import (
    LOCAL_FILES,
    OBJECT_STORE,
    ServicesByName,
    StorageFactory,
    local_files,
)
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.port import BlobStore


def services(made: list[str], tmp_path: Path, cluster: str = OBJECT_STORE) -> ServicesByName:
    def note(name: str, make: Callable[[], ShuffleServiceFactory]) -> ShuffleServiceFactory:
        made.append(name)
        return make()

    limits = Limits()
    in_memory = StorageFactory(MemoryEventLog, lambda _: (MemoryBlobStore(), ""), limits)
    return ServicesByName(
        {
            OBJECT_STORE: lambda: note(OBJECT_STORE, lambda: in_memory),
            LOCAL_FILES: lambda: note(LOCAL_FILES, lambda: local_files(tmp_path, limits)),
        },
        cluster,
    )


def test_the_nearest_name_wins(tmp_path: Path) -> None:
    """An exchange's service comes before its job's, and that before the cluster's. Each service is
    made once, when it is first chosen."""
    made: list[str] = []
    chooser = services(made, tmp_path)
    assert made == []
    cluster = chooser.choose()
    local = chooser.choose(job=LOCAL_FILES)
    assert local is not cluster
    assert chooser.choose(job=LOCAL_FILES, exchange=OBJECT_STORE) is cluster
    assert chooser.choose(exchange=LOCAL_FILES) is local
    assert made == [OBJECT_STORE, LOCAL_FILES]


MASTER = ShuffleMasterContext(MasterSettings(), "one", "0")


@pytest.mark.parametrize(
    "make",
    [
        lambda factory: factory.create_shuffle_master(MASTER),
        lambda factory: factory.create_shuffle_environment(ShuffleEnvironmentContext(JobId("job"))),
        lambda factory: factory.group_master(MASTER, "one").__enter__(),
    ],
)
def test_a_store_that_does_not_open_leaves_no_log_open(
    make: Callable[[StorageFactory], object],
) -> None:
    """A log that is opened before a store is closed if the store fails."""
    log = MemoryEventLog()

    def fail(_: EventLog) -> tuple[BlobStore, str]:
        raise Invalid("no such bucket")

    with pytest.raises(Invalid, match="no such bucket"):
        make(StorageFactory(lambda: log, fail, Limits()))
    with pytest.raises(Closed):
        log.oldest(JobId("job"))


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    """A misspelt service is `Invalid` at once, and the error suggests the right name."""
    with pytest.raises(Invalid, match="did you mean local-files"):
        services([], tmp_path, "local-fils")
    with pytest.raises(Invalid, match=r"'objectstore'.*did you mean object-store"):
        services([], tmp_path).choose(exchange="objectstore")
