"""How to reach Kafka, and which of its clients' options a user may set.

Guarantees that the options which carry the log's promises are the door's alone, and that no secret
shows in a `repr` or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from ..errors import Invalid
from ..ids import JobId
from ..secrets import has_password

_DAY_MS = 24 * 60 * 60 * 1000
_STATE_SEGMENT_BYTES = 16 << 20
BEATS_MS = 2 * _DAY_MS  # for how long a driver's sign of life is kept

_OWNED_WHY = {
    "the settings name the broker": "bootstrap.servers metadata.broker.list",
    "a confirmed fact must survive a broker": "acks request.required.acks",
    "a fact is in the log once, in order": (
        "enable.idempotence enable.gapless.guarantee retries message.send.max.retries "
        "max.in.flight max.in.flight.requests.per.connection partitioner"
    ),
    "request_timeout_s bounds every wait": "delivery.timeout.ms message.timeout.ms",
    "the job names the one who decides": "transactional.id",
    "an open step stalls every reader": "transaction.timeout.ms",
    "followers see committed events only": "isolation.level",
    "followers say where they read": (
        "group.id group.instance.id group.protocol group.remote.assignor auto.offset.reset "
        "enable.auto.commit auto.commit.enable enable.auto.offset.store enable.partition.eof "
        "offset.store.method offset.store.path partition.assignment.strategy heartbeat.interval.ms"
    ),
    "topics are created with explicit settings": "allow.auto.create.topics",
    "the door collects the client's errors": "error_cb logger log_cb",
    "the embedded stack is chosen elsewhere": "test.mock.num.brokers test.mock.broker.rtt",
    "a secret would stand in the clear: use sasl.oauthbearer.method=oidc and its options": (
        "sasl.oauthbearer.config"
    ),
    "a secret would stand in the clear: name a file in ssl.key.location": "ssl.key.pem",
    "a secret would stand in the clear: use sasl.oauthbearer.assertion.private.key.file": (
        "sasl.oauthbearer.assertion.private.key.pem "
        "sasl.oauthbearer.assertion.private.key.passphrase"
    ),
}
OWNED: Mapping[str, str] = MappingProxyType(
    {name: why for why, names in _OWNED_WHY.items() for name in names.split()}
)

# Only to suggest a name: what exists is for the client library to say.
_KNOWN = """
api.version.request api.version.request.timeout.ms batch.num.messages batch.size
broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup
client.id client.rack compression.codec compression.level compression.type
connections.max.idle.ms debug enable.metrics.push enable.random.seed
enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes
fetch.queue.backoff.ms fetch.wait.max.ms https.ca.location linger.ms log.connection.close
log_level max.partition.fetch.bytes message.copy.max.bytes message.max.bytes
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages receive.message.max.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms
retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.client.id
sasl.oauthbearer.client.secret sasl.oauthbearer.extensions
sasl.oauthbearer.grant.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location
ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
ssl.key.password ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
ssl.truststore.location statistics.interval.ms topic.metadata.refresh.interval.ms
"""

_MASTERS = "masters"
_SECRET_PARTS = ("password", "secret", "passphrase", "pem")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How topics are made; `replication` -1 leaves the number of copies to the broker, and
    `retention_ms` is how long events are kept."""

    partitions: int = 16
    replication: int = -1
    retention_ms: int = 7 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, with the settings that the log's promises rest on. It is made with those of
    `wished` too, but an older one that has others is only warned about."""

    name: str
    config: Mapping[str, str]
    wished: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the log is. `options` go to librdkafka as they are; `embedded` says that the broker is
    librdkafka's mock, which makes topics by itself and has no settings to compare.

    Raises:
        Invalid: an option is not the user's to set.
    """

    bootstrap: str
    topic_prefix: str = "headgate"
    topic: TopicSettings = field(default_factory=TopicSettings)
    request_timeout_s: float = 20.0
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    embedded: bool = False

    def __post_init__(self) -> None:
        for name in self.options:
            if name in OWNED:
                raise Invalid(f"Kafka option {name} cannot be set: {OWNED[name]}")
            if "url" in name and has_password(self.options[name]):
                raise Invalid(f"Kafka option {name} has a password in its address: leave it out")

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
        """All that a log consists of; a job has the same partition in each."""
        timed = {"message.timestamp.type": "LogAppendTime"}
        forgets = {"cleanup.policy": "delete", "retention.bytes": "-1"}
        kept = forgets | {"retention.ms": str(self.topic.retention_ms)}
        beats = forgets | {"retention.ms": str(BEATS_MS)} | timed
        state = {"cleanup.policy": "compact"}
        # Only a segment that is full is compacted, and every start of a job reads its partition.
        small = {"segment.bytes": str(_STATE_SEGMENT_BYTES)}
        copied = {"min.insync.replicas": "2"} if self.topic.replication > 2 else {}
        return (
            Topic(self.events_topic, MappingProxyType(kept), MappingProxyType(timed | copied)),
            Topic(self.heartbeats_topic, MappingProxyType(beats)),
            Topic(self.state_topic, MappingProxyType(state), MappingProxyType(small | copied)),
        )

    @property
    def tried(self) -> str:
        """What a connection was tried with, for errors."""
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        return f"bootstrap {self.bootstrap}, security.protocol {protocol}"

    def group(self, job: JobId) -> str:
        """The job's name among Kafka's transactional ids and consumer groups: that of no job of
        another prefix, for neither prefixes nor jobs have a slash.

        Raises:
            Invalid: the masters beat under this name.
        """
        if job == _MASTERS:
            raise Invalid(f"a job cannot be called {job}: the masters of a session are")
        return f"{self.topic_prefix}-jobs/{job}"

    @property
    def masters_group(self) -> str:
        return f"{self.topic_prefix}-{_MASTERS}"

    def slot(self, name: str) -> str:
        """A master's transactional id."""
        return f"{self.masters_group}/{name}"

    def scrub(self, text: str) -> str:
        """Text of the client library's without the secrets among the options."""
        for name, value in self.options.items():
            if value and any(part in name for part in _SECRET_PARTS):
                text = text.replace(value, "***")
        return text

    def common(self) -> dict[str, object]:
        """What all clients are made with."""
        defaults = {"client.id": "headgate", "log_level": 2}
        return defaults | dict(self.options) | {"bootstrap.servers": self.bootstrap}

    def producing(self) -> dict[str, object]:
        """A client for facts."""
        owned = {
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": int(self.request_timeout_s * 1000),
        }
        return {"linger.ms": 0} | self.common() | owned

    def deciding(self, name: str, step_ms_max: int) -> dict[str, object]:
        """A client for the steps of a job, or of a master in the group. A step that follows another
        at once waits for the broker to finish that one, by the client's own back-off of 100 ms if
        it were left alone."""
        owned = {
            "transactional.id": name,
            "transaction.timeout.ms": step_ms_max,
            "delivery.timeout.ms": min(step_ms_max, int(self.request_timeout_s * 1000)),
        }
        return {"retry.backoff.ms": 5} | self.producing() | owned

    def reading(self, group: str) -> dict[str, object]:
        """A client for a follower; the end of a partition is an event of its own, because only that
        tells how far the records reach that no reader is shown."""
        defaults = {
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": 8192,
            "fetch.queue.backoff.ms": 10,  # how long a queue that was full is left alone
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
        """A client for a member of the group of masters. The slot is a static member, so that one
        that starts again is given its partitions at once; the others keep theirs meanwhile."""
        defaults = {"session.timeout.ms": 10_000, "max.poll.interval.ms": 60_000}
        owned = {
            "group.instance.id": slot,
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 1_000,
        }
        return defaults | self.reading(self.masters_group) | owned

    def refused(self, text: str) -> Invalid:
        """Why the client library takes none of this: its text may quote a value, so only names are
        taken from it."""
        named = [name for name in self.options if f'"{name}"' in text] or sorted(self.options)
        if "No such configuration property" in text:
            near = [f"{name} (did you mean {_nearest(name)}?)" for name in named]
            return Invalid(f"Kafka has no option {', '.join(near)}")
        return Invalid(f"the Kafka client refuses the value of {', '.join(named) or 'bootstrap'}")


def _nearest(name: str) -> str:
    found = get_close_matches(name, _KNOWN.split(), 1, cutoff=0.0)
    return found[0]
