"""Hours of small exchanges under faults: `python -m tests.chaos.soak --minutes 120 --seed 1`.

Applications of one session run side by side on services of their own, whose log forgets within
minutes. Processes are killed and paused, and connections are cut. Prints each fault and then every
error, and draws the memory of drivers and masters, whose growth is an error. Ends with 1 if there
is an error, and then keeps the folder with all output.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import SESSION
from headgate.control.ids import JobId
from headgate.control.kafka.log import KafkaEventLog
from headgate.storage.format.layout import Layout
from headgate.storage.stores.open_store import open_store
from tests.link import Link

from .long import SOON_MS
from .memory import Samples, drawn
from .place import PREFIX, SLOTS, Place, open_place
from .plan import LINK, LONG, PAUSED, Fault, Strike, Work, faults
from .processes import ROOT, STARTED_S_MAX, Application, Late, wait_for
from .rounds import Scene, strike

RETENTION_MS, SEGMENT_MS, LEASE_MS = 300_000, 60_000, 60_000
LATE_S_MAX = 1_200.0  # the delay that all faults together may cause
LOOKED_S_MAX = 300.0
EXPIRED_S_MAX = 2 * SOON_MS / 1000
PICTURE = ROOT / ".bench" / "soak.svg"


@dataclass
class Run:
    """A job with its link, and everything that its successive applications have reported."""

    place: Place
    job: str
    link: Link
    exchanges: int
    pace_s: float
    scene: Scene = field(init=False)

    def __post_init__(self) -> None:
        conf = {"broker": self.link.bootstrap, "lease.ms": str(LEASE_MS)}
        self.scene = Scene(self.place, Work(LONG, SESSION), self.job, conf, self.given)
        self.scene.start()

    def given(self) -> Mapping[str, Any]:
        return {
            "done": len(self.done()),
            "promoted": self.told("promoted"),
            "exchanges": self.exchanges,
            "pace_s": self.pace_s,
        }

    @property
    def last(self) -> Application:
        return self.scene.applications[-1]

    def done(self) -> set[int]:
        return {line["exchange"] for line in self._lines() if "exchange" in line}

    def told(self, key: str) -> dict[str, int]:
        return {name: rows for line in self._lines() for name, rows in line.get(key, {}).items()}

    def strike(self, fault: Fault) -> str:
        if fault.victim == LINK:
            self.link.cut()
            SYSTEM_CLOCK.sleep_s(fault.lasts_s)
            self.link.mend()
            return "the link to Kafka"
        hit, how = Strike("working", 0.0, fault.lasts_s, fault.choice), fault.how
        if fault.victim == "master" and self.scene.holder() == SLOTS[-1]:
            how = PAUSED  # its memory is watched
        return strike(self.scene, fault.victim, how, hit)

    def end(self) -> None:
        for application in self.scene.applications:
            application.end()

    def look_again(self) -> None:
        """Start one more application that looks for the promoted results."""
        self.scene.start()
        wait_for(self.last.is_over, LOOKED_S_MAX, f"{self.job} to be looked at")

    def wrong(self) -> Iterator[str]:
        yield from (f"{self.job}: {line['wrong']}" for line in self._lines() if "wrong" in line)
        if len(self.done()) != self.exchanges:
            yield f"{self.job}: {len(self.done())} of {self.exchanges} exchanges"
        if self.last.exit_code() != 0 or not self.last.has_reached("closed"):
            yield f"{self.job} ended with {self.last.exit_code()}: {self.last.complaint()}"

    def left(self, names: list[str]) -> Iterator[str]:
        """Yield a complaint about leftover objects, and about promoted results without objects.
        The drivers' markers stay with the promoted results."""
        layout = Layout(PREFIX, JobId(self.job))
        ours = (name for name in names if name.startswith(layout.prefix))
        there = {layout.result_of(name) for name in ours if layout.driver_of(name) is None}
        kept = set(self.told("promoted"))
        if there != kept:
            yield f"{self.job}: objects of {sorted(map(str, there))}, promoted are {sorted(kept)}"

    def _lines(self) -> list[dict[str, Any]]:
        return [line for application in self.scene.applications for line in application.told()]


