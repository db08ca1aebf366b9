"""The processes of a round: applications and session masters, their output, and their children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from headgate.control.clock import SYSTEM_CLOCK, Deadline

from .plan import PHASES

ROOT = Path(__file__).parents[2]
STARTED_S_MAX = 300.0
_POLL_S = 0.05


class Late(AssertionError):
    """Something did not come in time."""


def wait_for(done: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = Deadline.after(limit_s)
    while not done():
        if deadline.passed:
            raise Late(f"waited {limit_s:g} s for {what}")
        SYSTEM_CLOCK.sleep_s(_POLL_S)


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Application:
    """A Spark application: its driver, its JVM, its executors and its Python workers, in one
    session."""

    def __init__(
        self, name: str, given: Mapping[str, Any], where: Path, env: Mapping[str, str]
    ) -> None:
        self._phases = PHASES[name]
        self._told, self._err = where.with_suffix(".out"), where.with_suffix(".err")
        command = [sys.executable, "-m", f"tests.chaos.{name}", json.dumps(given)]
        with self._told.open("wb") as out, self._err.open("wb") as err:
            self._driver = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._driver.pid

    def told(self) -> list[dict[str, Any]]:
        lines = self._told.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def phase(self) -> str:
        return str(self.told()[-1]["phase"]) if self.told() else "starting"

    def has_reached(self, phase: str) -> bool:
        at = self._phases.index
        return any(at(line["phase"]) >= at(phase) for line in self.told())

    def is_over(self) -> bool:
        return self._driver.poll() is not None

    def await_phase(self, phase: str, limit_s: float) -> None:
        """Wait until the application has reached a phase or has ended."""

        def done() -> bool:
            return self.has_reached(phase) or self.is_over()

        wait_for(done, limit_s, f"{phase!r}, the application is {self.phase()}")

    def read(self) -> Any:
        """Return what the application says that it has read, or None before it has said so."""
        return next((line["read"] for line in self.told() if "read" in line), None)

    def exit_code(self) -> int | None:
        return self._driver.poll()

    def complaint(self) -> str:
        """Return the last line of the application's stderr."""
        lines = [line for line in self._err.read_text().splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'nothing was said'} ({self._err})"

    def driver(self) -> list[int]:
        """Return the driver's Python process and its JVM."""
        return [self.pid, *(p.pid for p in self._members("deploy.SparkSubmit"))]

    def executors(self) -> list[int]:
        return [p.pid for p in self._members("CoarseGrainedExecutorBackend")]

    def workers(self) -> list[int]:
        """Return the Python processes that run tasks, which the daemons have forked."""
        members = self._members("pyspark.worker")  # the argument of each daemon
        daemons = {p.pid for p in members}
        return [p.pid for p in members if p.info["ppid"] in daemons]

    def end(self) -> None:
        """Kill all remaining processes, and wait until they are gone."""
        send([p.pid for p in self._members()], signal.SIGKILL)
        self._driver.wait()
        wait_for(
            lambda: not self._members(), STARTED_S_MAX, "the end of the application's processes"
        )

    def _members(self, word: str = "") -> list[psutil.Process]:
        """Return the live processes of the application whose command has the word. Python workers
        leave its process group, but not its session."""
        members = []
        for process in psutil.process_iter(["cmdline", "ppid", "status"]):
            with suppress(ProcessLookupError):
                ours = os.getsid(process.pid) == self.pid
                ended = process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
                if ours and not ended and word in " ".join(process.info["cmdline"] or ()):
                    members.append(process)
        return members


class Masters:
    """The `headgate master` processes, by slot."""

    def __init__(self, where: list[str], folder: Path, env: Mapping[str, str]) -> None:
        self._where, self._folder, self._env = where, folder, env
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, Path] = {}

    def start(self, slot: str) -> None:
        errors = self._folder / f"master-{slot}-{len(list(self._folder.glob('master-*')))}.err"
        command = [sys.executable, "-m", "headgate", "master", "--slot", slot, *self._where]
        with errors.open("wb") as stderr:
            kafka = ["--kafka", "session.timeout.ms=6000"]
            process = subprocess.Popen(
                command + kafka, cwd=ROOT, env=self._env, stderr=stderr, start_new_session=True
            )
        self._processes[slot], self._said[slot] = process, errors

    def holder(self, partition: int) -> str:
        """Return the slot whose process decides for a partition."""
        slots: list[str] = []

        def held() -> bool:
            slots[:] = [slot for slot in self._processes if partition in self._holds(slot)]
            return bool(slots)

        wait_for(held, STARTED_S_MAX, f"a master of partition {partition}")
        return slots[0]

    def send(self, slot: str, number: signal.Signals) -> int:
        """Signal the process of a slot, and return its pid."""
        process = self._processes[slot]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()
        return process.pid

    def pids(self) -> dict[str, int]:
        return {slot: process.pid for slot, process in self._processes.items()}

    def fallen(self) -> list[str]:
        """Start masters again that have ended by themselves, and return a complaint for each."""
        ended = [slot for slot, process in self._processes.items() if process.poll() is not None]
        complaints = [
            f"master {slot} ended with {self._processes[slot].returncode} ({self._said[slot]})"
            for slot in ended
        ]
        for slot in ended:
            self.start(slot)
        return complaints

    def end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STARTED_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _holds(self, slot: str) -> set[int]:
        partitions: set[int] = set()
        if self._processes[slot].poll() is not None:
            return partitions
        for line in self._said[slot].read_text().splitlines():
            if begun := re.search(r"decides for partition (\d+) now", line):
                partitions.add(int(begun[1]))
            if lost := re.search(r"holds partition (\d+) no longer", line):
                partitions.discard(int(lost[1]))
        return partitions
