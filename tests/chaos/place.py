"""The services of a run: three brokers, a store and two masters, which rounds kill and pause."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka.admin import AdminClient

from headgate.control.clock import Deadline
from headgate.control.ids import JobId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import partition_of
from headgate.infra.devstack import stack
from headgate.infra.devstack.stack import StackSettings, StackState

from ..quick_java import QUICK_JAVA
from .plan import Work
from .processes import ROOT, STARTED_S_MAX, Application, Masters

PREFIX, TOPIC_PARTITIONS = "chaos", 4
SLOTS = ("a", "b")
HEAP_MIB = 256
ASK_S_MAX = 60.0
WEEK_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Place:
    """Three brokers, a store and two masters of one run."""

    topic: TopicSettings
    settings: StackSettings
    state: StackState
    masters: Masters
    folder: Path
    env: dict[str, str]

    @property
    def where(self) -> list[str]:
        return _where(self.state)

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def log(self) -> KafkaSettings:
        return KafkaSettings(self.state.bootstrap, PREFIX, self.topic)

    def start(
        self, name: str, job: str, work: Work, conf: Mapping[str, str], **more: Any
    ) -> Application:
        """Start an application with `conf` on top of the common settings."""
        conf = {
            "broker": self.state.bootstrap,
            "store": f"s3://{self.state.bucket}/{PREFIX}",
            "s3.endpoint": self.state.endpoint,
            "topic.prefix": PREFIX,
            "topic.partitions": str(TOPIC_PARTITIONS),
            "topic.retention.ms": str(self.topic.retention_ms),
            "segment.bytes": str(1 << 20),
            "job.id": job,
            "attach.ms": "60000",  # a broker may be paused for 20 s meanwhile
            "mode": work.mode,
            "combine": str(work.combined is not None).lower(),
            **conf,
        }
        given = {
            "conf": {f"spark.headgate.{key}": value for key, value in conf.items()},
            "way": work.way,
            "queries": work.queries,
            "combined": work.combined,
            "tables": str(self.tables),
            **more,
        }
        return Application(work.application, given, self.folder / name, self.env)

    def leader(self, job: str) -> str:
        """Return the node that leads the job's partition of the events topic."""
        topic = f"{PREFIX}.events"
        admin = AdminClient({"bootstrap.servers": self.state.bootstrap})
        partitions = admin.list_topics(topic, ASK_S_MAX).topics[topic].partitions
        return f"kafka-{partitions[partition_of(JobId(job), TOPIC_PARTITIONS)].leader}"

    def coordinator(self) -> str:
        """Return the node that coordinates the group of masters."""
        group = self.log.masters_group
        admin = AdminClient({"bootstrap.servers": self.state.bootstrap})
        description = admin.describe_consumer_groups([group])[group].result(ASK_S_MAX)
        return f"kafka-{description.coordinator.id}"

    def ask(self, *command: str) -> str:
        """Run a command of `headgate`; return its output when it fails, and an empty text when it
        succeeds."""
        asked = subprocess.run(
            [sys.executable, "-m", "headgate", *command, *self.where],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=ASK_S_MAX,
        )
        if asked.returncode == 0:
            return ""
        return f"{' '.join(command)}: exit code {asked.returncode}: {asked.stdout}{asked.stderr}"


@contextmanager
def open_place(folder: Path, retention_ms: int = WEEK_MS) -> Iterator[Place]:
    """Start all services, and end them afterwards."""
    topic = TopicSettings(TOPIC_PARTITIONS, -1, retention_ms)
    settings = StackSettings(home=folder / "stack", heap_mib=HEAP_MIB)
    with patch.dict(os.environ, JAVA_TOOL_OPTIONS=QUICK_JAVA), ExitStack() as opening:
        opening.callback(stack.down, settings=settings)
        state = stack.up(3, settings)
        keys = {"AWS_ACCESS_KEY_ID": state.access_key, "AWS_SECRET_ACCESS_KEY": state.secret_key}
        env = {**os.environ, **keys, "PYSPARK_PYTHON": sys.executable}
        masters = Masters(_where(state), folder, env)
        opening.callback(masters.end)
        place = Place(topic, settings, state, masters, folder, env)
        with closing(KafkaEventLog(place.log)) as log:
            log.prepare(Deadline.after(STARTED_S_MAX))
        for slot in SLOTS:
            masters.start(slot)
        yield place


def _where(state: StackState) -> list[str]:
    store = ["--store", f"s3://{state.bucket}/{PREFIX}", "--s3", f"endpoint={state.endpoint}"]
    return ["--broker", state.bootstrap, "--prefix", PREFIX, *store]
