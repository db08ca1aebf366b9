"""One round: an application, one fault, and what must be true afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka.admin import AdminClient

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.ids import JobId
from headgate.control.kafka import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import partition_of
from headgate.infra import daemons, stack
from headgate.infra.stack import StackSettings, StackState

from .application import FIRST, SECOND
from .plan import KILLED, REPLACED, Round
from .processes import ROOT, STARTED_S_MAX, Application, Late, Masters, send, wait_for

PREFIX, TOPIC_PARTITIONS = "chaos", 4
SLOTS = ("a", "b")
HEAP_MIB = 256
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # no JVM lives long enough for more
WORK_S_MAX = 400.0
ASK_S_MAX = 60.0
_TOPIC = TopicSettings(TOPIC_PARTITIONS, -1, 7 * 86_400_000)


@dataclass(frozen=True, slots=True)
class Place:
    """Three brokers, a store and two masters, of this run alone."""

    settings: StackSettings
    state: StackState
    masters: Masters
    folder: Path
    env: dict[str, str]

    @property
    def where(self) -> list[str]:
        return _where(self.state)

    def start(self, name: str, job: str, mode: str) -> Application:
        conf = {
            "broker": self.state.bootstrap,
            "store": f"s3://{self.state.bucket}/{PREFIX}",
            "s3.endpoint": self.state.endpoint,
            "topic.prefix": PREFIX,
            "topic.partitions": str(TOPIC_PARTITIONS),
            "segment.bytes": str(1 << 20),
            "job.id": job,
            "mode": mode,
        }
        given = {f"spark.headgate.{key}": value for key, value in conf.items()}
        return Application(given, self.folder / name, self.env)

    def leader(self, job: str) -> str:
        """The node that leads the job's partition of the events topic."""
        topic = f"{PREFIX}.events"
        admin = AdminClient({"bootstrap.servers": self.state.bootstrap})
        partitions = admin.list_topics(topic, ASK_S_MAX).topics[topic].partitions
        return f"kafka-{partitions[partition_of(JobId(job), TOPIC_PARTITIONS)].leader}"

    def coordinator(self) -> str:
        """The node that coordinates the group of masters."""
        group = KafkaSettings(self.state.bootstrap, PREFIX, _TOPIC).masters_group
        admin = AdminClient({"bootstrap.servers": self.state.bootstrap})
        found = admin.describe_consumer_groups([group])[group].result(ASK_S_MAX)
        return f"kafka-{found.coordinator.id}"

    def ask(self, *command: str) -> str:
        """What a command of `headgate` found; nothing when all is well."""
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
def open_place(folder: Path) -> Iterator[Place]:
    """Start everything, and end it."""
    settings = StackSettings(home=folder / "stack", heap_mib=HEAP_MIB)
    with patch.dict(os.environ, JAVA_TOOL_OPTIONS=QUICK_JAVA), ExitStack() as opening:
        opening.callback(stack.down, settings=settings)
        state = stack.up(3, settings)
        keys = {"AWS_ACCESS_KEY_ID": state.access_key, "AWS_SECRET_ACCESS_KEY": state.secret_key}
        env = {**os.environ, **keys, "PYSPARK_PYTHON": sys.executable}
        _make_topics(state)
        masters = Masters(_where(state), folder, env)
        opening.callback(masters.end)
        for slot in SLOTS:
            masters.start(slot)
        yield Place(settings, state, masters, folder, env)


def _where(state: StackState) -> list[str]:
    store = ["--store", f"s3://{state.bucket}/{PREFIX}", "--s3", f"endpoint={state.endpoint}"]
    return ["--broker", state.bootstrap, "--prefix", PREFIX, *store]


def _make_topics(state: StackState) -> None:
    with closing(KafkaEventLog(KafkaSettings(state.bootstrap, PREFIX, _TOPIC))) as log:
        log.prepare(Deadline.after(STARTED_S_MAX))


@dataclass(frozen=True, slots=True)
class Victim:
    """Who is killed or paused, and how it comes back."""

    name: str
    send: Callable[[signal.Signals], Any]
    restart: Callable[[], Any] = lambda: None


