"""One round: an application, its faults, and the checks afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.ids import JobId
from headgate.control.log import partition_of
from headgate.infra.devstack import daemons, stack

from . import tpcds
from .exchanges import FIRST, SECOND
from .place import TOPIC_PARTITIONS, Place
from .plan import EXCHANGES, KILLED, REPLACED, TPCDS, Round, Strike, Work
from .processes import STARTED_S_MAX, Application, Late, send, wait_for

WORK_S_MAX = 400.0
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Victim:
    """A process to kill or pause, and how it is restarted."""

    name: str
    send: Callable[[signal.Signals], Any]
    restart: Callable[[], Any] = lambda: None


@dataclass
class Scene:
    """A job under way, with its successive applications; the rows of the last one count. Each
    application gets `conf`, and the values that `given` returns at its start."""

    place: Place
    work: Work
    job: str
    conf: Mapping[str, str] = field(default_factory=dict)
    given: Callable[[], Mapping[str, Any]] = dict
    applications: list[Application] = field(default_factory=list)

    def start(self) -> Application:
        name = f"{self.job}-{len(self.applications) + 1}"
        started = self.place.start(name, self.job, self.work, self.conf, **self.given())
        self.applications.append(started)
        return started

    def victim(self, kind: str, choice: float) -> Victim:
        choices = {
            "master": self._master,
            "driver": self._driver,
            "executor": lambda: self._one_of(Application.executors, choice),
            "worker": lambda: self._one_of(Application.workers, choice),
            "leader": self._leader,
            "coordinator": self._coordinator,
            "store": self._store,
        }
        return choices[kind]()

    def holder(self) -> str:
        """Return the slot whose master decides for the job."""
        return self.place.masters.holder(partition_of(JobId(self.job), TOPIC_PARTITIONS))

    def _master(self) -> Victim:
        masters, slot = self.place.masters, self.holder()
        return Victim(
            f"slot {slot}", lambda number: masters.send(slot, number), lambda: masters.start(slot)
        )

    def _driver(self) -> Victim:
        pids = self.applications[-1].driver()
        return Victim(f"pids {pids}", lambda number: send(pids, number), self.start)

    def _one_of(self, among: Callable[[Application], list[int]], choice: float) -> Victim:
        last, pids = self.applications[-1], list[int]()

        def is_there() -> bool:
            pids[:] = sorted(among(last))
            return bool(pids) or last.is_over()

        wait_for(is_there, STARTED_S_MAX, "somebody to choose from")
        chosen = pids[int(choice * len(pids)) :][:1]
        name = f"pids {chosen}" if chosen else NOBODY
        return Victim(name, lambda number: send(chosen, number))

    def _leader(self) -> Victim:
        return self._node(self.place.leader(self.job))

    def _coordinator(self) -> Victim:
        return self._node(self.place.coordinator())

    def _store(self) -> Victim:
        return self._node("minio")

    def _node(self, name: str) -> Victim:
        settings = self.place.settings
        state = stack.status(settings)
        assert state is not None
        node = next(node for node in state.nodes if node.name == name)
        return Victim(
            name,
            lambda number: daemons.send(node, number),
            lambda: stack.up(len(state.nodes) - 1, settings),
        )


def strike_all(scene: Scene, round: Round) -> Iterator[str]:
    """Strike as the round says while the application runs; yield each victim and its phase."""
    first = scene.applications[-1]
    for at, hit in enumerate(round.strikes):
        first.await_phase(hit.phase, WORK_S_MAX)
        SYSTEM_CLOCK.sleep_s(hit.after_s)
        if at and first.is_over():
            return
        yield strike(scene, round.victim, round.how, hit)


def strike(scene: Scene, kind: str, how: str, hit: Strike) -> str:
    """Kill or pause once; return the victim and its phase."""
    first = scene.applications[-1]
    victim = scene.victim(kind, hit.choice)
    struck = f"{victim.name}, {first.phase()}"
    if how == KILLED:
        victim.send(signal.SIGKILL)
        SYSTEM_CLOCK.sleep_s(hit.lasts_s)
        victim.restart()
        return struck
    victim.send(signal.SIGSTOP)
    try:
        SYSTEM_CLOCK.sleep_s(hit.lasts_s)
        if how == REPLACED:
            scene.start().await_phase(scene.work.phases[2], WORK_S_MAX)
    finally:
        victim.send(signal.SIGCONT)
    return struck


@dataclass(frozen=True, slots=True)
class Outcome:
    round: Round
    struck: tuple[str, ...]
    took_s: float
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        planned = self.round
        when = f"{planned.strikes[0]} ({'; '.join(self.struck) or NOBODY})"
        verdict = "ok" if not self.wrong else "\n    ".join(("WRONG", *self.wrong))
        head = f"round {planned.number:>3} {planned.work}, {planned.what}"
        return f"{head}: {when}: {self.took_s:.1f} s, {verdict}"


def run(place: Place, planned: Round, expected: Any, job: str) -> Outcome:
    """Run the application of a round to its end, strike meanwhile, and check what is left."""
    begun_s = SYSTEM_CLOCK.monotonic_s()
    scene, struck, wrong = Scene(place, planned.work, job), list[str](), list[str]()
    try:
        scene.start()
        struck.extend(strike_all(scene, planned))
        last = scene.applications[-1]
        wait_for(last.is_over, WORK_S_MAX, f"the application's end, it is {last.phase()}")
    except Late as exc:
        wrong.append(str(exc))
    else:
        if all(what.startswith(NOBODY) for what in struck):
            wrong.append("no strike has hit anybody")
    finally:
        for application in scene.applications:
            application.end()
    wrong += _rows(scene, expected) + place.masters.fallen()
    asked = [place.ask("fsck", "--job", job), place.ask("audit", "verify", "--job", job)]
    wrong += filter(None, asked)
    took_s = SYSTEM_CLOCK.monotonic_s() - begun_s
    return Outcome(planned, tuple(struck), took_s, tuple(wrong))


def _rows(scene: Scene, expected: Any) -> list[str]:
    wrong = [
        f"read {application.read()}, not {expected}"
        for application in scene.applications
        if application.read() not in (None, expected)
    ]
    last = scene.applications[-1]
    if last.exit_code() != 0 or not last.has_reached("closed"):
        wrong.append(f"ended with {last.exit_code()} while {last.phase()}: {last.complaint()}")
    wrong += [f"ran in Spark: {line['native']}" for line in last.told() if line.get("native")]
    if scene.work.combined and [0] == [
        line["combined"] for line in last.told() if "combined" in line
    ]:
        wrong.append("nothing was combined")
    if len(scene.applications) > 1 and scene.work.application == EXCHANGES:
        wrong += _found_again(*scene.applications)
    return wrong


def _found_again(first: Application, second: Application) -> list[str]:
    """Return a complaint for each result that the first driver completed and the second did not
    find."""
    known = [line["found"] for line in second.told() if "found" in line]
    done = {"rewriting": FIRST[0], "reading": SECOND[0]}
    lost = [number for phase, number in done.items() if first.has_reached(phase)]
    if first.has_reached("closing") or not known:
        return []
    return [f"the result of {n} is not found again" for n in lost if n not in known[0]]


def undisturbed(place: Place, application: str) -> Any:
    """Return what an application reads without any fault; for queries, make their tables."""
    if application == TPCDS:
        tpcds.prepare(place.tables)
        return tpcds.RIGHT
    alone = Application(application, {"conf": {}}, place.folder / "undisturbed", place.env)
    try:
        wait_for(alone.is_over, WORK_S_MAX, "the undisturbed run")
        assert alone.read() is not None, alone.complaint()
        return alone.read()
    finally:
        alone.end()
