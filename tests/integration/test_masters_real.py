"""Session masters as processes on real Kafka, killed and paused while a job runs."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import (
    PER_JOB,
    SESSION,
    MasterSettings,
    ShuffleDescriptor,
)
from headgate.control.events.types import (
    AttemptStarted,
    Fact,
    Produced,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.log import partition_of
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.model.replay import Replay
from headgate.control.snapshots.resume import read_snapshots
from headgate.infra.ui.log_reader import LogReader
from headgate.infra.ui.masters import masters_page
from headgate.storage.format.layout import Layout
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from ..doubles.real_masters import LIMIT_S, PARTITIONS, Context, events_of, wait_for

pytestmark = pytest.mark.real

STALL_S_MAX = 15.0
LEASE_MS = 4_000
RESULT = ResultId("r1")

# `headgate master`, but a commit waits while the file `hold` exists, with its step open in the log.
# The file `held` then shows that it waits. Snapshots are written every few facts.
HOLDING = """
import functools, pathlib, sys, time
from headgate.control.kafka.membership import KafkaMembership
from headgate.infra import master_command as masters
from headgate.infra.cli.app import main
often = dict(snapshot_events=int(sys.argv.pop(1)), look_ms=500)
masters.MasterSettings = functools.partial(masters.MasterSettings, **often)
folder, commit = pathlib.Path(sys.argv.pop(1)), KafkaMembership.commit
def holding(membership, positions):
    if (folder / "hold").exists():
        membership._producer.flush(10)
        (folder / "held").touch()
    while (folder / "hold").exists():
        time.sleep(0.02)
    commit(membership, positions)