@dataclass
class Scene:
    """A round under way; the last application is the one whose rows count."""

    place: Place
    round: Round
    job: str
    applications: list[Application] = field(default_factory=list)

    def start(self) -> Application:
        name = f"{self.job}-{len(self.applications) + 1}"
        self.applications.append(self.place.start(name, self.job, self.round.mode))
        return self.applications[-1]

    def victim(self) -> Victim:
        choices = {
            "master": self._master,
            "driver": self._driver,
            "executor": self._executor,
            "worker": self._worker,
            "leader": self._leader,
            "coordinator": self._coordinator,
            "store": self._store,
        }
        return choices[self.round.victim]()

    def _master(self) -> Victim:
        masters = self.place.masters
        slot = masters.holder(partition_of(JobId(self.job), TOPIC_PARTITIONS))
        return Victim(
            f"slot {slot}", lambda number: masters.send(slot, number), lambda: masters.start(slot)
        )

    def _driver(self) -> Victim:
        pids = self.applications[-1].driver()
        return Victim(f"pids {pids}", lambda number: send(pids, number), self.start)

    def _executor(self) -> Victim:
        return self._one_of(self.applications[-1].executors)

    def _worker(self) -> Victim:
        return self._one_of(self.applications[-1].workers)

    def _one_of(self, among: Callable[[], list[int]]) -> Victim:
        wait_for(lambda: bool(among()), STARTED_S_MAX, "somebody to choose from")
        found = sorted(among())
        pid = found[int(self.round.choice * len(found))]
        return Victim(f"pid {pid}", lambda number: send([pid], number))

    def _leader(self) -> Victim:
        return self._node(self.place.leader(self.job))

    def _coordinator(self) -> Victim:
        return self._node(self.place.coordinator())

    def _store(self) -> Victim:
        return self._node("minio")

    def _node(self, name: str) -> Victim:
        settings = self.place.settings
        found = stack.status(settings)
        assert found is not None
        node = found.node(name)
        return Victim(
            name, lambda number: daemons.send(node, number), lambda: stack.restart(name, settings)
        )


def strike(scene: Scene) -> str:
    """Do what the round says; returns to whom, and in which phase."""
    one, first = scene.round, scene.applications[-1]
    victim = scene.victim()
    struck = f"{victim.name}, {first.phase()}"
    if one.how == KILLED:
        victim.send(signal.SIGKILL)
        SYSTEM_CLOCK.sleep_s(one.lasts_s)
        victim.restart()
        return struck
    victim.send(signal.SIGSTOP)
    try:
        SYSTEM_CLOCK.sleep_s(one.lasts_s)
        if one.how == REPLACED:
            scene.start().await_phase("rewriting", WORK_S_MAX)
    finally:
        victim.send(signal.SIGCONT)
    return struck


@dataclass(frozen=True, slots=True)
class Outcome:
    round: Round
    struck: str
    took_s: float
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        one = self.round
        when = f"{one.after_s:.1f} s into {one.phase}, for {one.lasts_s:.1f} s"
        found = "ok" if not self.wrong else "\n    ".join(("WRONG", *self.wrong))
        head = f"round {one.number:>3} {one.mode:<7} {one.what:<15}"
        return f"{head} {when} ({self.struck}): {self.took_s:.1f} s, {found}"


def run(place: Place, one: Round, expected: Any, job: str) -> Outcome:
    """Run the application of a round to its end, strike meanwhile, look what is left."""
    begun_s = SYSTEM_CLOCK.monotonic_s()
    scene, struck, wrong = Scene(place, one, job), "nobody", list[str]()
    try:
        first = scene.start()
        first.await_phase(one.phase, WORK_S_MAX)
        SYSTEM_CLOCK.sleep_s(one.after_s)
        struck = strike(scene)
        last = scene.applications[-1]
        wait_for(last.is_over, WORK_S_MAX, f"the application's end, it is {last.phase()}")
    except Late as exc:
        wrong.append(str(exc))
    finally:
        for application in scene.applications:
            application.end()
    wrong += _rows(scene, expected) + place.masters.fallen()
    asked = [place.ask("fsck", "--job", job), place.ask("audit", "verify", "--job", job)]
    wrong += filter(None, asked)
    return Outcome(one, struck, SYSTEM_CLOCK.monotonic_s() - begun_s, tuple(wrong))


def _rows(scene: Scene, expected: Any) -> list[str]:
    wrong = [
        f"read {application.sums()}, not {expected}"
        for application in scene.applications
        if application.sums() not in (None, expected)
    ]
    last = scene.applications[-1]
    if last.exit_code() != 0 or not last.has_reached("closed"):
        wrong.append(f"ended with {last.exit_code()} while {last.phase()}: {last.complaint()}")
    if len(scene.applications) > 1:
        wrong += _found_again(*scene.applications)
    return wrong


def _found_again(first: Application, second: Application) -> list[str]:
    """What the first driver had completed, the second one reads."""
    known = [one["found"] for one in second.told() if "found" in one]
    done = {"rewriting": FIRST[0], "reading": SECOND[0]}
    lost = [number for phase, number in done.items() if first.has_reached(phase)]
    if first.has_reached("closing") or not known:
        return []
    return [f"the result of {n} is not found again" for n in lost if n not in known[0]]


def undisturbed(place: Place) -> Any:
    """The rows as Spark alone has them."""
    application = Application({}, place.folder / "undisturbed", place.env)
    try:
        wait_for(application.is_over, WORK_S_MAX, "the undisturbed run")
        assert application.sums() is not None, application.complaint()
        return application.sums()
    finally:
        application.end()
