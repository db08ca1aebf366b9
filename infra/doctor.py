"""Try what Headgate needs of this machine, a broker and a bucket.

Guarantees: every check has a deadline. Every object that a check puts is deleted. One job
`doctor-…` of three events stays in the topic, and passes an audit. The checks use broker and bucket
through their ports only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..connectors.spark.versions import NEWEST, SOCKETS, version_of
from ..control import __version__
from ..control.addresses import urls_of
from ..control.clock import SYSTEM_CLOCK, Deadline
from ..control.errors import Conflict, Corrupt, Fenced, HeadgateError, Invalid
from ..control.events.types import JobRegistered, JobUnregistered
from ..control.ids import JobId, job_id
from ..control.inquiry.reading import read
from ..control.kafka.settings import TopicSettings
from ..control.master.announcer import Announcer
from ..control.model.replay import Replay
from ..storage.format.layout import Layout
from ..storage.stores.port import BlobStore, ByteRange
from ..storage.stores.rooted import UnknownRoot
from .target import ANSWER_S_MAX, Target

_CHECK_S_MAX = 30.0
_JAVA_MIN = 17
_WRITERS = 8
_PART_BYTES = 5 << 20


# Checks


class CheckVerdict(Enum):
    OK = "ok"
    HINT = "hint"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    name: str
    verdict: CheckVerdict
    says: str
    """The result of the check, or the reason why it failed, in one line."""
    took_ms: int = 0


class Hint(str):
    """The advice of a check that passed."""


Check = Callable[[], str]


def examine(target: Target) -> Iterator[CheckOutcome]:
    """Run every check in turn; a failed check skips the later checks of its broker or bucket."""
    for name, check in _MACHINE.items():
        yield _examined(name, check)
    job = job_id(f"doctor-{os.urandom(6).hex()}")
    none = "none is set: sessions use the embedded one"
    kinds: list[tuple[str, str, type[_Broker | _Bucket], Target]] = [
        ("broker", target.broker, _Broker, target)
    ]
    for url in urls_of(target.store):
        kinds.append(("bucket", url, _Bucket, replace(target, store=url)))
    for group, address, kind, at in kinds:
        if not address:
            yield CheckOutcome(group, CheckVerdict.SKIPPED, none)
            continue
        failed = ""
        with ExitStack() as opening:
            for name, check in kind(at, job, opening).checks().items():
                outcome = CheckOutcome(name, CheckVerdict.SKIPPED, f"after {failed}")
                if not failed:
                    outcome = _examined(name, check)
                    failed = name if outcome.verdict is CheckVerdict.WRONG else ""
                yield outcome


def _examined(name: str, check: Check) -> CheckOutcome:
    """Run a check in a thread of its own: a check that hangs is left to end with the process."""
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(check())
        except BaseException as exc:
            answer.set_exception(exc)

    start = SYSTEM_CLOCK.monotonic_s()
    threading.Thread(target=run, name=f"doctor {name}", daemon=True).start()
    verdict = CheckVerdict.WRONG
    try:
        says = answer.result(_CHECK_S_MAX)
    except TimeoutError:
        says = f"no answer within {_CHECK_S_MAX:g} s"
    except Exception as exc:
        says = str(exc) if isinstance(exc, HeadgateError) else repr(exc)
    else:
        verdict = CheckVerdict.HINT if isinstance(says, Hint) else CheckVerdict.OK
    return CheckOutcome(name, verdict, says, round((SYSTEM_CLOCK.monotonic_s() - start) * 1000))


# This machine


def _java() -> str:
    java = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else "java"
    printed = _output(java, "-version")
    release = re.search(r'version "(\d+)', printed)
    if release is None or int(release[1]) < _JAVA_MIN:
        raise Invalid(
            f"Spark 4 needs Java {_JAVA_MIN} or newer; {java} says {printed.splitlines()[:1]}"
        )
    if "jdk.incubator.vector" not in _output(java, "--list-modules"):
        raise Invalid(
            f"{java} has no module jdk.incubator.vector, which Spark asks for: install a whole JDK"
        )
    return f"{release[1]}, with jdk.incubator.vector"


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Invalid(f"cannot run {argv[0]}: put a JDK on PATH or set JAVA_HOME") from exc
    return done.stderr + done.stdout


def _spark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError as exc:
        raise Invalid("not installed: pip install 'pyspark-headgate[spark]'") from exc


def _pyspark() -> str:
    spark = _spark_version()
    if version_of(spark) is None:
        return Hint(
            f"Headgate does not know {spark}: rows are right, but plans may show an Exchange that "
            f"{NEWEST} does without, and offload is refused"
        )
    return spark


def _worker_python() -> str:
    named = os.environ.get("PYSPARK_PYTHON") or "python3"
    python = shutil.which(named)
    if python is None:
        raise Invalid(f"workers would run {named}, which is not there: set PYSPARK_PYTHON")
    if _environment_of(python) == _environment_of(sys.executable):
        return f"{python}, as here"
    return Hint(
        f"workers run {python}, not {sys.executable}: set PYSPARK_PYTHON if headgate "
        "is not installed there"
    )


def _environment_of(python: str) -> tuple[Path, Path]:
    """Return the folder of a Python, which decides what it imports, and its program: `python` and
    `python3` of an environment are alike."""
    return Path(python).parent.resolve(), Path(python).resolve()


def _sockets() -> str:
    spark = version_of(_spark_version())
    if spark is not None and not spark.sockets:
        return f"not in Spark {_spark_version()}"
    home = os.environ.get("SPARK_HOME", "")
    conf = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf", "spark-defaults.conf")
    if conf.is_file() and re.search(rf"^{re.escape(SOCKETS)}[\s=]+true", conf.read_text(), re.M):
        return f"{SOCKETS} is true in {conf}"
    return Hint(f"set {SOCKETS}=true: tasks start in 15 ms, not 51")


def _versions() -> str:
    names = ("pyspark-headgate", "pyarrow", "confluent-kafka", "obstore")
    return ", ".join(f"{name} {version(name)}" for name in names)


_MACHINE: Mapping[str, Check] = {
    "java": _java,
    "pyspark": _pyspark,
    "worker python": _worker_python,
    "unix sockets": _sockets,
    "packages": _versions,
}


# The broker


class _Broker:
    """The checks of a broker, on one job whose decisions follow from its facts."""

    def __init__(self, target: Target, job: JobId, opening: ExitStack) -> None:
        self._job = job
        self._target = target
        self._opening = opening
        self._announcer = Announcer(job, f"doctor {os.getpid()}")
        self._place = f"{target.broker}, topic {target.prefix}.events"

    def checks(self) -> Mapping[str, Check]:
        """Return the checks, each of which needs those before."""
        return {
            "reach broker": self.reach,
            "confirm a fact": self.produce,
            "abort a step": self.abort,
            "commit a step": self.commit,
            "fence a master": self.fence,
        }

    def reach(self) -> str:
        """Reach the broker, and compare the topics with the settings that they may have of their
        own: a driver has to name the same ones."""
        self._log = self._opening.enter_context(closing(self._target.open_log()))
        actual, ours = self._log.topic_settings(_deadline()), TopicSettings()
        if actual != ours:
            self._log = self._opening.enter_context(closing(self._target.open_log(actual)))
        self._log.prepare(_deadline())
        keys = {"partitions": actual.partitions, "retention.ms": actual.retention_ms}
        usual = {"partitions": ours.partitions, "retention.ms": ours.retention_ms}
        named = [f"spark.headgate.topic.{k}={v}" for k, v in keys.items() if v != usual[k]]
        return Hint(f"{self._place}: drivers must set {', '.join(named)}") if named else self._place

    def produce(self) -> str:
        registered = JobRegistered("per-job", __version__, "headgate doctor")
        offset = self._log.append(self._announcer.fact(registered)).offset(_deadline())
        return f"a fact was confirmed at offset {offset} of job {self._job}"

    def abort(self) -> str:
        self._derived = self._replayed().due[0]
        self._first = self._opening.enter_context(closing(self._log.open_decisions(self._job)))
        self._decide(self._first.abort)
        if self._replayed().decisions:
            raise Corrupt(
                "an aborted decision is visible: this broker does not isolate transactions"
            )
        return "an aborted decision is invisible"

    def commit(self) -> str:
        self._decide(lambda: self._first.commit(self._derived.basis + 1))
        deadline = _deadline()
        while self._replayed().decisions != 1:  # Kafka ends a step after it has confirmed the end
            if deadline.passed:
                raise Corrupt(f"a committed decision is not visible after {ANSWER_S_MAX:g} s")
            deadline.pause()
        return "a committed decision is visible"

    def fence(self) -> str:
        with closing(self._log.open_decisions(self._job)), suppress(Fenced):
            self._decide(lambda: self._first.commit(self._derived.basis + 1))
            raise Corrupt("two masters could decide at once: this broker does not fence producers")
        self._log.append(self._announcer.fact(JobUnregistered("examined"))).offset(_deadline())
        return "a former master is fenced"

    def _decide(self, end: Callable[[], None]) -> None:
        self._first.begin()
        self._first.write(self._announcer.decision(self._derived))
        end()

    def _replayed(self) -> Replay:
        replay = Replay(self._job)
        for recorded in read(self._log, self._job):
            replay.observe(recorded)
        return replay


# The bucket


class _Bucket:
    """The checks of a bucket, on a few objects under one job's prefix."""

    def __init__(self, target: Target, job: JobId, opening: ExitStack) -> None:
        self._job = job
        self._target = target
        self._opening = opening

    def checks(self) -> Mapping[str, Check]:
        """Return the checks, each of which needs those before."""
        return {
            "reach bucket": self.reach,
            "put": self.put,
            "conditional put": self.race,
            "ranged get": self.ranged,
            "multipart put": self.parts,
            "list and delete": self.delete,
        }

    def reach(self) -> str:
        self._store, root = self._open()
        self._prefix = Layout(root, self._job).prefix
        self._store.check(_deadline(), self._prefix)
        self._opening.callback(self._clear_at_last)
        return self._target.store

    def put(self) -> str:
        self._store.put(f"{self._prefix}put", bytes(range(256)), "doctor")
        return "an object of 256 bytes"

    def race(self) -> str:
        """Let several writers create one object at the same moment."""
        name, gate = f"{self._prefix}raced", threading.Barrier(_WRITERS)

        def write(number: int) -> bool:
            gate.wait(ANSWER_S_MAX)
            with suppress(Conflict):
                self._store.put(name, bytes([number]), f"doctor/{number}")
                return True
            return False

        with ThreadPoolExecutor(_WRITERS) as pool:
            won = [number for number, ok in enumerate(pool.map(write, range(_WRITERS))) if ok]
        if len(won) != 1 or bytes(self._store.get(name)) != bytes(won):
            raise Corrupt(
                f"{len(won)} of {_WRITERS} writers created one object: this store "
                "ignores If-None-Match"
            )
        return f"one of {_WRITERS} writers created an object, the others were refused"

    def ranged(self) -> str:
        part = self._store.get(f"{self._prefix}put", ByteRange(100, 50))
        if bytes(part) != bytes(range(100, 150)):
            raise Corrupt("a range had other bytes than were put")
        return "50 bytes of 256"

    def parts(self) -> str:
        if not self._target.store.startswith("s3://"):
            return "this store has no multipart uploads"
        size = str(_PART_BYTES)
        store = self._open(multipart_bytes=size, part_bytes=size)[0]
        name, body = f"{self._prefix}parts", bytes(_PART_BYTES) + b"end"
        store.put(name, body, "doctor")
        with suppress(Conflict):
            store.put(name, body, "another")
            raise Corrupt("a second upload replaced the first: this store ignores If-None-Match")
        left = list(store.uploads(self._prefix))
        if bytes(store.get(name, ByteRange(_PART_BYTES - 1, 4))) != b"\0end" or left:
            raise Corrupt(f"parts were not joined in order; unfinished uploads: {left}")
        return "two parts joined once, a second upload refused"

    def delete(self) -> str:
        listed = len(self._listed())
        self._clear()
        left = self._listed()
        if left or not listed:
            raise Corrupt(f"{listed} objects listed, {len(left)} still listed after their deletion")
        return f"{listed} objects listed and deleted"

    def _open(self, **options: str) -> tuple[BlobStore, str]:
        store, root = self._target.open_bucket(**options)
        return self._opening.enter_context(closing(store)), root

    def _clear_at_last(self) -> None:
        with suppress(HeadgateError):  # a check has said so, or nothing was stored
            self._clear()

    def _clear(self) -> None:
        for upload in list(self._store.uploads(self._prefix)):
            self._store.abort(upload)
        if names := self._listed():
            self._store.delete(names)  # deleting nothing would ask for another job's objects

    def _listed(self) -> list[str]:
        with suppress(UnknownRoot):  # another folder, or one in which nothing is stored yet
            return [stat.name for stat in self._store.list(self._prefix)]
        return []


def _deadline() -> Deadline:
    return Deadline.after(ANSWER_S_MAX)
