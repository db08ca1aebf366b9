"""Two versions side by side, each a wheel in an environment of its own. The older one is that of
this checkout, the newer one has another schema.

A deployment is upgraded, rolled back, and upgraded again. The older version stops at what the newer
one has written, whatever its role: it decides nothing and deletes nothing.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, TypeAlias

import pytest

import headgate
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import PER_JOB, SESSION
from headgate.control.events import codec
from headgate.control.kafka.log import KafkaEventLog

from ..chaos.processes import wait_for
from ..doubles.real_masters import LIMIT_S, PARTITIONS, prepared_log
from . import driver
from .conftest import TREE, CleanFolder
from .driver import ROWS

pytestmark = [pytest.mark.package, pytest.mark.timeout(600)]

OLDER, NEWER = "users", "newer"
NEXT = "99.0.0"
REFUSED = "was written by a newer Headgate"
LEASE_MS = 10_000
STARTED_S_MAX = 120.0
RELEASE = "remove-unused --release"

CLOSED, LEFT, SESSION_LEFT = "closed", "left", "session-left"
"""Jobs of newer drivers; for the last one a newer session master has decided."""
SERVED = "served"
"""The job of an older driver, for which a newer session master has decided: the driver stops at
that, so drivers and masters of a session are upgraded together."""
BESIDE = "beside"
"""The job of an older driver and an older session master."""
ASKED = "asked"
"""The job of an older driver, about which a newer operator publishes a fact."""
MIXED = ("newer-workers", "older-workers")
"""Jobs whose drivers are of the other version than their workers."""
OF_NEWER_DRIVERS = (CLOSED, LEFT, SESSION_LEFT)
OF_THE_NEWER = (*OF_NEWER_DRIVERS, SERVED)
MODES = {
    CLOSED: PER_JOB,
    LEFT: PER_JOB,
    SESSION_LEFT: SESSION,
    SERVED: SESSION,
    BESIDE: SESSION,
    ASKED: PER_JOB,
    **dict.fromkeys(MIXED, PER_JOB),
}

RENAMED = """

@dataclass(frozen=True, slots=True)
class Renamed:
    to: str


Body |= Renamed
"""
STOPPED = (
    "available --job closed --result {closed}",
    "remove-unused --job left --release",
    "lost --job left --partition {left}/0 --evidence seen",
    "end --job left",
    "end --job session-left",
    "state --job session-left",
    "fsck --repair",
)
"""Commands that an older version refuses."""
PASSED = {
    "jobs": " newer ",
    "sweep": f"not swept: its log {REFUSED}",
    "sweep --job left": f"not swept: its log {REFUSED}",
}
"""Commands that an older version runs, and what they print of the jobs of a newer one."""


def next_version(tree: Path) -> None:
    """Turn a tree of this version into one of the next version, whose schema has one more kind of
    event."""
    events, next_schema = tree / "control" / "events", codec.VERSION + 1
    schema = json.loads((events / f"schemas/event.{codec.VERSION}.avsc").read_text())
    renamed = {"type": "record", "name": "Renamed", "fields": [{"name": "to", "type": "string"}]}
    schema["fields"][-1]["type"].append(renamed)
    (events / f"schemas/event.{next_schema}.avsc").write_text(json.dumps(schema))
    with (events / "types.py").open("a") as types:
        types.write(RENAMED)
    changes = {
        events / "codec.py": (f"VERSION = {codec.VERSION}\n", f"VERSION = {next_schema}\n"),
        tree / "control/__init__.py": (headgate.__version__, NEXT),
    }
    for path, (ours, theirs) in changes.items():
        text = path.read_text()
        assert text.count(ours) == 1, path
        path.write_text(text.replace(ours, theirs))


@pytest.fixture(scope="module")
def versions(clean: CleanFolder) -> CleanFolder:
    """Install the next version into an environment that has the packages of the older one's."""
    tree = clean.path / "tree"
    copytree(TREE, tree, symlinks=True, ignore=ignore_patterns("build", "*.egg-info"))
    next_version(tree)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*build, clean.path, tree], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", clean.path / NEWER], check=True)
    installed = clean.run(f"pip install --no-deps pyspark_headgate-{NEXT}-*.whl", NEWER)
    assert installed.returncode == 0, installed
    (packages,) = (clean.path / OLDER).glob("lib/python3*/site-packages")
    there = clean.path / NEWER / packages.relative_to(clean.path / OLDER)
    (there / "of_the_older.pth").write_text(f"{packages}\n")
    return clean


