"""Measure the live page on a large log: time to the first picture in Chromium, and the memory of
`headgate ui`. `make bench-ui` runs it on the real stack, and deletes its topics afterwards.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION, MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog, KafkaSettings
from headgate.control.master.announcer import Announcer
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.infra.devstack import stack
from headgate.infra.master_command import STEP_EVENTS_MAX

sync_api = import_module("playwright.sync_api")  # `make bench-ui` brings Playwright
Page: TypeAlias = Any
LIMIT_S = 300.0
WIDE, RESULT = JobId("wide"), ResultId("1-0001")
INDEX_BYTES = 16  # of a subpartition in the index of a segment


def facts_of(job: JobId, exchanges: int, partitions: int, subpartitions: int) -> Iterator[Fact]:
    """Yield the facts of a job whose exchanges are written, and read by tasks of 1/8 each."""
    yield JobRegistered(SESSION, "0", "figures.py", "s3://b/r")
    for number in range(1, exchanges + 1):
        result = ResultId(f"1-{number:04}")
        yield ResultRegistered(result, partitions, subpartitions, "", "repartition")
        yield PartitionRegistered(result, 0, partitions)
        segment = SegmentSummary(0, 44_000, 1_000, 1, bytes(INDEX_BYTES * subpartitions))
        for index in range(partitions):
            attempt = AttemptId(PartitionId(result, index), 1, index)
            yield AttemptStarted(attempt, f"worker-{index % 40}")
            yield Produced(attempt, (segment,), 1)
        share = max(1, subpartitions // 8)
        for first in range(0, subpartitions, share):
            yield Consumed(result, first, share, partitions + first, 125, 5_500, partitions)


def fill(log: KafkaEventLog, jobs: int, partitions: int, subpartitions: int) -> int:
    """Write the jobs and what a master decides; return the number of facts."""
    me = MasterIdentity("figures", "master figures 0000000a", SYSTEM_CLOCK, "")
    settings = MasterSettings(step_events_max=STEP_EVENTS_MAX)
    with closing(GroupSteps(log, me, settings)) as master:
        written, names = 0, [JobId(f"job-{number:04}") for number in range(jobs)]
        everything = [(name, facts_of(name, 2, 8, 8)) for name in names]
        everything.append((WIDE, facts_of(WIDE, 1, partitions, subpartitions)))
        for name, facts in everything:
            announcer = Announcer(name, "driver")
            for fact in facts:
                while True:
                    try:
                        log.append(announcer.fact(fact))
                        break
                    except Unavailable:  # too many wait for their confirmation
                        master.step(0.1)
                written += 1
            master.step(0.0)
        deadline = Deadline.after(LIMIT_S)
        while len(master.states) <= jobs or not all(
            result.complete for state in master.states.values() for result in state.results.values()
        ):
            master.step(0.1)
            assert not deadline.passed, "the master is too slow"
        return written


@contextmanager
def serving(bootstrap: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Run `headgate ui`; yield its address and its process id."""
    command = [sys.executable, "-m", "headgate", "ui", "--port", "0", "--prefix", prefix]
    command += ["--broker", bootstrap, "--store", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http\S+", process.stdout.readline())
            assert address, "`headgate ui` did not start"
            yield address[0], process.pid
        finally:
            process.terminate()


def memory_mb(process: int) -> dict[str, int]:
    """Return the memory of a process in MB: resident now, and the peak so far."""
    status = Path(f"/proc/{process}/status").read_text()
    return {
        name: int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * 1024 // 1_000_000
        for name in ("VmRSS", "VmHWM")
    }


def shown_s(page: Page, address: str, is_there: Callable[[Page], None]) -> float:
    page.goto("about:blank")
    began_s = SYSTEM_CLOCK.monotonic_s()
    page.goto(address)
    is_there(page)
    return SYSTEM_CLOCK.monotonic_s() - began_s


def measured(page: Page, url: str, process: int, jobs: int, partitions: int) -> Table:
    expect = sync_api.expect
    expect.set_options(timeout=LIMIT_S * 1000)
    table = Table("look at", "first picture, s", "resident, MB", "peak, MB", title="headgate ui")

    def add(what: str, took_s: float | None) -> None:
        now = memory_mb(process)
        took = "" if took_s is None else f"{took_s:.2f}"
        table.add_row(what, took, str(now["VmRSS"]), str(now["VmHWM"]))

    def listed(page: Page) -> None:
        expect(page.locator("tbody tr")).to_have_count(jobs + 1)

    def drawn(page: Page) -> None:
        expect(page.locator("#known")).to_have_text(f"{partitions:,} consumable")

    add("nothing yet", None)
    for what in ("first look", "again"):
        add(f"{jobs + 1:,} jobs, {what}", shown_s(page, url, listed))
    for what in ("first look", "again"):
        took_s = shown_s(page, f"{url}#/job/{WIDE}/{RESULT}", drawn)
        add(f"{partitions:,} partitions, {what}", took_s)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.figures", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--subpartitions", type=int, default=1_000)
    chosen = parser.parse_args()
    state = stack.status()
    assert state is not None, "`make stack` starts it"
    prefix = f"figures-{os.urandom(4).hex()}"
    settings = KafkaSettings(state.bootstrap, prefix)
    try:
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            facts = fill(log, chosen.jobs, chosen.partitions, chosen.subpartitions)
        print(f"{facts:,} facts are written and decided", flush=True)
        with (
            serving(state.bootstrap, prefix) as (url, process),
            sync_api.sync_playwright() as playwright,
        ):
            path = os.environ.get("CHROMIUM") or shutil.which("chromium")
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            Console().print(measured(page, url, process, chosen.jobs, chosen.partitions))
            browser.close()
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([topic.name for topic in settings.topics]).values():
            deleted.result(LIMIT_S)


if __name__ == "__main__":
    main()
