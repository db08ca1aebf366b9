"""Run a Kafka node (KRaft, broker and controller in one JVM) with jars from Maven Central.

Guarantees: the node listens on 127.0.0.1 only. It is configured and formatted once, so that a
restart finds its ports and its data. A format that was cut short is done again.

Assumes a JDK 17 or newer, and Maven for the first use.
"""

from __future__ import annotations

import os
import shutil
import sys
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from .daemons import LOOPBACK, Daemon, launch, locked, run_tool

VERSION = "4.3.1"
_LOG4J_VERSION = "2.25.4"  # must equal the log4j-core among Kafka's dependencies
_STARTED = b"Kafka Server started"
_STARTED_WITHIN_BYTES = 4 << 20
_FORMAT_LIMIT_S = 120.0

# log4j-slf4j-impl is not among Kafka's dependencies; without it nothing is logged.
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-node</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{_LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

_LOGGING = """status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""

# With fewer nodes than its replication factor an internal topic is never created, and groups and
# transactions wait for it for ever: hence the explicit factors.
_PROPERTIES = """process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{broker},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{broker}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={storage}
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=8
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.backoff.ms=1000
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=1000
"""

# The session of a killed node must end before another takes over or it may come back itself.
# A node without a deputy gets more time, as a late heartbeat can only do harm there.
_ONE_NODE = {"replicas": 1, "in_sync": 1, "session_ms": 6_000}
_THREE_NODES = {"replicas": 3, "in_sync": 2, "session_ms": 4_000}


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """The folders of one Kafka node, and the size of its heap."""

    directory: Path
    """The node's settings, log and data."""
    cache: Path
    """Kafka's jars, which all nodes share."""
    heap_mib: int

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def storage(self) -> Path:
        return self.directory / "data"


def fetch_jars(cache: Path, limit_s: float) -> None:
    """Resolve Kafka's jars into the cache with Maven, unless they are there.

    Raises: Invalid without Maven, Unavailable when the jars cannot be fetched.
    """
    with locked(cache / f"kafka-{VERSION}.lock", limit_s):
        if not (_jars(cache) / ".complete").exists():
            print(f"headgate: fetching Kafka {VERSION} with Maven, once (44 MiB)", file=sys.stderr)
            with TemporaryDirectory(dir=cache) as work:
                pom, fetched = Path(work, "pom.xml"), Path(work, "jars")
                pom.write_text(_POM)
                goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
                where = [f"-DoutputDirectory={fetched}", "-f", str(pom)]
                run_tool(["mvn", *goal, "-q", "-B", "-ntp", *where], limit_s)
                (fetched / ".complete").touch()
                shutil.rmtree(_jars(cache), ignore_errors=True)
                fetched.rename(_jars(cache))


def configure(homes: Sequence[KafkaHome], ports: Sequence[tuple[int, int]]) -> None:
    """Write the settings of every node; `ports` are its broker's and its controller's port."""
    voters = ",".join(f"{i}@{LOOPBACK}:{port}" for i, (_, port) in enumerate(ports, 1))
    cluster = {"voters": voters} | (_THREE_NODES if len(homes) > 1 else _ONE_NODE)
    for node_id, (home, (broker, controller)) in enumerate(zip(homes, ports, strict=True), 1):
        addresses = {"broker": f"{LOOPBACK}:{broker}", "controller": f"{LOOPBACK}:{controller}"}
        node = {"node_id": node_id, "storage": home.storage, **addresses}
        home.directory.mkdir(parents=True, exist_ok=True)
        home.properties.write_text(_PROPERTIES.format(**cluster, **node))
        (home.directory / "log4j2.properties").write_text(_LOGGING.format(log=home.log))


def format_storage(home: KafkaHome, cluster_id: str) -> None:
    """Format the folder of the node's records, unless it is formatted.

    Raises: Unavailable when Kafka's own formatter fails.
    """
    done = home.directory / "formatted"
    if done.exists():
        return
    shutil.rmtree(home.storage, ignore_errors=True)
    quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = ["format", "--cluster-id", cluster_id, "--config", str(home.properties)]
    run_tool(_java(home, quick, "kafka.tools.StorageTool", command), _FORMAT_LIMIT_S)
    done.touch()


def start(daemon: Daemon, home: KafkaHome) -> Daemon:
    """Launch the node; the log of its previous run stays beside the new log."""
    if home.log.exists():
        home.log.replace(home.log.with_suffix(".log.previous"))
    heap = [f"-Xms{home.heap_mib}m", f"-Xmx{home.heap_mib}m", "-XX:+ExitOnOutOfMemoryError"]
    argv = _java(home, heap, "kafka.Kafka", [str(home.properties)])
    return launch(daemon, argv, home.directory / "stdout.log", os.environ)


def is_ready(home: KafkaHome) -> bool:
    """Return True if the node says in its log that it serves."""
    with suppress(FileNotFoundError), home.log.open("rb") as log:
        return _STARTED in log.read(_STARTED_WITHIN_BYTES)
    return False


def cluster_id(seed: str) -> str:
    """Derive the cluster id from the seed, so that nodes formatted in several tries agree on it."""
    text = urlsafe_b64encode(blake2b(seed.encode(), digest_size=16).digest()).decode().rstrip("=")
    return "A" + text[1:]  # a leading dash would be read as an option


def _jars(cache: Path) -> Path:
    return cache / f"kafka-{VERSION}"


def _java(home: KafkaHome, options: list[str], main: str, arguments: list[str]) -> list[str]:
    java_home = os.environ.get("JAVA_HOME")
    java = f"{java_home}/bin/java" if java_home else "java"
    logging = f"-Dlog4j2.configurationFile=file:{home.directory}/log4j2.properties"
    return [java, *options, logging, "-cp", f"{_jars(home.cache)}/*", main, *arguments]