Outcomes: TypeAlias = dict[str, dict[str, Any]]


@dataclass
class Deployment:
    """A topic, a store, and the processes of both versions that work there."""

    folder: CleanFolder
    log: KafkaEventLog
    promoted: dict[str, str] = field(default_factory=dict)
    """The promoted result of each job."""

    @property
    def _where(self) -> dict[str, str]:
        settings = self.log.settings
        store = f"file://{self.folder.path}/store"
        return {"broker": settings.bootstrap, "store": store, "prefix": settings.topic_prefix}

    def ask(self, version: str, command: str) -> tuple[int, str]:
        """Return the exit code of a command of `headgate`, and all that it prints."""
        done = self.folder.run(f"headgate {command}", version, **self._variables)
        return done.returncode, done.stdout + done.stderr

    @property
    def _variables(self) -> dict[str, str]:
        return {f"HEADGATE_{name.upper()}": value for name, value in self._where.items()}

    def drive(self, version: str, deeds: Mapping[str, str], workers: str = "") -> Outcomes:
        """Return the outcomes of the deeds of one application, each at its job. Its `workers` have
        its version by default; newer ones are in an executor, other ones in the driver."""
        topic = self.log.settings.topic
        own = {
            "broker": self._where["broker"],
            "store": self._where["store"],
            "topic.prefix": self._where["prefix"],
            "topic.partitions": str(topic.partitions),
            "topic.replication": str(topic.replication),
            "topic.retention.ms": str(topic.retention_ms),
            "lease.ms": str(LEASE_MS),
            "warm.up": "false",
        }
        spark = {
            "spark.master": "local-cluster[1,1,1024]" if workers == NEWER else "local[2]",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": f"{self.folder.path}/spark",
            **{f"spark.headgate.{key}": value for key, value in own.items()},
        }
        given = [
            {
                "job.id": job,
                "mode": MODES[job],
                "do": deed,
                "promoted": self.promoted.get(job, ""),
                "command": f"{self.folder.path}/{NEWER}/bin/headgate {RELEASE} --job {job}",
            }
            for job, deed in deeds.items()
        ]
        python = str(self.folder.path / (workers or version) / "bin" / "python")
        variables = {**self._variables, "PYSPARK_PYTHON": python}
        words = [str(Path(driver.__file__)), json.dumps(spark), json.dumps(given)]
        done = self.folder.run(f"exec python {shlex.join(words)}", version, **variables)
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        assert (-signal.SIGKILL, len(deeds)) == (done.returncode, len(outcomes)), done
        for job, outcome in zip(deeds, outcomes, strict=True):
            self.promoted |= {job: outcome["promoted"]} if "promoted" in outcome else {}
        return dict(zip(deeds, outcomes, strict=True))

    @contextmanager
    def master(self, version: str) -> Iterator[Path]:
        """Run a session master, and yield the file that it logs to."""
        log_path = self.folder.path / f"master-{version}-{SYSTEM_CLOCK.now_ms()}"
        command = f"exec headgate master --slot a 2> {log_path.name}"
        process = self.folder.start(command, version, **self._variables)
        try:
            wait_for(
                lambda: (
                    log_path.exists() and log_path.read_text().count("decides for") == PARTITIONS
                ),
                STARTED_S_MAX,
                log_path.name,
            )
            yield log_path
        finally:
            process.terminate()
            process.communicate(timeout=STARTED_S_MAX)

    def standing(self) -> dict[str, tuple[list[str], list[int]]]:
        """Return the names of the objects of each job, and the offsets of its events."""
        offsets: dict[str, list[int]] = {job: [] for job in MODES}
        for recorded in self.log.read_all(Deadline.after(LIMIT_S)):
            offsets[recorded.event.job].append(recorded.offset)
        root = self.folder.path / "store"
        objects = {job: sorted(map(str, root.glob(f"{job}/**/*"))) for job in MODES}
        return {job: (objects[job], offsets[job]) for job in MODES}


@dataclass
class History:
    """A deployment that was upgraded, rolled back, and upgraded again."""

    at_first: dict[str, tuple[list[str], list[int]]]
    """The standing of each job when the newer version was rolled back."""
    rolled_back: Outcomes
    """The outcomes of older drivers: at a newer session master, and later at all jobs."""
    asked: dict[str, tuple[int, str]]
    """The answers to older commands."""
    master: str
    """The log of the older session master."""
    mixed: Outcomes
    """The outcomes of drivers whose workers are of the other version."""
    then: dict[str, tuple[list[str], list[int]]]
    """The standing of each job when the newer version came back."""
    at_last: Outcomes
    """The outcomes of newer drivers at all jobs."""
    checked: dict[str, tuple[int, str]]
    """The answers to newer commands in the end."""