KafkaMembership.commit = holding
main()
"""


@dataclass
class Masters:
    """The master processes of a test, by slot, and the output of each start."""

    bootstrap: str
    prefix: str
    folder: Path
    snapshot_events: int = 1_000
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    said_by: dict[str, Path] = field(default_factory=dict)

    def start(self, slot: str) -> None:
        output = self.folder / f"{slot}-{len(list(self.folder.glob('*.err')))}.err"
        own = self.folder / slot
        own.mkdir(exist_ok=True)
        options = {
            "--broker": self.bootstrap,
            "--store": f"file://{self.folder}/store",
            "--prefix": self.prefix,
            "--slot": slot,
            "--kafka": "session.timeout.ms=6000",
        }
        given = [part for option in options.items() for part in option]
        with output.open("wb") as stderr:
            often = str(self.snapshot_events)
            command = [sys.executable, "-c", HOLDING, often, str(own), "master", *given]
            self.processes[slot] = subprocess.Popen(command, stderr=stderr)
        self.said_by[slot] = output

    def said(self, slot: str) -> str:
        return self.said_by[slot].read_text()

    def decides_for(self, slot: str) -> set[int]:
        partitions: set[int] = set()
        for line in self.said(slot).splitlines():
            if begun := re.search(r"decides for partition (\d+) now", line):
                partitions.add(int(begun[1]))
            if lost := re.search(r"holds partition (\d+) no longer", line):
                partitions.discard(int(lost[1]))
        return partitions

    def signal(self, slot: str, number: signal.Signals) -> None:
        self.processes[slot].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[slot].wait(LIMIT_S)

    def began_at(self, slot: str, partition: int) -> int:
        """Return the offset from which a slot has read a partition after its last grant."""
        offsets = re.findall(rf"holds partition {partition}, from offset (\d+) on", self.said(slot))
        return int(offsets[-1])

    def await_shared(self, *slots: str) -> None:
        def shared() -> bool:
            shares = [self.decides_for(slot) for slot in slots]
            return sum(map(len, shares)) == PARTITIONS and all(shares)

        wait_for(shared, f"{slots} do not share the partitions")

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for slot, process in self.processes.items():
            assert process.wait(LIMIT_S) in (0, -signal.SIGKILL), self.said(slot)


@pytest.fixture
def masters(log: KafkaEventLog, tmp_path: Path) -> Iterator[Masters]:
    settings = log.settings
    group = Masters(settings.bootstrap, settings.topic_prefix, tmp_path)
    try:
        yield group
    finally:
        group.stop()


class Run:
    """A job with a driver of its own, whose tasks each store and announce one segment."""

    def __init__(
        self, log: KafkaEventLog, masters: Masters, job: JobId, mode: str, lease_ms: int = 0
    ) -> None:
        self.log, self.job = log, job
        self.store = FileBlobStore(masters.folder / "store")
        self.layout = Layout("", job)
        release = ObjectDeleter(self.store, "")
        settings = MasterSettings(int(LIMIT_S * 1000), mode=mode, lease_ms=lease_ms)
        self.driver = DriverMaster(log, release, settings, DriverIdentity(f"driver of {job}", "0"))
        self.tasks = Announcer(job, f"tasks of {job}")
        self.driver.register_job(Context(job))

    def register(self, partitions: int, result: ResultId = RESULT) -> ShuffleDescriptor:
        registered = ResultRegistered(result, partitions, 1, "", "")
        return self.driver.register_partition_with_producer(registered).result(LIMIT_S)

    def state_fact(self, fact: Fact) -> None:
        self.log.append(self.tasks.fact(fact)).offset(Deadline.after(LIMIT_S))

    def produce(self, to: ShuffleDescriptor, partition: int) -> None:
        attempt = AttemptId(PartitionId(to.result, partition), to.epoch, partition)
        self.state_fact(AttemptStarted(attempt, "host"))
        self.store.put(self.layout.segment(attempt, 0), b"rows", "w")
        self.state_fact(Produced(attempt, (SegmentSummary(0, 4, 1, 0, b""),)))

    def end(self) -> None:
        """End the job, and assert that nothing is stored and its log explains every decision."""
        self.driver.unregister_job()
        self.driver.close()
        self.check_over()

    def check_over(self) -> None:
        assert [] == list(self.store.list(self.layout.prefix))
        replay = Replay(self.job)
        for recorded in self.log.read_all(Deadline.after(LIMIT_S)):
            if recorded.event.job == self.job:
                replay.observe(recorded)
        assert [] == list(replay.due)
        assert replay.state == self.state
        assert replay.state.closed is not None

    @property
    def state(self) -> object:
        with closing(self.log.follow(self.job, None)) as follower:
            end, replay = follower.end(), Replay(self.job)
            while follower.position() < end:
                for recorded in follower.poll(500, 1.0):
                    replay.observe(recorded)
        return replay.state


def job_in(partition: int, name: str) -> JobId:
    """Return a job whose events are in a partition."""
    names = (JobId(f"{name}-{number}") for number in range(100))
    return next(job for job in names if partition_of(job, PARTITIONS) == partition)


def told(capsys: pytest.CaptureFixture[str], what: str, begun_s: float) -> float:
    waited_s = SYSTEM_CLOCK.monotonic_s() - begun_s
    with capsys.disabled():
        print(f"\n{what}: {waited_s:.1f} s")
    return waited_s


def test_a_killed_master_is_a_delay(
    log: KafkaEventLog, masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job waits and ends right when one of two masters dies by SIGKILL."""
    for slot in ("a", "b"):
        masters.start(slot)
    masters.await_shared("a", "b")
    (partition,) = masters.decides_for("a")
    run = Run(log, masters, job_in(partition, "job"), SESSION)
    descriptor = run.register(4)
    run.produce(descriptor, 0)
    run.produce(descriptor, 1)
    masters.signal("a", signal.SIGKILL)
    begun_s = SYSTEM_CLOCK.monotonic_s()
    run.produce(descriptor, 2)
    run.produce(descriptor, 3)
    assert 4 == len(run.driver.await_complete(descriptor).production.winners)
    told(capsys, "a job whose master was killed waited for the other one", begun_s)
    with closing(LogReader(log)) as reader:
        listing, group = reader.listing(), reader.group()
        page = masters_page(group, listing.deciders, listing.jobs, listing.due, reader.partition)
    (master,) = (each for each in page["masters"] if each["is_member"])
    assert ("b", [0, 1]) == (master["slot"], master["partitions"])
    assert ["b", "b"] == [each["slot"] for each in page["partitions"]]
    assert (1, [0, 0]) == (page["jobs"], [each["due"] for each in page["partitions"]])
    assert master["decisions_per_s"] > 0
    assert 0 < page["partitions"][partition]["lag"] < page["partitions"][partition]["end"]
    run.end()


