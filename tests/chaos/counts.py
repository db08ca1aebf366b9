"""The threads, descriptors and memory of processes that have done the same for the thousandth time:
`python -m tests.chaos.counts`.

Drivers, workers and a session master live through restarts of their broker, rejoins of the master
and jobs that end; an application through sessions that nobody keeps. All of it on services of its
own. Prints the numbers of each process at both ends, and fails if one has grown.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TextIO
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import (
    PER_JOB,
    SESSION,
    MasterSettings,
)
from headgate.control.errors import OutcomeUnknown, Retryable
from headgate.control.events.types import (
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    ResultRegistered,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings, TopicSettings
from headgate.control.log import Follower, Receipt
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.infra.devstack import daemons, stack
from headgate.infra.devstack.stack import StackSettings
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import build
from headgate.storage.limits import Limits
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from ..doubles.loads import SAME, Load, grown_sessions, loads, steady
from ..doubles.real_masters import Context
from ..quick_java import QUICK_JAVA
from .processes import ROOT, Late, wait_for

SCHEMA, ROWS, PARTS = pa.schema([("n", pa.int64())]), 40, 2
LIMIT_S, PACE_S, LEFT_S_MAX = 120.0, 0.1, 30.0
DOWN_S, STEP_S_MAX = 4.0, 2.0  # a broker is away for longer than a step may take
PAUSED_S, SESSION_MS = 7.5, 6_000  # a master is away for longer than the group waits
SETTLED_S_MAX = 90.0  # a producer whose coordinator was away ends late
BATCH, JOB_KIB_MAX = 500, 4.0
# The producer of a step that was given up: its client may wait until the broker goes away again.
ABANDONED = Load(SAME.threads + 6, SAME.descriptors + 12, SAME.mib)
APPLICATION = ROOT / "tests" / "spark" / "started.py"

_environments: list[ObjectStoreEnvironment] = []


def begin(settings: KafkaSettings, folder: str, job: JobId) -> None:
    """Let this process be a worker of a job."""
    store = FileBlobStore(Path(folder))
    _environments.append(ObjectStoreEnvironment(job, KafkaEventLog(settings), store, "", Limits()))


def write(attempt: AttemptId) -> None:
    deployment = ResultPartitionDeployment(attempt, PARTS, SCHEMA, "lz4")
    writer = _environments[0].create_result_partition_writer(deployment)
    rows = np.arange(ROWS)
    writer.write(pa.record_batch({"n": rows}, SCHEMA), rows % PARTS)
    writer.finish()


def read(deployment: InputGateDeployment) -> int:
    return sum(batch.num_rows for batch in _environments[0].create_input_gate(deployment))


@dataclass
class Listening(Context):
    """Notes why its master cannot go on."""

    wrong: list[BaseException] = field(default_factory=list)

    def on_fatal_error(self, error: BaseException) -> None:
        self.wrong.append(error)


@dataclass
class Exchanges:
    """A job whose small exchanges follow each other, whatever becomes of the broker."""

    master: DriverMaster
    context: Listening
    worker: ProcessPoolExecutor
    store: FileBlobStore
    done: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self._stopping = Event()
        self.master.register_job(self.context)
        self._thread = Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.master.unregister_job()
        self.master.close()

    def _run(self) -> None:
        while not self._stopping.wait(PACE_S) and not self.context.wrong:
            try:
                self._exchange(ResultId(f"r{self.done + self.failed}"))
                self.done += 1
            except (Retryable, OutcomeUnknown):
                self.failed += 1
            except BaseException as exc:
                self.context.wrong.append(exc)

    def _exchange(self, result: ResultId) -> None:
        job = self.context.job_id
        registered = ResultRegistered(result, PARTS, PARTS, "", "exchange")
        described = self.master.register_partition_with_producer(registered).result(LIMIT_S)
        for index in range(PARTS):
            attempt = AttemptId(PartitionId(result, index), described.epoch, index)
            self.worker.submit(write, attempt).result(LIMIT_S)
        state = self.master.await_complete(described)
        manifest = build(described, state, Layout("", job), self.store)
        gate = InputGateDeployment(manifest, SCHEMA, 0, PARTS, 0)
        assert PARTS * ROWS == self.worker.submit(read, gate).result(LIMIT_S)
        self.master.release_partition_externally(described)


class GivenUp(logging.Handler):
    """Counts the steps that the masters of this process have given up."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "starts over" in record.getMessage()


