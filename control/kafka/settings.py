"""The settings of the connection to Kafka, and the client options that a user may set.

Guarantees that a user cannot change an option that the log's guarantees need, and that no secret
appears in a `repr` or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import Invalid
from ..events.traits import LEASE_MS_MAX
from ..ids import JobId
from ..options import refuse_unsafe
from ..units import read_bytes, read_ms

_DAY_MS = 24 * 60 * 60 * 1000
_STATE_SEGMENT_BYTES = 16 << 20
BEATS_MS = LEASE_MS_MAX  # how long the log keeps a driver's heartbeat

OWNED = {
    "the broker has a setting of its own": "bootstrap.servers metadata.broker.list",
    "a confirmed fact must survive the loss of a broker": "acks request.required.acks",
    "a fact is in the log once, in order": (
        "enable.idempotence enable.gapless.guarantee retries message.send.max.retries "
        "max.in.flight max.in.flight.requests.per.connection partitioner"
    ),
    "request.ms and wait.ms limit every wait": "delivery.timeout.ms message.timeout.ms",
    "the id is made from the job, so that a new master fences the former one": "transactional.id",
    "an open step stalls every reader": "transaction.timeout.ms",
    "followers see committed events only": "isolation.level",
    "followers choose the offsets that they read": (
        "group.id group.instance.id group.protocol group.remote.assignor auto.offset.reset "
        "enable.auto.commit auto.commit.enable enable.auto.offset.store enable.partition.eof "
        "offset.store.method offset.store.path partition.assignment.strategy heartbeat.interval.ms"
    ),
    "topics are created with explicit settings": "allow.auto.create.topics",
    "Headgate collects the client's errors": "error_cb logger log_cb",
    "only the embedded stack mocks brokers": "test.mock.num.brokers test.mock.broker.rtt",
    "a secret would stand in the clear: use sasl.oauthbearer.method=oidc and its options": (
        "sasl.oauthbearer.config"
    ),
    "a secret would stand in the clear: name a file in ssl.key.location": "ssl.key.pem",
    "a secret would stand in the clear: use sasl.oauthbearer.assertion.private.key.file": (
        "sasl.oauthbearer.assertion.private.key.pem "
        "sasl.oauthbearer.assertion.private.key.passphrase"
    ),
}

_MASTERS = "masters"
_SOCKET, _SOCKET_MS = "socket.timeout.ms", 10_000
_SECRET_PARTS = ("password", "secret", "passphrase", "pem")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings with which topics are created."""

    partitions: int = 16
    replication: int = -1
    """The number of copies; -1 leaves it to the broker."""
    retention_ms: int = 7 * _DAY_MS
    """The time for which the log keeps an event."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic and the settings that it is created with."""

    name: str
    config: Mapping[str, str]
    """Settings that the log's guarantees need. A topic with other values is refused."""
    wished: Mapping[str, str] = field(default_factory=dict)
    """Settings that a topic should have. Other values only cause a warning."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The connection to Kafka and the log's topics there.

    Raises:
        Invalid: a user may not set one of the options, or an address has a password.
    """

    bootstrap: str
    topic_prefix: str = "headgate"
    topic: TopicSettings = field(default_factory=TopicSettings)
    request_timeout_s: float = 20.0
    """The limit of a request to the cluster."""
    delivery_timeout_s: float = 60.0
    """The limit of the delivery of a fact, for which the client sends it again and again."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options for librdkafka, which takes sizes and times as numbers: `10s` becomes 10000."""
    embedded: bool = False
    """True for librdkafka's mock broker, which makes topics by itself and reports no settings."""

    def __post_init__(self) -> None:
        refuse_unsafe("Kafka", self.options, OWNED)

    @property
    def events_topic(self) -> str:
        return f"{self.topic_prefix}.events"

    @property
    def state_topic(self) -> str:
        return f"{self.topic_prefix}.state"

    @property
    def heartbeats_topic(self) -> str:
        return f"{self.topic_prefix}.heartbeats"

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Return the topics of the log. A job has the same partition number in each."""
        timed = {"message.timestamp.type": "LogAppendTime"}
        forgets = {"cleanup.policy": "delete", "retention.bytes": "-1"}
        kept = forgets | {"retention.ms": str(self.topic.retention_ms)}
        beats = forgets | {"retention.ms": str(BEATS_MS)} | timed
        state = {"cleanup.policy": "compact"}
        # Kafka compacts only full segments, and every start of a job reads a whole partition.
        small = {"segment.bytes": str(_STATE_SEGMENT_BYTES)}
        copied = {"min.insync.replicas": "2"} if self.topic.replication > 2 else {}
        return (
            Topic(self.events_topic, MappingProxyType(kept), MappingProxyType(timed | copied)),
            Topic(self.heartbeats_topic, MappingProxyType(beats)),
            Topic(self.state_topic, MappingProxyType(state), MappingProxyType(small | copied)),
        )

    @property
    def tried(self) -> str:
        """Return the settings of the connection attempt, for errors."""
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        return f"bootstrap {self.bootstrap}, security.protocol {protocol}"

    def group(self, job: JobId) -> str:
        """Return the transactional id and consumer group of a job.

        Names of jobs under different prefixes differ: neither a prefix nor a job has a slash.

        Raises:
            Invalid: the job has the name under which the masters send heartbeats.
        """
        if job == _MASTERS:
            raise Invalid(f"job id {job} belongs to the masters of a session: choose another one")
        return f"{self.topic_prefix}-jobs/{job}"

    @property
    def masters_group(self) -> str:
        return f"{self.topic_prefix}-{_MASTERS}"

    @property
    def readers_group(self) -> str:
        """Return the group of readers of whole topics, which commit nothing."""
        return f"{self.topic_prefix}-reader"

    def slot(self, name: str) -> str:
        """Return the transactional id of a master's slot."""
        return f"{self.masters_group}/{name}"

    def scrub(self, text: str) -> str:
        """Replace the secrets among the options in a text of the client library."""
        for name, value in self.options.items():
            if value and any(part in name for part in _SECRET_PARTS):
                text = text.replace(value, "***")
        return text

    def common(self) -> dict[str, object]:
        """Return the options of every client.

        A request to a broker that hangs ends soon: the cluster has a new leader after 9 s, and the
        client's own 60 s are as long as Headgate waits for an answer.
        """
        defaults = {"client.id": "headgate", "log_level": 2, _SOCKET: _SOCKET_MS}
        options = {name: _number(name, text) for name, text in self.options.items()}
        return defaults | options | {"bootstrap.servers": self.bootstrap}

    def producing(self) -> dict[str, object]:
        """Return the options of a producer of facts."""
        owned = {
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": int(self.delivery_timeout_s * 1000),
        }
        return {"linger.ms": 0} | self.common() | owned

    def deciding(self, name: str, step_ms_max: int) -> dict[str, object]:
        """Return the options of a producer for the steps of a job or of a master in the group.

        A step that follows another at once waits until the broker has finished that one. The
        back-off is short because the client's own 100 ms would delay every such step.
        """
        owned: dict[str, object] = {
            "transactional.id": name,
            "transaction.timeout.ms": step_ms_max,
            "delivery.timeout.ms": min(step_ms_max, int(self.request_timeout_s * 1000)),
        }
        defaults: dict[str, object] = {"retry.backoff.ms": 5}
        if _SOCKET not in self.options:  # the client wants it shorter than a step
            owned[_SOCKET] = min(_SOCKET_MS, step_ms_max - 100)
        return defaults | self.producing() | owned

    def reading(self, group: str, stays: bool = False) -> dict[str, object]:
        """Return the options of a consumer for a follower.

        The consumer reports the end of a partition: only that gives the offset after records which
        no reader is shown. A reader that stays at the end hears of new records at once, and of an
        end that moved without any half a second later.
        """
        defaults = {
            "fetch.wait.max.ms": 500 if stays else 10,
            "queued.max.messages.kbytes": 8192,
            "fetch.queue.backoff.ms": 10,  # the pause after a queue was full
        }
        owned = {
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }
        return defaults | self.common() | owned

    def joining(self, slot: str) -> dict[str, object]:
        """Return the options of a consumer for a member of the group of masters.

        A slot is a static member: a master that restarts gets its partitions back at once, and the
        other masters keep theirs meanwhile.
        """
        defaults = {"session.timeout.ms": 10_000, "max.poll.interval.ms": 60_000}
        owned = {
            "group.instance.id": slot,
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 1_000,
        }
        return defaults | self.reading(self.masters_group) | owned

    def refused(self, text: str) -> Invalid:
        """Return the error for settings that the client library refuses.

        The library's text may quote a secret value, so the error repeats only names of options.
        """
        named = [name for name in self.options if f'"{name}"' in text] or sorted(self.options)
        if "No such configuration property" in text:
            return Invalid(f"the Kafka client has no option {', '.join(named)}")
        return Invalid(f"the Kafka client refuses the value of {', '.join(named) or 'bootstrap'}")


def _number(name: str, text: str) -> str:
    """Return a size or a time as a number. The client library checks every other text."""
    read = read_ms if name.endswith(".ms") else read_bytes if name.endswith(".bytes") else str
    with suppress(ValueError):
        return str(read(text))
    return text