def test_a_paused_master_changes_nothing(
    log: KafkaEventLog, masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    """A master that SIGSTOP pauses inside a step until its partitions have moved does not commit
    that step. It logs that it was fenced, and joins again."""
    for slot in ("a", "b"):
        masters.start(slot)
    masters.await_shared("a", "b")
    (partition,) = masters.decides_for("a")
    run = Run(log, masters, job_in(partition, "job"), SESSION)
    descriptor = run.register(2)
    hold, sign = masters.folder / "a" / "hold", masters.folder / "a" / "held"
    hold.touch()
    run.produce(descriptor, 0)
    wait_for(sign.exists, "the master is not in a step")
    masters.signal("a", signal.SIGSTOP)
    begun_s = SYSTEM_CLOCK.monotonic_s()
    run.produce(descriptor, 1)
    assert 2 == len(run.driver.await_complete(descriptor).production.winners)
    told(capsys, "a job whose master was paused in a step waited for the other one", begun_s)
    hold.unlink()
    masters.signal("a", signal.SIGCONT)
    wait_for(lambda: "slot a was fenced" in masters.said("a"), "it does not say that it was fenced")
    masters.await_shared("a", "b")
    run.end()


def test_a_killed_masters_jobs_are_taken_up_at_their_snapshots(
    log: KafkaEventLog, masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a master dies by SIGKILL, another one starts at the position of the newest snapshot,
    reads no older event, and continues the job from that state."""
    masters.snapshot_events = 3
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the master does not decide")
    run = Run(log, masters, job_in(0, "job"), SESSION)
    descriptor = run.register(6)
    for partition in range(4):
        run.produce(descriptor, partition)

    def kept() -> bool:
        newest = read_snapshots(log, run.job, Deadline.after(LIMIT_S)).get(run.job)
        return newest is not None and any(
            r.production.winners for r in newest.state.results.values()
        )

    wait_for(kept, "no snapshot has anything that was produced")
    first = events_of(log, run.job)[0].offset
    masters.signal("a", signal.SIGKILL)
    snapshot = read_snapshots(log, run.job, Deadline.after(LIMIT_S))[run.job]
    assert first < snapshot.needed <= snapshot.position
    begun_s = SYSTEM_CLOCK.monotonic_s()
    masters.start("b")
    run.produce(descriptor, 4)
    run.produce(descriptor, 5)
    assert 6 == len(run.driver.await_complete(descriptor).production.winners)
    told(capsys, "a job whose master was killed waited for one that had to be started", begun_s)
    assert snapshot.needed == masters.began_at("b", 0)
    assert snapshot.due == () or snapshot.needed == snapshot.position
    rest = Replay(run.job, snapshot)
    for recorded in events_of(log, run.job):
        if not rest.knows(recorded):
            rest.observe(recorded)
    run.end()


def test_a_silent_driver_loses_its_objects(
    log: KafkaEventLog, masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masters end the lease of a silent driver and delete its objects, even a master that started
    after the driver's last event. A driver with heartbeats keeps its objects."""
    masters.snapshot_events = 3
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the master does not decide")
    silent = Run(log, masters, job_in(0, "silent"), SESSION, LEASE_MS)
    beating = Run(log, masters, job_in(0, "beating"), SESSION, LEASE_MS)
    for run in (silent, beating):
        descriptor = run.register(2)
        run.produce(descriptor, 0)
        run.produce(descriptor, 1)
        run.driver.await_complete(descriptor)
        unheard = AttemptId(PartitionId(RESULT, 0), descriptor.epoch, 99)
        run.store.put(run.layout.segment(unheard, 0), b"of a task that could say nothing", "w")
    silent.driver.close()
    begun_s = SYSTEM_CLOCK.monotonic_s()
    masters.signal("a", signal.SIGKILL)
    masters.start("a")
    wait_for(lambda: [] == list(silent.store.list(silent.layout.prefix)), "its objects stay")
    assert LEASE_MS / 1000 < told(capsys, "the objects of a driver that died stood for", begun_s)
    silent.check_over()
    assert 3 == len(list(beating.store.list(beating.layout.prefix)))
    assert beating.driver.state().registered
    beating.end()


@pytest.mark.parametrize("back", [False, True])
def test_a_death_inside_a_step_stalls_others_briefly(
    back: bool, log: KafkaEventLog, masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    """A master that dies by SIGKILL with an open step delays an unrelated job of the partition by
    at most 15 s, and by less if it is started again."""
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the master does not decide")
    run = Run(log, masters, job_in(0, "job"), SESSION)
    unrelated = Run(log, masters, job_in(0, "unrelated"), PER_JOB)
    descriptor, other = run.register(1), unrelated.register(1)
    hold, sign = masters.folder / "a" / "hold", masters.folder / "a" / "held"
    hold.touch()
    run.produce(descriptor, 0)
    wait_for(sign.exists, "the master is not in a step")
    masters.signal("a", signal.SIGKILL)
    hold.unlink()
    begun_s = SYSTEM_CLOCK.monotonic_s()
    if back:
        masters.start("a")
    unrelated.produce(other, 0)
    assert 1 == len(unrelated.driver.await_complete(other).production.winners)
    how = "that was started again" if back else "that stayed away"
    what = f"an unrelated job waited behind the open step of a killed master {how}"
    assert told(capsys, what, begun_s) <= STALL_S_MAX
    unrelated.end()
    if not back:
        masters.start("a")
    assert 1 == len(run.driver.await_complete(descriptor).production.winners)
    run.end()


def test_a_slot_has_one_process(log: KafkaEventLog, masters: Masters) -> None:
    """A second process of a slot takes its partitions, and the first one ends with one clear
    error."""
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the master does not decide")
    first, output = masters.processes["a"], masters.said_by["a"]
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the slot is not taken")
    assert first.wait(LIMIT_S) == 2
    assert "error: another master has joined under slot a" in output.read_text()
    run = Run(log, masters, job_in(0, "job"), SESSION)
    run.end()


LEAVE_GROUP, OF_VERSION = 13, 3


def take_out_of_group(bootstrap: str, group: str, slot: str) -> None:
    """Make a group give up a static member as if its session had expired.

    The library's admin client cannot do that, so Kafka's own request is sent to each node until the
    coordinator accepts it.
    """

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    body = text(group) + struct.pack(">i", 1) + text("") + text(slot)
    request = struct.pack(">hhi", LEAVE_GROUP, OF_VERSION, 1) + text("test") + body
    for node in bootstrap.split(","):
        host, port = node.rsplit(":", 1)
        with socket.create_connection((host, int(port)), LIMIT_S) as there:
            there.sendall(struct.pack(">i", len(request)) + request)
            answer = there.recv(4096)
        if struct.unpack_from(">h", answer, 12)[0] == 0:
            return
    raise AssertionError("no node of Kafka is the group's coordinator")


def test_a_slot_that_the_group_gave_up(log: KafkaEventLog, masters: Masters) -> None:
    """A master that the group has given up joins again, even if another client has taken its slot
    since and Kafka answers as to a replaced member."""
    masters.start("a")
    wait_for(lambda: len(masters.decides_for("a")) == PARTITIONS, "the master does not decide")
    run = Run(log, masters, job_in(0, "job"), SESSION)
    descriptor = run.register(1)
    hold, sign = masters.folder / "a" / "hold", masters.folder / "a" / "held"
    hold.touch()
    run.produce(descriptor, 0)
    wait_for(sign.exists, "the master is not in a step")
    take_out_of_group(masters.bootstrap, log.settings.masters_group, "a")
    SYSTEM_CLOCK.sleep_s(1.5)  # time for a heartbeat, which tells the client
    other = Consumer(log.settings.joining("a"))
    other.subscribe([log.settings.events_topic])
    wait_for(lambda: other.poll(0.1) is None and bool(other.assignment()), "nobody else joins")
    SYSTEM_CLOCK.sleep_s(1.5)
    hold.unlink()
    other.close()
    wait_for(lambda: "slot a was fenced" in masters.said("a"), "it does not say that it was fenced")
    assert 1 == len(run.driver.await_complete(descriptor).production.winners)
    assert masters.processes["a"].poll() is None
    run.end()