@dataclass
class Place:
    """A Kafka node, a session master, and a job of each mode with a worker of its own."""

    folder: Path
    stack: StackSettings
    settings: KafkaSettings
    master: subprocess.Popen[bytes]
    lines: TextIO
    """The log of the master."""
    given_up: GivenUp = field(default_factory=GivenUp)
    jobs: dict[str, Exchanges] = field(default_factory=dict)
    _grants: int = 0

    def pids(self) -> Mapping[str, int]:
        workers = {f"worker, {mode}": job.worker for mode, job in self.jobs.items()}
        named = {name: worker.submit(os.getpid).result(LIMIT_S) for name, worker in workers.items()}
        return {"drivers": os.getpid(), "master": self.master.pid, **named}

    def grants(self) -> int:
        """Return how many times the master has begun to decide for a partition."""
        for line in self.lines:  # those that are new
            self._grants += "decides for partition" in line
        return self._grants

    def await_grants(self, number: int) -> None:
        """Wait until the master has begun to decide for so many partitions since its start."""
        wait_for(lambda: self.grants() >= number, LIMIT_S, "a master of each partition")

    def await_exchanges(self) -> None:
        """Wait until every job has run exchanges from begin to end."""
        before = {mode: job.done for mode, job in self.jobs.items()}

        def gone_on() -> bool:
            assert not any(job.context.wrong for job in self.jobs.values()), self.jobs
            return all(job.done >= before[mode] + 2 for mode, job in self.jobs.items())

        wait_for(gone_on, LIMIT_S, "two exchanges of each job")


@contextmanager
def open_place(folder: Path) -> Iterator[Place]:
    with patch.dict(os.environ, JAVA_TOOL_OPTIONS=QUICK_JAVA), ExitStack() as opening:
        own = StackSettings(home=folder / "stack", heap_mib=256)
        opening.callback(stack.down, settings=own)
        state = stack.up(1, own)
        settings = KafkaSettings(
            state.bootstrap, "counts", TopicSettings(PARTS, 1), request_timeout_s=STEP_S_MAX
        )
        log = opening.enter_context(closing(KafkaEventLog(settings)))
        log.prepare(Deadline.after(LIMIT_S))
        process = start_master(folder, settings)
        lines = opening.enter_context((folder / "master.err").open())
        place = Place(folder, own, settings, process, lines)
        logging.getLogger("headgate").addHandler(place.given_up)
        opening.callback(logging.getLogger("headgate").removeHandler, place.given_up)
        opening.callback(place.master.wait, LIMIT_S)
        opening.callback(place.master.terminate)
        place.await_grants(PARTS)
        store = FileBlobStore(folder / "store")
        for mode in (PER_JOB, SESSION):
            job = JobId(f"job-{mode}")
            given = settings, str(folder / "store"), job
            worker = ProcessPoolExecutor(1, get_context("spawn"), begin, given)
            opening.enter_context(worker)
            master = DriverMaster(
                log,
                ObjectDeleter(store, ""),
                MasterSettings(mode=mode),
                DriverIdentity(f"driver of {job}", "0"),
            )
            place.jobs[mode] = Exchanges(master, Listening(job), worker, store)
            opening.enter_context(closing(place.jobs[mode]))
        place.await_exchanges()
        yield place


def start_master(folder: Path, settings: KafkaSettings) -> subprocess.Popen[bytes]:
    words = {
        "--slot": "a",
        "--broker": settings.bootstrap,
        "--prefix": settings.topic_prefix,
        "--store": f"file://{folder}/store",
        "--kafka": f"session.timeout.ms={SESSION_MS}",
    }
    given = [word for pair in words.items() for word in pair]
    command = [sys.executable, "-m", "headgate", "master", *given]
    with (folder / "master.err").open("wb") as err:
        return subprocess.Popen(command, cwd=ROOT, stderr=err)