@dataclass
class Soak:
    place: Place
    runs: list[Run]
    fallen: list[str] = field(default_factory=list)

    def pids(self) -> dict[str, int]:
        """Return the processes whose memory is watched."""
        pids = {f"master {slot}": pid for slot, pid in self.place.masters.pids().items()}
        for run in self.runs:
            python, *jvm = run.last.driver()
            pids[f"driver of {run.job}"] = python
            pids |= {f"JVM of {run.job}": pid for pid in jvm}
        return pids

    def run(self, seed: int, limit_s: float) -> None:
        """Strike until all applications have ended."""
        deadline = Deadline.after(limit_s)
        for number, fault in enumerate(faults(seed, len(self.runs)), 1):
            SYSTEM_CLOCK.sleep_s(fault.between_s)
            if all(run.last.is_over() for run in self.runs):
                return
            if deadline.passed:
                raise Late(f"not all applications have ended within {limit_s:.0f} s")
            run = self.runs[fault.at]
            if run.last.is_over():
                continue
            struck = run.strike(fault)
            self.fallen += self.place.masters.fallen()
            done = " ".join(str(len(each.done())) for each in self.runs)
            print(
                f"{number:>4} {fault.victim} {fault.how} for {fault.lasts_s:.0f} s: {struck}; "
                f"done: {done}",
                flush=True,
            )

    def wrong(self) -> Iterator[str]:
        """Yield everything that is wrong after all applications have ended."""
        yield from self.fallen
        for run in self.runs:
            try:
                run.look_again()
            except Late as exc:
                yield str(exc)
        with suppress(Late):
            wait_for(lambda: not any(self._left()), EXPIRED_S_MAX, "what expires to go")
        yield from self._left()
        for run in self.runs:
            yield from run.wrong()
        with closing(KafkaEventLog(self.place.log)) as log:
            for run in self.runs:
                if not log.oldest(JobId(run.job)):
                    yield f"the log has forgotten nothing where {run.job} is"
        yield from filter(None, (self.place.ask("fsck"), self.place.ask("audit", "verify")))

    def _left(self) -> Iterator[str]:
        names = self._names()
        for run in self.runs:
            yield from run.left(names)

    def _names(self) -> list[str]:
        place = self.place
        where = f"s3://{place.state.bucket}/{PREFIX}"
        with patch.dict(os.environ, place.env):
            store, root = open_store(where, {"endpoint": place.state.endpoint})
            with closing(store):
                return [stat.name for stat in store.list(root)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--exchanges", type=int, default=500, help="of each application")
    parser.add_argument("--applications", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all started processes too
    folder = Path(mkdtemp(prefix="headgate-soak-"))
    wrong = soak(folder, given)
    print(*(wrong or ["nothing is wrong"]), sep="\n")
    if wrong:
        print(f"what everybody said is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def soak(folder: Path, given: argparse.Namespace) -> list[str]:
    with ExitStack() as opening:
        place = opening.enter_context(open_place(folder, RETENTION_MS))
        forget_soon(place)
        pace_s = 60 * given.minutes / given.exchanges
        runs = list[Run]()
        for number in range(given.applications):
            link = Link(place.state.bootstrap, f"127.0.0.{number + 2}")
            opening.callback(link.close)
            runs.append(Run(place, f"soak-{number}", link, given.exchanges, pace_s))
            opening.callback(runs[-1].end)
        whole = Soak(place, runs)
        with closing(Samples(whole.pids)) as samples:
            try:
                whole.run(given.seed, 60 * given.minutes + LATE_S_MAX)
            except Late as exc:
                whole.fallen.append(str(exc))
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(drawn(samples.lives))
        print(f"the memory of drivers and masters: {PICTURE.relative_to(ROOT)}")
        return [*whole.wrong(), *samples.growing()]


def forget_soon(place: Place) -> None:
    """Make Kafka begin a new segment every minute, because it forgets whole segments only."""
    topic = ConfigResource(ResourceType.TOPIC, place.log.events_topic)
    change = AlterConfigOpType.SET
    topic.add_incremental_config(
        ConfigEntry("segment.ms", str(SEGMENT_MS), incremental_operation=change)
    )
    client = AdminClient({"bootstrap.servers": place.state.bootstrap})
    client.incremental_alter_configs([topic])[topic].result(STARTED_S_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
