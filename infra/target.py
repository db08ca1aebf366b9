"""Name the log and the bucket that a command works on, and open them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..connectors.spark.settings import Settings
from ..control.errors import Invalid
from ..control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from ..storage.limits import Limits
from ..storage.services import StorageFactory
from ..storage.stores.open_store import open_store
from ..storage.stores.port import BlobStore

ANSWER_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where log and bucket are, as options, environment or the local stack say; '' is nowhere."""

    broker: str
    store: str
    prefix: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)

    def services(self) -> StorageFactory:
        """Return the factory of the masters that work on this log and bucket."""
        return StorageFactory(self.open_log, self.open_bucket, Limits(), self.store)

    def open_log(self) -> KafkaEventLog:
        """Open the log.

        Raises:
            Invalid: no broker is named, or an option cannot be used.
        """
        if not self.broker:
            raise Invalid("no broker: give --broker or HEADGATE_BROKER, or `headgate stack up`")
        own = Settings()
        topic = TopicSettings(own.topic_partitions, own.topic_replication, own.topic_retention_ms)
        return KafkaEventLog(
            KafkaSettings(self.broker, self.prefix, topic, ANSWER_S_MAX, dict(self.kafka))
        )

    def open_bucket(self, **options: str) -> tuple[BlobStore, str]:
        """Open the store; return it with the root of the names in it. `options` come on top of
        the target's.

        Raises:
            Invalid: no store is named, or an option cannot be used.
        """
        if not self.store:
            raise Invalid("no store: give --store or HEADGATE_STORE, or `headgate stack up`")
        return open_store(self.store, {**self.s3, **options})