@contextmanager
def counted(what: str, place: Place, more: Load = SAME) -> Iterator[None]:
    """Print the numbers of each process at both ends of the block, and assert that none grows."""
    before = loads(place.pids())
    with steady(place.pids, more, SETTLED_S_MAX):
        yield
    for life, load in loads(place.pids()).items():
        print(f"{what}: {life[0]} had {before[life]}, has {load}", flush=True)


def restart(place: Place, number: int) -> None:
    """Kill the broker and start it again. Drivers give up the steps that were open meanwhile."""
    for _ in range(number):
        daemons.kill(stack.up(settings=place.stack).nodes[0])
        SYSTEM_CLOCK.sleep_s(DOWN_S)
        stack.up(settings=place.stack)
        place.await_exchanges()


def rejoin(place: Place, number: int) -> None:
    """Pause the master until the group goes on without it."""
    for _ in range(number):
        grants = place.grants() + PARTS
        place.master.send_signal(signal.SIGSTOP)
        SYSTEM_CLOCK.sleep_s(PAUSED_S)
        place.master.send_signal(signal.SIGCONT)
        place.await_grants(grants)
        place.await_exchanges()


def end_jobs(place: Place, number: int) -> None:
    """Let jobs of the session begin and end, and wait until the master has decided."""
    registered, closed = JobRegistered(SESSION, "0", "counts"), JobUnregistered("closed", 1)
    name = f"ended-{SYSTEM_CLOCK.now_ms()}"
    with closing(KafkaEventLog(replace(place.settings, request_timeout_s=LIMIT_S))) as log:
        for start in range(0, number, BATCH):
            jobs = [JobId(f"{name}-{at}") for at in range(start, min(start + BATCH, number))]
            receipts = dict[JobId, Receipt]()
            for job in jobs:
                driver = Announcer(job, "driver")
                receipts[job] = log.append(driver.fact(registered))
                log.append(driver.fact(closed))
            offsets = {job: it.offset(Deadline.after(LIMIT_S)) for job, it in receipts.items()}
            for job in {log.partition(job): job for job in jobs}.values():  # the last of each
                with closing(log.follow(job, offsets[job])) as follower:
                    await_accepted(follower)


def await_accepted(follower: Follower) -> None:
    deadline = Deadline.after(LIMIT_S)
    while not deadline.passed:
        for recorded in follower.poll(BATCH, deadline.poll_s):
            if isinstance(recorded.event.body, JobAccepted):
                return
    raise Late("no master has decided for a job that has ended")


def sessions(place: Place, number: int) -> None:
    """Let an application make sessions that nobody keeps."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.headgate.broker": place.settings.bootstrap,
        "spark.headgate.store": f"file://{place.folder}/store",
        "spark.headgate.topic.prefix": place.settings.topic_prefix,
        "spark.headgate.topic.partitions": str(PARTS),
        "spark.headgate.warm.up": "false",
    }
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    command = [sys.executable, "-m", "headgate", "run", *settings, str(APPLICATION)]
    with (place.folder / "sessions.err").open("wb") as err:
        done = subprocess.run(
            [*command, "sessions", str(number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    print(f"{number} sessions: {done.stdout}", flush=True)
    assert 0 == done.returncode, (place.folder / "sessions.err").read_text()
    assert [] == grown_sessions(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.counts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--rejoins", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all started processes too
    with TemporaryDirectory(prefix="headgate-counts-") as folder, open_place(Path(folder)) as place:
        run(place, given.restarts, given.rejoins, given.jobs)
        sessions(place, given.sessions)


def run(place: Place, restarts: int, rejoins: int, jobs: int) -> None:
    """Do everything once for the pools of the clients, and then count."""
    restart(place, 1)
    rejoin(place, 1)
    end_jobs(place, BATCH)
    given_up = place.given_up.count
    with counted(f"{restarts} restarts", place, ABANDONED):
        restart(place, restarts)
    print(f"{place.given_up.count - given_up} steps of drivers were given up", flush=True)
    assert place.given_up.count > given_up
    with counted(f"{rejoins} rejoins", place):
        rejoin(place, rejoins)
    room = Load(SAME.threads, SAME.descriptors, SAME.mib + jobs * JOB_KIB_MAX / 1024)
    with counted(f"{jobs} ended jobs", place, room):
        end_jobs(place, jobs)


if __name__ == "__main__":
    main()
