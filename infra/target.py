"""Name the log and the bucket that a command works on, and open them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ..control.clock import Deadline
from ..control.errors import Invalid
from ..control.kafka.log import KafkaEventLog, KafkaSettings
from ..control.kafka.settings import TopicSettings
from ..control.log import EventLog
from ..storage.limits import Limits
from ..storage.services import StorageFactory
from ..storage.stores.open_store import open_store
from ..storage.stores.port import BlobStore
from ..storage.stores.rooted import Root, RootedStore

ANSWER_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """The broker and the store of a command; an empty string is none."""

    broker: str
    """Bootstrap servers."""
    store: str
    """The URL of the store, `s3://bucket/root` or `file:///folder`, or several with commas."""
    prefix: str
    """The first part of the names of the topics."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the Kafka client."""
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store."""

    def services(self) -> StorageFactory:
        """Return the factory of the masters that work on this log and bucket."""
        return StorageFactory(self.open_log, self.open_bucket, Limits(), self.store)

    def open_log(self, topic: TopicSettings | None = None) -> KafkaEventLog:
        """Open the log; `topic` are the settings that its topics have or get.

        Raises:
            Invalid: no broker is named, or an option cannot be used.
        """
        if not self.broker:
            raise Invalid(
                "no broker is set: give --broker or HEADGATE_BROKER, or run `headgate stack up`"
            )
        settings = KafkaSettings(
            self.broker,
            self.prefix,
            topic or TopicSettings(),
            request_timeout_s=ANSWER_S_MAX,
            options=dict(self.kafka),
        )
        return KafkaEventLog(settings)

    def open_bucket(self, log: EventLog | None = None, /, **options: str) -> tuple[BlobStore, str]:
        """Open the store of a log's jobs, with `options` over the target's; return it and the root
        of its names.

        Raises:
            Invalid: no store is named, or an option cannot be used.
        """
        if not self.store:
            raise Invalid(
                "no store is set: give --store or HEADGATE_STORE, or run `headgate stack up`"
            )
        store, root = open_store(self.store, {**self.s3, **options})
        ask = partial(_identity, log) if log else str
        return RootedStore(store, Root(self.store, f"{root}/" if root else "", log=ask)), root


def _identity(log: EventLog) -> str:
    return log.identity(Deadline.after(ANSWER_S_MAX))
