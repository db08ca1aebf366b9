"""The suite of shuffle services on every service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.memory.log import MemoryEventLog
from headgate.infra.devstack import stack
from headgate.storage.services import StorageFactory, local_files
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.open_store import open_store

from .shuffle_service_suite import LIMITS, WAIT_S, ShuffleServiceSuite


class KeptLog(MemoryEventLog):
    def close(self) -> None:
        """Do nothing: many clients share the log."""


class TestObjectStoreOnTwins(ShuffleServiceSuite):
    @pytest.fixture
    def factory(self) -> StorageFactory:
        log, objects = KeptLog(), Objects()
        return StorageFactory(lambda: log, lambda _: (MemoryBlobStore(objects), "root"), LIMITS)


class TestLocalFiles(ShuffleServiceSuite):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Iterator[StorageFactory]:
        yield local_files(tmp_path / "shuffle", LIMITS)
        assert list(tmp_path.glob("shuffle/*")) == []


@pytest.mark.slow
class TestSpreadOverFolders(ShuffleServiceSuite):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Iterator[StorageFactory]:
        log, address = KeptLog(), ",".join((tmp_path / at).as_uri() for at in "abc")
        yield StorageFactory(lambda: log, lambda _: open_store(address), LIMITS, address)
        assert list(tmp_path.glob("*/*")) == []


@pytest.mark.real
class TestObjectStoreOnKafkaAndMinio(ShuffleServiceSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls) -> Iterator[KafkaSettings]:
        """Prepare a topic of this run, and delete it at the end."""
        state = stack.status()
        assert state is not None, "no real stack runs: start one first"
        prefix = f"test-services-{SYSTEM_CLOCK.now_ms()}"
        settings = KafkaSettings(state.bootstrap, prefix, TopicSettings(4, 1, 3_600_000), WAIT_S)
        log = KafkaEventLog(settings)
        log.prepare(Deadline.after(WAIT_S))
        log.close()
        yield settings
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([settings.events_topic]).values():
            deleted.result(WAIT_S)

    @pytest.fixture
    def factory(
        self, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[StorageFactory]:
        state = stack.status()
        assert state is not None
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", state.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", state.secret_key)
        url = f"s3://{state.bucket}/{settings.topic_prefix}"
        options = {"endpoint": state.endpoint}
        yield StorageFactory(
            lambda: KafkaEventLog(settings),
            lambda _: open_store(url, options),
            LIMITS,
            url,
        )
        store, root = open_store(url, options)
        assert list(store.list(f"{root}/")) == []
        store.close()
