"""Jobs that are worth a look: the jobs of a shop, one of them in the middle of its work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headgate.control.ids import AttemptId
from headgate.control.master.group_steps import GroupSteps, MasterIdentity

from .groups import SETTINGS
from .scripted_jobs import ScriptedJob, TimedLog

PARTITIONS, SUBPARTITIONS = 24, 32
LOST, STRAGGLER, LARGE = 7, 13, 18
WORKERS = 4
ORDERS = "nightly-orders"


@dataclass
class NightlyOrders:
    """The job of a join: two exchanges are read by a third, in which a partition is lost."""

    log: TimedLog
    now_ms: int
    job: ScriptedJob = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: (n * 37 % 101 for n in count(1)))
    winners: dict[int, AttemptId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Write the two inputs, and read them."""
        self.job = job = ScriptedJob(self.log, ORDERS, "orders.py", self.now_ms - 64_000)
        job.now_ms += 2_000
        for name, label in (("1-0001", "scan orders by customer"), ("1-0002", "scan customers")):
            job.register(name, 12, SUBPARTITIONS, label)
            self._write(name, range(12), 2_000)
            self._read(name, 250_000)

    def begin(self) -> None:
        """Register the exchange to be watched, and begin its first attempts."""
        self.job.register(
            "1-0003", PARTITIONS, SUBPARTITIONS, "join on customer", "1-0001", "1-0002"
        )
        self.job.now_ms += 300

    def write(self, but: set[int]) -> None:
        """Write the partitions of the last exchange except some, which are begun."""
        self._write("1-0003", [at for at in range(PARTITIONS) if at not in but], 3_000)
        for index in sorted(but):
            self.winners[index] = self.job.begin("1-0003", index, f"worker-{index % WORKERS + 1}")

    def finish(self, index: int) -> None:
        self.job.produce(self.winners[index], 480_000, 21_000_000)

    def lose(self, index: int) -> int:
        """Lose a partition; return the offset of the event that says so."""
        self.job.now_ms += 900
        return self.job.lose(self.winners[index], "404 read twice by reader 31")

    def repair(self, index: int) -> None:
        """Make a lost partition again."""
        self.job.now_ms += 400
        self.winners[index] = self.job.begin("1-0003", index, "worker-2")
        self.job.now_ms += 1_700
        self.finish(index)

    def read(self) -> None:
        self._read("1-0003", 300_000)

    def end(self) -> None:
        """Close the job, and delete all that it has stored."""
        self.job.now_ms += 500
        self.job.close()
        self.job.now_ms += 1_200
        for name in ("1-0001", "1-0002", "1-0003"):
            self.job.delete(name)

    def _write(self, name: str, indexes: list[int] | range, took_ms: int) -> None:
        """Write partitions, `WORKERS` at a time."""
        free_ms = [self.job.now_ms + 40 * slot for slot in range(WORKERS)]
        ends: list[tuple[int, int, AttemptId]] = []
        steps: list[tuple[int, int, int]] = []
        for index in indexes:
            slot = min(range(WORKERS), key=free_ms.__getitem__)
            took = int(took_ms * (0.7 + 0.6 * next(self.numbers) / 100))
            steps.append((free_ms[slot], index, took))
            free_ms[slot] += took
        due = sorted(steps)
        while due or ends:
            if ends and (not due or min(ends)[0] <= due[0][0]):
                end_ms, index, attempt = min(ends)
                ends.remove((end_ms, index, attempt))
                self.job.now_ms = max(self.job.now_ms, end_ms)
                large = 5 if name == "1-0003" and index == LARGE else 1
                rows = int(400_000 * large * (0.8 + 0.4 * next(self.numbers) / 100))
                self.job.produce(attempt, rows, rows * 44)
                continue
            begin_ms, index, took = due.pop(0)
            self.job.now_ms = max(self.job.now_ms, begin_ms)
            attempt = self.job.begin(name, index, f"worker-{index % WORKERS + 1}")
            self.winners[index] = attempt
            ends.append((self.job.now_ms + took, index, attempt))

    def _read(self, name: str, rows: int) -> None:
        for first in range(SUBPARTITIONS):
            self.job.now_ms += 70
            skew = 4 if first == 11 else 1
            read = int(rows * skew * (0.7 + 0.6 * next(self.numbers) / 100))
            self.job.read(name, first, read, read * 44)


def joined_by(log: TimedLog, slot: str) -> GroupSteps:
    """Let a master join that is named as `headgate master` names it."""
    me = MasterIdentity(slot, f"master {slot} 0000000a", log.clock, "memory://here/")
    return GroupSteps(log, me, SETTINGS)


def other_jobs(log: TimedLog, now_ms: int) -> None:
    """Write jobs beside it: ended, failed, silent, and without an exchange."""
    hour_ms = 3_600_000
    for hours, name in ((49, "nightly-orders-24"), (25, "nightly-orders-25")):
        job = ScriptedJob(log, name, "orders.py", now_ms - hours * hour_ms)
        job.register("1-0001", 12, 32, "scan orders by customer")
        job.write_all("1-0001", range(12), 9_000)
        job.read("1-0001", 0, 4_800_000, 190_000_000, 32)
        job.close()
        job.delete("1-0001")
    silent = ScriptedJob(log, "features-eu", "features.py", now_ms - 5 * hour_ms)
    silent.register("1-0001", 200, 64, "group by user")
    silent.write_all("1-0001", range(131), 400)
    failed = ScriptedJob(log, "ad-hoc-7f", "pyspark-shell", now_ms - 40_000)
    failed.register("1-0001", 4, 4, "repartition(4, random)")
    failed.write_all("1-0001", range(4), 300)
    failed.fail("1-0001", 2)
    ScriptedJob(log, "dashboards", "dashboards.py", now_ms - 9_000)