@pytest.fixture(scope="module")
def history(versions: CleanFolder) -> Iterator[History]:
    with prepared_log() as log, ThreadPoolExecutor() as pool:
        place = Deployment(versions, log)
        with place.master(NEWER):
            served = pool.submit(place.drive, OLDER, {SERVED: "keep"})
            place.drive(NEWER, {CLOSED: "keep", LEFT: "leave", SESSION_LEFT: "leave"})
            silence = Deadline.after(1.7 * LEASE_MS / 1000)  # for masters, a lease and a half
            outcomes = served.result()
        at_first = place.standing()
        with place.master(OLDER) as log_path:
            deeds = {job: "read" for job in OF_THE_NEWER} | {BESIDE: "keep", ASKED: "ask"}
            rolled_back = pool.submit(place.drive, OLDER, deeds)
            mixed = [
                pool.submit(place.drive, driver, {job: "keep"}, workers)
                for job, driver, workers in zip(MIXED, (OLDER, NEWER), (NEWER, OLDER), strict=True)
            ]
            mixed_outcomes = mixed[0].result() | mixed[1].result()
            SYSTEM_CLOCK.sleep_s(silence.left_s)
            asked = {
                command: place.ask(OLDER, command.format(**place.promoted))
                for command in (*STOPPED, *PASSED)
            }
            outcomes |= {f"{job} later": it for job, it in rolled_back.result().items()}
        then = place.standing()
        with place.master(NEWER):
            at_last = place.drive(NEWER, {job: "read" for job in place.promoted})
        checked = {name: place.ask(NEWER, name) for name in ("audit verify", "fsck")}
        yield History(
            at_first, outcomes, asked, log_path.read_text(), mixed_outcomes, then, at_last, checked
        )


def test_older_drivers_stop(history: History) -> None:
    """An older driver gets no job that is of a newer driver or master, and stops at a fact that a
    newer operator has published about its own. A job of an older master goes on."""
    errors = {job: outcome.get("error", "") for job, outcome in history.rolled_back.items()}
    for job in (SERVED, *(f"{job} later" for job in (*OF_THE_NEWER, ASKED))):
        assert errors[job].startswith("Invalid: "), (job, errors[job])
        assert REFUSED in errors[job], (job, errors[job])
    assert "" == errors[f"{BESIDE} later"]


def test_older_commands_stop(history: History) -> None:
    """Whatever an older command would decide or delete, it says that it knows too little."""
    for command in STOPPED:
        code, printed = history.asked[command]
        assert (2, True) == (code, REFUSED in printed), (command, printed)
    for command, text in PASSED.items():
        code, printed = history.asked[command]
        assert (0, True) == (code, text in printed), (command, printed)


def test_an_older_session_master_leaves_jobs_alone(history: History) -> None:
    """It gives up the jobs of newer drivers and masters, once each."""
    lines = [line for line in history.master.splitlines() if REFUSED in line]
    jobs = [job for job in MODES for line in lines if f"job {job}:" in line]
    assert list(OF_THE_NEWER) == jobs, lines


def test_nothing_is_decided_or_deleted(history: History) -> None:
    """No job of the newer version has another event or another object after the rollback, although
    the leases of its drivers were over."""
    for job in OF_THE_NEWER:
        objects, offsets = history.at_first[job]
        assert (job in OF_NEWER_DRIVERS, True) == (bool(objects), bool(offsets))
        assert history.at_first[job] == history.then[job]


def test_workers_of_another_version_are_refused(history: History) -> None:
    """A driver does not attach to executors of another version, and registers nothing."""
    for job, (ours, theirs) in zip(
        MIXED, [(headgate.__version__, NEXT), (NEXT, headgate.__version__)], strict=True
    ):
        error = history.mixed[job]["error"]
        assert f"has headgate {theirs}, the driver has {ours}" in error
        assert ([], []) == history.then[job]


def test_the_newer_version_goes_on(history: History) -> None:
    """When it is back, newer drivers read what either version has promoted. The log explains
    itself, no decision is there twice, and the bucket agrees with it."""
    expected = {job: {"rows": ROWS} for job in (*OF_NEWER_DRIVERS, BESIDE, ASKED)}
    assert expected == history.at_last
    for command, (code, printed) in history.checked.items():
        assert code == 0, (command, printed)
